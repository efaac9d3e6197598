//! Both kubelets side by side in one cluster, after the same pods: what each of them counts.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use rubelet_testbed::cluster::{Cluster, NAMESPACE};
use rubelet_testbed::control_plane::Options;
use rubelet_testbed::in_scope;
use rubelet_testbed::metrics_text::{Family, MetricsText, Sample};
use rubelet_testbed::node::manifest::{UNTIL_TERM, pod, shell, with};
use rubelet_testbed::node::{Bed, Kubelet, Node, PodFacts as _};
use rubelet_testbed::oracle::Oracle;
use serde_json::{Value, json};

const PAGES: [&str; 3] = ["/metrics", "/metrics/probes", "/metrics/slis"];

/// What is known to be different, and why.
struct Known {
    side: &'static str,
    page: &'static str,
    /// With a star at its end it stands for everything that begins so.
    name: &'static str,
}

/// `<side> <page> <name> <reason>`; sides are `upstream` and `rubelet` for what only one of them has, and `differs`.
fn known() -> Result<Vec<Known>> {
    let lines = include_str!("metrics_differences.txt").lines();
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let parse = |line: &'static str| {
        let mut words = line.splitn(4, ' ').map(str::trim);
        let mut word = || words.next().filter(|word| !word.is_empty()).context(line);
        let (side, page, name, _reason) = (word()?, word()?, word()?, word()?);
        ensure!(["upstream", "rubelet", "differs"].contains(&side), "{line}");
        ensure!(PAGES.contains(&page), "{line}");
        Ok(Known { side, page, name })
    };
    lines.map(parse).collect()
}

fn is_known(known: &[Known], side: &str, page: &str, name: &str) -> bool {
    known.iter().any(|one| {
        let is_meant = match one.name.strip_suffix('*') {
            Some(begin) => name.starts_with(begin),
            None => name == one.name,
        };
        one.side == side && one.page == page && is_meant
    })
}

/// How mature upstream says a metric is.
fn stability(family: &Family) -> &str {
    let end = family.help.find(']').map_or(0, |end| end + 1);
    if family.help.starts_with('[') {
        &family.help[..end]
    } else {
        ""
    }
}

fn shape(family: &Family) -> String {
    format!(
        "{} {} {:?} {:?}",
        stability(family),
        family.kind.as_str(),
        family.label_names(),
        family.buckets()
    )
}

fn text(node: &Node, path: &str) -> Result<String> {
    let answer = node.get(path)?;
    ensure!(answer.status == 200, "{path}: {}", answer.text());
    Ok(answer.text())
}

fn page(node: &Node, path: &str) -> Result<MetricsText> {
    let text = text(node, path)?;
    MetricsText::parse(&text).with_context(|| format!("the page {path} of {}", node.name()))
}

/// That Prometheus' own parser finds in a page what ours finds.
fn check_with_prometheus(oracle: &mut Oracle, text: &str) -> Result<()> {
    let ours = MetricsText::parse(text)?;
    let theirs = oracle.ask("metrics.page", json!({ "text": text }))?;
    let mut families = serde_json::Map::new();
    for family in ours.families.values() {
        let series: BTreeSet<Vec<(&String, &String)>> = family.samples.iter().map(own_labels).collect();
        let described = json!({ "type": family.kind.as_str(), "help": family.help, "series": series.len() });
        families.insert(family.name.clone(), described);
    }
    // Prometheus drops families without series.
    families.retain(|_, family| family["series"] != 0);
    ensure!(
        theirs == Value::Object(families.clone()),
        "{theirs}\nand ours: {families:?}"
    );
    Ok(())
}

/// Without those that tell the parts of a histogram apart.
fn own_labels(sample: &Sample) -> Vec<(&String, &String)> {
    let labels = sample.labels.iter();
    labels
        .filter(|(name, _)| *name != "le" && *name != "quantile")
        .collect()
}

