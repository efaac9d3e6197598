//! Pods beyond their own limits of local storage.

use std::time::Duration;

use rubelet_usage::DiskUsage;
use serde_json::{Value, json};

use crate::node::{GIB, MIB, Node, SimplePod, settings};

const NOTHING: &[(&str, &str)] = &[];

/// A pod with an emptyDir of at most 100 MiB.
fn limited(name: &str) -> SimplePod {
    let volumes = json!([{"name": "scratch", "emptyDir": {"sizeLimit": "100Mi"}}]);
    SimplePod::new(name, &json!({"volumes": volumes}))
}

fn set_disk(node: &Node, name: &str, bytes: u64) {
    node.state().pods.get_mut(name).unwrap().disk = DiskUsage { bytes, inodes: 1 };
}

#[tokio::test(start_paused = true)]
async fn a_pod_beyond_its_limit_is_evicted_without_any_pressure() {
    let node = Node::new();
    node.add(limited("greedy"));
    node.add(limited("modest").using_disk(99 * MIB, 1));
    node.add(SimplePod::new("unlimited", &json!({})).using_disk(9 * GIB, 1));
    let _running = node.start(settings(NOTHING));
    tokio::time::sleep(Duration::from_secs(20)).await;
    node.tells(&[]).await;
    set_disk(&node, "greedy", 101 * MIB);
    node.tells(&["evict greedy with 1 s", "greedy has ended"]).await;
    let events = node.events.take();
    assert_eq!(
        events[0].typed_text(),
        r#"Warning Evicted: Usage of EmptyDir volume "scratch" exceeds the limit "100Mi". "#
    );
    assert!(events[0].event.annotations.is_empty());
    assert!(
        node.node_events.take().is_empty(),
        "the node is not short of anything"
    );
}

#[tokio::test(start_paused = true)]
async fn several_go_at_once() {
    let node = Node::new();
    for name in ["a", "b"] {
        let mut pod = limited(name).using_disk(200 * MIB, 1);
        pod.ends_in = Some(Duration::from_secs(8));
        node.add(pod);
    }
    let _running = node.start(settings(NOTHING));
    node.tells(&[
        "evict a with 1 s",
        "evict b with 1 s",
        "a has ended",
        "b has ended",
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn critical_pods_and_pods_without_limits_are_not_measured() {
    let node = Node::new();
    node.add(SimplePod::new("unlimited", &json!({})));
    let volumes = json!([{"name": "scratch", "emptyDir": {"sizeLimit": "1"}}]);
    let vital: Value = json!({"priority": 2_000_000_000, "volumes": volumes});
    node.add(SimplePod::new("vital", &vital).using_disk(GIB, 1));
    let _running = node.start(settings(NOTHING));
    tokio::time::sleep(Duration::from_secs(60)).await;
    node.tells(&[]).await;
    assert_eq!(node.state().measured, 0);
}

#[tokio::test(start_paused = true)]
async fn a_victim_that_does_not_end_is_evicted_once() {
    let node = Node::new();
    let mut stuck = limited("stuck").using_disk(200 * MIB, 1);
    stuck.ends_in = None;
    node.add(stuck);
    let _running = node.start(settings(NOTHING));
    tokio::time::sleep(Duration::from_secs(120)).await;
    node.tells(&["evict stuck with 1 s"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_writes_fast_is_measured_more_often() {
    let node = Node::new();
    node.add(limited("writer"));
    let _running = node.start(settings(NOTHING));
    let counted = async || {
        let before = node.state().measured;
        tokio::time::sleep(Duration::from_secs(30)).await;
        node.state().measured - before
    };
    let calm = counted().await;
    assert!((8..=12).contains(&calm), "{calm} times in half a minute");
    // Two mebibytes each second, near the limit.
    for second in 0..12 {
        set_disk(&node, "writer", (75 + 2 * second) * MIB);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let before = node.state().measured;
    set_disk(&node, "writer", 105 * MIB);
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert!(node.state().measured > before, "within seconds");
    node.tells(&["evict writer with 1 s", "writer has ended"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_takes_first_who_is_beyond_a_limit() {
    let node = Node::with_one_disk(12 * GIB);
    node.add(limited("beyond"));
    node.add(SimplePod::new("large", &json!({})).using_disk(GIB, 1));
    let _running = node.start(settings(&[("nodefs.available", "10%")]));
    tokio::time::sleep(Duration::from_secs(20)).await;
    node.tells(&[]).await;
    set_disk(&node, "beyond", 3 * GIB);
    node.tells(&["evict beyond with 1 s", "beyond has ended"]).await;
}
