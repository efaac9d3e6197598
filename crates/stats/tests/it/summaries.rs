//! `/stats/summary`, whole and short.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use rubelet_ports::{NodeStatistics as _, SummaryExtent};
use rubelet_usage::network::Traffic;
use rubelet_usage::{
    Figures, FilesystemFigures, Interface, MemoryFigures, MemoryLimits, NetworkFigures, PressureFigures,
    Stalls,
};
use serde_json::{Value, from_slice, from_value, json};

use crate::node::{Node, Problem, container_cgroup, pod_cgroup};

const AT: &str = "1970-01-01T01:00:00Z";

async fn summary(node: &Node, extent: SummaryExtent) -> Value {
    let bytes = node.statistics.summary(extent).await.unwrap();
    from_slice(&bytes).unwrap()
}

fn figures(cpu_nanos: u64, memory_bytes: u64) -> Figures {
    let stalls = PressureFigures {
        some: Stalls {
            total: 5,
            avg10: 0.5,
            ..Stalls::default()
        },
        ..PressureFigures::default()
    };
    Figures {
        cpu_nanos: Some(cpu_nanos),
        memory: Some(MemoryFigures {
            usage_bytes: memory_bytes,
            inactive_file_bytes: 100,
            rss_bytes: 50,
            swap_bytes: 9,
            page_faults: 3,
            major_page_faults: 1,
        }),
        limits: Some(MemoryLimits {
            memory_bytes: Some(10_000),
            swap_bytes: Some(30),
        }),
        cpu_pressure: Some(stalls),
        processes: Some(4),
        ..Figures::default()
    }
}

/// A pod that has everything.
pub(crate) fn full_node() -> Node {
    let node = Node::new();
    node.run("web");
    node.runtime.set_figures("web", 1, 1);
    node.usage.set("/", figures(7_200_000_000_000, 5000));
    node.usage.set("/kubepods", figures(6_000_000_000, 4000));
    node.usage.set(&pod_cgroup("web"), figures(5_500_000_000, 3000));
    node.usage
        .set(&container_cgroup("web"), figures(5_000_000_000, 2000));
    let eth0 = Interface {
        name: "eth0".to_owned(),
        receive: Traffic {
            bytes: 11,
            ..Traffic::default()
        },
        transmit: Traffic {
            bytes: 22,
            errors: 2,
            ..Traffic::default()
        },
    };
    let network = Some(NetworkFigures {
        interfaces: vec![eth0],
    });
    let sandbox = Figures {
        network,
        ..figures(1, 200)
    };
    node.usage.set(&format!("{}/s-web", pod_cgroup("web")), sandbox);
    node.disk.set_filesystem(FilesystemFigures {
        capacity_bytes: 1000,
        free_bytes: 400,
        available_bytes: 300,
        inodes: 100,
        inodes_free: 70,
    });
    node.disk.set("/logs/default_web_uid-web/main", 4, 1);
    node.disk.set("/logs/default_web_uid-web", 2, 1);
    node.disk.set("/root/pods/uid-web/etc-hosts", 1, 1);
    node.disk.set(
        "/root/pods/uid-web/volumes/kubernetes.io~empty-dir/scratch",
        40,
        5,
    );
    node.disk
        .set("/root/pods/uid-web/volumes/kubernetes.io~secret/keys", 8, 3);
    let pod = json!({
        "metadata": { "name": "web", "namespace": "default", "uid": "uid-web" },
        "spec": { "containers": [], "volumes": [
            { "name": "scratch", "emptyDir": {} },
            { "name": "keys", "secret": { "secretName": "keys" } },
            { "name": "host", "hostPath": { "path": "/" } },
        ] },
    });
    node.pods.add(from_value(pod).unwrap());
    node
}

fn filesystem(time: &str, used: u64, inodes_used: u64) -> Value {
    json!({
        "time": time, "availableBytes": 300, "capacityBytes": 1000, "usedBytes": used,
        "inodesFree": 70, "inodes": 100, "inodesUsed": inodes_used,
    })
}

