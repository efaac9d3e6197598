//! Pods of the API server that change while they run, and that somebody enters.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use rubelet_testbed::cluster::Cluster;
use rubelet_testbed::images::SERVER;
use rubelet_testbed::node::PodFacts;
use rubelet_testbed::node::manifest::{UNTIL_TERM, pause, pod, shell, with};
use serde_json::json;

use crate::cluster_pods::{Scenario, scenarios};

pub(crate) const ALL: &[Scenario] = scenarios![
    labels_reach_a_running_pod,
    an_ephemeral_container_joins_a_pod,
    a_new_image_restarts_its_container,
    a_resize_is_carried_out,
    commands_run_in_a_container,
];

/// The pod's first container has gone on all the time.
fn check_same_container(before: &Pod, after: &Pod) -> Result<()> {
    ensure!(
        after.running_id("main")? == before.running_id("main")?,
        "the container was made anew"
    );
    Ok(())
}

async fn labels_reach_a_running_pod(cluster: &Cluster<'_>) -> Result<()> {
    let name = "labelled";
    let volume = json!([{ "name": "info", "downwardAPI": { "items": [
        { "path": "labels", "fieldRef": { "fieldPath": "metadata.labels" } } ] } }]);
    let mounts = json!([{ "name": "info", "mountPath": "/info" }]);
    let manifest = pod(name)
        .container(with(shell("main", UNTIL_TERM), "volumeMounts", mounts))
        .spec("volumes", volume)
        .metadata("labels", json!({ "step": "one" }));
    let ready = cluster.start_pod(manifest).await?;
    cluster
        .patch_pod(name, json!({ "metadata": { "labels": { "step": "two" } } }))
        .await?;
    cluster
        .eventually("the new label is in the file", async || {
            let text = cluster
                .kubectl(&["exec", name, "--", "cat", "/info/labels"])
                .await?;
            ensure!(text.contains("step=\"two\""), "{text}");
            Ok(())
        })
        .await?;
    cluster.remove_pod(&ready, Some(0)).await
}

async fn an_ephemeral_container_joins_a_pod(cluster: &Cluster<'_>) -> Result<()> {
    let name = "debugged";
    let manifest = pod(name).container(shell("main", UNTIL_TERM));
    let ready = cluster.start_pod(manifest).await?;
    let mut debugger = shell("debugger", "echo I see $(hostname); ps; exit 6");
    debugger["targetContainerName"] = json!("main");
    let patch = json!({ "spec": { "ephemeralContainers": [debugger] } });
    cluster
        .pods()
        .patch_ephemeral_containers(name, &PatchParams::default(), &Patch::Strategic(patch))
        .await?;
    let after = cluster
        .wait_for_pod(name, "its debugger has ended", |pod| {
            ensure!(pod.terminated("debugger")?.exit_code == 6, "another end");
            Ok(pod.clone())
        })
        .await?;
    let statuses = after.status.as_ref().context("a status")?;
    let ephemeral = statuses
        .ephemeral_container_statuses
        .as_deref()
        .unwrap_or_default();
    ensure!(
        ephemeral.len() == 1 && ephemeral[0].restart_count == 0,
        "{ephemeral:?}"
    );
    // It sees the processes of its target, and changes nothing of the pod.
    cluster
        .eventually("its words are in the log", async || {
            let logs = cluster.kubectl(&["logs", name, "--container=debugger"]).await?;
            ensure!(
                logs.contains(&format!("I see {name}")) && logs.contains("trap"),
                "{logs}"
            );
            Ok(())
        })
        .await?;
    after.check_ready()?;
    check_same_container(&ready, &after)?;
    cluster.remove_pod(&ready, Some(0)).await
}

