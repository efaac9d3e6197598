//! Log files and what is cleaned up.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::scenarios;
use super::{log_lines, log_path, until, wait_until_removed, wait_until_stopped};
use rubelet_testbed::node::manifest::{UNTIL_TERM, pod, shell};
use rubelet_testbed::node::{Bed, PodFacts, Scenario};

pub(super) const ALL: &[Scenario] = scenarios![removed_pod_leaves_nothing, logs_are_where_agents_look];

/// The two streams are two pipes: which line comes first is open.
fn said(lines: &[String]) -> Result<()> {
    let mut lines = lines.to_vec();
    lines.sort();
    ensure!(lines == ["to stderr", "to stdout"], "{lines:?}");
    Ok(())
}

async fn logs_are_where_agents_look(bed: &Bed<'_>) -> Result<()> {
    let name = "logs";
    let script = format!("echo to stdout; echo to stderr >&2; {UNTIL_TERM}");
    let manifest = pod(name)
        .init(shell("init", "echo init"))
        .container(shell("main", &script));
    bed.node.write(name, &manifest.json())?;
    let pod = bed.node.wait_until_ready(name).await?;
    until("the log is written", async || {
        said(&log_lines(bed, &pod, "main", 0)?)
    })
    .await?;
    ensure!(log_lines(bed, &pod, "init", 0)? == ["init"]);
    let id = pod.running_id("main")?;
    let link = bed.node.log_links()?.join(format!(
        "{}_default_main-{id}.log",
        pod.metadata.name.as_deref().unwrap_or_default()
    ));
    let target = fs::read_link(&link).with_context(|| format!("read {}", link.display()))?;
    ensure!(
        target == log_path(bed, &pod, "main", 0),
        "the link leads to {target:?}"
    );
    // The successor writes to a file of its own.
    bed.view.kill_container(&id).await?;
    until("the next log is written", async || {
        said(&log_lines(bed, &pod, "main", 1)?)
    })
    .await?;
    bed.node.remove(name)
}

/// Collecting comes every minute in upstream, so that this takes the longest of all scenarios.
async fn removed_pod_leaves_nothing(bed: &Bed<'_>) -> Result<()> {
    let name = "leaves-nothing";
    let manifest = pod(name)
        .container(shell("main", &format!("echo x; {UNTIL_TERM}")))
        .spec(
            "hostAliases",
            json!([{ "ip": "192.0.2.9", "hostnames": ["x.test"] }]),
        );
    bed.node.write(name, &manifest.json())?;
    let pod = bed.node.wait_until_ready(name).await?;
    let log = log_path(bed, &pod, "main", 0);
    let log_dir = log
        .parent()
        .and_then(|dir| dir.parent())
        .context("no directory of logs")?;
    let pod_dir = bed.node.root_dir().join("pods").join(pod.uid());
    ensure!(pod_dir.join("etc-hosts").exists(), "no {}", pod_dir.display());
    let link = bed.node.log_links()?.join(format!(
        "{}_default_main-{}.log",
        pod.metadata.name.as_deref().unwrap_or_default(),
        pod.running_id("main")?
    ));
    ensure!(link.symlink_metadata().is_ok(), "no {}", link.display());
    bed.node.remove(name)?;
    wait_until_stopped(bed, pod.uid()).await?;
    wait_until_removed(&pod_dir).await?;
    until("the runtime has forgotten the pod", async || {
        let containers = bed.view.containers_of(pod.uid()).await?;
        ensure!(containers.is_empty(), "{containers:?}");
        let sandboxes = bed.view.sandboxes().await?;
        let sandbox = sandboxes.iter().find(|sandbox| sandbox.uid == pod.uid());
        ensure!(sandbox.is_none(), "{sandbox:?}");
        Ok(())
    })
    .await?;
    wait_until_removed(log_dir).await?;
    wait_until_removed(&link).await
}
