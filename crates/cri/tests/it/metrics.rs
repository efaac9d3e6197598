//! Calls are counted under upstream's names.

use prometheus::TextEncoder;
use rubelet_cri::CriMetrics;
use rubelet_fakes::cri::Reaction;
use rubelet_ports::{ImageReader, RuntimeReader, RuntimeWriter};
use rubelet_wire::cri::v1;
use tonic::Code;

use crate::scene::Scene;

fn lines(scene: &Scene) -> Vec<String> {
    let text = TextEncoder::new()
        .encode_to_string(&scene.registry.gather())
        .unwrap();
    text.lines().map(str::to_owned).collect()
}

fn check(scene: &Scene, expected: &[&str]) {
    let lines = lines(scene);
    for line in expected {
        assert!(
            lines.iter().any(|seen| seen == line),
            "{line:?} is missing in {lines:#?}"
        );
    }
}

#[tokio::test]
async fn operations_and_errors_are_counted_by_operation() {
    let scene = Scene::new().await;
    scene
        .runtime
        .once("Version", Reaction::fail(Code::Internal, "no"));
    let _ = scene.client.version().await;
    let _ = scene.client.version().await;
    let _ = scene.client.image_fs_info().await;
    check(
        &scene,
        &[
            "kubelet_runtime_operations_total{operation_type=\"version\"} 2",
            "kubelet_runtime_operations_errors_total{operation_type=\"version\"} 1",
            "kubelet_runtime_operations_total{operation_type=\"image_fs_info\"} 1",
            "kubelet_runtime_operations_duration_seconds_count{operation_type=\"version\"} 2",
        ],
    );
    assert!(
        !lines(&scene)
            .iter()
            .any(|line| line.contains("errors_total{operation_type=\"image_fs_info\"}"))
    );
}

#[tokio::test]
async fn buckets_are_upstreams() {
    let scene = Scene::new().await;
    scene.client.version().await.unwrap();
    let buckets: Vec<f64> = lines(&scene)
        .iter()
        .filter(|line| line.starts_with("kubelet_runtime_operations_duration_seconds_bucket"))
        .filter_map(|line| line.split("le=\"").nth(1)?.split('"').next()?.parse().ok())
        .filter(|bound: &f64| bound.is_finite())
        .collect();
    assert_eq!(buckets.len(), 14);
    assert!(
        (buckets[0] - 0.005).abs() < 1e-9 && (buckets[1] - 0.0125).abs() < 1e-9,
        "{buckets:?}"
    );
}

#[tokio::test]
async fn a_malformed_answer_and_a_dropped_call_count_as_errors() {
    let scene = Scene::new().await;
    scene
        .runtime
        .on("Exec", Reaction::raw(Vec::new()))
        .on("StartContainer", Reaction::hang());
    let _ = scene.client.exec(v1::ExecRequest::default()).await;
    let client = scene.client.clone();
    let call = tokio::spawn(async move { client.start_container("c").await });
    scene.runtime.called("StartContainer", 1).await.unwrap();
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    check(
        &scene,
        &[
            "kubelet_runtime_operations_errors_total{operation_type=\"exec\"} 1",
            "kubelet_runtime_operations_errors_total{operation_type=\"start_container\"} 1",
        ],
    );
}

#[tokio::test]
async fn a_fallback_to_a_plain_list_is_one_operation() {
    let scene = Scene::with(|options| options.list_streaming = true).await;
    scene.runtime.on(
        "ListContainers",
        Reaction::answer(&v1::ListContainersResponse::default()),
    );
    scene.client.list_containers(None).await.unwrap();
    check(
        &scene,
        &["kubelet_runtime_operations_total{operation_type=\"list_containers\"} 1"],
    );
    assert!(
        !lines(&scene)
            .iter()
            .any(|line| line.contains("errors_total{operation_type=\"list_containers\"}"))
    );
}

#[tokio::test]
async fn sandboxes_are_counted_by_handler() {
    let scene = Scene::new().await;
    let answer = v1::RunPodSandboxResponse {
        pod_sandbox_id: "s".to_owned(),
    };
    scene.runtime.once("RunPodSandbox", Reaction::answer(&answer));
    assert_eq!(
        scene
            .client
            .run_pod_sandbox(v1::PodSandboxConfig::default(), "kata")
            .await
            .unwrap(),
        "s"
    );
    let _ = scene
        .client
        .run_pod_sandbox(v1::PodSandboxConfig::default(), "kata")
        .await;
    check(
        &scene,
        &[
            "kubelet_run_podsandbox_duration_seconds_count{runtime_handler=\"kata\"} 2",
            "kubelet_run_podsandbox_errors_total{runtime_handler=\"kata\"} 1",
        ],
    );
}

#[tokio::test]
async fn metrics_live_where_they_are_put() {
    let scene = Scene::new().await;
    assert!(
        CriMetrics::register(&scene.registry).is_err(),
        "one registry takes them once"
    );
    let other = prometheus::Registry::new();
    CriMetrics::register(&other).expect("another one takes them again");
    scene.client.version().await.unwrap();
    assert!(
        TextEncoder::new()
            .encode_to_string(&other.gather())
            .unwrap()
            .is_empty()
    );
}
