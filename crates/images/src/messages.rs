//! The user-visible texts about images: waiting reasons, event reasons and messages, all upstream's.
//!
//! Owns the texts, because users search for them and tools match them. It decides nothing.

use std::time::Duration;

use rubelet_lifecycle::configuration::downward::quoted;
use rubelet_model::GoDuration;
use rubelet_ports::{FileError, RuntimeError, RuntimeErrorKind as Kind};

use rubelet_model::image_reference::ReferenceError;

/// Waiting reasons of a container whose image is not there.
pub(crate) mod reason {
    pub(crate) const BACKOFF: &str = "ImagePullBackOff";
    pub(crate) const INSPECT: &str = "ImageInspectError";
    pub(crate) const PULL: &str = "ErrImagePull";
    pub(crate) const NEVER: &str = "ErrImageNeverPull";
    pub(crate) const INVALID_NAME: &str = "InvalidImageName";
    pub(crate) const REGISTRY_UNAVAILABLE: &str = "RegistryUnavailable";
    pub(crate) const SIGNATURE: &str = "SignatureValidationFailed";
}

/// Reasons of events.
pub(crate) mod event {
    pub(crate) const PULLING: &str = "Pulling";
    pub(crate) const PULLED: &str = "Pulled";
    pub(crate) const FAILED: &str = "Failed";
    pub(crate) const INSPECT_FAILED: &str = "InspectFailed";
    pub(crate) const NEVER: &str = "ErrImageNeverPull";
    pub(crate) const BACKOFF: &str = "BackOff";
    pub(crate) const MISSING_SECRETS: &str = "FailedToRetrieveImagePullSecret";
}

pub(crate) fn invalid_name(image: &str, error: &ReferenceError) -> String {
    let image = quoted(image);
    format!("Failed to apply default image tag {image}: couldn't parse image name {image}: {error}")
}

/// Upstream leaves the quotes empty here; the image's name helps more.
pub(crate) fn inspect_failed(image: &str, error: &RuntimeError) -> String {
    format!(
        "Failed to inspect image {}: {}",
        quoted(image),
        runtime_error(error)
    )
}

pub(crate) fn not_present(image: &str) -> String {
    format!(
        "Container image {} is not present with pull policy of Never",
        quoted(image)
    )
}

/// `verified`: upstream's gate `KubeletEnsureSecretPulledImages` is on.
pub(crate) fn already_present(image: &str, verified: bool) -> String {
    let image = quoted(image);
    if verified {
        format!("Container image {image} already present on machine and can be accessed by the pod")
    } else {
        format!("Container image {image} already present on machine")
    }
}

pub(crate) fn pulling(image: &str) -> String {
    format!("Pulling image {}", quoted(image))
}

pub(crate) fn pulled(image: &str, pull: Duration, with_waiting: Duration, size_bytes: u64) -> String {
    format!(
        "Successfully pulled image {} in {} ({} including waiting). Image size: {size_bytes} bytes.",
        quoted(image),
        in_milliseconds(pull),
        in_milliseconds(with_waiting),
    )
}

pub(crate) fn pull_failed(image: &str, error: &str) -> String {
    format!("Failed to pull image {}: {error}", quoted(image))
}

