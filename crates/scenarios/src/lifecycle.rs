//! Pods come, are edited, end and go.

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::scenarios;
use super::{until, wait_until_stopped};
use rubelet_testbed::node::manifest::{UNTIL_TERM, pause, pod, shell, with};
use rubelet_testbed::node::{Bed, PodFacts, Scenario};

pub(super) const ALL: &[Scenario] = scenarios![
    pod_runs_and_is_ready,
    init_containers_then_sidecar_then_regular,
    edit_replaces_the_pod,
    edit_under_the_same_uid_is_seen,
    removed_pod_comes_back_under_the_same_uid,
    active_deadline_fails_the_pod_and_sidecars_stop_last,
    rename_of_a_manifest_makes_a_new_pod,
];

async fn pod_runs_and_is_ready(bed: &Bed<'_>) -> Result<()> {
    let name = "runs";
    bed.node.write(
        name,
        &pod(name).container(pause("one")).container(pause("two")).json(),
    )?;
    let pod = bed.node.wait_until_ready(name).await?;
    for kind in [
        "PodReadyToStartContainers",
        "Initialized",
        "Ready",
        "ContainersReady",
        "PodScheduled",
    ] {
        let (status, reason, message) = pod.condition(kind);
        ensure!(status == "True", "{kind} is {status:?}: {reason} {message}");
    }
    let status = pod.status.as_ref().context("no status")?;
    ensure!(status.qos_class.as_deref() == Some("BestEffort"), "{status:?}");
    ensure!(status.start_time.is_some(), "{status:?}");
    let address = status.pod_ip.clone().unwrap_or_default();
    ensure!(
        address.starts_with(bed.containerd.network().gateway().trim_end_matches('1')),
        "the pod's address is {address:?}"
    );
    ensure!(pod.metadata.namespace.as_deref() == Some("default"));
    let annotations = pod.metadata.annotations.clone().unwrap_or_default();
    ensure!(
        annotations.get("kubernetes.io/config.source").map(String::as_str) == Some("file")
            && annotations.get("kubernetes.io/config.hash").map(String::as_str) == Some(pod.uid()),
        "{annotations:?}"
    );
    // What the kubelet says is what the runtime has.
    for container in ["one", "two"] {
        let id = pod.running_id(container)?;
        let fact = bed.view.containers_of(pod.uid()).await?;
        ensure!(
            fact.iter()
                .any(|fact| fact.id == id && fact.running && fact.name == container),
            "the runtime does not run {container} as {id}: {fact:?}"
        );
        let container = pod.container(container)?;
        ensure!(
            container.ready && container.started == Some(true) && container.restart_count == 0,
            "{container:?}"
        );
    }
    bed.node.remove(name)?;
    bed.node.wait_until_gone(name).await?;
    wait_until_stopped(bed, pod.uid()).await
}

/// The order is told by the runtime's own clock.
async fn init_containers_then_sidecar_then_regular(bed: &Bed<'_>) -> Result<()> {
    let name = "order";
    let sidecar = with(shell("sidecar", UNTIL_TERM), "restartPolicy", json!("Always"));
    let manifest = pod(name)
        .init(shell("first", "sleep 0.3"))
        .init(sidecar)
        .init(shell("second", "sleep 0.3"))
        .container(pause("main"));
    bed.node.write(name, &manifest.json())?;
    let pod = bed.node.wait_until_ready(name).await?;
    let mut ids = std::collections::BTreeMap::new();
    for container in bed.view.containers_of(pod.uid()).await? {
        ids.insert(container.name.clone(), bed.view.status(&container.id).await?);
    }
    let of = |container: &str| {
        ids.get(container)
            .with_context(|| format!("the runtime has no {container}"))
    };
    let (first, sidecar, second, main) = (of("first")?, of("sidecar")?, of("second")?, of("main")?);
    ensure!(
        first.finished_at <= sidecar.created_at,
        "the sidecar came before the end of first"
    );
    ensure!(
        sidecar.started_at <= second.created_at,
        "second came before the sidecar's start"
    );
    ensure!(
        second.finished_at <= main.created_at,
        "main came before the end of second"
    );
    ensure!(pod.terminated("first")?.exit_code == 0);
    ensure!(pod.container("sidecar")?.ready);
    bed.node.remove(name)
}

async fn edit_replaces_the_pod(bed: &Bed<'_>) -> Result<()> {
    let name = "edited";
    let manifest = |word: &str| {
        let container = with(pause("main"), "env", json!([{ "name": "WORD", "value": word }]));
        pod(name).container(container).json()
    };
    bed.node.write(name, &manifest("old"))?;
    let old = bed.node.wait_until_ready(name).await?;
    bed.node.write(name, &manifest("new"))?;
    let new = until("the new pod is ready", async || {
        // One look at a time: the old one stops before the new one starts.
        let sandboxes = bed.view.sandboxes().await?;
        let full = bed.node.pod_name(name);
        let ready: Vec<_> = sandboxes
            .iter()
            .filter(|sandbox| sandbox.pod == full && sandbox.ready)
            .collect();
        ensure!(ready.len() <= 1, "both run: {ready:?}");
        let pod = bed.node.pod(name)?;
        ensure!(pod.uid() != old.uid(), "the old pod is still there");
        pod.check_ready()?;
        Ok(pod)
    })
    .await?;
    let container = new.spec.as_ref().and_then(|spec| spec.containers.first());
    let env = container
        .and_then(|container| container.env.clone())
        .unwrap_or_default();
    ensure!(
        env.first().and_then(|variable| variable.value.as_deref()) == Some("new"),
        "{env:?}"
    );
    wait_until_stopped(bed, old.uid()).await?;
    bed.node.remove(name)
}

