//! With the gate `PodAndContainerStatsFromCRI` the runtime counts what pods use.

use std::sync::atomic::Ordering;

use futures_util::FutureExt as _;
use rubelet_ports::{NodeStatistics as _, PodUsageReader as _, SummaryExtent, UsageExtent};
use rubelet_stats::PodSource;
use rubelet_wire::cri::v1;
use serde_json::{Value, from_slice, json};

use crate::node::{Node, Problem};

const AT: &str = "1970-01-01T00:00:07Z";

fn count(value: u64) -> Option<v1::UInt64Value> {
    Some(v1::UInt64Value { value })
}

fn stalls(total: u64) -> Option<v1::PsiStats> {
    Some(v1::PsiStats {
        full: None,
        some: Some(v1::PsiData {
            total,
            avg10: 0.5,
            ..v1::PsiData::default()
        }),
    })
}

/// A pod `web` that the runtime has counted at second 7, on a node whose cgroups say something else.
fn node() -> Node {
    let node = Node::counted_by(PodSource::Runtime);
    node.run("web");
    node.usage.uses("/", 1, 1);
    node.runtime.set_figures("web", 4_000_000_000, 2000);
    let eth0 = v1::NetworkInterfaceUsage {
        name: "eth0".to_owned(),
        rx_bytes: count(11),
        ..v1::NetworkInterfaceUsage::default()
    };
    let timestamp = 7_000_000_000;
    node.runtime.set_pod_figures(
        "web",
        v1::LinuxPodSandboxStats {
            cpu: Some(v1::CpuUsage {
                timestamp,
                usage_core_nano_seconds: count(5_000_000_000),
                usage_nano_cores: count(250_000_000),
                psi: stalls(9),
            }),
            memory: Some(v1::MemoryUsage {
                timestamp,
                working_set_bytes: count(3000),
                ..v1::MemoryUsage::default()
            }),
            network: Some(v1::NetworkUsage {
                timestamp,
                default_interface: Some(eth0.clone()),
                interfaces: vec![eth0],
            }),
            process: Some(v1::ProcessUsage {
                timestamp,
                process_count: count(6),
            }),
            containers: node.runtime.container_figures(),
            io: None,
        },
    );
    node
}

async fn summary(node: &Node, extent: SummaryExtent) -> Value {
    let bytes = node.statistics.summary(extent).await.unwrap();
    from_slice(&bytes).unwrap()
}

async fn page(node: &Node) -> String {
    let pieces: Vec<u8> = node.statistics.container_page().await.flatten().collect();
    String::from_utf8(pieces).unwrap()
}

#[tokio::test]
async fn a_summary_has_the_runtimes_figures() {
    let node = node();
    let found = summary(&node, SummaryExtent::Everything).await;
    let psi = |total| {
        json!({
            "full": { "total": 0, "avg10": 0.0, "avg60": 0.0, "avg300": 0.0 },
            "some": { "total": total, "avg10": 0.5, "avg60": 0.0, "avg300": 0.0 },
        })
    };
    let pod = &found["pods"][0];
    assert_eq!(
        pod["cpu"],
        json!({
            "time": AT, "usageNanoCores": 250_000_000, "usageCoreNanoSeconds": 5_000_000_000_u64, "psi": psi(9),
        })
    );
    assert_eq!(pod["memory"], json!({ "time": AT, "workingSetBytes": 3000 }));
    let eth0 = json!({ "name": "eth0", "rxBytes": 11 });
    assert_eq!(
        pod["network"],
        json!({ "time": AT, "name": "eth0", "rxBytes": 11, "interfaces": [eth0] })
    );
    assert_eq!(pod["process_stats"], json!({ "process_count": 6 }));
    let container = &pod["containers"][0];
    assert_eq!(
        container["cpu"],
        json!({ "time": AT, "usageNanoCores": 0, "usageCoreNanoSeconds": 4_000_000_000_u64 })
    );
    assert_eq!(
        container["memory"],
        json!({ "time": AT, "workingSetBytes": 2000 })
    );
    assert_eq!(container["rootfs"]["usedBytes"], 20);
    // Of the node's cgroups only those that belong to no pod are read.
    let questions = node.usage.take_questions().concat();
    let paths: Vec<&str> = questions
        .iter()
        .flat_map(|question| &question.paths)
        .map(AsRef::as_ref)
        .collect();
    assert_eq!(paths, ["/kubepods", "/"]);
    assert_eq!(
        node.runtime.calls().1,
        0,
        "containers are not counted a second time"
    );
    assert_eq!(found["node"]["cpu"]["usageCoreNanoSeconds"], 1);
}

