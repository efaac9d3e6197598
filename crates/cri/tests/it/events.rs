//! The stream of container events.

use std::time::Duration;

use futures_util::StreamExt;
use rubelet_fakes::cri::Reaction;
use rubelet_ports::RuntimeErrorKind as Kind;
use rubelet_ports::RuntimeReader;
use rubelet_wire::cri::v1;
use tonic::Code;

use crate::scene::Scene;

const EVENTS: &str = "GetContainerEvents";

fn event(id: &str) -> v1::ContainerEventResponse {
    v1::ContainerEventResponse {
        container_id: id.to_owned(),
        ..v1::ContainerEventResponse::default()
    }
}

#[tokio::test]
async fn events_arrive_in_order_and_the_end_is_an_end() {
    let scene = Scene::new().await;
    scene
        .runtime
        .on(EVENTS, Reaction::answers([event("a"), event("b")]));
    let seen: Vec<_> = scene
        .client
        .container_events()
        .map(|event| event.unwrap().container_id)
        .collect()
        .await;
    assert_eq!(seen, ["a", "b"]);
}

#[tokio::test]
async fn an_event_is_seen_while_the_stream_stays_open() {
    let scene = Scene::new().await;
    scene
        .runtime
        .on(EVENTS, Reaction::answers([event("a")]).then(Reaction::hang()));
    let mut events = scene.client.container_events();
    assert_eq!(events.next().await.unwrap().unwrap(), event("a"));
}

#[tokio::test]
async fn a_runtime_without_events_says_so_and_the_stream_ends() {
    let scene = Scene::new().await;
    let mut events = scene.client.container_events();
    assert_eq!(
        events.next().await.unwrap().expect_err("not scripted").kind(),
        Kind::Unimplemented
    );
    assert!(events.next().await.is_none());
}

#[tokio::test]
async fn failures_end_the_stream() {
    let mut scene = Scene::new().await;
    let check = |reaction: Reaction| {
        scene
            .runtime
            .on(EVENTS, Reaction::answers([event("a")]).then(reaction))
            .endpoint()
    };
    check(Reaction::fail(Code::Unavailable, "shutting down"));
    let mut events = scene.client.container_events();
    assert!(events.next().await.unwrap().is_ok());
    assert_eq!(
        events.next().await.unwrap().expect_err("scripted").kind(),
        Kind::Unavailable
    );
    assert!(events.next().await.is_none());

    check(Reaction::hang());
    let mut events = scene.client.container_events();
    assert!(events.next().await.unwrap().is_ok());
    scene.runtime.restart().await.unwrap();
    assert_eq!(
        events.next().await.unwrap().expect_err("the runtime died").kind(),
        Kind::Unavailable
    );
    assert!(events.next().await.is_none());
}

#[tokio::test]
async fn events_of_an_unknown_kind_are_still_events() {
    let scene = Scene::new().await;
    let strange = v1::ContainerEventResponse {
        container_event_type: 99,
        ..event("a")
    };
    scene.runtime.on(EVENTS, Reaction::answers([strange]));
    let seen = scene.client.container_events().next().await.unwrap().unwrap();
    assert_eq!((seen.container_id.as_str(), seen.observed_type()), ("a", None));
}

#[tokio::test]
async fn a_silent_runtime_ends_the_stream_a_quiet_one_does_not() {
    let scene = Scene::with(|options| {
        options.request_timeout = Duration::from_secs(5);
        options.liveness_interval = Duration::from_millis(10);
    })
    .await;
    scene.runtime.on(EVENTS, Reaction::hang());
    let mut events = scene.client.container_events();
    let reader = tokio::spawn(async move { events.next().await });
    scene.runtime.called("Version", 3).await.unwrap();
    assert!(!reader.is_finished());
    scene.runtime.on("Version", Reaction::hang());
    let error = reader
        .await
        .unwrap()
        .unwrap()
        .expect_err("the runtime fell silent");
    assert_eq!(error.kind(), Kind::DeadlineExceeded);
}