async fn a_new_image_restarts_its_container(cluster: &Cluster<'_>) -> Result<()> {
    let name = "renewed";
    let manifest = pod(name)
        .container(shell("main", UNTIL_TERM))
        .container(pause("other"));
    let ready = cluster.start_pod(manifest).await?;
    let patch = json!({ "spec": { "containers": [{ "name": "other", "image": SERVER }] } });
    cluster
        .pods()
        .patch(name, &PatchParams::default(), &Patch::Strategic(patch))
        .await?;
    // Without arguments the new image's program ends soon; that it was started is enough.
    let after = cluster
        .wait_for_pod(name, "has the new image", |pod| {
            let other = pod.container("other")?;
            ensure!(other.restart_count >= 1, "{} restarts", other.restart_count);
            ensure!(other.image == SERVER, "{}", other.image);
            Ok(pod.clone())
        })
        .await?;
    check_same_container(&ready, &after)?;
    cluster
        .eventually("the reason is told", async || {
            let events = cluster.events(name).await?;
            let told = events.iter().any(|event| {
                let message = event.message.as_deref().unwrap_or_default();
                event.reason.as_deref() == Some("Killing") && message.contains("definition changed")
            });
            ensure!(told, "{:?}", cluster.event_reasons(name).await?);
            Ok(())
        })
        .await?;
    cluster.remove_pod(&ready, Some(0)).await
}

/// A container gets other resources while it runs; what the node does not have at the moment is deferred.
async fn a_resize_is_carried_out(cluster: &Cluster<'_>) -> Result<()> {
    let name = "resized";
    let resources = json!({ "requests": { "cpu": "10m" } });
    let manifest = pod(name).container(with(shell("main", UNTIL_TERM), "resources", resources));
    let ready = cluster.start_pod(manifest).await?;
    let resize = async |cpu: &str| {
        let patch = json!({ "spec": { "containers": [{ "name": "main", "resources": { "requests": { "cpu": cpu } } }] } });
        let patched = cluster.pods();
        patched
            .patch_subresource("resize", name, &PatchParams::default(), &Patch::Strategic(patch))
            .await
    };
    resize("20m").await?;
    cluster
        .wait_for_pod(name, "it has what it asks for", |pod| {
            let statuses = pod
                .status
                .as_ref()
                .and_then(|status| status.container_statuses.as_ref());
            let main = statuses.and_then(|statuses| statuses.first());
            let has = main.and_then(|main| main.resources.as_ref()?.requests.as_ref()?.get("cpu"));
            ensure!(has.is_some_and(|has| has.0 == "20m"), "{main:?}");
            let (status, ..) = pod.condition("PodResizeInProgress");
            ensure!(status.is_empty(), "PodResizeInProgress is {status}");
            Ok(pod.clone())
        })
        .await?;
    // The API server itself refuses more than the node has in sum.
    let status = cluster.node().await?.status.context("a status")?;
    let allocatable = status.allocatable.unwrap_or_default();
    let whole = allocatable.get("cpu").context("the node's processors")?;
    let other = with(
        shell("main", UNTIL_TERM),
        "resources",
        json!({ "requests": { "cpu": "100m" } }),
    );
    let other = cluster.start_pod(pod("beside").container(other)).await?;
    resize(&whole.0).await?;
    let after = cluster
        .wait_for_pod(name, "the rest is deferred", |pod| {
            let (status, reason, message) = pod.condition("PodResizePending");
            ensure!((status, reason) == ("True", "Deferred"), "{status} {reason}");
            ensure!(
                message.starts_with("Node didn't have enough resource: cpu"),
                "{message}"
            );
            Ok(pod.clone())
        })
        .await?;
    let reasons = cluster.event_reasons(name).await?;
    for reason in ["ResizeStarted", "ResizeCompleted", "ResizeDeferred"] {
        ensure!(
            reasons.iter().any(|one| one == reason),
            "no {reason}: {reasons:?}"
        );
    }
    after.check_ready()?;
    check_same_container(&ready, &after)?;
    cluster.remove_pod(&other, Some(0)).await?;
    cluster.remove_pod(&ready, Some(0)).await
}

async fn commands_run_in_a_container(cluster: &Cluster<'_>) -> Result<()> {
    let name = "entered";
    let manifest = pod(name).container(shell("main", UNTIL_TERM));
    let ready = cluster.start_pod(manifest).await?;
    let said = cluster
        .kubectl(&["exec", name, "--", "sh", "-c", "echo out; echo err >&2"])
        .await?;
    ensure!(said == "out\n", "{said:?}");
    let failed = cluster
        .control_plane
        .kubectl(&["exec", name, "--", "sh", "-c", "exit 7"])
        .await?;
    ensure!(failed.status.code() == Some(7), "{failed:?}");
    cluster.remove_pod(&ready, Some(0)).await
}
