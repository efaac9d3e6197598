//! Calls that get no answer end, each at its own time. Only kinds are asserted: this machine may be slow.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rubelet_fakes::cri::Reaction;
use rubelet_model::MAX_PERIOD_SECONDS;
use rubelet_ports::RuntimeErrorKind as Kind;
use rubelet_ports::{ImageWriter, RuntimeReader, RuntimeWriter};
use rubelet_wire::cri::v1;

use crate::scene::{HASTY, Scene, failure};

#[tokio::test]
async fn a_hanging_call_ends_and_others_go_on() {
    let scene = Scene::with(|options| options.request_timeout = HASTY).await;
    scene
        .runtime
        .on("StartContainer", Reaction::hang())
        .on("RunPodSandbox", Reaction::hang());
    let client = &scene.client;
    let config = v1::PodSandboxConfig::default();
    assert_eq!(
        failure(&scene, "StartContainer", client.start_container("c")).await,
        Kind::DeadlineExceeded
    );
    assert_eq!(
        failure(&scene, "RunPodSandbox", client.run_pod_sandbox(config, "")).await,
        Kind::DeadlineExceeded
    );
    scene.until_answered().await;
    assert_eq!(
        scene.runtime.connections(),
        1,
        "a slow call is no reason to connect again"
    );
}

#[tokio::test]
async fn a_list_that_stalls_half_way_ends() {
    let scene = Scene::with(|options| {
        options.request_timeout = HASTY;
        options.list_streaming = true;
    })
    .await;
    let part = v1::StreamContainersResponse {
        containers: vec![v1::Container::default()],
    };
    scene.runtime.on(
        "StreamContainers",
        Reaction::answers([part]).then(Reaction::hang()),
    );
    assert_eq!(
        failure(&scene, "ListContainers", scene.client.list_containers(None)).await,
        Kind::DeadlineExceeded
    );
}

#[tokio::test]
async fn the_runtime_is_told_the_deadline() {
    let scene = Scene::with(|options| options.request_timeout = Duration::from_secs(120)).await;
    let client = &scene.client;
    let _ = client.start_container("c").await;
    let _ = client.run_pod_sandbox(v1::PodSandboxConfig::default(), "").await;
    let _ = client.stop_container("c", 30).await;
    let _ = client.exec_sync("c", vec![], Some(Duration::from_secs(10))).await;
    let _ = client.exec_sync("c", vec![], None).await;
    let _ = client.pull_image(v1::ImageSpec::default(), None, None).await;
    let _ = client
        .checkpoint_pod(v1::CheckpointPodRequest::default(), Some(Duration::from_secs(7)))
        .await;
    let _ = client.restore_pod(v1::RestorePodRequest::default(), None).await;
    let check = |method: &str, expected: &[Option<u64>]| {
        let told: Vec<_> = scene
            .runtime
            .deadlines(method)
            .iter()
            .map(|told| told.as_deref().map(seconds))
            .collect();
        assert_eq!(told, expected, "{method}");
    };
    check("StartContainer", &[Some(120)]);
    check("RunPodSandbox", &[Some(240)]);
    check("StopContainer", &[Some(150)]);
    check("ExecSync", &[Some(130), None]);
    check("PullImage", &[None]);
    check("CheckpointPod", &[Some(7)]);
    check("RestorePod", &[Some(120)]);
    let asked: Vec<i64> = scene
        .runtime
        .requests::<v1::ExecSyncRequest>("ExecSync")
        .unwrap()
        .iter()
        .map(|exec| exec.timeout)
        .collect();
    assert_eq!(asked, [10, 0]);
}

