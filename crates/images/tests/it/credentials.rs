//! Pull secrets and the node's docker configuration: which are tried, in which order, and what is told.

use std::path::PathBuf;
use std::sync::Arc;

use futures_util::FutureExt as _;
use rubelet_images::{CredentialSources, ImagesSettings, NodeDockerConfig};
use rubelet_ports::ImageRequest;
use tokio::sync::Semaphore;

use crate::edges::{FakeFiles, FakeObjects, pod_request};
use crate::fakes::{Bench, image, poll};

const IMAGE: &str = "r.io/team/app:1";

struct Place {
    bench: Bench,
    objects: Arc<FakeObjects>,
    files: Arc<FakeFiles>,
}

fn place_with(slow: Option<Semaphore>) -> Place {
    let objects = Arc::<FakeObjects>::default();
    let files = Arc::<FakeFiles>::default();
    let sources = CredentialSources {
        objects: Some(objects.clone()),
        node_files: Some(NodeDockerConfig::usual_places(
            files.clone(),
            PathBuf::from("/root-dir"),
            PathBuf::from("/cwd"),
            PathBuf::from("/home/me"),
        )),
        providers: None,
    };
    let settings = ImagesSettings {
        registry_pull_qps: 0.0,
        serialize_pulls: false,
        ..ImagesSettings::default()
    };
    let bench = Bench::built(settings, slow, |images, _, _| images.with_credentials(sources));
    bench.service.add_to_registry(IMAGE, image("sha256:app", 1));
    Place {
        bench,
        objects,
        files,
    }
}

fn place() -> Place {
    place_with(None)
}

fn pod(namespace: &str, uid: &str, secrets: &[&str]) -> ImageRequest {
    pod_request(namespace, uid, IMAGE, "Always", secrets, None)
}

fn shown(place: &Place) -> Vec<String> {
    let shown = place.bench.service.shown().into_iter();
    shown
        .map(|password| password.unwrap_or_else(|| "none".to_owned()))
        .collect()
}

#[test]
fn candidates_are_tried_in_turn_until_one_opens() {
    let place = place();
    place.bench.service.protect(IMAGE, &["good"]);
    place.objects.put_login("ns", "wide", "r.io", "wide");
    place.objects.put_login("ns", "wild", "*.io", "wild");
    place.objects.put_login("ns", "other", "other.io", "never shown");
    place
        .objects
        .put_login("ns", "narrow", "https://r.io/v2/team", "narrow");
    place.files.put(
        "/home/me/.docker/config.json",
        r#"{"auths":{"r.io":{"username":"u","password":"good"}}}"#,
    );
    let answer = place
        .bench
        .ensure(pod("ns", "u", &["wild", "wide", "", "other", "narrow"]));
    assert_eq!(answer.unwrap().image_ref, "sha256:app");
    assert_eq!(shown(&place), ["narrow", "wide", "wild", "good"]);
    // The first that opens is the last that is tried.
    place.bench.service.protect(IMAGE, &["wide", "good"]);
    place.bench.ensure(pod("ns", "v", &["wide", "narrow"])).unwrap();
    assert_eq!(shown(&place), ["narrow", "wide"]);
}

#[test]
fn without_a_fitting_credential_the_registry_is_asked_without() {
    let place = place();
    place.objects.put_login("ns", "other", "other.io", "p");
    place.bench.ensure(pod("ns", "u", &["other"])).unwrap();
    assert_eq!(shown(&place), ["none"]);
    // Secrets of another namespace are not the pod's.
    place.objects.put_login("elsewhere", "mine", "r.io", "p");
    place.bench.ensure(pod("ns", "v", &["mine"])).unwrap();
    assert_eq!(shown(&place), ["none"]);
}

#[test]
fn a_failure_tells_every_error_and_no_password() {
    let place = place();
    place.bench.service.protect(IMAGE, &["good"]);
    place.objects.put_login("ns", "one", "r.io", "first-password");
    place
        .objects
        .put_login("ns", "two", "r.io/team", "second-password");
    let failure = place
        .bench
        .ensure(pod("ns", "u", &["one", "two", "gone", "lost"]))
        .unwrap_err();
    let words = "401 Unauthorized for password [redacted]";
    assert_eq!(
        (failure.reason, failure.message.as_str()),
        ("ErrImagePull", words)
    );
    let events = place.bench.events();
    assert_eq!(
        events,
        [
            format!("u/c Normal Pulling: Pulling image {IMAGE:?}"),
            format!("u/c Warning Failed: Failed to pull image {IMAGE:?}: {words}"),
            "u/ Warning FailedToRetrieveImagePullSecret: Unable to retrieve some image pull secrets (gone, lost); attempting to \
             pull the image may not succeed."
                .to_owned(),
            "u/c Warning Failed: Error: ErrImagePull".to_owned(),
        ]
    );
    // While it waits, nothing is asked again and nothing is told again.
    shown(&place);
    let failure = place
        .bench
        .ensure(pod("ns", "u", &["one", "two", "gone"]))
        .unwrap_err();
    assert_eq!(failure.reason, "ImagePullBackOff");
    assert_eq!(
        failure.message,
        format!("Back-off pulling image {IMAGE:?}: ErrImagePull: {words}")
    );
    assert_eq!(shown(&place), [""; 0]);
    assert!(
        !place
            .bench
            .events()
            .iter()
            .any(|event| event.contains("FailedToRetrieve"))
    );
}

