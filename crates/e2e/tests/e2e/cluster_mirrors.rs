//! Static pods on a node of a cluster: the API server shows them by their mirrors.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use rubelet_testbed::cluster::Cluster;
use rubelet_testbed::node::PodFacts;
use rubelet_testbed::node::manifest::{pause, pod};
use serde_json::json;

use crate::cluster_pods::{Scenario, scenarios};

pub(crate) const ALL: &[Scenario] = scenarios![a_static_pod_has_a_mirror,];

/// Another mirror than this one shows the same container.
async fn the_mirror_is_back(cluster: &Cluster<'_>, name: &str, old: &Pod) -> Result<Pod> {
    let again = cluster
        .wait_for_pod(name, "is back", |pod| {
            ensure!(pod.uid() != old.uid(), "it is the old one");
            pod.check_ready()?;
            Ok(pod.clone())
        })
        .await?;
    ensure!(
        again.container("main")?.container_id == old.container("main")?.container_id,
        "the container was made anew"
    );
    Ok(again)
}

async fn a_static_pod_has_a_mirror(cluster: &Cluster<'_>) -> Result<()> {
    let name = "static";
    let manifest = pod(name)
        .metadata("labels", json!({"app": name}))
        .container(pause("main"))
        .json();
    cluster.bed.node.write(name, &manifest)?;
    let full = cluster.bed.node.pod_name(name);
    let mirror = cluster.wait_until_ready(&full).await?;
    let annotations = mirror.metadata.annotations.clone().unwrap_or_default();
    ensure!(
        annotations.contains_key("kubernetes.io/config.mirror"),
        "{annotations:?}"
    );
    let owners = mirror.metadata.owner_references.clone().unwrap_or_default();
    ensure!(owners.iter().any(|owner| owner.kind == "Node"), "{owners:?}");
    cluster.delete_pod(&full, Some(0)).await?;
    let mut last = the_mirror_is_back(cluster, &full, &mirror).await?;
    cluster.delete_pod(&full, None).await?;
    last = the_mirror_is_back(cluster, &full, &last).await?;
    // Whoever changes what the manifest says gets it back.
    let changes: [&[&str]; 2] = [
        &["label", "pod", full.as_str(), "app=other", "--overwrite"],
        &[
            "set",
            "image",
            "pod",
            full.as_str(),
            "main=registry.invalid/other:1",
        ],
    ];
    for change in changes {
        cluster.kubectl(change).await?;
        last = the_mirror_is_back(cluster, &full, &last).await?;
        ensure!(
            last.metadata.labels == mirror.metadata.labels,
            "{:?}",
            last.metadata.labels
        );
        let images = |pod: &Pod| {
            let spec = pod.spec.clone().unwrap_or_default();
            let images = spec.containers.into_iter().map(|container| container.image);
            images.collect::<Vec<_>>()
        };
        ensure!(images(&last) == images(&mirror), "{:?}", images(&last));
    }
    // Removed and written again at once: the pod ends, and another one of the same identity begins.
    cluster.bed.node.remove(name)?;
    cluster.bed.node.write(name, &manifest)?;
    let anew = cluster
        .wait_for_pod(&full, "has begun anew", |pod| {
            let main = pod.container("main")?;
            ensure!(main.restart_count == 1, "{} restarts", main.restart_count);
            pod.check_ready()?;
            Ok(pod.clone())
        })
        .await?;
    cluster.bed.node.remove(name)?;
    cluster.wait_until_gone(&full, anew.uid()).await
}
