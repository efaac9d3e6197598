//! The pages of metrics of a real node that has run pods.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rubelet_testbed::containerd::Flavour;
use rubelet_testbed::in_scope;
use rubelet_testbed::metrics_text::{Family, MetricsText};
use rubelet_testbed::node::manifest::{UNTIL_TERM, pod, shell, with};
use rubelet_testbed::node::{Bed, DEADLINE, Kubelet, Node, Options, PodFacts};
use rubelet_testbed::wait::wait_for;
use serde_json::json;

const PAGES: [&str; 5] = [
    "/metrics",
    "/metrics/cadvisor",
    "/metrics/probes",
    "/metrics/resource",
    "/metrics/slis",
];

/// Pages whose samples have the time of their reading.
const WITH_TIMES: [&str; 2] = ["/metrics/cadvisor", "/metrics/resource"];

fn page(node: &Node, path: &str) -> Result<MetricsText> {
    let answer = node.get(path)?;
    ensure!(answer.status == 200, "{path}: {}", answer.text());
    let kind = answer.header("content-type").unwrap_or_default();
    ensure!(kind.starts_with("text/plain; version=0.0.4; "), "{path}: {kind}");
    MetricsText::parse(&answer.text()).with_context(|| format!("the page {path}"))
}

/// Type and labels of each metric, by the page it stands under in the documentation.
type Documented = BTreeMap<String, BTreeMap<String, (String, BTreeSet<String>)>>;

fn documented() -> Result<Documented> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let mut pages = Documented::new();
    let mut page = String::new();
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            title.trim_matches('`').clone_into(&mut page);
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, name, kind, labels, _, _] = cells[..] else {
            continue;
        };
        let Some(name) = name.strip_prefix('`').and_then(|name| name.strip_suffix('`')) else {
            continue;
        };
        let labels = labels.split(", ").map(|label| label.trim_matches('`'));
        let labels = labels.filter(|label| *label != "–").map(str::to_owned).collect();
        let rows = pages.entry(page.clone()).or_default();
        rows.insert(name.to_owned(), (kind.to_owned(), labels));
    }
    Ok(pages)
}

fn check_documented(path: &str, family: &Family, documented: &Documented) -> Result<()> {
    let row = documented.get(path).and_then(|rows| rows.get(&family.name));
    let (kind, labels) = row.with_context(|| format!("docs/metrics.md has no {} on {path}", family.name))?;
    ensure!(kind == family.kind.as_str(), "{}: {kind}", family.name);
    let found: BTreeSet<String> = family.label_names().into_iter().map(str::to_owned).collect();
    ensure!(*labels == found, "{}: {labels:?} and {found:?}", family.name);
    Ok(())
}

/// How mature a metric is stands in front of its help; only the process has metrics that every program has.
fn check_help(family: &Family) -> Result<()> {
    let marks = ["[ALPHA] ", "[BETA] ", "[STABLE] ", "[INTERNAL] "];
    let is_marked = marks.iter().any(|mark| family.help.starts_with(mark));
    ensure!(
        is_marked || family.name.starts_with("process_"),
        "{}: {}",
        family.name,
        family.help
    );
    Ok(())
}

fn at_least(page: &MetricsText, name: &str, labels: &[(&str, &str)], least: f64) -> Result<()> {
    let found = page
        .sum(name, labels)
        .with_context(|| format!("no {name} {labels:?}"))?;
    ensure!(found >= least, "{name} {labels:?}: {found}");
    Ok(())
}

