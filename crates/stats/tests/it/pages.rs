//! What stands on the pages, when it is read, and what a bad day does to them.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use rubelet_ports::{NodeStatistics as _, SummaryExtent};
use rubelet_testbed::metrics_text::MetricsText;
use rubelet_usage::{Figures, MemoryFigures};

use crate::node::{Node, Problem, container_cgroup, pod_cgroup};

const MAIN: [(&str, &str); 3] = [("container", "main"), ("namespace", "default"), ("pod", "web")];

async fn resource_page(node: &Node) -> MetricsText {
    let text = node.statistics.resource_page().await;
    MetricsText::parse(std::str::from_utf8(&text).unwrap()).unwrap()
}

/// Processor seconds and bytes of the container of the pod `web`.
async fn web(node: &Node) -> (Option<f64>, Option<f64>) {
    let page = resource_page(node).await;
    (
        page.sum("container_cpu_usage_seconds_total", &MAIN),
        page.sum("container_memory_working_set_bytes", &MAIN),
    )
}

#[tokio::test]
async fn a_container_shows_what_its_cgroup_uses() {
    let node = Node::new();
    node.run("web");
    node.usage.uses("/", 9_000_000_000, 8 << 20);
    assert_eq!(web(&node).await, (Some(5.0), Some(2_097_152.0)));
    let page = resource_page(&node).await;
    assert_eq!(page.sum("container_start_time_seconds", &MAIN), Some(3590.0));
    assert_eq!(page.sum("pod_cpu_usage_seconds_total", &MAIN[1..]), Some(5.5));
    assert_eq!(
        page.sum("pod_memory_working_set_bytes", &MAIN[1..]),
        Some(3_145_728.0)
    );
    assert_eq!(page.sum("node_cpu_usage_seconds_total", &[]), Some(9.0));
    assert_eq!(page.sum("resource_scrape_error", &[]), Some(0.0));
    // The runtime was not asked for what its cgroups say.
    assert_eq!(node.runtime.calls().1, 0);
    // A pod that is removed leaves the page.
    node.runtime.remove("web");
    node.advance(1);
    assert_eq!(web(&node).await, (None, None));
}

#[tokio::test]
async fn a_cgroup_is_looked_for_once() {
    let node = Node::new();
    node.run("web");
    web(&node).await;
    let searched: Vec<usize> = node.usage.take_questions()[0]
        .iter()
        .map(|question| question.paths.len())
        .collect();
    assert_eq!(searched, [3, 3], "in each tier");
    node.advance(1);
    web(&node).await;
    let questions = node.usage.take_questions().remove(0);
    let known: Vec<&str> = questions.iter().map(|question| &*question.paths[0]).collect();
    assert_eq!(known, [container_cgroup("web"), pod_cgroup("web")]);
    assert!(questions.iter().all(|question| question.paths.len() == 1));
}

#[tokio::test]
async fn clients_at_the_same_time_share_one_look() {
    let node = Node::new();
    node.run("web");
    let pages = join_all((0..50).map(|_| web(&node))).await;
    assert!(pages.iter().all(|page| page.0 == Some(5.0)));
    assert_eq!(node.runtime.calls().0, 1);
    // What was read less than a second ago is as good.
    node.clock.advance(Duration::from_millis(900));
    web(&node).await;
    assert_eq!(node.runtime.calls().0, 1);
    node.clock.advance(Duration::from_millis(100));
    web(&node).await;
    assert_eq!(node.runtime.calls().0, 2);
}

#[tokio::test]
async fn a_container_without_a_cgroup_shows_the_runtimes_figures() {
    let node = Node::new();
    node.run("web");
    node.usage.remove(&container_cgroup("web"));
    assert_eq!(web(&node).await, (None, None), "the runtime has none either");
    node.runtime.set_figures("web", 4_000_000_000, 77);
    // Figures of the runtime are dear: they are kept for ten seconds.
    node.advance(9);
    assert_eq!(web(&node).await, (None, None));
    node.advance(1);
    assert_eq!(web(&node).await, (Some(4.0), Some(77.0)));
    let figures_asked = node.runtime.calls().1;
    assert_eq!(figures_asked, 2);
}

