//! How containers are stopped and what they leave to say.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rubelet_ports::{RuntimeReader, RuntimeWriter};
use serde_json::{Value, json};

use super::scenarios;
use super::{until, wait_until_stopped};
use rubelet_testbed::node::manifest::{pod, server, shell, with};
use rubelet_testbed::node::{Bed, PodFacts, Scenario};

pub(super) const ALL: &[Scenario] = scenarios![
    container_that_ignores_sigterm_is_killed_after_its_grace,
    container_that_hears_sigterm_is_not_waited_for,
    termination_message_from_the_file,
    termination_message_from_the_log,
    long_termination_message_is_cut,
    pod_without_its_network_namespace_ends,
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

/// Containerd can neither read nor stop such a sandbox. Upstream's kubelet never ends the pod; here its containers' end is enough,
/// so that the same static pod can start again.
async fn pod_without_its_network_namespace_ends(bed: &Bed<'_>) -> Result<()> {
    let name = "no-netns";
    let manifest = pod(name)
        .container(server("main", &["serve"]))
        .spec("terminationGracePeriodSeconds", json!(1))
        .json();
    bed.node.write(name, &manifest)?;
    let before = bed.node.wait_until_ready(name).await?;
    let sandbox = sandbox_of(bed, before.uid()).await?;
    let namespace = network_namespace(bed, &sandbox).await?;
    run("umount", &[&namespace])?;
    // Something that is mounted there cannot be removed, and is no network namespace.
    run("mount", &["--bind", "/dev/null", &namespace])?;
    let mounted = namespace.clone();
    bed.scope
        .defer("the mount in place of a network namespace", move || {
            // It is gone already unless the test failed.
            let _ = std::process::Command::new("umount").arg(&mounted).output();
            let _ = std::fs::remove_file(&mounted);
        });
    let client = bed.view.client();
    ensure!(
        client.pod_sandbox_status(&sandbox, false).await.is_err(),
        "the runtime can still read the sandbox"
    );

    bed.node.remove(name)?;
    until("its containers have ended", async || {
        let containers = bed.view.containers_of(before.uid()).await?;
        ensure!(
            containers.iter().all(|container| !container.running),
            "{containers:?}"
        );
        Ok(())
    })
    .await?;
    bed.node.write(name, &manifest)?;
    until("the pod starts again in another sandbox", async || {
        let other = sandbox_of(bed, before.uid()).await?;
        ensure!(other != sandbox, "the old sandbox is the only one");
        Ok(())
    })
    .await?;
    bed.node.wait_until_ready(name).await?;

    bed.node.remove(name)?;
    run("umount", &[&namespace])?;
    until("the old sandbox can be stopped again", async || {
        Ok(client.stop_pod_sandbox(&sandbox).await?)
    })
    .await?;
    client.remove_pod_sandbox(&sandbox).await?;
    wait_until_stopped(bed, before.uid()).await
}

/// The newest ready sandbox of a pod.
async fn sandbox_of(bed: &Bed<'_>, uid: &str) -> Result<String> {
    let sandboxes = bed.view.sandboxes().await?;
    let ready = sandboxes
        .into_iter()
        .filter(|sandbox| sandbox.uid == uid && sandbox.ready);
    let newest = ready.max_by_key(|sandbox| sandbox.attempt);
    Ok(newest.context("no ready sandbox")?.id)
}

/// Where the runtime has mounted a sandbox's network namespace.
async fn network_namespace(bed: &Bed<'_>, sandbox: &str) -> Result<String> {
    let status = bed.view.client().pod_sandbox_status(sandbox, true).await?;
    let info: Value = serde_json::from_str(status.info.get("info").context("no information")?)?;
    let namespaces = info["runtimeSpec"]["linux"]["namespaces"].as_array();
    let mut namespaces = namespaces.into_iter().flatten();
    let network = namespaces.find(|namespace| namespace["type"] == "network");
    let path = network.and_then(|network| network["path"].as_str());
    Ok(path.context("no path of a network namespace")?.to_owned())
}

fn run(program: &str, arguments: &[&str]) -> Result<()> {
    let output = std::process::Command::new(program).args(arguments).output()?;
    let problem = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {arguments:?}: {problem}");
    Ok(())
}