#[tokio::test]
async fn containers_that_the_runtime_does_not_count_are_left_out() {
    let node = node();
    node.run("new");
    let found = summary(&node, SummaryExtent::CpuAndMemory).await;
    assert_eq!(found["pods"].as_array().map(Vec::len), Some(1), "not counted yet");
    node.runtime
        .set_pod_figures("new", v1::LinuxPodSandboxStats::default());
    node.advance(1);
    let found = summary(&node, SummaryExtent::CpuAndMemory).await;
    let pod = found["pods"]
        .as_array()
        .unwrap()
        .iter()
        .find(|pod| pod["podRef"]["name"] == "new");
    let pod = pod.unwrap();
    assert_eq!(pod["containers"], json!([]));
    assert_eq!(
        (pod.get("cpu"), pod.get("network"), pod.get("swap")),
        (None, None, None)
    );
}

#[tokio::test]
async fn decisions_about_pods_use_the_same_figures() {
    let node = node();
    let pods = node
        .statistics
        .usage_of_pods(UsageExtent::MemoryAndProcesses)
        .await
        .unwrap();
    let web = &pods[0];
    assert_eq!(
        web.working_set_bytes.as_ref().map(|bytes| bytes.value),
        Some(3000)
    );
    assert_eq!(web.processes.as_ref().map(|count| count.value), Some(6));
}

#[tokio::test]
async fn a_runtime_that_does_not_count_has_no_pods() {
    for problem in [Problem::Fails, Problem::Hangs] {
        let node = node();
        summary(&node, SummaryExtent::Everything).await;
        node.runtime.set_problem(Some(problem));
        node.advance(20);
        let mut asked = std::pin::pin!(node.statistics.summary(SummaryExtent::Everything));
        // Its lists, and then its figures.
        for _ in 0..2 {
            if asked.as_mut().now_or_never().is_some() {
                break;
            }
            node.advance(4);
        }
        let answer = node.statistics.summary(SummaryExtent::Everything).now_or_never();
        assert!(answer.unwrap().is_err());
    }
}

#[tokio::test]
async fn the_page_of_containers_is_the_machine_and_what_the_runtime_counts() {
    let node = node();
    node.runtime.add_metrics(v1::PodSandboxMetrics {
        pod_sandbox_id: "s-web".to_owned(),
        metrics: vec![v1::Metric {
            name: "container_oom_events_total".to_owned(),
            label_values: vec!["web".to_owned()],
            value: count(3),
            ..v1::Metric::default()
        }],
        container_metrics: Vec::new(),
    });
    let found = page(&node).await;
    let begin = "# HELP container_oom_events_total Kills.\n# TYPE container_oom_events_total counter\n\
                 container_oom_events_total{pod=\"web\"} 3\n# HELP machine_";
    assert!(found.starts_with(begin), "{found}");
    let families = found.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let others: Vec<&str> = families.filter(|name| !name.starts_with("machine_")).collect();
    assert_eq!(others, ["container_oom_events_total counter"]);
    node.advance(2);
    page(&node).await;
    assert_eq!(node.runtime.descriptions_asked.load(Ordering::Relaxed), 1);
    // The machine is there without the runtime.
    node.runtime.set_problem(Some(Problem::Fails));
    node.advance(2);
    assert!(page(&node).await.starts_with("# HELP machine_"));
}
