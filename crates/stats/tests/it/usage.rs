//! What pods use, for eviction.

use std::time::Duration;

use rubelet_ports::{
    PodStorageReader as _, PodUsage, PodUsageReader as _, PodsToRun as _, StorageQuestion, UsageExtent,
};
use rubelet_usage::DiskUsage;

use crate::node::{Node, Problem, container_cgroup};
use crate::summaries::full_node;

async fn web(node: &Node, extent: UsageExtent) -> PodUsage {
    let mut pods = node.statistics.usage_of_pods(extent).await.unwrap();
    assert_eq!(pods.len(), 1);
    pods.remove(0)
}

#[tokio::test]
async fn every_figure_has_its_age() {
    let node = full_node();
    node.statistics
        .usage_of_pods(UsageExtent::Everything)
        .await
        .unwrap();
    node.advance(20);
    let web = web(&node, UsageExtent::Everything).await;
    assert_eq!(
        (web.uid.as_str(), web.namespace.as_str(), web.name.as_str()),
        ("uid-web", "default", "web")
    );
    let now = Duration::ZERO;
    let memory = web.working_set_bytes.unwrap();
    assert_eq!((memory.value, memory.age), (2900, now));
    let processes = web.processes.unwrap();
    assert_eq!((processes.value, processes.age), (4, now));
    let storage = web.ephemeral_storage.unwrap();
    assert_eq!(
        (storage.value, storage.age),
        (
            DiskUsage {
                bytes: 67,
                inodes: 10
            },
            now
        )
    );
    let logs = web.containers[0].logs.unwrap();
    assert_eq!(
        (web.containers[0].name.as_str(), logs.value.bytes, logs.age),
        ("main", 4, now)
    );
    // The runtime said when it looked at the writable layer.
    let layer = web.containers[0].writable_layer.unwrap();
    assert_eq!((layer.value.bytes, layer.age), (20, Duration::from_secs(3612)));
    let volumes: Vec<_> = web
        .volumes
        .iter()
        .map(|volume| (volume.name.as_str(), volume.used.value.bytes, volume.used.age))
        .collect();
    let walked = Duration::from_secs(20);
    assert_eq!(volumes, [("scratch", 40, walked), ("keys", 8, walked)]);
}

#[tokio::test]
async fn memory_and_processes_cost_no_more_than_their_files() {
    let node = full_node();
    let web = web(&node, UsageExtent::MemoryAndProcesses).await;
    assert_eq!(web.working_set_bytes.unwrap().value, 2900);
    assert_eq!(web.processes.unwrap().value, 4);
    assert_eq!((web.ephemeral_storage, web.volumes.len()), (None, 0));
    assert_eq!(node.runtime.calls().1, 0);
    assert!(node.disk.take_walked().is_empty());
    let questions = node.usage.take_questions().concat();
    let asks_more = questions.iter().any(|question| {
        let classes = question.classes;
        classes.limits || classes.pressure || classes.io_pressure || classes.network
    });
    assert!(!asks_more, "{questions:?}");
}

#[tokio::test]
async fn what_is_not_known_is_no_zero() {
    let node = full_node();
    node.usage.remove(&container_cgroup("web"));
    let web = web(&node, UsageExtent::MemoryAndProcesses).await;
    assert_eq!(web.processes, None);
    assert_eq!(web.working_set_bytes.unwrap().value, 2900);
    let silent = Node::new();
    silent.runtime.set_problem(Some(Problem::Fails));
    let error = silent
        .statistics
        .usage_of_pods(UsageExtent::Everything)
        .await
        .unwrap_err();
    assert!(
        error.to_string().starts_with("what pods use is not known: "),
        "{error}"
    );
}

#[tokio::test]
async fn a_pod_with_limits_is_measured_at_once() {
    let node = full_node();
    node.statistics
        .usage_of_pods(UsageExtent::Everything)
        .await
        .unwrap();
    node.disk.take_walked();
    node.advance(20);
    let pods = node.pods.pods_to_run().await.unwrap().unwrap();
    let measure = async |with_writable_layers| {
        let question = StorageQuestion {
            pods: pods.clone(),
            with_writable_layers,
        };
        let mut measured = node.statistics.storage_of(question).await.unwrap();
        assert_eq!(measured.len(), 1);
        measured.remove(0)
    };
    let web = measure(true).await;
    assert_eq!(web.uid.as_str(), "uid-web");
    let storage = web.ephemeral_storage.unwrap();
    assert_eq!(storage.value.bytes, 67, "the same as in the summary");
    let scratch = web
        .volumes
        .iter()
        .find(|volume| volume.name == "scratch")
        .unwrap();
    assert_eq!(
        (scratch.used.value.bytes, scratch.used.age),
        (40, Duration::ZERO),
        "it was walked through by the call"
    );
    assert_eq!(node.disk.take_walked().len(), 1, "not what only rubelet writes");
    assert_eq!(web.working_set_bytes, None);
    let without = measure(false).await;
    assert_eq!(without.containers[0].writable_layer, None);
    assert_eq!(without.ephemeral_storage.unwrap().value.bytes, 47);
    let nothing = StorageQuestion {
        pods: Vec::new(),
        with_writable_layers: true,
    };
    assert_eq!(node.statistics.storage_of(nothing).await, Ok(Vec::new()));
}
