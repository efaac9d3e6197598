//! Static pods of a node in a cluster: they run on when the kubelet changes from upstream's to rubelet and back, and a repaired one
//! starts while the API server is away.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use rubelet_testbed::cluster::Cluster;
use rubelet_testbed::control_plane::Options;
use rubelet_testbed::in_scope;
use rubelet_testbed::node::manifest::{UNTIL_TERM, pause, pod, shell, with};
use rubelet_testbed::node::{Kubelet, PodFacts};
use serde_json::{Value, json};

const KEPT: [&str; 2] = ["plain", "critical"];
const EDITED: &str = "edited";

/// As kubeadm writes them: nothing but what is needed, and everything that a control plane has.
fn manifests() -> Vec<(&'static str, Value)> {
    let mut server = with(
        shell("server", UNTIL_TERM),
        "resources",
        json!({ "requests": { "cpu": "100m" } }),
    );
    server["livenessProbe"] =
        json!({ "exec": { "command": ["true"] }, "periodSeconds": 10, "timeoutSeconds": 15 });
    server["volumeMounts"] = json!([{ "name": "certs", "mountPath": "/certs", "readOnly": true }]);
    server["env"] = json!([{ "name": "IP", "valueFrom": { "fieldRef": { "fieldPath": "status.podIP" } } }]);
    let volumes = json!([{ "name": "certs", "hostPath": { "path": "/etc", "type": "DirectoryOrCreate" } }]);
    vec![
        ("plain", pod("plain").container(pause("main")).json()),
        (
            "critical",
            pod("critical")
                .metadata(
                    "labels",
                    json!({ "component": "critical", "tier": "control-plane" }),
                )
                .metadata("annotations", json!({ "example.com/address": "10.0.0.1:6443" }))
                .container(server)
                .spec("volumes", volumes)
                .spec("hostNetwork", json!(true))
                .spec("priority", json!(2_000_001_000))
                .spec("priorityClassName", json!("system-node-critical"))
                .spec(
                    "securityContext",
                    json!({ "seccompProfile": { "type": "RuntimeDefault" } }),
                )
                .json(),
        ),
        (EDITED, edited("1")),
    ]
}

fn edited(version: &str) -> Value {
    let env = json!([{ "name": "VERSION", "value": version }]);
    pod(EDITED).container(with(pause("main"), "env", env)).json()
}

/// The mirror's UID, the static pod's UID and the containers' ids of each static pod.
async fn facts(cluster: &Cluster<'_>, names: &[&str]) -> Result<BTreeMap<String, Vec<String>>> {
    let mut facts = BTreeMap::new();
    for name in names {
        let full = cluster.bed.node.pod_name(name);
        let mirror = cluster.wait_until_ready(&full).await?;
        let annotations = mirror.metadata.annotations.clone().unwrap_or_default();
        let statuses = mirror.status.clone().unwrap_or_default().container_statuses;
        let mut of_pod = vec![mirror.uid().to_owned()];
        of_pod.extend(annotations.get("kubernetes.io/config.mirror").cloned());
        of_pod.extend(
            statuses
                .into_iter()
                .flatten()
                .filter_map(|status| status.container_id),
        );
        facts.insert((*name).to_owned(), of_pod);
    }
    Ok(facts)
}

#[test]
fn static_pods_keep_running_when_the_kubelet_is_exchanged() {
    in_scope("cluster_switch_static", async |scope| {
        let ours = Kubelet::chosen()?;
        let mut cluster =
            Cluster::start(scope, Options::default(), Kubelet::Upstream, |options| options).await?;
        for (name, manifest) in manifests() {
            cluster.bed.node.write(name, &manifest)?;
        }
        let before = facts(&cluster, &KEPT).await?;
        let old = facts(&cluster, &[EDITED]).await?;

        cluster.bed.node.terminate()?;
        cluster.bed.node.write(EDITED, &edited("2"))?;
        cluster.bed.node.switch_to(ours.clone())?;
        cluster
            .eventually("the edited pod runs", async || {
                let new = facts(&cluster, &[EDITED]).await?;
                ensure!(new != old && new[EDITED][2] != old[EDITED][2], "{new:?}");
                Ok(())
            })
            .await?;
        let during = facts(&cluster, &KEPT).await?;
        ensure!(
            before == during,
            "{before:#?} became {during:#?}\n{}",
            cluster.bed.node.log_tail()
        );
        if ours.is_rubelet() {
            let words = [
                "it starts anew: its mirror pod differs from the manifest in spec.containers[0].env[0].value",
            ];
            cluster.bed.node.wait_for_log(&words).await?;
        }
        // A restart changes nothing.
        cluster.bed.node.restart()?;
        cluster.wait_until_node_ready().await?;
        let again = facts(&cluster, &KEPT).await?;
        ensure!(before == again, "{before:#?} became {again:#?}");

        cluster.bed.node.terminate()?;
        cluster.bed.node.switch_to(Kubelet::Upstream)?;
        cluster.wait_until_node_ready().await?;
        let after = facts(&cluster, &KEPT).await?;
        ensure!(before == after, "{before:#?} became {after:#?}");
        Ok(())
    });
}

/// Waits until the kubelet runs this version of the edited pod, and nothing else of its name runs.
async fn runs_version(cluster: &Cluster<'_>, version: &str) -> Result<()> {
    let full = cluster.bed.node.pod_name(EDITED);
    cluster
        .eventually(&format!("version {version} runs alone"), async || {
            let pod = cluster.bed.node.pod(EDITED)?;
            pod.check_ready()?;
            let env = pod
                .spec
                .iter()
                .flat_map(|spec| spec.containers[0].env.iter().flatten());
            let values: Vec<Option<&str>> = env.map(|variable| variable.value.as_deref()).collect();
            ensure!(values == [Some(version)], "{values:?}");
            let mut sandboxes = cluster.bed.view.sandboxes().await?;
            sandboxes.retain(|sandbox| sandbox.ready && sandbox.pod == full);
            ensure!(
                sandboxes.len() == 1 && sandboxes[0].uid == pod.uid(),
                "{sandboxes:?}"
            );
            Ok(())
        })
        .await
}

#[test]
fn a_repaired_static_pod_starts_without_the_api_server() {
    in_scope("cluster_static_repair", async |scope| {
        let ours = Kubelet::chosen()?;
        if !ours.is_rubelet() {
            // Upstream's runs both versions, or waits until it is restarted.
            return Ok(());
        }
        let mut cluster = Cluster::start(scope, Options::default(), ours, |options| options).await?;
        cluster.bed.node.write(EDITED, &edited("1"))?;
        let full = cluster.bed.node.pod_name(EDITED);
        let mirror = cluster.wait_until_ready(&full).await?;

        cluster.control_plane.stop_apiserver().await?;
        // Repaired while rubelet is down.
        cluster.bed.node.kill_nine()?;
        cluster.bed.node.write(EDITED, &edited("2"))?;
        cluster.bed.node.start_again()?;
        runs_version(&cluster, "2").await?;
        // Repaired after a restart, and repaired back.
        cluster.bed.node.kill_nine()?;
        cluster.bed.node.start_again()?;
        runs_version(&cluster, "2").await?;
        for version in ["3", "2"] {
            cluster.bed.node.write(EDITED, &edited(version))?;
            runs_version(&cluster, version).await?;
        }
        cluster.control_plane.start_apiserver().await?;
        cluster
            .wait_for_pod(&full, "shows the new version", |pod| {
                ensure!(pod.uid() != mirror.uid(), "it is the old mirror");
                pod.check_ready()
            })
            .await
    });
}
