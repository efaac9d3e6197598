//! Lists: large ones, streamed ones, and runtimes that do not stream.

use std::collections::BTreeMap;

use rubelet_cri::MAX_MESSAGE_BYTES;
use rubelet_fakes::cri::Reaction;
use rubelet_ports::RuntimeErrorKind as Kind;
use rubelet_ports::{ImageReader, RuntimeReader, RuntimeWriter};
use rubelet_wire::cri::v1;
use tonic::Code;

use crate::scene::{Scene, failure};

/// Containers that take about this many bytes together.
fn containers(bytes: usize) -> Vec<v1::Container> {
    let padding = BTreeMap::from([("padding".to_owned(), "x".repeat(64 * 1024))]);
    let container = |number: usize| v1::Container {
        id: format!("container-{number}"),
        annotations: padding.clone(),
        ..v1::Container::default()
    };
    (0..bytes.div_ceil(64 * 1024)).map(container).collect()
}

fn page(containers: &[v1::Container]) -> v1::StreamContainersResponse {
    v1::StreamContainersResponse {
        containers: containers.to_vec(),
    }
}

#[tokio::test]
async fn a_list_of_fifteen_mebibytes_arrives() {
    let scene = Scene::new().await;
    let all = containers(MAX_MESSAGE_BYTES - 1024 * 1024);
    scene.runtime.on(
        "ListContainers",
        Reaction::answer(&v1::ListContainersResponse {
            containers: all.clone(),
        }),
    );
    assert_eq!(scene.client.list_containers(None).await.unwrap(), all);
}

#[tokio::test]
async fn a_list_above_sixteen_mebibytes_is_refused_with_advice() {
    let scene = Scene::new().await;
    let all = containers(MAX_MESSAGE_BYTES + 1024 * 1024);
    scene.runtime.on(
        "ListContainers",
        Reaction::answer(&v1::ListContainersResponse { containers: all }),
    );
    let error = scene.client.list_containers(None).await.expect_err("too large");
    assert_eq!(
        (error.kind(), error.is_retryable()),
        (Kind::MessageTooLarge, false)
    );
    assert!(error.to_string().contains("CRIListStreaming"), "{error}");
    assert!(scene.client.version().await.is_ok(), "the connection survives");
}

#[tokio::test]
async fn a_request_above_sixteen_mebibytes_is_not_sent() {
    let scene = Scene::new().await;
    let envs = vec![v1::KeyValue {
        key: "BIG".to_owned(),
        value: vec![0; MAX_MESSAGE_BYTES + 1],
    }];
    let config = v1::ContainerConfig {
        envs,
        ..v1::ContainerConfig::default()
    };
    let call = scene
        .client
        .create_container("s", config, v1::PodSandboxConfig::default());
    assert_eq!(
        failure(&scene, "CreateContainer", call).await,
        Kind::MessageTooLarge
    );
    assert_eq!(scene.runtime.calls("CreateContainer"), 0);
}

#[tokio::test]
async fn streaming_carries_more_than_one_message_can() {
    let scene = Scene::with(|options| options.list_streaming = true).await;
    let all = containers(MAX_MESSAGE_BYTES + 4 * 1024 * 1024);
    let (first, second) = all.split_at(all.len() / 2);
    scene
        .runtime
        .on("StreamContainers", Reaction::answers([page(first), page(second)]));
    assert_eq!(scene.client.list_containers(None).await.unwrap(), all);
    assert_eq!(scene.runtime.methods_called(), ["StreamContainers"]);
}

#[tokio::test]
async fn an_empty_stream_is_an_empty_list() {
    let scene = Scene::with(|options| options.list_streaming = true).await;
    scene.runtime.on(
        "StreamImages",
        Reaction::answers(Vec::<v1::StreamImagesResponse>::new()),
    );
    assert_eq!(scene.client.list_images(None).await.unwrap(), []);
}

#[tokio::test]
async fn without_the_gate_nothing_is_streamed() {
    let scene = Scene::new().await;
    scene.runtime.on(
        "ListContainers",
        Reaction::answer(&v1::ListContainersResponse::default()),
    );
    scene.client.list_containers(None).await.unwrap();
    assert_eq!(scene.runtime.methods_called(), ["ListContainers"]);
}

#[tokio::test]
async fn a_runtime_that_does_not_stream_is_asked_once() {
    let scene = Scene::with(|options| options.list_streaming = true).await;
    let all = containers(1);
    scene.runtime.on(
        "ListContainers",
        Reaction::answer(&v1::ListContainersResponse {
            containers: all.clone(),
        }),
    );
    scene.runtime.on(
        "ListPodSandbox",
        Reaction::answer(&v1::ListPodSandboxResponse::default()),
    );
    assert_eq!(scene.client.list_containers(None).await.unwrap(), all);
    assert_eq!(scene.client.list_containers(None).await.unwrap(), all);
    scene.client.list_pod_sandboxes(None).await.unwrap();
    assert_eq!(scene.runtime.calls("StreamContainers"), 1);
    assert_eq!(
        scene.runtime.calls("StreamPodSandboxes"),
        0,
        "what holds for one list holds for all"
    );
}

#[tokio::test]
async fn other_errors_of_a_stream_are_errors_and_change_nothing() {
    let scene = Scene::with(|options| options.list_streaming = true).await;
    let half = Reaction::answers([page(&containers(1))]).then(Reaction::fail(Code::Internal, "half way"));
    scene.runtime.on("StreamContainers", half);
    assert_eq!(
        failure(&scene, "StreamContainers", scene.client.list_containers(None)).await,
        Kind::Internal
    );
    let cut = Reaction::answers([page(&containers(1))]).then(Reaction::reset());
    scene.runtime.on("StreamContainers", cut);
    assert_eq!(
        failure(&scene, "StreamContainers", scene.client.list_containers(None)).await,
        Kind::Unavailable
    );
    assert_eq!(scene.runtime.calls("ListContainers"), 0);
}
