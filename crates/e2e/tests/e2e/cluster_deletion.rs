//! Pods of the API server that run, end and go: in their own time, gracefully, by force, and again under the same name.

use anyhow::{Context, Result, ensure};
use rubelet_testbed::cluster::Cluster;
use rubelet_testbed::node::PodFacts;
use rubelet_testbed::node::manifest::{UNTIL_TERM, pause, pod, shell};
use serde_json::json;

use crate::cluster_pods::{Scenario, scenarios};

pub(crate) const ALL: &[Scenario] = scenarios![
    a_pod_runs_and_is_deleted,
    a_pod_is_deleted_by_force,
    a_pod_that_ends_keeps_its_phase,
    a_graceful_end_is_waited_for,
    two_pods_of_one_name_in_a_row,
];

async fn a_pod_runs_and_is_deleted(cluster: &Cluster<'_>) -> Result<()> {
    let name = "plain";
    let script = format!("echo hello from the pod; {UNTIL_TERM}");
    let ready = cluster
        .start_pod(pod(name).container(shell("main", &script)))
        .await?;
    let status = ready.status.clone().context("a status")?;
    ensure!(status.host_ip.is_some(), "no hostIP");
    ensure!(status.pod_ip.is_some(), "no podIP");
    ensure!(
        status.qos_class.as_deref() == Some("BestEffort"),
        "{:?}",
        status.qos_class
    );
    ensure!(status.start_time.is_some(), "no startTime");
    wait_until_said(cluster, name, "hello from the pod\n").await?;
    cluster
        .eventually("the events are there", async || {
            let reasons = cluster.event_reasons(name).await?;
            for reason in ["Pulled", "Created", "Started"] {
                ensure!(
                    reasons.iter().any(|found| found == reason),
                    "no {reason} in {reasons:?}"
                );
            }
            Ok(())
        })
        .await?;
    let started = cluster.events(name).await?;
    let started = started
        .iter()
        .find(|event| event.reason.as_deref() == Some("Started"))
        .context("Started")?;
    ensure!(
        started.involved_object.field_path.as_deref() == Some("spec.containers{main}"),
        "{:?}",
        started.involved_object
    );
    ensure!(
        started
            .source
            .as_ref()
            .and_then(|source| source.component.as_deref())
            == Some("kubelet"),
        "{:?}",
        started.source
    );
    cluster.remove_pod(&ready, None).await
}

async fn a_pod_is_deleted_by_force(cluster: &Cluster<'_>) -> Result<()> {
    let ready = cluster.start_pod(pod("forced").container(pause("main"))).await?;
    cluster.remove_pod(&ready, Some(0)).await
}

async fn a_pod_that_ends_keeps_its_phase(cluster: &Cluster<'_>) -> Result<()> {
    for (name, script, phase) in [
        ("succeeds", "exit 0", "Succeeded"),
        ("fails", "echo why > /dev/termination-log; exit 3", "Failed"),
    ] {
        let manifest = pod(name).container(shell("main", script));
        let ended = cluster.run_pod_once(manifest, phase).await?;
        let terminated = ended.terminated("main")?;
        if name == "fails" {
            ensure!(terminated.exit_code == 3, "{terminated:?}");
            ensure!(terminated.message.as_deref() == Some("why\n"), "{terminated:?}");
        }
        cluster.remove_pod(&ended, None).await?;
    }
    Ok(())
}

/// A container that runs may not have said anything yet.
async fn wait_until_said(cluster: &Cluster<'_>, name: &str, words: &str) -> Result<()> {
    cluster
        .eventually("the container has said its words", async || {
            let logs = cluster.kubectl(&["logs", name]).await?;
            ensure!(logs == words, "{logs:?}");
            Ok(())
        })
        .await
}

async fn a_graceful_end_is_waited_for(cluster: &Cluster<'_>) -> Result<()> {
    let name = "graceful";
    let script = "trap 'echo bye; exit 5' TERM; echo listens; while :; do sleep 0.1; done";
    let manifest = pod(name)
        .container(shell("main", script))
        .spec("restartPolicy", json!("Never"))
        .metadata("finalizers", json!(["rubelet.test/hold"]));
    let ready = cluster.start_pod(manifest).await?;
    wait_until_said(cluster, name, "listens\n").await?;
    cluster.delete_pod(name, Some(30)).await?;
    // The finalizer keeps the object, so that its last status can be read.
    cluster
        .wait_for_pod(name, "has ended", |pod| {
            pod.check_phase("Failed")?;
            ensure!(
                pod.terminated("main")?.exit_code == 5,
                "{:?}",
                pod.terminated("main")?
            );
            Ok(())
        })
        .await?;
    cluster
        .patch_pod(name, json!({ "metadata": { "finalizers": null } }))
        .await?;
    cluster.wait_until_gone(name, ready.uid()).await
}

async fn two_pods_of_one_name_in_a_row(cluster: &Cluster<'_>) -> Result<()> {
    let name = "again";
    let mut uids = Vec::new();
    for _ in 0..2 {
        let ready = cluster.start_pod(pod(name).container(pause("main"))).await?;
        cluster.delete_pod(name, Some(0)).await?;
        uids.push(ready.uid().to_owned());
    }
    ensure!(uids[0] != uids[1]);
    for uid in &uids {
        cluster.wait_until_gone(name, uid).await?;
    }
    Ok(())
}
