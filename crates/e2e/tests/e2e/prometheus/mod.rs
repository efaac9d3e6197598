//! The real Prometheus scrapes every page of the kubelet for a minute without an error, rules and dashboards of kubernetes-mixin find
//! their series there, and promtool has nothing against the pages but names that are upstream's.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rubelet_testbed::cluster::{Cluster, node_address};
use rubelet_testbed::control_plane::Options;
use rubelet_testbed::in_scope;
use rubelet_testbed::metrics_text::MetricsText;
use rubelet_testbed::node::Kubelet;
use rubelet_testbed::node::manifest::{UNTIL_TERM, pod, shell, with};
use rubelet_testbed::prometheus::{Prometheus, check_rules, lint, rules_file};
use serde_json::{Value, json};

const PAGES: [&str; 5] = [
    "/metrics",
    "/metrics/cadvisor",
    "/metrics/resource",
    "/metrics/probes",
    "/metrics/slis",
];
const INTERVAL: Duration = Duration::from_secs(2);
/// A minute of them.
const SCRAPES: f64 = 30.0;
const USER: &str = "prometheus";

fn pods() -> [Value; 2] {
    let limits = json!({ "limits": { "cpu": "50m", "memory": "32Mi" } });
    let probe = json!({ "exec": { "command": ["true"] }, "periodSeconds": 5 });
    let work = with(shell("main", "while :; do :; done"), "resources", limits);
    let mounts = json!([{ "name": "scratch", "mountPath": "/scratch" }]);
    let main = with(shell("main", UNTIL_TERM), "volumeMounts", mounts);
    let calm = pod("calm")
        .container(with(main, "readinessProbe", probe))
        .spec("volumes", json!([{ "name": "scratch", "emptyDir": {} }]));
    [pod("work").container(work).json(), calm.json()]
}

/// As kube-prometheus has them: the page is a label, and times of cgroups' samples are those of the scrape.
async fn jobs(cluster: &Cluster<'_>) -> Result<Vec<Value>> {
    let plane = &cluster.control_plane;
    plane.allow_metrics(USER).await?;
    let files = plane.client_files(USER)?;
    let node = cluster.node().await?;
    let endpoints = node.status.and_then(|status| status.daemon_endpoints);
    let port = endpoints.and_then(|endpoints| endpoints.kubelet_endpoint);
    let target = format!(
        "{}:{}",
        node_address()?,
        port.context("the node has no port")?.port
    );
    let job = |path: &str| {
        json!({
            "job_name": format!("kubelet{path}"),
            "scheme": "https",
            "metrics_path": path,
            "honor_timestamps": path != "/metrics/cadvisor",
            "tls_config": {
                "ca_file": plane.ca_file(),
                "cert_file": files.certificate,
                "key_file": files.key,
            },
            "static_configs": [{ "targets": [target], "labels": { "node": cluster.node_name() } }],
            "relabel_configs": [
                { "target_label": "metrics_path", "source_labels": ["__metrics_path__"] },
                { "target_label": "job", "replacement": "kubelet" },
            ],
        })
    };
    Ok(PAGES.map(job).to_vec())
}

async fn check_scrapes(cluster: &Cluster<'_>, prometheus: &Prometheus) -> Result<()> {
    let scraped = "a minute of scrapes is stored";
    cluster
        .eventually(scraped, async || {
            let counts = prometheus.query(r#"count_over_time(up{job="kubelet"}[10m])"#)?;
            ensure!(counts.len() == PAGES.len(), "{counts:?}");
            for count in &counts {
                ensure!(count.value()? >= SCRAPES, "{counts:?}");
            }
            Ok(())
        })
        .await?;
    let failed = prometheus.query(r#"min_over_time(up{job="kubelet"}[10m]) == 0"#)?;
    ensure!(failed.is_empty(), "{failed:?}: {:?}", prometheus.targets()?);
    for target in prometheus.targets()? {
        ensure!(target["lastError"] == "" && target["health"] == "up", "{target}");
    }
    let own = MetricsText::parse(&prometheus.own_metrics()?).context("Prometheus' own page")?;
    let refused = own.families.values().filter(|family| {
        let name = family.name.as_str();
        let is_of_scrapes = name.starts_with("prometheus_target_scrapes_")
            || name.starts_with("prometheus_rule_evaluation_failures");
        is_of_scrapes && family.samples.iter().any(|sample| sample.value > 0.0)
    });
    let refused: Vec<&str> = refused.map(|family| family.name.as_str()).collect();
    ensure!(
        refused.is_empty(),
        "Prometheus counts {refused:?}\n{}",
        prometheus.log_tail()
    );
    Ok(())
}

/// The lines of a file of ours, without what is there for its readers.
fn lines(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
}

async fn check_queries(cluster: &Cluster<'_>, prometheus: &Prometheus) -> Result<()> {
    // What it finds is counted when it is asked.
    cluster.bed.node.healthz()?;
    let queries = include_str!("queries.txt");
    cluster
        .eventually("every query gives series", async || {
            let mut without = Vec::new();
            for query in lines(queries) {
                if prometheus.query(query)?.is_empty() {
                    without.push(query);
                }
            }
            ensure!(without.is_empty(), "no series:\n{}", without.join("\n"));
            Ok(())
        })
        .await?;
    for record in include_str!("rules.yaml")
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- record: "))
    {
        ensure!(
            !prometheus.query(record)?.is_empty(),
            "the rule {record} gives no series"
        );
    }
    Ok(())
}

/// That promtool knows no more against a page than the names that upstream gave.
fn check_names(cluster: &Cluster<'_>) -> Result<()> {
    let known: BTreeSet<&str> = lines(include_str!("names.txt")).collect();
    let mut found = Vec::new();
    for page in PAGES {
        let answer = cluster.bed.node.get(page)?;
        ensure!(answer.status == 200, "{page}: {}", answer.text());
        let problems = lint(&answer.body).with_context(|| format!("the page {page}"))?;
        found.extend(
            problems
                .into_iter()
                .filter(|problem| !known.contains(problem.as_str())),
        );
    }
    ensure!(found.is_empty(), "promtool says\n{}", found.join("\n"));
    Ok(())
}

#[test]
fn prometheus_scrapes_every_page_and_dashboards_find_their_series() {
    in_scope("prometheus", async |scope| {
        let cluster =
            Cluster::start(scope, Options::default(), Kubelet::chosen()?, |options| options).await?;
        for pod in pods() {
            cluster.create_pod(pod).await?;
        }
        for name in ["work", "calm"] {
            cluster.wait_until_ready(name).await?;
        }
        check_names(&cluster)?;
        let rules = rules_file(scope, include_str!("rules.yaml"))?;
        check_rules(&rules)?;
        let prometheus = Prometheus::start(scope, INTERVAL, &jobs(&cluster).await?, &rules)?;
        check_scrapes(&cluster, &prometheus).await?;
        check_queries(&cluster, &prometheus).await
    });
}
