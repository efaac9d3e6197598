//! Only CRI v1 will do, and a user learns what to do about it.

use rubelet_cri::{ConnectError, CriClient, CriOptions};
use rubelet_fakes::cri::{Dialect, FakeCri, Reaction};
use rubelet_ports::RuntimeErrorKind as Kind;
use tonic::Code;

use crate::scene::{metrics, options};

async fn refusal(runtime: &FakeCri) -> (Kind, String) {
    match CriClient::connect(&options(runtime), &metrics()).await {
        Err(ConnectError::Runtime(error)) => (error.kind(), error.to_string()),
        other => panic!("not a refusal by the runtime: {other:?}"),
    }
}

#[tokio::test]
async fn a_v1_runtime_is_accepted() {
    let runtime = FakeCri::start().await.unwrap();
    CriClient::connect(&options(&runtime), &metrics())
        .await
        .expect("it speaks v1");
    assert_eq!(runtime.methods_called(), ["ImageFsInfo", "Version"]);
}

#[tokio::test]
async fn an_old_runtime_is_named_with_the_version_needed() {
    let runtime = FakeCri::start().await.unwrap();
    runtime.speak(Dialect::V1alpha2Only);
    let (kind, text) = refusal(&runtime).await;
    assert_eq!(kind, Kind::UnsupportedVersion);
    for part in [
        "CRI v1 is not served",
        "v1alpha2 only (fake 1.2.3)",
        "containerd 1.6 or newer",
        &runtime.endpoint(),
    ] {
        assert!(text.contains(part), "{part:?} is missing in {text}");
    }
}

#[tokio::test]
async fn a_runtime_with_its_cri_switched_off_is_told_from_an_old_one() {
    let runtime = FakeCri::start().await.unwrap();
    runtime.speak(Dialect::Neither);
    let (kind, text) = refusal(&runtime).await;
    assert_eq!(kind, Kind::UnsupportedVersion);
    assert!(
        text.contains("disabled_plugins") && text.contains("unknown service runtime.v1.RuntimeService"),
        "{text}"
    );
}

#[tokio::test]
async fn an_image_service_must_speak_v1_too() {
    let runtime = FakeCri::start().await.unwrap();
    runtime.on(
        "ImageFsInfo",
        Reaction::fail(Code::Unimplemented, "unknown service runtime.v1.ImageService"),
    );
    let (kind, text) = refusal(&runtime).await;
    assert_eq!(kind, Kind::UnsupportedVersion);
    assert!(text.starts_with("ImageFsInfo on "), "{text}");
}

#[tokio::test]
async fn other_errors_of_the_check_keep_their_kind() {
    let runtime = FakeCri::start().await.unwrap();
    runtime.on("Version", Reaction::fail(Code::Unavailable, "starting up"));
    assert_eq!(refusal(&runtime).await.0, Kind::Unavailable);
}

#[tokio::test]
async fn wrong_options_are_refused_before_anything_is_dialled() {
    let check = |endpoint: &str, expected: &str| {
        let error = CriClient::lazy(&CriOptions::new(endpoint), &metrics())
            .expect_err("refused")
            .to_string();
        assert!(error.contains(expected), "{error}");
    };
    check("", "containerRuntimeEndpoint");
    check("tcp://127.0.0.1:1", "only unix sockets");
    check("npipe:////./pipe/c", "\"npipe\" is not supported");
    check("unix://run/c.sock", "three slashes");
    let mut options = CriOptions::new("unix:///run/c.sock");
    options.image_endpoint = Some("tcp://127.0.0.1:1".to_owned());
    assert!(matches!(
        CriClient::lazy(&options, &metrics()),
        Err(ConnectError::Endpoint(_))
    ));
    let mut options = CriOptions::new("unix:///run/c.sock");
    options.request_timeout = std::time::Duration::ZERO;
    assert!(matches!(
        CriClient::lazy(&options, &metrics()),
        Err(ConnectError::NoTimeout)
    ));
}

#[tokio::test]
async fn a_bare_path_still_works() {
    let runtime = FakeCri::start().await.unwrap();
    let options = CriOptions::new(runtime.socket().to_str().unwrap());
    CriClient::connect(&options, &metrics())
        .await
        .expect("deprecated, not refused");
}
