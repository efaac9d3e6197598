//! How containers are stopped and what they leave to say.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::json;

use super::super::bed::scenarios;
use super::super::manifest::{pod, server, shell, with};
use super::super::{Bed, PodFacts, Scenario};
use super::{until, wait_until_stopped};

pub(super) const ALL: &[Scenario] = scenarios![
    container_that_ignores_sigterm_is_killed_after_its_grace,
    container_that_hears_sigterm_is_not_waited_for,
    termination_message_from_the_file,
    termination_message_from_the_log,
    long_termination_message_is_cut,
];

async fn container_that_ignores_sigterm_is_killed_after_its_grace(bed: &Bed<'_>) -> Result<()> {
    let grace = Duration::from_secs(4);
    let took = removed_after(bed, "deaf", grace, &["serve", "--on-term", "ignore"]).await?;
    ensure!(
        took >= grace && took < grace + Duration::from_secs(40),
        "it was killed after {took:?}"
    );
    Ok(())
}

async fn container_that_hears_sigterm_is_not_waited_for(bed: &Bed<'_>) -> Result<()> {
    let grace = Duration::from_secs(60);
    let took = removed_after(bed, "polite", grace, &["serve", "--on-term", "exit"]).await?;
    ensure!(took < grace / 2, "it took {took:?}");
    Ok(())
}

/// The time from a manifest's removal to the end of the container's process.
async fn removed_after(bed: &Bed<'_>, name: &str, grace: Duration, arguments: &[&str]) -> Result<Duration> {
    // A server that listens has set its signals.
    let listens = json!({ "tcpSocket": { "port": 8080 }, "periodSeconds": 1 });
    let manifest = pod(name)
        .container(with(server("main", arguments), "readinessProbe", listens))
        .spec("terminationGracePeriodSeconds", json!(grace.as_secs()));
    bed.node.write(name, &manifest.json())?;
    let pod = bed.node.wait_until_ready(name).await?;
    let process = format!("/proc/{}", bed.view.pid(&pod.running_id("main")?).await?);
    ensure!(Path::new(&process).exists(), "no {process}");
    let removed = Instant::now();
    bed.node.remove(name)?;
    until("the process has ended", async || {
        ensure!(!Path::new(&process).exists(), "{process} is there");
        Ok(())
    })
    .await?;
    let took = removed.elapsed();
    wait_until_stopped(bed, pod.uid()).await?;
    Ok(took)
}

async fn message_of(bed: &Bed<'_>, name: &str, policy: &str, script: &str) -> Result<String> {
    let container = with(shell("main", script), "terminationMessagePolicy", json!(policy));
    let manifest = pod(name)
        .container(container)
        .spec("restartPolicy", json!("Never"));
    bed.node.write(name, &manifest.json())?;
    let message = bed
        .node
        .wait_for_pod(name, "has ended", |pod| {
            Ok(pod.terminated("main")?.message.clone().unwrap_or_default())
        })
        .await?;
    bed.node.remove(name)?;
    Ok(message)
}

async fn termination_message_from_the_file(bed: &Bed<'_>) -> Result<()> {
    let script = "echo -n the last words >/dev/termination-log; echo noise; exit 1";
    let message = message_of(bed, "message-file", "File", script).await?;
    ensure!(message == "the last words", "{message:?}");
    Ok(())
}

async fn termination_message_from_the_log(bed: &Bed<'_>) -> Result<()> {
    let script = "echo one; echo two >&2; exit 1";
    let message = message_of(bed, "message-log", "FallbackToLogsOnError", script).await?;
    ensure!(message.contains("one") && message.contains("two"), "{message:?}");
    // Only failures speak through their log.
    let message = message_of(bed, "message-none", "FallbackToLogsOnError", "echo one").await?;
    ensure!(message.is_empty(), "{message:?}");
    Ok(())
}

async fn long_termination_message_is_cut(bed: &Bed<'_>) -> Result<()> {
    let script = "head -c 10000 /dev/zero | tr '\\0' x >/dev/termination-log";
    let message = message_of(bed, "message-long", "File", script).await?;
    ensure!(message.len() == 4096, "{} bytes", message.len());
    Ok(())
}