/// The error of each candidate; equal messages appear once.
pub(crate) fn runtime_errors(errors: &[RuntimeError]) -> String {
    let mut messages: Vec<String> = Vec::new();
    for message in errors.iter().map(runtime_error) {
        if !messages.contains(&message) {
            messages.push(message);
        }
    }
    match messages.as_slice() {
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}

pub(crate) fn missing_secrets(names: &[String]) -> String {
    format!(
        "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
        names.join(", ")
    )
}

pub(crate) fn intent_failed(image: &str, error: &FileError) -> String {
    format!(
        "Failed to record image pull intent for container image {}: {error}",
        quoted(image)
    )
}

pub(crate) fn backing_off(image: &str) -> String {
    format!("Back-off pulling image {}", quoted(image))
}

/// The waiting reason and message of a failed pull: a reason at the start of the runtime's message wins.
pub(crate) fn pull_failure(image: &str, error: &str) -> (&'static str, String) {
    if let Some(detail) = error.strip_prefix(reason::REGISTRY_UNAVAILABLE) {
        let message = format!("image pull failed for {image} because the registry is unavailable{detail}");
        return (reason::REGISTRY_UNAVAILABLE, message);
    }
    if let Some(detail) = error.strip_prefix(reason::SIGNATURE) {
        let message =
            format!("image pull failed for {image} because the signature validation failed{detail}");
        return (reason::SIGNATURE, message);
    }
    (reason::PULL, error.to_owned())
}

/// A failed call as Go's client prints it, which is what people paste into search engines. The unspecific code is left out,
/// so that the runtime's reason comes first.
pub(crate) fn runtime_error(error: &RuntimeError) -> String {
    let code = match error.kind() {
        Kind::Unknown => None,
        Kind::NotFound => Some("NotFound"),
        Kind::AlreadyExists => Some("AlreadyExists"),
        Kind::Unimplemented => Some("Unimplemented"),
        Kind::DeadlineExceeded => Some("DeadlineExceeded"),
        Kind::Unavailable => Some("Unavailable"),
        Kind::InvalidArgument => Some("InvalidArgument"),
        Kind::FailedPrecondition => Some("FailedPrecondition"),
        Kind::PermissionDenied => Some("PermissionDenied"),
        Kind::ResourceExhausted | Kind::MessageTooLarge => Some("ResourceExhausted"),
        Kind::Cancelled => Some("Canceled"),
        Kind::Internal => Some("Internal"),
        // These are our own errors, not the runtime's.
        Kind::MalformedAnswer | Kind::UnsupportedVersion => return error.to_string(),
    };
    match (error.message(), code) {
        ("", _) => error.to_string(),
        (message, None) => message.to_owned(),
        (message, Some(code)) => format!("rpc error: code = {code} desc = {message}"),
    }
}

fn in_milliseconds(duration: Duration) -> GoDuration {
    GoDuration::from_millis(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pull_failures_are_told_by_their_first_word() {
        let check = |error: &str, reason: &str, message: &str| {
            assert_eq!(pull_failure("img", error), (reason, message.to_owned()));
        };
        check("no such host", "ErrImagePull", "no such host");
        check(
            "RegistryUnavailable: 503",
            "RegistryUnavailable",
            "image pull failed for img because the registry is unavailable: 503",
        );
        check(
            "RegistryUnavailable",
            "RegistryUnavailable",
            "image pull failed for img because the registry is unavailable",
        );
        check(
            "SignatureValidationFailed: bad key",
            "SignatureValidationFailed",
            "image pull failed for img because the signature validation failed: bad key",
        );
        check(
            "it was RegistryUnavailable",
            "ErrImagePull",
            "it was RegistryUnavailable",
        );
    }

    #[test]
    fn runtime_errors_read_as_in_go() {
        let check = |kind: Kind, message: &str, expected: &str| {
            let error = RuntimeError::new("PullImage", "unix:///c.sock", kind, message);
            assert_eq!(runtime_error(&error), expected);
        };
        check(Kind::Unknown, "failed to resolve", "failed to resolve");
        check(
            Kind::NotFound,
            "failed to pull and unpack image",
            "rpc error: code = NotFound desc = failed to pull and unpack image",
        );
        check(
            Kind::Cancelled,
            "context canceled",
            "rpc error: code = Canceled desc = context canceled",
        );
        check(Kind::Unknown, "", "PullImage on unix:///c.sock: failed");
        check(
            Kind::MalformedAnswer,
            "image_ref is empty",
            "PullImage on unix:///c.sock: the answer breaks the interface: image_ref is empty (this is a defect of the \
             container runtime; look for an update of it)",
        );
    }

    #[test]
    fn errors_of_several_candidates_are_told_together() {
        let check = |messages: &[&str], expected: &str| {
            let error = |message: &&str| RuntimeError::new("PullImage", "e", Kind::Unknown, message);
            let errors: Vec<_> = messages.iter().map(error).collect();
            assert_eq!(runtime_errors(&errors), expected);
        };
        check(&["a"], "a");
        check(&["a", "a"], "a");
        check(&["a", "b", "a"], "[a, b]");
    }

    #[test]
    fn sentences() {
        let ms = Duration::from_micros;
        assert_eq!(
            pulled("a:1", ms(1_234_567), ms(61_000_999), 4096),
            "Successfully pulled image \"a:1\" in 1.234s (1m1s including waiting). Image size: 4096 bytes."
        );
        assert_eq!(
            pulled("a:1", Duration::ZERO, ms(999), 0),
            "Successfully pulled image \"a:1\" in 0s (0s including waiting). Image size: 0 bytes."
        );
        assert_eq!(
            already_present("a", false),
            "Container image \"a\" already present on machine"
        );
        assert_eq!(
            invalid_name("A \"b", &ReferenceError::Format),
            "Failed to apply default image tag \"A \\\"b\": couldn't parse image name \"A \\\"b\": invalid reference format"
        );
    }
}
