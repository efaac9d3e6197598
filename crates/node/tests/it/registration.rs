//! How a Node object is got.

use std::time::Duration;

use rubelet_ports::api::ApiErrorKind;
use serde_json::json;

use super::bed::{Bed, ready};

#[tokio::test(start_paused = true)]
async fn a_healthy_node_is_created_ready() {
    let mut bed = Bed::well();
    bed.settings.is_cgroup_v1 = true;
    bed.edges.add_image("a:1", 5);
    let running = bed.start();
    assert_eq!(running.object(), None);
    let known = running.handle.known().await;
    assert_eq!(known.metadata.uid.as_deref(), Some("uid-1"));
    let at = bed.until_ready().await;
    assert!(at < 10, "{at}");
    assert_eq!(bed.api.times("create").len(), 1);
    assert_eq!(bed.api.history(), ["True"]);
    let node = bed.api.node_value().unwrap();
    assert_eq!(
        node["status"]["nodeInfo"]["containerRuntimeVersion"],
        "containerd://2.4.0"
    );
    assert_eq!(node["status"]["images"][0]["names"], json!(["a:1"]));
    assert_eq!(
        bed.edges.events(),
        [
            "Normal Starting -",
            "Warning CgroupV1 -",
            "Normal NodeHasSufficientMemory -",
            "Normal NodeHasNoDiskPressure -",
            "Normal NodeHasSufficientPID -",
            "Normal NodeReady uid-1",
        ]
    );
}

/// What a metric without labels says.
fn gauge(bed: &Bed, name: &str) -> f64 {
    let families = bed.registry.gather();
    let family = families.iter().find(|family| family.name() == name);
    family.map_or(f64::NAN, |family| family.get_metric()[0].get_gauge().get_value())
}

#[tokio::test(start_paused = true)]
async fn the_start_of_a_new_node_is_measured() {
    let bed = Bed::well();
    let _running = bed.start();
    bed.until_ready().await;
    let before = "kubelet_node_startup_pre_kubelet_duration_seconds";
    assert_eq!(gauge(&bed, before), 60.0);
    let total = gauge(&bed, "kubelet_node_startup_duration_seconds");
    assert!((60.0..120.0).contains(&total), "{total}");
}