#[test]
fn a_missing_secret_is_not_told_when_the_pull_succeeds() {
    let place = place();
    place.bench.ensure(pod("ns", "u", &["gone"])).unwrap();
    assert_eq!(place.bench.events().len(), 2);
}

#[test]
fn a_secret_that_makes_no_sense_is_named_and_its_content_is_not() {
    let place = place();
    let type_ = "kubernetes.io/dockerconfigjson";
    place
        .objects
        .put_secret("ns", "odd", type_, ".dockerconfigjson", "hidden-content");
    let failure = place.bench.ensure(pod("ns", "u", &["odd"])).unwrap_err();
    assert_eq!(failure.reason, "ErrImagePull");
    assert_eq!(
        failure.message,
        "pull secret ns/odd cannot be used: it is no valid JSON"
    );
    assert!(failure.retry_at.is_some());
    assert_eq!(shown(&place), [""; 0], "nothing is pulled");
    assert!(!place.bench.events().concat().contains("hidden"));
}

#[test]
fn the_first_file_that_makes_sense_counts() {
    let config =
        |password: &str| format!(r#"{{"auths":{{"r.io":{{"username":"u","password":"{password}"}}}}}}"#);
    let legacy = |password: &str| format!(r#"{{"r.io":{{"username":"u","password":"{password}"}}}}"#);
    let check = |files: &[(&str, String)], expected: &str| {
        let place = place();
        for (path, content) in files {
            place.files.put(path, content);
        }
        place.bench.ensure(pod("ns", "u", &[])).unwrap();
        assert_eq!(shown(&place), [expected], "{files:?}");
    };
    let own = ("/root-dir/config.json", config("own"));
    let working = ("/cwd/config.json", config("working"));
    let home = ("/home/me/.docker/config.json", config("home"));
    let root = ("/.docker/config.json", config("root"));
    check(&[own.clone(), working.clone(), home.clone(), root.clone()], "own");
    check(&[working.clone(), home.clone(), root.clone()], "working");
    check(&[home.clone(), root.clone()], "home");
    check(std::slice::from_ref(&root), "root");
    check(&[("/root-dir/config.json", "broken".to_owned()), home], "home");
    check(
        &[("/root-dir/config.json", "{}".to_owned()), root.clone()],
        "none",
    );
    check(&[("/home/me/.dockercfg", legacy("old")), root], "root");
    check(
        &[
            ("/home/me/.dockercfg", legacy("old")),
            ("/.dockercfg", legacy("older")),
        ],
        "old",
    );
    check(
        &[
            ("/root-dir/.dockercfg", legacy("own")),
            ("/cwd/.dockercfg", legacy("w")),
        ],
        "own",
    );
    check(&[], "none");
}

#[test]
fn a_pull_is_shared_by_those_with_the_same_credentials() {
    let place = place_with(Some(Semaphore::new(0)));
    // The same content in secrets of two namespaces, and another one.
    place.objects.put_login("a", "s", "r.io", "same");
    place.objects.put_login("b", "t", "r.io", "same");
    place.objects.put_login("c", "s", "r.io", "different");
    let ask = |namespace: &str, uid: &str, secrets: &[&str]| {
        place
            .bench
            .asking(pod_request(namespace, uid, IMAGE, "IfNotPresent", secrets, None))
    };
    let mut first = ask("a", "1", &["s"]);
    let mut second = ask("b", "2", &["t"]);
    let mut third = ask("c", "3", &["s"]);
    let mut fourth = ask("d", "4", &[]);
    for asking in [&mut first, &mut second, &mut third, &mut fourth] {
        assert_eq!(poll(asking), None);
    }
    assert_eq!(place.bench.service.in_flight(), 3);
    assert_eq!(shown(&place), ["same", "different", "none"]);
    place.bench.service.finish(3);
    for asking in [first, second, third, fourth] {
        assert!(asking.now_or_never().unwrap().is_ok());
    }
}