fn cpu(nanos: u64, nano_cores: u64) -> Value {
    let none = json!({ "total": 0, "avg10": 0.0, "avg60": 0.0, "avg300": 0.0 });
    let some = json!({ "total": 5, "avg10": 0.5, "avg60": 0.0, "avg300": 0.0 });
    json!({
        "time": AT, "usageNanoCores": nano_cores, "usageCoreNanoSeconds": nanos,
        "psi": { "full": none, "some": some },
    })
}

fn memory(usage: u64, available: u64) -> Value {
    let none = json!({ "total": 0, "avg10": 0.0, "avg60": 0.0, "avg300": 0.0 });
    json!({
        "time": AT, "availableBytes": available, "usageBytes": usage, "workingSetBytes": usage - 100,
        "rssBytes": 50, "pageFaults": 3, "majorPageFaults": 1, "psi": { "full": none, "some": none },
    })
}

fn swap() -> Value {
    json!({ "time": AT, "swapAvailableBytes": 21, "swapUsageBytes": 9 })
}

fn io() -> Value {
    let none = json!({ "total": 0, "avg10": 0.0, "avg60": 0.0, "avg300": 0.0 });
    json!({ "time": AT, "psi": { "full": none, "some": none } })
}

#[tokio::test]
async fn a_whole_summary_has_every_part() {
    let node = full_node();
    let found = summary(&node, SummaryExtent::Everything).await;
    let image_fs = filesystem("1970-01-01T00:00:08Z", 500, 50);
    let expected_node = json!({
        "nodeName": "node-a",
        "systemContainers": [{
            "name": "pods", "startTime": "1970-01-01T00:00:00Z",
            "cpu": cpu(6_000_000_000, 1_666_666), "memory": memory(4000, 6100), "swap": swap(), "io": io(),
        }],
        "startTime": "1970-01-01T00:00:00Z",
        // Two processors since the machine was started, an hour ago.
        "cpu": cpu(7_200_000_000_000, 2_000_000_000),
        // What was set aside for huge pages is not available.
        "memory": memory(5000, 5000),
        "io": io(),
        "fs": filesystem(AT, 600, 30),
        "runtime": { "imageFs": image_fs, "containerFs": image_fs },
        "rlimit": { "time": AT, "maxpid": 7000, "curproc": 345 },
        "swap": swap(),
    });
    assert_eq!(found["node"], expected_node);
    let expected_pod = json!({
        "podRef": { "name": "web", "namespace": "default", "uid": "uid-web" },
        "startTime": "1970-01-01T00:59:50Z",
        "containers": [{
            "name": "main", "startTime": "1970-01-01T00:59:50Z",
            "cpu": cpu(5_000_000_000, 500_000_000), "memory": memory(2000, 8100), "swap": swap(), "io": io(),
            "rootfs": filesystem("1970-01-01T00:00:08Z", 20, 2),
            "logs": filesystem(AT, 4, 1),
        }],
        "cpu": cpu(5_500_000_000, 550_000_000), "memory": memory(3000, 7100), "swap": swap(), "io": io(),
        "network": {
            "time": AT, "name": "eth0", "rxBytes": 11, "rxErrors": 0, "txBytes": 22, "txErrors": 2,
            "interfaces": [{ "name": "eth0", "rxBytes": 11, "rxErrors": 0, "txBytes": 22, "txErrors": 2 }],
        },
        "volume": [
            with_name("scratch", filesystem(AT, 40, 5)),
            with_name("keys", filesystem(AT, 8, 3)),
        ],
        // Writable layer, logs of the container and of the pod, the emptyDir and the hosts file.
        "ephemeral-storage": filesystem(AT, 20 + 4 + 2 + 40 + 1, 2 + 1 + 1 + 5 + 1),
        "process_stats": { "process_count": 4 },
    });
    assert_eq!(found["pods"], json!([expected_pod]));
}

