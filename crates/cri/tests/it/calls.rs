//! Every call of the interface is made, under its name, with what it was given.

use std::time::Duration;

use futures_util::StreamExt;
use rubelet_cri::CriClient;
use rubelet_fakes::cri::Reaction;
use rubelet_ports::{ImageReader, ImageWriter, RuntimeReader, RuntimeWriter};
use rubelet_wire::cri::v1;

use crate::scene::Scene;

/// All calls once; what they answer does not matter here.
async fn call_everything(client: &CriClient) {
    let runtime: &dyn RuntimeReader = client;
    let _ = runtime.version().await;
    let _ = runtime.status(true).await;
    let _ = runtime.runtime_config().await;
    let _ = runtime.list_pod_sandboxes(None).await;
    let _ = runtime.pod_sandbox_status("s", true).await;
    let _ = runtime.list_containers(None).await;
    let _ = runtime.container_status("c", true).await;
    let _ = runtime.container_stats("c").await;
    let _ = runtime.list_container_stats(None).await;
    let _ = runtime.pod_sandbox_stats("s").await;
    let _ = runtime.list_pod_sandbox_stats(None).await;
    let _ = runtime.list_metric_descriptors().await;
    let _ = runtime.list_pod_sandbox_metrics().await;
    let _ = runtime.container_events().next().await;

    let runtime: &dyn RuntimeWriter = client;
    let second = Some(Duration::from_secs(1));
    let _ = runtime.run_pod_sandbox(v1::PodSandboxConfig::default(), "").await;
    let _ = runtime.stop_pod_sandbox("s").await;
    let _ = runtime.remove_pod_sandbox("s").await;
    let _ = runtime
        .create_container(
            "s",
            v1::ContainerConfig::default(),
            v1::PodSandboxConfig::default(),
        )
        .await;
    let _ = runtime.start_container("c").await;
    let _ = runtime.stop_container("c", 0).await;
    let _ = runtime.remove_container("c").await;
    let _ = runtime
        .update_container_resources(v1::UpdateContainerResourcesRequest::default())
        .await;
    let _ = runtime
        .update_pod_sandbox_resources(v1::UpdatePodSandboxResourcesRequest::default())
        .await;
    let _ = runtime.reopen_container_log("c").await;
    let _ = runtime.exec_sync("c", vec!["true".to_owned()], second).await;
    let _ = runtime.exec(v1::ExecRequest::default()).await;
    let _ = runtime.attach(v1::AttachRequest::default()).await;
    let _ = runtime.port_forward(v1::PortForwardRequest::default()).await;
    let _ = runtime.update_runtime_config(v1::RuntimeConfig::default()).await;
    let _ = runtime
        .checkpoint_container(v1::CheckpointContainerRequest::default())
        .await;
    let _ = runtime
        .checkpoint_pod(v1::CheckpointPodRequest::default(), second)
        .await;
    let _ = runtime
        .restore_pod(v1::RestorePodRequest::default(), second)
        .await;

    let images: &dyn ImageReader = client;
    let _ = images.list_images(None).await;
    let _ = images.image_status(v1::ImageSpec::default(), true).await;
    let _ = images.image_fs_info().await;
    let images: &dyn ImageWriter = client;
    let _ = images.pull_image(v1::ImageSpec::default(), None, None).await;
    let _ = images.remove_image(v1::ImageSpec::default()).await;
}

fn golden_methods() -> Vec<String> {
    let golden = include_str!("../../../../testbed/goldens/cri-v1.txt");
    let mut methods: Vec<String> = golden
        .lines()
        .filter_map(|line| {
            line.strip_prefix("method ")?
                .split_once('.')?
                .1
                .split_whitespace()
                .next()
        })
        .map(str::to_owned)
        .collect();
    methods.sort();
    methods
}

#[tokio::test]
async fn the_client_has_every_call_of_the_interface() {
    let scene = Scene::with(|options| options.list_streaming = true).await;
    let expected = golden_methods();
    assert_eq!(expected.len(), 43);
    // Streamed lists answer once, and then no more: the plain ones are then called too.
    for method in expected.iter().filter(|method| method.starts_with("Stream")) {
        scene.runtime.on(method, Reaction::raw(Vec::new()));
    }
    call_everything(&scene.client).await;
    let plain = Scene::new().await;
    call_everything(&plain.client).await;
    let mut seen = [scene.runtime.methods_called(), plain.runtime.methods_called()].concat();
    seen.sort();
    seen.dedup();
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn services_are_addressed_apart() {
    let images = rubelet_fakes::cri::FakeCri::start().await.unwrap();
    let scene = Scene::with(|options| options.image_endpoint = Some(images.endpoint())).await;
    call_everything(&scene.client).await;
    assert_eq!(
        images.methods_called(),
        [
            "ImageFsInfo",
            "ImageStatus",
            "ListImages",
            "PullImage",
            "RemoveImage"
        ]
    );
    assert!(
        !scene
            .runtime
            .methods_called()
            .iter()
            .any(|method| method.contains("Image"))
    );
}

#[tokio::test]
async fn requests_carry_what_was_given() {
    let scene = Scene::new().await;
    let (client, runtime) = (&scene.client, &scene.runtime);
    let filter = v1::ContainerFilter {
        id: "c".to_owned(),
        ..v1::ContainerFilter::default()
    };
    let _ = client.list_containers(Some(filter.clone())).await;
    let sent = runtime
        .requests::<v1::ListContainersRequest>("ListContainers")
        .unwrap();
    assert_eq!(sent, [v1::ListContainersRequest { filter: Some(filter) }]);

    let _ = client.stop_container("c", 7).await;
    let sent = runtime
        .requests::<v1::StopContainerRequest>("StopContainer")
        .unwrap();
    assert_eq!(
        sent,
        [v1::StopContainerRequest {
            container_id: "c".to_owned(),
            timeout: 7
        }]
    );

    let config = v1::PodSandboxConfig {
        hostname: "h".to_owned(),
        ..v1::PodSandboxConfig::default()
    };
    let _ = client.run_pod_sandbox(config.clone(), "kata").await;
    let sent = runtime
        .requests::<v1::RunPodSandboxRequest>("RunPodSandbox")
        .unwrap();
    assert_eq!(
        sent,
        [v1::RunPodSandboxRequest {
            config: Some(config),
            runtime_handler: "kata".to_owned()
        }]
    );

    let _ = client
        .checkpoint_container(v1::CheckpointContainerRequest::default())
        .await;
    let sent = runtime
        .requests::<v1::CheckpointContainerRequest>("CheckpointContainer")
        .unwrap();
    assert_eq!(
        sent[0].timeout, 60,
        "the ordinary deadline when none is asked for"
    );
}

#[tokio::test]
async fn an_exit_code_is_an_answer() {
    let scene = Scene::new().await;
    let answer = v1::ExecSyncResponse {
        stdout: b"out".into(),
        stderr: b"err".into(),
        exit_code: 3,
    };
    scene.runtime.on("ExecSync", Reaction::answer(&answer));
    assert_eq!(
        scene
            .client
            .exec_sync("c", vec!["false".to_owned()], None)
            .await
            .unwrap(),
        answer
    );
}