#[tokio::test]
async fn a_collector_never_sees_a_zero() {
    let node = Node::new();
    node.run("web");
    node.run("api");
    let memory = MemoryFigures {
        usage_bytes: 4096,
        inactive_file_bytes: 4096,
        rss_bytes: 1,
        ..MemoryFigures::default()
    };
    let reclaimable = Figures {
        cpu_nanos: Some(1),
        memory: Some(memory),
        ..Figures::default()
    };
    node.usage.set(&container_cgroup("web"), reclaimable);
    let page = resource_page(&node).await;
    assert_eq!(page.sum("container_cpu_usage_seconds_total", &MAIN), None);
    assert_eq!(
        page.sum("container_cpu_usage_seconds_total", &[("pod", "api")]),
        Some(5.0)
    );
}

#[tokio::test]
async fn a_runtime_that_hangs_leaves_the_pods_that_it_had() {
    let node = Node::new();
    node.run("web");
    assert_eq!(web(&node).await.0, Some(5.0));
    node.runtime.set_problem(Some(Problem::Hangs));
    node.usage.uses(&container_cgroup("web"), 6_000_000_000, 2 << 20);
    node.advance(1);
    let mut page = std::pin::pin!(web(&node));
    assert!(page.as_mut().now_or_never().is_none(), "it is waited for");
    node.advance(4);
    assert_eq!(page.await.0, Some(6.0), "figures are new all the same");
    node.runtime.set_problem(Some(Problem::Fails));
    node.advance(1);
    assert_eq!(web(&node).await.0, Some(6.0));
}

#[tokio::test]
async fn without_any_list_a_page_says_so() {
    let node = Node::new();
    node.run("web");
    node.runtime.set_problem(Some(Problem::Fails));
    let page = resource_page(&node).await;
    assert_eq!(page.sum("resource_scrape_error", &[]), Some(1.0));
    assert_eq!(page.families.len(), 1);
    let summary = node.statistics.summary(SummaryExtent::CpuAndMemory).await;
    let problem = summary.unwrap_err().to_string();
    assert!(problem.starts_with("failed to list pod stats: "), "{problem}");
}

#[tokio::test]
async fn nothing_is_kept_when_no_one_asks() {
    let node = Node::new();
    node.run("web");
    web(&node).await;
    node.advance(200);
    web(&node).await;
    settle().await;
    node.advance(200);
    settle().await;
    assert_eq!(
        node.usage.closed(),
        0,
        "the last question was less than five minutes ago"
    );
    node.advance(100);
    settle().await;
    assert_eq!(node.usage.closed(), 1);
    assert_eq!(node.clock.sleepers(), 0, "no task is left");
    // Where cgroups are was forgotten too.
    node.usage.take_questions();
    web(&node).await;
    assert_eq!(node.usage.take_questions()[0][0].paths.len(), 3);
}

async fn settle() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn logs_are_on_the_page_of_metrics_while_it_is_read() {
    let node = Node::new();
    node.run("web");
    let bytes = || {
        let text = prometheus::TextEncoder::new().encode_to_string(&node.registry.gather());
        let page = MetricsText::parse(&text.unwrap()).unwrap();
        let labels = [
            ("container", "main"),
            ("namespace", "default"),
            ("pod", "web"),
            ("uid", "uid-web"),
        ];
        page.sum("kubelet_container_log_filesystem_used_bytes", &labels)
    };
    let path = "/logs/default_web_uid-web/main";
    node.disk.set(path, 4096, 1);
    assert_eq!(bytes(), None, "no page was read");
    let settle = async |expected: Option<f64>| {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(bytes(), expected);
    };
    node.statistics.renew_metrics();
    settle(Some(4096.0)).await;
    // No volume is of a claim: none is walked through.
    assert!(node.disk.take_walked().is_empty());
    node.disk.set(path, 8192, 1);
    node.advance(59);
    node.statistics.renew_metrics();
    settle(Some(4096.0)).await;
    node.advance(1);
    node.statistics.renew_metrics();
    settle(Some(8192.0)).await;
    // When no page was read for long, the figures go.
    node.advance(400);
    settle(None).await;
}