/// Everything in which one page is not what the other is, one line each.
fn differences(path: &str, ours: &MetricsText, theirs: &MetricsText, known: &[Known]) -> Vec<String> {
    let names: BTreeSet<&String> = ours.families.keys().chain(theirs.families.keys()).collect();
    let describe = |name: &String| {
        let (side, text) = match (ours.family(name), theirs.family(name)) {
            (Some(ours), Some(theirs)) if shape(ours) == shape(theirs) => return None,
            (Some(ours), Some(theirs)) => {
                ("differs", format!("{} instead of {}", shape(ours), shape(theirs)))
            }
            (Some(ours), None) => ("rubelet", shape(ours)),
            (None, Some(theirs)) => ("upstream", shape(theirs)),
            (None, None) => return None,
        };
        (!is_known(known, side, path, name)).then(|| format!("{side} {path} {name} {text}"))
    };
    names.into_iter().filter_map(describe).collect()
}

/// One that is probed and has volumes, and one that fails.
fn pods(node: &str) -> [(String, Value); 2] {
    let probe = |kind: &str| json!({ "exec": { "command": ["echo", kind] }, "periodSeconds": 1 });
    let mut main = shell("main", UNTIL_TERM);
    for kind in ["startupProbe", "readinessProbe", "livenessProbe"] {
        main = with(main, kind, probe(kind));
    }
    let mounts =
        json!([{ "name": "scratch", "mountPath": "/scratch" }, { "name": "facts", "mountPath": "/facts" }]);
    let facts = json!({ "items": [{ "path": "name", "fieldRef": { "fieldPath": "metadata.name" } }] });
    let web = format!("web-{node}");
    let served = pod(&web)
        .init(shell("first", "true"))
        .container(with(main, "volumeMounts", mounts))
        .spec(
            "volumes",
            json!([{ "name": "scratch", "emptyDir": {} }, { "name": "facts", "downwardAPI": facts }]),
        )
        .spec("nodeName", json!(node));
    let crash = format!("crash-{node}");
    let failed = pod(&crash)
        .container(shell("main", "exit 3"))
        .spec("restartPolicy", json!("Never"))
        .spec("nodeName", json!(node));
    [(web, served.json()), (crash, failed.json())]
}

async fn live_through(cluster: &Cluster<'_>, bed: &Bed<'_>) -> Result<()> {
    let [(web, served), (crash, failed)] = pods(bed.node.name());
    cluster.create::<k8s_openapi::api::core::v1::Pod>(served).await?;
    cluster.create::<k8s_openapi::api::core::v1::Pod>(failed).await?;
    cluster.wait_until_ready(&web).await?;
    cluster
        .wait_for_pod(&crash, "has failed", |pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            ensure!(phase == Some("Failed"), "{phase:?}");
            Ok(())
        })
        .await?;
    cluster.kubectl(&["logs", &web]).await?;
    cluster.kubectl(&["exec", &web, "--", "true"]).await?;
    let uid = cluster.pod(&crash).await?.uid().to_owned();
    cluster
        .kubectl(&["delete", "pod", &crash, "--namespace", NAMESPACE, "--wait=false"])
        .await?;
    cluster.wait_until_gone(&crash, &uid).await?;
    bed.node.get("/healthz").map(drop)
}

#[test]
fn both_kubelets_count_alike() {
    in_scope("cluster_metrics", async |scope| {
        let known = known()?;
        let cluster = Cluster::start(scope, Options::default(), Kubelet::built()?, |options| options).await?;
        let peer = cluster.join("peer", Kubelet::Upstream, |options| options).await?;
        live_through(&cluster, &cluster.bed).await.context("rubelet")?;
        live_through(&cluster, &peer)
            .await
            .context("upstream's kubelet")?;
        // Counts follow what they count by a moment, some of upstream's by its next round of housekeeping.
        cluster
            .eventually("both kubelets count alike", async || {
                let mut found = Vec::new();
                for path in PAGES {
                    let (ours, theirs) = (page(&cluster.bed.node, path)?, page(&peer.node, path)?);
                    found.extend(differences(path, &ours, &theirs, &known));
                }
                ensure!(
                    found.is_empty(),
                    "{} differences:\n{}",
                    found.len(),
                    found.join("\n")
                );
                Ok(())
            })
            .await?;
        let mut oracle = Oracle::start()?;
        for path in PAGES {
            let text = text(&cluster.bed.node, path)?;
            check_with_prometheus(&mut oracle, &text).with_context(|| format!("the page {path}"))?;
        }
        Ok(())
    });
}
