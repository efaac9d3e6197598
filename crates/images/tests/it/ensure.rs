//! Policies, reasons, texts, events and backoff of one container's image.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use rubelet_images::ImagesSettings;
use rubelet_model::observation::PodUid;
use rubelet_ports::{Clock, ImageFailure, ImageProvider, PresentImage, RuntimeErrorKind as Kind};
use rubelet_wire::cri::v1;

use crate::fakes::{Bench, image, request, runtime_error};

const PRESENT: &str =
    "u/c Normal Pulled: Container image \"here:1\" already present on machine and can be accessed by the pod";

fn bench() -> Bench {
    let bench = Bench::fast(ImagesSettings::default());
    bench.service.add_present("here:1", image("sha256:here", 7));
    bench.service.add_to_registry("here:1", image("sha256:newer", 8));
    bench
        .service
        .add_to_registry("there:latest", image("sha256:there", 9));
    bench
}

/// What one question to a fresh node gives: the image's reference, or the reason and the message.
fn check(name: &str, policy: &str, expected: Result<&str, (&str, &str)>, events: &[&str], pulls: &[&str]) {
    check_on(&bench(), name, policy, expected, events, pulls);
}

fn check_on(
    bench: &Bench,
    name: &str,
    policy: &str,
    expected: Result<&str, (&str, &str)>,
    events: &[&str],
    pulls: &[&str],
) {
    let found = bench.ensure(request("u", name, policy));
    let found = found
        .as_ref()
        .map(|image| image.image_ref.as_str())
        .map_err(|failure| (failure.reason, failure.message.as_str()));
    assert_eq!(found, expected, "{name} {policy}");
    assert_eq!(bench.events(), events, "{name} {policy}");
    assert_eq!(bench.service.pulls(), pulls, "{name} {policy}");
}

#[test]
fn policies() {
    check("here:1", "IfNotPresent", Ok("sha256:here"), &[PRESENT], &[]);
    check("here:1", "Never", Ok("sha256:here"), &[PRESENT], &[]);
    check(
        "here:1",
        "Always",
        Ok("sha256:newer"),
        &[
            "u/c Normal Pulling: Pulling image \"here:1\"",
            "u/c Normal Pulled: Successfully pulled image \"here:1\" in 0s (0s including waiting). Image size: 8 bytes.",
        ],
        &["here:1"],
    );
    // The default tag goes to the runtime; people see what they wrote.
    check(
        "there",
        "IfNotPresent",
        Ok("sha256:there"),
        &[
            "u/c Normal Pulling: Pulling image \"there\"",
            "u/c Normal Pulled: Successfully pulled image \"there\" in 0s (0s including waiting). Image size: 9 bytes.",
        ],
        &["there:latest"],
    );
    let absent = "Container image \"there\" is not present with pull policy of Never";
    check(
        "there",
        "Never",
        Err(("ErrImageNeverPull", absent)),
        &[
            &format!("u/c Warning ErrImageNeverPull: {absent}"),
            "u/c Warning Failed: Error: ErrImageNeverPull",
        ],
        &[],
    );
}

#[test]
fn a_name_that_is_none_is_never_asked_for() {
    let message = "Failed to apply default image tag \"a b\": couldn't parse image name \"a b\": invalid reference format";
    for policy in ["Always", "IfNotPresent", "Never"] {
        check(
            "a b",
            policy,
            Err(("InvalidImageName", message)),
            &[
                &format!("u/c Warning InspectFailed: {message}"),
                "u/c Warning Failed: Error: InvalidImageName",
            ],
            &[],
        );
    }
    assert_eq!(
        bench().ensure(request("u", "A", "Always")).unwrap_err().retry_at,
        None
    );
}

#[test]
fn a_runtime_that_cannot_say_is_not_asked_to_pull() {
    let bench = bench();
    bench
        .service
        .fail_inspect(Some(runtime_error(Kind::Unavailable, "connection refused")));
    let message =
        "Failed to inspect image \"here:1\": rpc error: code = Unavailable desc = connection refused";
    check_on(
        &bench,
        "here:1",
        "IfNotPresent",
        Err(("ImageInspectError", message)),
        &[
            &format!("u/c Warning InspectFailed: {message}"),
            "u/c Warning Failed: Error: ImageInspectError",
        ],
        &[],
    );
}

