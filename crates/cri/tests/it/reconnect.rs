//! The runtime goes away and comes back.

use rubelet_cri::{ConnectError, CriClient};
use rubelet_fakes::cri::{FakeCri, Reaction};
use rubelet_ports::RuntimeErrorKind as Kind;
use rubelet_ports::{ImageReader, RuntimeReader, RuntimeWriter};

use crate::scene::{Scene, failure, metrics, options};

#[tokio::test]
async fn a_call_under_a_restart_breaks_and_the_next_ones_work() {
    let mut scene = Scene::new().await;
    scene.runtime.once("StopContainer", Reaction::hang());
    let client = scene.client.clone();
    let call = tokio::spawn(async move { client.stop_container("c", 30).await });
    scene.runtime.called("StopContainer", 1).await.unwrap();
    scene.runtime.restart().await.unwrap();
    let error = call.await.unwrap().expect_err("its runtime died");
    assert_eq!((error.kind(), error.is_retryable()), (Kind::Unavailable, true));
    scene.until_answered().await;
}

#[tokio::test]
async fn calls_fail_at_once_while_the_runtime_is_down() {
    let mut scene = Scene::new().await;
    assert!(scene.client.version().await.is_ok());
    scene.runtime.stop().await.unwrap();
    for _ in 0..50 {
        let error = scene.client.version().await.expect_err("nobody is there");
        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(
            error
                .to_string()
                .contains("check that the container runtime is running"),
            "{error}"
        );
    }
    scene.runtime.resume().await.unwrap();
    scene.until_answered().await;
}

/// A connection that died while idle is noticed by the next call, which then is made on a new one. Only what was already
/// written when the end came may fail.
#[tokio::test]
async fn a_call_that_was_never_sent_does_not_fail() {
    let mut scene = Scene::new().await;
    for _ in 0..50 {
        scene.until_answered().await;
        scene.runtime.restart().await.unwrap();
        if let Err(error) = scene.client.version().await {
            assert_eq!(error.kind(), Kind::Unavailable);
            assert_ne!(
                error.message(),
                "connection closed",
                "this is how an unsent request fails"
            );
        }
    }
}

#[tokio::test]
async fn repeated_failures_say_the_same() {
    let mut scene = Scene::new().await;
    scene.runtime.stop().await.unwrap();
    let first = scene.client.version().await.expect_err("nobody is there");
    assert!(first.message().contains("No such file"), "{first}");
    for _ in 0..20 {
        assert_eq!(scene.client.version().await.expect_err("nobody is there"), first);
    }
}

#[tokio::test]
async fn a_client_that_never_had_a_runtime_finds_a_late_one() {
    let mut scene = Scene::new().await;
    scene.runtime.stop().await.unwrap();
    assert_eq!(
        failure(&scene, "Version", scene.client.version()).await,
        Kind::Unavailable
    );
    scene.runtime.resume().await.unwrap();
    scene.until_answered().await;
}

#[tokio::test]
async fn connecting_to_nobody_fails() {
    let mut runtime = FakeCri::start().await.unwrap();
    runtime.stop().await.unwrap();
    let error = CriClient::connect(&options(&runtime), &metrics())
        .await
        .expect_err("nobody is there");
    assert!(
        matches!(&error, ConnectError::Runtime(error) if error.kind() == Kind::Unavailable),
        "{error}"
    );
}

#[tokio::test]
async fn images_can_be_elsewhere() {
    let images = FakeCri::start().await.unwrap();
    let scene = Scene::with(|options| options.image_endpoint = Some(images.endpoint())).await;
    scene.client.image_fs_info().await.unwrap();
    scene.client.version().await.unwrap();
    assert_eq!(images.methods_called(), ["ImageFsInfo"]);
    assert_eq!(scene.runtime.methods_called(), ["Version"]);
    drop(scene.runtime);
    scene
        .client
        .image_fs_info()
        .await
        .expect("one service does not need the other");
}

#[tokio::test]
async fn one_socket_is_one_connection() {
    let mut endpoint = String::new();
    let scene = Scene::with(|options| {
        options.image_endpoint = Some(options.endpoint.clone());
        endpoint.clone_from(&options.endpoint);
    })
    .await;
    scene.client.image_fs_info().await.unwrap();
    scene.client.version().await.unwrap();
    assert_eq!(
        (scene.runtime.connections(), endpoint),
        (1, scene.runtime.endpoint())
    );
}