/// With a UID of its own, an edit is an update of the same pod. What it changes is the image, the one thing of a container
/// that a running pod can change.
async fn edit_under_the_same_uid_is_seen(bed: &Bed<'_>) -> Result<()> {
    let name = "same-uid";
    let uid = format!("same-uid-{}", bed.scope.id());
    let manifest = |image: &str| {
        let container = json!({ "name": "main", "image": image, "imagePullPolicy": "Never",
            "command": ["/bin/sh", "-c", UNTIL_TERM] });
        let manifest = pod(name).metadata("uid", json!(uid));
        manifest.container(container).container(pause("other")).json()
    };
    bed.node
        .write(name, &manifest(rubelet_testbed::images::BUSYBOX))?;
    let old = bed.node.wait_until_ready(name).await?;
    ensure!(old.uid() == uid, "the pod's uid is {:?}", old.uid());
    bed.node.write(name, &manifest(rubelet_testbed::images::SERVER))?;
    let new = bed
        .node
        .wait_for_pod(name, "runs the new image", |pod| {
            pod.check_ready()?;
            ensure!(
                pod.running_id("main")? != old.running_id("main")?,
                "the old container runs"
            );
            Ok(pod.clone())
        })
        .await?;
    ensure!(new.container("main")?.restart_count == 1, "{:?}", new.status);
    ensure!(
        new.running_id("other")? == old.running_id("other")?,
        "the other container was replaced too"
    );
    bed.node.remove(name)
}

async fn removed_pod_comes_back_under_the_same_uid(bed: &Bed<'_>) -> Result<()> {
    let name = "again";
    let manifest = pod(name).container(pause("main")).json();
    bed.node.write(name, &manifest)?;
    let first = bed.node.wait_until_ready(name).await?;
    bed.node.remove(name)?;
    bed.node.wait_until_gone(name).await?;
    bed.node.write(name, &manifest)?;
    let second = bed
        .node
        .wait_for_pod(name, "runs again", |pod| {
            pod.check_ready()?;
            ensure!(
                pod.running_id("main")? != first.running_id("main")?,
                "this is the first one"
            );
            Ok(pod.clone())
        })
        .await?;
    ensure!(
        first.uid() == second.uid(),
        "the same manifest is the same pod, whenever it comes"
    );
    bed.node.remove(name)
}

async fn active_deadline_fails_the_pod_and_sidecars_stop_last(bed: &Bed<'_>) -> Result<()> {
    let name = "deadline";
    let sidecar = |container: &str| with(shell(container, UNTIL_TERM), "restartPolicy", json!("Always"));
    let slow = "trap 'sleep 0.5; exit 0' TERM; while :; do sleep 0.1; done";
    let manifest = pod(name)
        .init(sidecar("one"))
        .init(sidecar("two"))
        .container(shell("main", slow))
        .spec("activeDeadlineSeconds", json!(20))
        .spec("terminationGracePeriodSeconds", json!(10));
    bed.node.write(name, &manifest.json())?;
    let pod = bed
        .node
        .wait_for_pod(name, "has failed", |pod| {
            pod.check_phase("Failed")?;
            Ok(pod.clone())
        })
        .await?;
    let status = pod.status.as_ref().context("no status")?;
    ensure!(status.reason.as_deref() == Some("DeadlineExceeded"), "{status:?}");
    // Upstream's own list tells the phase too early; only what it sends to an API server is held back.
    if !bed.node.kubelet().is_rubelet() {
        wait_until_stopped(bed, pod.uid()).await?;
    }
    let mut finished = std::collections::BTreeMap::new();
    for container in bed.view.containers_of(pod.uid()).await? {
        ensure!(!container.running, "{container:?} runs after its pod has failed");
        finished.insert(
            container.name.clone(),
            bed.view.status(&container.id).await?.finished_at,
        );
    }
    ensure!(finished.len() == 3, "{finished:?}");
    ensure!(
        finished["main"] <= finished["two"] && finished["two"] <= finished["one"],
        "sidecars stop after the regular containers, the last first: {finished:?}"
    );
    bed.node.remove(name)
}

/// The file's name is part of the pod's identity, so that this is another pod of the same name.
async fn rename_of_a_manifest_makes_a_new_pod(bed: &Bed<'_>) -> Result<()> {
    let name = "renamed";
    bed.node.write(name, &pod(name).container(pause("main")).json())?;
    let old = bed.node.wait_until_ready(name).await?;
    let folder = bed.node.manifests();
    std::fs::rename(folder.join("renamed.json"), folder.join("renamed-2.json"))?;
    let new = bed
        .node
        .wait_for_pod(name, "runs from the other file", |pod| {
            ensure!(pod.uid() != old.uid(), "this is the old one");
            pod.check_ready()?;
            Ok(pod.clone())
        })
        .await?;
    wait_until_stopped(bed, old.uid()).await?;
    ensure!(bed.view.containers_of(new.uid()).await?.len() == 1);
    bed.node.remove("renamed-2")
}