fn with_name(name: &str, mut filesystem: Value) -> Value {
    filesystem["name"] = json!(name);
    filesystem
}

#[tokio::test]
async fn a_short_summary_has_processors_memory_and_swap() {
    let node = full_node();
    let found = summary(&node, SummaryExtent::CpuAndMemory).await;
    let fields = |part: &Value| part.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(
        fields(&found["node"]),
        [
            "cpu",
            "memory",
            "nodeName",
            "startTime",
            "swap",
            "systemContainers"
        ]
    );
    let pod = &found["pods"][0];
    assert_eq!(
        fields(pod),
        ["containers", "cpu", "memory", "podRef", "startTime", "swap"]
    );
    assert_eq!(
        fields(&pod["containers"][0]),
        ["cpu", "memory", "name", "startTime", "swap"]
    );
    assert_eq!(pod["cpu"], cpu(5_500_000_000, 550_000_000));
    // Nothing was asked for that the page does not show.
    assert_eq!(node.runtime.calls().1, 0);
    assert!(node.disk.take_walked().is_empty());
    let questions = node.usage.take_questions().concat();
    assert!(
        questions
            .iter()
            .all(|question| !question.classes.network && !question.classes.io_pressure)
    );
}

#[tokio::test]
async fn use_is_measured_between_two_looks() {
    let node = full_node();
    let nano_cores = async || {
        let found = summary(&node, SummaryExtent::CpuAndMemory).await;
        found["pods"][0]["containers"][0]["cpu"]["usageNanoCores"].clone()
    };
    assert_eq!(nano_cores().await, 500_000_000, "since the container began");
    node.advance(10);
    node.usage
        .set(&container_cgroup("web"), figures(6_000_000_000, 2000));
    assert_eq!(nano_cores().await, 100_000_000);
    node.advance(10);
    node.usage
        .set(&container_cgroup("web"), figures(4_000_000_000, 2000));
    assert_eq!(nano_cores().await, 0, "a counter that went back");
}

#[tokio::test]
async fn the_kubelet_is_shown_where_it_runs() {
    let node = full_node();
    node.usage.set("/login", figures(1_000_000_000, 700));
    node.usage.set("/kubelet", figures(2_000_000_000, 900));
    let kubelet = async || {
        let found = summary(&node, SummaryExtent::CpuAndMemory).await;
        let system = found["node"]["systemContainers"].as_array().unwrap().clone();
        let shown = system.into_iter().find(|one| one["name"] == "kubelet")?;
        Some((shown["startTime"].clone(), shown["memory"]["usageBytes"].as_u64()))
    };
    assert_eq!(kubelet().await, None, "the hierarchies do not agree");
    for (cgroup, bytes) in [("/login", 700), ("/kubelet", 900), ("/kubepods", 4000)] {
        node.advance(2);
        node.usage.set_own_cgroup(Some(cgroup));
        let shown = (json!(AT), Some(bytes));
        assert_eq!(
            kubelet().await,
            Some(shown),
            "its start is that of the process: {cgroup}"
        );
    }
    // Sharing the cgroup of the pods takes nothing from them.
    let found = summary(&node, SummaryExtent::CpuAndMemory).await;
    assert_eq!(found["node"]["systemContainers"][1]["name"], "pods");
    node.advance(2);
    node.usage.set_own_cgroup(Some("/gone"));
    assert_eq!(kubelet().await, None);
}

#[tokio::test]
async fn a_pod_without_a_cgroup_is_the_sum_of_its_containers() {
    let node = full_node();
    node.usage.remove(&pod_cgroup("web"));
    let found = summary(&node, SummaryExtent::CpuAndMemory).await;
    let pod = &found["pods"][0];
    assert_eq!(pod["cpu"]["usageCoreNanoSeconds"], 5_000_000_000_u64);
    assert_eq!(pod["cpu"].get("psi"), None);
    assert_eq!(pod["memory"]["workingSetBytes"], 1900);
}