#[test]
fn failed_pulls_have_the_runtimes_words() {
    let check_error = |kind: Kind, said: &str, reason: &str, message: &str, event: &str| {
        let bench = bench();
        bench.service.fail_pull(Some(runtime_error(kind, said)));
        check_on(
            &bench,
            "there",
            "IfNotPresent",
            Err((reason, message)),
            &[
                "u/c Normal Pulling: Pulling image \"there\"",
                &format!("u/c Warning Failed: Failed to pull image \"there\": {event}"),
                &format!("u/c Warning Failed: Error: {reason}"),
            ],
            &["there:latest"],
        );
        let failure = bench.ensure(request("u", "there", "IfNotPresent")).unwrap_err();
        assert_eq!(failure.reason, "ImagePullBackOff");
        assert_eq!(
            failure.message,
            format!("Back-off pulling image \"there\": {reason}: {message}")
        );
    };
    check_error(
        Kind::Unknown,
        "failed to resolve",
        "ErrImagePull",
        "failed to resolve",
        "failed to resolve",
    );
    check_error(
        Kind::NotFound,
        "no such image",
        "ErrImagePull",
        "rpc error: code = NotFound desc = no such image",
        "rpc error: code = NotFound desc = no such image",
    );
    check_error(
        Kind::Unknown,
        "RegistryUnavailable: 503",
        "RegistryUnavailable",
        "image pull failed for there because the registry is unavailable: 503",
        "RegistryUnavailable: 503",
    );
    check_error(
        Kind::Unknown,
        "SignatureValidationFailed: no key",
        "SignatureValidationFailed",
        "image pull failed for there because the signature validation failed: no key",
        "SignatureValidationFailed: no key",
    );
}

#[test]
fn backoff_grows_and_says_why_and_ends() {
    let bench = bench();
    let ask = || bench.ensure(request("u", "missing", "IfNotPresent"));
    let mut pulls = 0;
    for delay in [10, 20, 40, 80, 160, 300, 300] {
        let began = bench.clock.now();
        let failure = ask().unwrap_err();
        pulls += 1;
        assert_eq!(failure.reason, "ErrImagePull");
        assert_eq!(failure.retry_at, Some(began.plus(Duration::from_secs(delay))));
        bench.events();

        bench.clock.advance(Duration::from_secs(delay - 1));
        let expected = ImageFailure {
            reason: "ImagePullBackOff",
            message: "Back-off pulling image \"missing\": ErrImagePull: rpc error: code = NotFound desc = no such image"
                .to_owned(),
            retry_at: Some(began.plus(Duration::from_secs(delay))),
        };
        assert_eq!(ask(), Err(expected));
        assert_eq!(
            bench.events(),
            [
                "u/c Normal BackOff: Back-off pulling image \"missing\"",
                "u/c Warning Failed: Error: ImagePullBackOff",
            ]
        );
        assert_eq!(
            bench.service.pulls().len(),
            pulls,
            "nothing is pulled while backing off"
        );
        bench.clock.advance(Duration::from_secs(1));
    }

    // Another pod has its own delay, and a pod that is forgotten begins anew.
    bench.clock.advance(Duration::from_secs(1));
    ask().unwrap_err();
    let other = bench.ensure(request("v", "missing", "IfNotPresent")).unwrap_err();
    assert_eq!(other.reason, "ErrImagePull");
    bench.images.forget_pod(&PodUid::from("u"));
    assert_eq!(ask().unwrap_err().reason, "ErrImagePull");

    // Success is possible at the next try.
    bench
        .service
        .add_to_registry("missing:latest", image("sha256:late", 1));
    bench.clock.advance(Duration::from_secs(10));
    assert_eq!(ask().unwrap().image_ref, "sha256:late");
}