#[tokio::test(start_paused = true)]
async fn an_existing_node_is_taken_over() {
    let mut bed = Bed::well();
    bed.settings.registration.taints =
        serde_json::from_value(json!([{"key": "a", "effect": "NoSchedule"}])).unwrap();
    bed.api.put_node(json!({
        "metadata": {"name": "n1", "labels": {"kubernetes.io/hostname": "old", "theirs": "x"}},
        "spec": {"podCIDRs": ["10.1.0.0/24"]},
    }));
    let running = bed.start();
    bed.until_ready().await;
    let node = bed.api.node_value().unwrap();
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/hostname"], "n1");
    assert_eq!(node["metadata"]["labels"]["theirs"], "x");
    assert_eq!(
        node["metadata"]["annotations"]["volumes.kubernetes.io/controller-managed-attach-detach"],
        "true"
    );
    assert_eq!(
        node["spec"],
        json!({"podCIDRs": ["10.1.0.0/24"]}),
        "taints are left alone"
    );
    assert_eq!(bed.edges.pod_cidrs(), ["10.1.0.0/24"]);
    assert_eq!(running.object().unwrap().metadata.uid.as_deref(), Some("uid-1"));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_may_not_be_created_may_exist() {
    let bed = Bed::well();
    bed.api.fail("create", ApiErrorKind::Forbidden, usize::MAX);
    let _running = bed.start();
    // Nothing is there yet, and it is tried again.
    bed.at(20).await;
    let creates = bed.api.times("create");
    assert_eq!(creates, [0, 100, 300, 700, 1500, 3100, 6300, 12_700, 19_700]);
    assert_eq!(bed.api.times("get"), creates);
    bed.api.put_node(json!({"metadata": {"name": "n1"}}));
    bed.until_ready().await;
}

#[tokio::test(start_paused = true)]
async fn with_the_old_gate_it_is_not_looked_for() {
    let mut bed = Bed::well();
    bed.settings.registration.get_on_exists_only = true;
    bed.api.fail("create", ApiErrorKind::Forbidden, 3);
    bed.api.put_node(json!({"metadata": {"name": "n1"}}));
    let _running = bed.start();
    bed.until_ready().await;
    assert_eq!(bed.api.times("create"), [0, 100, 300, 700]);
    assert_eq!(bed.api.times("get"), [700]);
}

#[tokio::test(start_paused = true)]
async fn an_outage_at_the_start_is_waited_out() {
    let bed = Bed::well();
    bed.api.go_down();
    let running = bed.start();
    bed.at(60).await;
    assert_eq!(running.object(), None);
    // Each event is recorded once, however often the registration was tried.
    assert_eq!(bed.edges.events().len(), 4, "{:?}", bed.edges.events());
    bed.api.come_back();
    let at = bed.until_ready().await;
    assert!(at <= 67_000, "{at}");
}

#[tokio::test(start_paused = true)]
async fn a_patch_that_fails_does_not_register() {
    let bed = Bed::well();
    bed.api.put_node(json!({"metadata": {"name": "n1"}}));
    bed.api.fail("patch", ApiErrorKind::ServerFailed, 2);
    let _running = bed.start();
    bed.until_ready().await;
    assert_eq!(bed.api.times("create"), [0, 100, 300]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_asks_for_a_pause_gets_it() {
    let busy = |seconds: u64| ApiErrorKind::Busy {
        retry_after: Some(Duration::from_secs(seconds)),
    };
    let bed = Bed::well();
    bed.api.fail("create", busy(5), 2);
    let _running = bed.start();
    bed.until_ready().await;
    assert_eq!(bed.api.times("create"), [0, 5000, 10_000]);

    // The status and the lease, which are written again and again.
    let tries = |call: &str| bed.api.times(call).into_iter().filter(|at| *at > 15_000);
    bed.at(15).await;
    bed.api.fail("patch", busy(3), 2);
    bed.api.fail("lease replace", busy(4), 1);
    bed.edges.add_image("a:1", 5);
    bed.at(45).await;
    let gaps = |call: &str| {
        let tries: Vec<u128> = tries(call).collect();
        tries
            .windows(2)
            .map(|pair| pair[1] - pair[0])
            .take(2)
            .collect::<Vec<_>>()
    };
    assert_eq!(gaps("patch"), [3000, 3000], "{:?}", bed.api.calls());
    assert_eq!(gaps("lease replace")[0], 4000, "{:?}", bed.api.calls());
}

#[tokio::test(start_paused = true)]
async fn others_may_register_the_node() {
    let mut bed = Bed::well();
    bed.settings.registration.is_wanted = false;
    let running = bed.start();
    bed.at(25).await;
    assert_eq!(bed.api.times("create"), [0; 0]);
    assert_eq!(running.object(), None);
    bed.api.put_node(json!({"metadata": {"name": "n1"}}));
    let at = bed.until_ready().await;
    assert!(at < 25_200, "at once, not with the next tick: {at}");
    assert_eq!(bed.api.times("create"), [0; 0]);
}

/// Upstream registers a node only when it starts; so do we, and say so.
#[tokio::test(start_paused = true)]
async fn a_deleted_node_stays_deleted_until_somebody_makes_it() {
    let bed = Bed::well();
    let running = bed.start();
    bed.until_ready().await;
    bed.api.delete_node();
    bed.at(120).await;
    assert_eq!(bed.api.times("create").len(), 1);
    assert_eq!(running.object(), None);
    bed.api.put_node(json!({"metadata": {"name": "n1"}}));
    bed.until_ready().await;
    let uid = running.object().unwrap().metadata.uid.clone().unwrap();
    assert_ne!(uid, "uid-1");
    // A restart registers it.
    bed.api.delete_node();
    drop(running);
    let _running = bed.start();
    bed.until_ready().await;
    assert_eq!(bed.api.times("create").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_slow_runtime_does_not_keep_the_node_from_registering() {
    let bed = Bed::new();
    let running = bed.start();
    running.handle.known().await;
    let node = bed.api.node_value().unwrap();
    assert_eq!(ready(&node), "False");
    assert_eq!(bed.start.elapsed().as_millis(), 1000);
}