fn check_node_page(node: &MetricsText, name: &str) -> Result<()> {
    at_least(node, "kubelet_node_name", &[("node", name)], 1.0)?;
    at_least(
        node,
        "kubernetes_build_info",
        &[("major", "1"), ("minor", "37")],
        1.0,
    )?;
    at_least(
        node,
        "kubernetes_feature_enabled",
        &[("name", "NodeLogQuery"), ("stage", "")],
        1.0,
    )?;
    let missing = [("name", "DynamicResourceAllocation"), ("stage", "")];
    let is_on = node.sum("kubernetes_feature_enabled", &missing);
    ensure!(is_on == Some(0.0), "a feature that is not there: {is_on:?}");
    at_least(node, "kubelet_running_pods", &[], 1.0)?;
    at_least(
        node,
        "kubelet_running_containers",
        &[("container_state", "running")],
        1.0,
    )?;
    at_least(node, "kubelet_desired_pods", &[("static", "true")], 2.0)?;
    at_least(node, "kubelet_started_pods_total", &[], 2.0)?;
    at_least(
        node,
        "kubelet_started_containers_total",
        &[("container_type", "container")],
        2.0,
    )?;
    let ended = [
        ("container_type", "container"),
        ("exit_code", "3"),
        ("reason", "Error"),
    ];
    at_least(node, "kubelet_terminated_containers_total", &ended, 1.0)?;
    at_least(node, "kubelet_pod_start_duration_seconds_count", &[], 1.0)?;
    at_least(
        node,
        "kubelet_pod_worker_duration_seconds_count",
        &[("operation_type", "create")],
        2.0,
    )?;
    at_least(node, "kubelet_pleg_relist_duration_seconds_count", &[], 1.0)?;
    at_least(
        node,
        "kubelet_runtime_operations_total",
        &[("operation_type", "run_podsandbox")],
        2.0,
    )?;
    at_least(node, "kubelet_run_podsandbox_duration_seconds_count", &[], 2.0)?;
    at_least(
        node,
        "kubelet_cgroup_manager_duration_seconds_count",
        &[("operation_type", "create")],
        1.0,
    )?;
    let volume = [
        ("plugin_name", "kubernetes.io/empty-dir"),
        ("state", "actual_state_of_world"),
    ];
    at_least(node, "volume_manager_total_volumes", &volume, 1.0)?;
    at_least(
        node,
        "kubelet_http_requests_total",
        &[("path", "pods"), ("server_type", "readonly")],
        1.0,
    )?;
    at_least(node, "process_resident_memory_bytes", &[], 1e6)?;
    at_least(node, "process_cpu_seconds_total", &[], 0.0)?;
    at_least(node, "process_start_time_seconds", &[], 1.5e9)
}

#[test]
fn every_page_is_what_its_table_says() {
    in_scope("metrics", async |scope| {
        let kubelet = Kubelet::Rubelet(env!("CARGO_BIN_EXE_rubelet").into());
        let bed = Bed::start(scope, Flavour::Debian, Options::new(kubelet)).await?;
        let node = &bed.node;
        let probe = json!({ "exec": { "command": ["true"] }, "periodSeconds": 1 });
        let mount = json!([{ "name": "scratch", "mountPath": "/scratch" }]);
        let main = with(shell("main", UNTIL_TERM), "readinessProbe", probe);
        let web = pod("web")
            .container(with(main, "volumeMounts", mount))
            .spec("volumes", json!([{ "name": "scratch", "emptyDir": {} }]));
        node.write("web", &web.json())?;
        node.write("crash", &pod("crash").container(shell("main", "exit 3")).json())?;
        node.wait_until_ready("web").await?;
        node.wait_for_pod("crash", "was restarted", |pod| {
            ensure!(pod.container("main")?.restart_count > 0, "not yet");
            Ok(())
        })
        .await?;
        node.get("/healthz")?;
        let documented = documented()?;
        for path in PAGES {
            for family in page(node, path)?.families.values() {
                check_documented(path, family, &documented)?;
                if path != "/metrics/cadvisor" {
                    check_help(family)?;
                }
                let has_time = family.samples.iter().any(|sample| sample.time_ms.is_some());
                ensure!(
                    !has_time || WITH_TIMES.contains(&path),
                    "{} has times of its own",
                    family.name
                );
            }
        }
        // A count follows what it counts by a moment.
        wait_for("the node counts what it did", DEADLINE, || {
            check_node_page(&page(node, "/metrics")?, node.name())
        })?;
        let probes = page(node, "/metrics/probes")?;
        let web = node.pod_name("web");
        let labels = [
            ("pod", web.as_str()),
            ("probe_type", "Readiness"),
            ("result", "successful"),
        ];
        at_least(&probes, "prober_probe_total", &labels, 1.0)?;
        at_least(&probes, "prober_probe_duration_seconds_count", &labels[..2], 1.0)?;
        let health = page(node, "/metrics/slis")?;
        let ping = [("name", "ping"), ("type", "healthz"), ("status", "success")];
        at_least(&health, "kubernetes_healthchecks_total", &ping, 1.0)?;
        // A pod's series go with it.
        node.remove("web")?;
        node.wait_until_gone("web").await?;
        wait_for("the pod's series are gone", DEADLINE, || {
            let probes = page(node, "/metrics/probes")?;
            ensure!(
                probes.sum("prober_probe_total", &labels[..1]).is_none(),
                "still there"
            );
            let volumes = page(node, "/metrics")?;
            let volume = [
                ("plugin_name", "kubernetes.io/empty-dir"),
                ("state", "actual_state_of_world"),
            ];
            let left = volumes.sum("volume_manager_total_volumes", &volume);
            ensure!(left == Some(0.0), "{left:?} volumes");
            Ok(())
        })
    });
}