/// Pods and people may ask for every number of seconds, and for every duration.
#[test]
fn no_number_of_seconds_upsets_the_client() {
    let reactor = tokio::runtime::Runtime::new().unwrap();
    let scene = reactor.block_on(Scene::new());
    let mut runner = TestRunner::new(Config {
        failure_persistence: None,
        ..Config::default()
    });
    let edges = vec![
        i64::MIN,
        -1,
        0,
        1,
        9_223_372_036,
        9_223_372_037,
        359_999_996_401,
        i64::MAX,
    ];
    let seconds = prop_oneof![prop::sample::select(edges), any::<i64>()];
    let timeout = prop_oneof![Just(Duration::MAX), any::<Duration>()];
    let check = |(seconds, timeout): (i64, Duration)| {
        let calls = async {
            let client = &scene.client;
            // What the runtime answers is not the point: each of these panicked inside of tonic.
            let _ = client.stop_container("c", seconds).await;
            let _ = client.exec_sync("c", vec![], Some(timeout)).await;
            let checkpoint = v1::CheckpointContainerRequest {
                timeout: seconds,
                ..Default::default()
            };
            let _ = client.checkpoint_container(checkpoint).await;
            let _ = client
                .checkpoint_pod(v1::CheckpointPodRequest::default(), Some(timeout))
                .await;
            let _ = client
                .restore_pod(v1::RestorePodRequest::default(), Some(timeout))
                .await;
        };
        reactor.block_on(calls);
        Ok(())
    };
    runner.run(&(seconds, timeout), check).unwrap();
    let bounds = 0..=MAX_PERIOD_SECONDS;
    let runtime = &scene.runtime;
    for stop in runtime
        .requests::<v1::StopContainerRequest>("StopContainer")
        .unwrap()
    {
        assert!(bounds.contains(&stop.timeout), "{stop:?}");
    }
    for exec in runtime.requests::<v1::ExecSyncRequest>("ExecSync").unwrap() {
        assert!(bounds.contains(&exec.timeout), "{exec:?}");
    }
    let checkpoints = runtime.requests::<v1::CheckpointContainerRequest>("CheckpointContainer");
    for checkpoint in checkpoints.unwrap() {
        assert!(bounds.contains(&checkpoint.timeout), "{checkpoint:?}");
    }
}

/// The header's value is a number and a unit.
fn seconds(header: &str) -> u64 {
    let (number, unit) = header.split_at(header.len() - 1);
    let number: u64 = number.parse().unwrap();
    match unit {
        "S" => number,
        "m" => number / 1_000,
        "u" => number / 1_000_000,
        "n" => number / 1_000_000_000,
        unit => panic!("unit {unit:?} in {header:?}"),
    }
}

#[tokio::test]
async fn a_call_without_deadline_ends_when_the_runtime_falls_silent() {
    let scene = Scene::with(|options| {
        options.request_timeout = HASTY;
        options.liveness_interval = Duration::from_millis(10);
    })
    .await;
    let runtime = &scene.runtime;
    runtime
        .on("PullImage", Reaction::hang())
        .on("ExecSync", Reaction::hang())
        .on("Version", Reaction::hang());
    let client = &scene.client;
    let pull = client.pull_image(v1::ImageSpec::default(), None, None);
    assert_eq!(failure(&scene, "PullImage", pull).await, Kind::DeadlineExceeded);
    assert_eq!(
        failure(&scene, "ExecSync", client.exec_sync("c", vec![], None)).await,
        Kind::DeadlineExceeded
    );
}

#[tokio::test]
async fn a_call_without_deadline_outlasts_the_ordinary_one_while_the_runtime_lives() {
    let scene = Scene::with(|options| {
        options.request_timeout = Duration::from_secs(2);
        options.liveness_interval = Duration::from_secs(1);
    })
    .await;
    scene.runtime.on("PullImage", Reaction::hang());
    let client = scene.client.clone();
    let pull = tokio::spawn(async move { client.pull_image(v1::ImageSpec::default(), None, None).await });
    // Three signs of life take longer than the ordinary deadline; a silly answer is a sign of life too.
    scene.runtime.called("Version", 1).await.unwrap();
    scene.runtime.on(
        "Version",
        Reaction::fail(tonic::Code::Unimplemented, "unknown method"),
    );
    scene.runtime.called("Version", 3).await.unwrap();
    assert!(!pull.is_finished());
    pull.abort();
}

#[tokio::test]
async fn a_refused_checkpoint_is_not_sent() {
    let scene = Scene::new().await;
    let request = v1::CheckpointContainerRequest {
        timeout: -1,
        ..Default::default()
    };
    let call = scene.client.checkpoint_container(request);
    assert_eq!(
        failure(&scene, "CheckpointContainer", call).await,
        Kind::InvalidArgument
    );
    assert_eq!(scene.runtime.calls("CheckpointContainer"), 0);
}
