//! Upstream's kubelet beside rubelet on one node with the same pods: what the pages of statistics of both say of them.
//!
//! Upstream's cAdvisor looks at every cgroup in turns of 10 to 30 s, so that its figures are older than ours; counters of what works
//! all the time may be apart by what that takes.

mod figures;
mod rules;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rubelet_testbed::containerd::Flavour;
use rubelet_testbed::in_scope;
use rubelet_testbed::metrics_text::MetricsText;
use rubelet_testbed::node::manifest::{pause, pod, shell, with};
use rubelet_testbed::node::{Bed, Kubelet, Node, Options, PodFacts as _};
use rubelet_testbed::wait::wait_until;
use serde_json::{Value, json};

use figures::{Figures, of_metrics, of_summary, shapes};
use rules::Rules;

const METRICS: [&str; 2] = ["/metrics/resource", "/metrics/cadvisor"];
const SUMMARIES: [&str; 2] = ["/stats/summary", "/stats/summary?only_cpu_and_memory=true"];
/// Upstream walks through volumes once in one to two of these.
const VOLUME_PERIOD: &str = "5s";
/// Several turns of upstream's cAdvisor.
const DEADLINE: Duration = Duration::from_secs(150);

/// Pods that do the same all the time, by their manifests' names.
fn manifests(id: &str) -> Vec<(&'static str, Value)> {
    let uid = |name: &str| json!(format!("uid-{name}-{id}"));
    let limits = json!({ "limits": { "cpu": "100m", "memory": "64Mi" } });
    let work = shell("main", "while :; do :; done");
    // Anonymous memory, page cache, a log, a writable layer, and what was written past the cache.
    let holds = "text=$(head -c 4000000 /dev/zero | tr '\\0' x); head -c 2000000 /dev/zero >/layer; \
        dd if=/dev/zero of=/scratch/file bs=4096 count=500 oflag=direct 2>/dev/null; \
        dd if=/scratch/file of=/dev/null bs=4096 iflag=direct 2>/dev/null; \
        head -c 3000000 /dev/zero >/memory/file; echo ready; \
        trap 'exit 0' TERM; sleep 100000 & wait";
    let mounts = json!([
        { "name": "scratch", "mountPath": "/scratch" },
        { "name": "memory", "mountPath": "/memory" },
        { "name": "facts", "mountPath": "/facts" },
    ]);
    let facts = json!({ "items": [{ "path": "name", "fieldRef": { "fieldPath": "metadata.name" } }] });
    let volumes = json!([
        { "name": "scratch", "emptyDir": {} },
        { "name": "memory", "emptyDir": { "medium": "Memory" } },
        { "name": "facts", "downwardAPI": facts },
    ]);
    let requests = json!({ "requests": { "cpu": "50m", "memory": "16Mi" }, "limits": { "memory": "48Mi" } });
    let calm = with(
        with(shell("holds", holds), "volumeMounts", mounts),
        "resources",
        requests,
    );
    let pods = [
        ("work", pod("work").container(with(work, "resources", limits))),
        (
            "calm",
            pod("calm")
                .init(shell("first", "true"))
                .container(calm)
                .container(pause("other"))
                .spec("volumes", volumes),
        ),
        (
            "host",
            pod("host")
                .container(pause("main"))
                .spec("hostNetwork", json!(true)),
        ),
        (
            "half",
            pod("half")
                .container(shell("ended", "true"))
                .container(pause("kept"))
                .spec("restartPolicy", json!("Never")),
        ),
        (
            "done",
            pod("done")
                .container(shell("main", "true"))
                .spec("restartPolicy", json!("Never")),
        ),
    ];
    pods.map(|(name, pod)| (name, pod.metadata("uid", uid(name)).json()))
        .into()
}

async fn wait_until_known(node: &Node) -> Result<()> {
    for name in ["work", "calm", "host"] {
        node.wait_until_ready(name).await?;
    }
    node.wait_for_pod("half", "runs half", |pod| {
        pod.running_id("kept")?;
        pod.terminated("ended").map(drop)
    })
    .await?;
    node.wait_for_pod("done", "is done", |pod| pod.check_phase("Succeeded"))
        .await
}

fn text(node: &Node, path: &str) -> Result<String> {
    let answer = node.get(path)?;
    ensure!(answer.status == 200, "{path}: {}", answer.text());
    Ok(answer.text())
}

fn metrics(node: &Node, path: &str) -> Result<MetricsText> {
    let text = text(node, path)?;
    MetricsText::parse(&text).with_context(|| format!("the page {path}"))
}

fn differences(rules: &Rules, (ours, theirs): (&Node, &Node), cgroup_root: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for path in METRICS {
        let (theirs, ours) = (metrics(theirs, path)?, metrics(ours, path)?);
        found.extend(rules.differences(path, &shapes(&ours), &shapes(&theirs)));
        let figures = |page: &MetricsText| -> Figures { of_metrics(page, cgroup_root) };
        found.extend(rules.differences(path, &figures(&ours), &figures(&theirs)));
    }
    for path in SUMMARIES {
        let (theirs, ours) = (of_summary(&text(theirs, path)?)?, of_summary(&text(ours, path)?)?);
        found.extend(rules.differences(path, &ours, &theirs));
    }
    Ok(found)
}

#[test]
fn both_kubelets_show_the_same_use() {
    in_scope("statistics_beside", async |scope| {
        let rules = Rules::read()?;
        let options = Options::new(Kubelet::built()?).with("volumeStatsAggPeriod", json!(VOLUME_PERIOD));
        let bed = Bed::start(scope, Flavour::V2, options).await?;
        for (name, manifest) in manifests(scope.id()) {
            bed.node.write(name, &manifest)?;
        }
        wait_until_known(&bed.node).await?;
        let before = bed.view.identities().await?;
        let peer = bed.node.start_beside(scope, Kubelet::Upstream, &bed.containerd)?;
        wait_until_known(&peer).await.with_context(|| peer.log_tail())?;
        let nodes = (&bed.node, &peer);
        let alike = wait_until("both kubelets show the same", DEADLINE, async || {
            let found = differences(&rules, nodes, &scope.cgroup_root())?;
            ensure!(
                found.is_empty(),
                "{} differences:\n{}",
                found.len(),
                found.join("\n")
            );
            Ok(())
        });
        alike.await?;
        let after = bed.view.identities().await?;
        ensure!(before == after, "one kubelet touched the pods of the other");
        Ok(())
    });
}
