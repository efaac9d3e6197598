//! What can go wrong in a call to the container runtime, in the callers' terms.
//!
//! Owns the kinds of failure, which of them a retry can heal, and the sentence that a user reads. It must not hold anything
//! secret: URLs lose their user part when the error is made, and the code that sends pull credentials strikes them out.

use std::fmt;

use rubelet_model::message::bounded;
use thiserror::Error;

/// The kind of a failure, as far as a caller acts on it differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RuntimeErrorKind {
    /// The runtime does not know the sandbox, container or image.
    NotFound,
    /// The runtime has one of that name already.
    AlreadyExists,
    /// The runtime does not have this call.
    Unimplemented,
    /// No answer within the call's deadline, or the runtime stopped answering during a call that has none.
    DeadlineExceeded,
    /// No connection: the runtime is down, restarting, or hung up during the call.
    Unavailable,
    /// The runtime refuses the request as wrong in itself.
    InvalidArgument,
    /// The object's state forbids the call now.
    FailedPrecondition,
    /// The runtime, or the registry behind it, denies access.
    PermissionDenied,
    /// The runtime is out of something.
    ResourceExhausted,
    /// A message was larger than both sides agreed on.
    MessageTooLarge,
    /// The call was cancelled, on the runtime's side.
    Cancelled,
    /// The runtime answered something that breaks the interface's contract.
    MalformedAnswer,
    /// The runtime does not support CRI v1.
    UnsupportedVersion,
    /// The runtime reports an internal failure.
    Internal,
    /// Everything else; containerd reports most failures of its own work this way.
    Unknown,
}

impl RuntimeErrorKind {
    /// Whether the same call may succeed later with nothing else changed.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        match self {
            Self::DeadlineExceeded
            | Self::Unavailable
            | Self::FailedPrecondition
            | Self::ResourceExhausted
            | Self::Cancelled
            | Self::Internal
            | Self::Unknown => true,
            Self::NotFound
            | Self::AlreadyExists
            | Self::Unimplemented
            | Self::InvalidArgument
            | Self::PermissionDenied
            | Self::MessageTooLarge
            | Self::MalformedAnswer
            | Self::UnsupportedVersion => false,
        }
    }

    fn phrase(self) -> &'static str {
        match self {
            Self::NotFound => "not found",
            Self::AlreadyExists => "already exists",
            Self::Unimplemented => "not implemented by the runtime",
            Self::DeadlineExceeded => "no answer in time",
            Self::Unavailable => "the runtime cannot be reached",
            Self::InvalidArgument => "refused as invalid",
            Self::FailedPrecondition => "not possible in the present state",
            Self::PermissionDenied => "access denied",
            Self::ResourceExhausted => "the runtime is out of resources",
            Self::MessageTooLarge => "message too large",
            Self::Cancelled => "cancelled",
            Self::MalformedAnswer => "the answer breaks the interface",
            Self::UnsupportedVersion => "CRI v1 is not served",
            Self::Internal => "failed inside the runtime",
            Self::Unknown => "failed",
        }
    }

    /// What the user can do about it, where there is better advice than the runtime's message.
    fn advice(self) -> Option<&'static str> {
        match self {
            Self::Unavailable => {
                Some("check that the container runtime is running and that this is its socket")
            }
            Self::DeadlineExceeded => Some(
                "check whether the container runtime hangs; runtimeRequestTimeout sets how long calls may take",
            ),
            Self::MessageTooLarge => Some(
                "a list shrinks when dead containers, sandboxes or images are removed; the feature gate CRIListStreaming \
                 lifts the limit for lists",
            ),
            Self::UnsupportedVersion => {
                Some("use a runtime that serves CRI v1, for instance containerd 1.6 or newer")
            }
            Self::Unimplemented => Some("a newer container runtime may have it"),
            Self::MalformedAnswer => {
                Some("this is a defect of the container runtime; look for an update of it")
            }
            Self::NotFound
            | Self::AlreadyExists
            | Self::InvalidArgument
            | Self::FailedPrecondition
            | Self::PermissionDenied
            | Self::ResourceExhausted
            | Self::Cancelled
            | Self::Internal
            | Self::Unknown => None,
        }
    }
}

impl fmt::Display for RuntimeErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.phrase())
    }
}

/// A failed call to the container runtime.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub struct RuntimeError {
    method: &'static str,
    endpoint: String,
    kind: RuntimeErrorKind,
    message: String,
}