#[tokio::test]
async fn a_container_whose_cgroup_looks_dead_has_the_runtimes_figures() {
    let node = full_node();
    node.usage.uses(&container_cgroup("web"), 0, 0);
    let found = summary(&node, SummaryExtent::Everything).await;
    let container = &found["pods"][0]["containers"][0];
    assert_eq!(container["cpu"]["usageCoreNanoSeconds"], 1);
    assert_eq!(container["cpu"]["usageNanoCores"], 0);
    assert_eq!(container["memory"]["time"], "1970-01-01T00:00:07Z");
}

#[tokio::test]
async fn volumes_are_walked_through_while_they_are_asked_for() {
    let node = full_node();
    summary(&node, SummaryExtent::Everything).await;
    assert_eq!(node.disk.take_walked().len(), 2);
    // Within the period the last result is shown.
    node.disk.set(
        "/root/pods/uid-web/volumes/kubernetes.io~empty-dir/scratch",
        80,
        6,
    );
    node.advance(30);
    let found = summary(&node, SummaryExtent::Everything).await;
    assert_eq!(
        found["pods"][0]["volume"][0],
        with_name("scratch", filesystem(AT, 40, 5))
    );
    node.advance(30);
    settle().await;
    let found = summary(&node, SummaryExtent::Everything).await;
    let later = "1970-01-01T01:01:00Z";
    assert_eq!(
        found["pods"][0]["volume"][0],
        with_name("scratch", filesystem(later, 80, 6))
    );
    // Only rubelet writes into the other one, and its figures keep their time.
    assert_eq!(
        found["pods"][0]["volume"][1],
        with_name("keys", filesystem(AT, 8, 3))
    );
    assert_eq!(node.disk.take_walked().len(), 1);
    for _ in 0..3 {
        node.advance(60);
        settle().await;
    }
    assert_eq!(
        node.disk.take_walked().len(),
        2,
        "three periods after the last question it ends"
    );
}

async fn settle() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_volume_that_hangs_leaves_the_rest_of_the_page() {
    let node = full_node();
    node.disk.hang();
    let mut page = std::pin::pin!(summary(&node, SummaryExtent::Everything));
    assert!(page.as_mut().now_or_never().is_none());
    node.advance(2);
    let found = page.await;
    let pod = &found["pods"][0];
    assert_eq!(pod.get("volume"), None);
    assert_eq!(
        pod["ephemeral-storage"],
        filesystem("1970-01-01T01:00:00Z", 27, 5)
    );
}

/// With an emptyDir `scratch` that takes this much.
fn add_pod_with_volume(node: &Node, name: &str, bytes: u64) -> String {
    node.run(name);
    let volume = format!("/root/pods/uid-{name}/volumes/kubernetes.io~empty-dir/scratch");
    node.disk.set(&volume, bytes, 1);
    let pod = json!({
        "metadata": { "name": name, "namespace": "default", "uid": format!("uid-{name}") },
        "spec": { "containers": [], "volumes": [{ "name": "scratch", "emptyDir": {} }] },
    });
    node.pods.add(from_value(pod).unwrap());
    volume
}

/// By pod, what its first volume takes.
fn volumes(summary: &Value) -> Vec<(String, Option<u64>)> {
    let pods = summary["pods"].as_array().unwrap();
    let of_pod = |pod: &Value| {
        let name = pod["podRef"]["name"].as_str().unwrap().to_owned();
        (name, pod["volume"][0]["usedBytes"].as_u64())
    };
    pods.iter().map(of_pod).collect()
}

#[tokio::test]
async fn a_dead_mount_costs_no_other_volume_its_figures() {
    let node = Node::new();
    let dead = add_pod_with_volume(&node, "dead", 1);
    add_pod_with_volume(&node, "web", 2);
    node.disk.die(&dead);
    let found = summary(&node, SummaryExtent::Everything).await;
    let expected = [("dead".to_owned(), None), ("web".to_owned(), Some(2))];
    assert_eq!(volumes(&found), expected);
    assert_eq!(node.disk.take_walked().len(), 1, "the dead one is not entered");
}