#[test]
fn an_image_that_appears_ends_the_wait_at_once() {
    let bench = bench();
    let ask = || bench.ensure(request("u", "missing", "IfNotPresent"));
    ask().unwrap_err();
    bench
        .service
        .add_present("missing:latest", image("sha256:loaded", 1));
    assert_eq!(ask().unwrap().image_ref, "sha256:loaded");
}

#[test]
fn the_images_user() {
    let check = |image: v1::Image, uid: Option<i64>, username: &str| {
        let bench = bench();
        bench.service.add_present("a:1", image.clone());
        bench.service.add_to_registry("b:1", image.clone());
        let expected = PresentImage {
            image_ref: image.id,
            uid,
            username: username.to_owned(),
        };
        assert_eq!(
            bench.ensure(request("u", "a:1", "IfNotPresent")),
            Ok(expected.clone())
        );
        assert_eq!(bench.ensure(request("u", "b:1", "Always")), Ok(expected));
    };
    let named = |uid: Option<i64>, username: &str| v1::Image {
        uid: uid.map(|value| v1::Int64Value { value }),
        username: username.to_owned(),
        ..image("sha256:a", 1)
    };
    check(named(None, ""), None, "");
    check(named(Some(0), ""), Some(0), "");
    check(named(Some(65_534), ""), Some(65_534), "");
    check(named(None, "nobody"), None, "nobody");
    check(named(Some(1), "ignored"), Some(1), "");
}

#[test]
fn a_pulled_image_whose_user_is_unknown_is_not_used() {
    let bench = bench();
    bench.service.hide_status_after_pull();
    let failure = bench.ensure(request("u", "there", "Always")).unwrap_err();
    assert_eq!(failure.reason, "ImageInspectError");
    assert_eq!(failure.retry_at, None);
    assert_eq!(
        bench.events()[1],
        "u/c Normal Pulled: Successfully pulled image \"there\" in 0s (0s including waiting). Image size: 0 bytes."
    );
}

#[test]
fn the_quick_look_neither_pulls_nor_tells() {
    let bench = bench();
    let check = |name: &str, policy: &str, expected: Option<&str>| {
        let request = request("u", name, policy);
        let found = bench.images.present(&request).now_or_never().unwrap();
        assert_eq!(
            found.map(|image| image.image_ref).as_deref(),
            expected,
            "{name} {policy}"
        );
    };
    check("here:1", "IfNotPresent", Some("sha256:here"));
    check("here:1", "Never", Some("sha256:here"));
    check("here:1", "Always", None);
    check("there", "IfNotPresent", None);
    check("there", "Never", None);
    check("a b", "Never", None);
    bench
        .service
        .fail_inspect(Some(runtime_error(Kind::Unavailable, "")));
    check("here:1", "IfNotPresent", None);
    assert_eq!(bench.events(), [""; 0]);
    assert_eq!(bench.service.pulls(), [""; 0]);
}

#[test]
fn the_runtime_is_told_about_the_pod() {
    let bench = bench();
    let mut request = request("u", "there", "Always");
    let annotations = [("team".to_owned(), "blue".to_owned())].into();
    Arc::make_mut(&mut request.pod).metadata.annotations = Some(annotations);
    request.sandbox_config = Some(v1::PodSandboxConfig {
        hostname: "h".to_owned(),
        ..v1::PodSandboxConfig::default()
    });
    bench.ensure(request).unwrap();
    let (spec, sandbox_config) = bench.service.last_pull();
    assert_eq!(spec.annotations["team"], "blue");
    assert_eq!(sandbox_config.unwrap().hostname, "h");
}

#[test]
fn the_text_follows_the_gate() {
    let bench = Bench::fast(ImagesSettings {
        ensure_secret_pulled_images: false,
        ..ImagesSettings::default()
    });
    bench.service.add_present("here:1", image("sha256:here", 7));
    bench.ensure(request("u", "here:1", "IfNotPresent")).unwrap();
    assert_eq!(
        bench.events(),
        ["u/c Normal Pulled: Container image \"here:1\" already present on machine"]
    );
}