impl RuntimeError {
    /// `message` is the error text of the runtime or the transport; a user part in its URLs is struck out, and a long one is cut.
    #[must_use]
    pub fn new(method: &'static str, endpoint: &str, kind: RuntimeErrorKind, message: &str) -> Self {
        Self {
            method,
            endpoint: endpoint.to_owned(),
            kind,
            // After the users are gone: a cut within an address would keep a password.
            message: bounded(without_url_users(message)),
        }
    }

    /// The CRI method that was called, such as `PullImage`.
    #[must_use]
    pub fn method(&self) -> &'static str {
        self.method
    }

    /// The endpoint that was called.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    #[must_use]
    pub fn kind(&self) -> RuntimeErrorKind {
        self.kind
    }

    /// The runtime's own message, alone. Upstream's reasons for failed pulls are recognised in it.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Whether the same call may succeed later with nothing else changed.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.kind.is_retryable()
    }

    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.kind == RuntimeErrorKind::NotFound
    }

    /// The same error with every occurrence of these secrets struck out, for a runtime that repeats what it was given.
    #[must_use]
    pub fn without(mut self, secrets: &[&str]) -> Self {
        // A shorter "secret" would only garble the message, and guessing it is easier than reading it here.
        for secret in secrets.iter().filter(|secret| secret.len() >= MIN_SECRET_LEN) {
            self.message = self.message.replace(secret, REDACTED);
        }
        self
    }
}

const REDACTED: &str = "[redacted]";
const MIN_SECRET_LEN: usize = 3;

impl fmt::Display for RuntimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}: {}", self.method, self.endpoint, self.kind)?;
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        match self.kind.advice() {
            Some(advice) => write!(f, " ({advice})"),
            None => Ok(()),
        }
    }
}

/// Strikes the user part out of every URL: registries' error texts repeat the address that was asked.
fn without_url_users(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("://") {
        let (before, after) = rest.split_at(start + "://".len());
        clean.push_str(before);
        let authority_len = after
            .find(|c: char| c == '/' || c == '"' || c.is_whitespace())
            .unwrap_or(after.len());
        let (authority, tail) = after.split_at(authority_len);
        match authority.rsplit_once('@') {
            Some((_, host)) => {
                clean.push_str(REDACTED);
                clean.push('@');
                clean.push_str(host);
            }
            None => clean.push_str(authority),
        }
        rest = tail;
    }
    clean.push_str(rest);
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_users_are_struck_out() {
        let check = |text: &str, expected: &str| assert_eq!(without_url_users(text), expected);
        check("", "");
        check("no url, but a@b", "no url, but a@b");
        check(
            "GET https://registry.example/v2/: 401",
            "GET https://registry.example/v2/: 401",
        );
        check(
            "GET https://u:p@registry.example/v2/: 401",
            "GET https://[redacted]@registry.example/v2/: 401",
        );
        check(
            "\"https://u:p@a\" then http://t@b/x",
            "\"https://[redacted]@a\" then http://[redacted]@b/x",
        );
        check("https://a/image@sha256:00", "https://a/image@sha256:00");
        check("ends in ://", "ends in ://");
        check("https://u:p@ß@host/ü", "https://[redacted]@host/ü");
    }

    #[test]
    fn an_error_says_what_where_and_what_to_do() {
        let error = RuntimeError::new(
            "PullImage",
            "unix:///run/c.sock",
            RuntimeErrorKind::Unavailable,
            "refused",
        );
        assert_eq!(
            error.to_string(),
            "PullImage on unix:///run/c.sock: the runtime cannot be reached: refused \
             (check that the container runtime is running and that this is its socket)"
        );
        assert!(error.is_retryable());
        let error = RuntimeError::new(
            "StopContainer",
            "unix:///run/c.sock",
            RuntimeErrorKind::NotFound,
            "",
        );
        assert_eq!(
            error.to_string(),
            "StopContainer on unix:///run/c.sock: not found"
        );
        assert!(!error.is_retryable());
    }

    #[test]
    fn secrets_are_struck_out() {
        let error = RuntimeError::new(
            "PullImage",
            "e",
            RuntimeErrorKind::Unknown,
            "bad password hunter2 for me",
        )
        .without(&["hunter2", "", "me"]);
        assert_eq!(error.message(), "bad password [redacted] for me");
    }
}
