//! Pods that a node does not let in, and what it takes until it does.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::scenarios;
use rubelet_testbed::node::manifest::{Manifest, pause, pod, with};
use rubelet_testbed::node::{Bed, Node, PodFacts, Scenario};

pub(super) const ALL: &[Scenario] = scenarios![
    forbidden_sysctls_are_refused,
    other_operating_systems_are_refused,
    other_nodes_are_refused,
    profiles_of_a_missing_module_are_refused,
    a_host_port_is_held_by_one_pod_at_a_time,
    more_than_the_node_has_is_refused,
];

/// Waits until the kubelet has refused the pod, with this reason and exactly this message.
pub async fn wait_until_refused(node: &Node, name: &str, reason: &str, message: &str) -> Result<()> {
    let expected = format!("Pod was rejected: {message}");
    node.wait_for_pod(name, "is refused", |pod| {
        let status = pod.status.clone().unwrap_or_default();
        ensure!(status.phase.as_deref() == Some("Failed"), "it is not refused");
        ensure!(status.reason.as_deref() == Some(reason), "not for {reason}");
        ensure!(
            status.message.as_deref() == Some(&expected),
            "not with {expected:?}"
        );
        let started = status.container_statuses.unwrap_or_default();
        ensure!(started.is_empty(), "it has containers: {started:?}");
        Ok(())
    })
    .await
}

/// The message about resources that nobody gives way for.
pub fn nobody_gives_way(missing: &str) -> String {
    format!(
        "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to \
         preempt: no set of running pods found to reclaim resources: [{missing}]"
    )
}

/// A pod of one container with these requests.
pub fn asking(name: &str, requests: &Value) -> Manifest {
    pod(name).container(with(pause("main"), "resources", json!({ "requests": requests })))
}

async fn refused(bed: &Bed<'_>, name: &str, manifest: Manifest, reason: &str, message: &str) -> Result<()> {
    bed.node.write(name, &manifest.json())?;
    wait_until_refused(&bed.node, name, reason, message).await?;
    bed.node.remove(name)
}

async fn forbidden_sysctls_are_refused(bed: &Bed<'_>) -> Result<()> {
    let name = "sysctl-unsafe";
    let sysctls = json!([{ "name": "net.core.somaxconn", "value": "1" }]);
    let manifest = pod(name)
        .container(pause("main"))
        .spec("securityContext", json!({ "sysctls": sysctls }));
    let message = "forbidden sysctl: \"net.core.somaxconn\" not allowlisted";
    refused(bed, name, manifest, "SysctlForbidden", message).await
}

async fn other_operating_systems_are_refused(bed: &Bed<'_>) -> Result<()> {
    let name = "os-label";
    let manifest = pod(name)
        .container(pause("main"))
        .metadata("labels", json!({ "kubernetes.io/os": "windows" }));
    let message = "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label";
    refused(bed, name, manifest, "PodOSSelectorNodeLabelDoesNotMatch", message).await?;
    let name = "os-field";
    let manifest = pod(name)
        .container(pause("main"))
        .spec("os", json!({ "name": "windows" }));
    let message = "Failed to admit pod as the OS field doesn't match node OS";
    refused(bed, name, manifest, "PodOSNotSupported", message).await
}

async fn other_nodes_are_refused(bed: &Bed<'_>) -> Result<()> {
    let name = "selector";
    let manifest = pod(name)
        .container(pause("main"))
        .spec("nodeSelector", json!({ "disk": "tape" }));
    let message = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
    refused(bed, name, manifest, "NodeAffinity", message).await
}

async fn profiles_of_a_missing_module_are_refused(bed: &Bed<'_>) -> Result<()> {
    if std::path::Path::new("/sys/kernel/security/apparmor").exists() {
        return Ok(());
    }
    let name = "app-armor";
    let profile = json!({ "appArmorProfile": { "type": "RuntimeDefault" } });
    let manifest = pod(name)
        .container(pause("main"))
        .spec("securityContext", profile);
    let message = "Cannot enforce AppArmor: AppArmor is not enabled on the host";
    refused(bed, name, manifest, "AppArmor", message).await
}

async fn a_host_port_is_held_by_one_pod_at_a_time(bed: &Bed<'_>) -> Result<()> {
    let port = bed.scope.port()?;
    let wants = |name: &str| {
        let ports = json!([{ "containerPort": 8080, "hostPort": port }]);
        pod(name).container(with(pause("main"), "ports", ports)).json()
    };
    let (first, second) = ("port-first", "port-second");
    bed.node.write(first, &wants(first))?;
    bed.node.wait_until_ready(first).await?;
    bed.node.write(second, &wants(second))?;
    let message = "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports";
    wait_until_refused(&bed.node, second, "NodePorts", message).await?;
    bed.node.remove(first)?;
    // Upstream never judges a refused static pod again.
    if bed.node.kubelet().is_rubelet() {
        bed.node.wait_until_ready(second).await?;
    }
    bed.node.remove(second)
}

async fn more_than_the_node_has_is_refused(bed: &Bed<'_>) -> Result<()> {
    let name = "too-big";
    bed.node
        .write(name, &asking(name, &json!({ "cpu": "1000000" })).json())?;
    let status = bed.node.wait_for_pod(name, "is refused", refusal_of).await?;
    ensure!(status.0 == "UnexpectedAdmissionError", "{status:?}");
    ensure!(
        status
            .1
            .contains("no set of running pods found to reclaim resources: [(res: cpu, q: "),
        "{status:?}"
    );
    bed.node.remove(name)
}

/// Reason and message of a pod that was refused.
fn refusal_of(pod: &Pod) -> Result<(String, String)> {
    let status = pod.status.clone().unwrap_or_default();
    ensure!(
        status.phase.as_deref() == Some("Failed"),
        "it is {:?}",
        pod.phase()
    );
    Ok((
        status.reason.unwrap_or_default(),
        status.message.unwrap_or_default(),
    ))
}