#[tokio::test]
async fn volumes_show_before_a_later_one_is_walked_through() {
    let node = Node::new();
    add_pod_with_volume(&node, "first", 1);
    let slow = add_pod_with_volume(&node, "slow", 2);
    node.disk.hang_at(&slow);
    let mut page = std::pin::pin!(summary(&node, SummaryExtent::Everything));
    assert!(page.as_mut().now_or_never().is_none());
    settle().await;
    node.advance(2);
    let expected = [("first".to_owned(), Some(1)), ("slow".to_owned(), None)];
    assert_eq!(volumes(&page.await), expected);
}

#[tokio::test]
async fn a_clock_that_jumps_back_changes_no_rate() {
    let node = full_node();
    let web = async || {
        let found = summary(&node, SummaryExtent::CpuAndMemory).await;
        let cpu = found["pods"][0]["containers"][0]["cpu"].clone();
        (cpu["time"].clone(), cpu["usageNanoCores"].clone())
    };
    assert_eq!(web().await, (json!(AT), json!(500_000_000)));
    node.clock.put_back(Duration::from_mins(30));
    node.advance(10);
    node.usage
        .set(&container_cgroup("web"), figures(6_000_000_000, 2000));
    assert_eq!(web().await, (json!("1970-01-01T00:30:10Z"), json!(100_000_000)));
    // A container that began in the future has no rate yet.
    let node = full_node();
    node.clock.put_back(Duration::from_mins(30));
    let found = summary(&node, SummaryExtent::Everything).await;
    let container = &found["pods"][0]["containers"][0];
    assert_eq!(container["cpu"]["usageNanoCores"], 0);
    assert_eq!(container["startTime"], "1970-01-01T00:59:50Z");
}

#[tokio::test]
async fn fifty_clients_share_one_summary() {
    let node = full_node();
    let pages = join_all((0..50).map(|_| summary(&node, SummaryExtent::Everything))).await;
    assert!(pages.iter().all(|page| *page == pages[0]));
    assert_eq!(node.runtime.calls(), (1, 1));
    assert_eq!(node.usage.take_questions().len(), 2, "all cgroups, and the root");
    assert_eq!(node.disk.take_walked().len(), 2, "each volume once");
}

#[tokio::test]
async fn a_runtime_that_hangs_is_waited_for_once() {
    let node = full_node();
    summary(&node, SummaryExtent::Everything).await;
    node.runtime.set_problem(Some(Problem::Hangs));
    node.advance(20);
    let mut page = std::pin::pin!(summary(&node, SummaryExtent::Everything));
    assert!(page.as_mut().now_or_never().is_none());
    node.advance(4);
    let found = page.await;
    assert_eq!(
        found["pods"][0]["containers"][0]["cpu"]["usageCoreNanoSeconds"],
        5_000_000_000_u64
    );
    // A pod that ends meanwhile leaves with its cgroups.
    node.usage.remove(&container_cgroup("web"));
    node.advance(1);
    let mut page = std::pin::pin!(summary(&node, SummaryExtent::Everything));
    assert!(page.as_mut().now_or_never().is_none());
    node.advance(4);
    assert_eq!(page.await["pods"], json!([]));
}

#[tokio::test]
async fn a_runtime_that_fails_takes_its_own_parts_only() {
    let node = full_node();
    summary(&node, SummaryExtent::Everything).await;
    node.runtime.set_problem(Some(Problem::Fails));
    node.advance(20);
    let found = summary(&node, SummaryExtent::Everything).await;
    assert_eq!(found["node"].get("runtime"), None);
    assert_eq!(found["node"]["fs"]["usedBytes"], 600);
    let container = &found["pods"][0]["containers"][0];
    assert_eq!(container.get("rootfs"), None);
    assert_eq!(container["cpu"]["usageCoreNanoSeconds"], 5_000_000_000_u64);
}
