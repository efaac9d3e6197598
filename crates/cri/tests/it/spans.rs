//! Failed calls are logged with their method, in the span of the pod that they were made for.

use rubelet_fakes::cri::Reaction;
use rubelet_ports::RuntimeWriter;
use tonic::Code;
use tracing::{Instrument, Level};

use crate::log::Log;
use crate::scene::Scene;

async fn log_of_failed_stop(level: Level) -> String {
    let log = Log::default();
    let _guard = log.capture(level);
    let scene = Scene::new().await;
    scene
        .runtime
        .on("StopContainer", Reaction::fail(Code::Unknown, "no such shim"));
    let pod = tracing::info_span!("pod", namespace = "default", name = "web", uid = "u-1");
    scene
        .client
        .stop_container("c", 1)
        .instrument(pod)
        .await
        .expect_err("scripted to fail");
    log.text()
}

// One thread, so that the test's subscriber sees the connection's task as well.
#[tokio::test(flavor = "current_thread")]
async fn a_failed_call_names_its_method_and_its_pod() {
    let log = log_of_failed_stop(Level::DEBUG).await;
    let spans = "pod{namespace=\"default\" name=\"web\" uid=\"u-1\"}:cri{method=\"StopContainer\"}";
    let is_failure = |line: &&str| line.contains(spans) && line.contains("no such shim");
    assert!(log.lines().any(|line| is_failure(&line)), "{log}");
}

#[tokio::test(flavor = "current_thread")]
async fn calls_have_no_span_where_failures_are_not_logged() {
    let log = log_of_failed_stop(Level::INFO).await;
    assert!(log.contains("connected to the container runtime"), "{log}");
    assert!(log.contains("pod{") && !log.contains("cri{"), "{log}");
}
