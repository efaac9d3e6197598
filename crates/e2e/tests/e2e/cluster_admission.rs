//! Pods that are bound to a node which runs short of memory, or has labels that were set a moment ago.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{Patch, PatchParams};
use rubelet_testbed::cluster::Cluster;
use rubelet_testbed::control_plane::Options;
use rubelet_testbed::in_scope;
use rubelet_testbed::node::manifest::{pause, pod, with};
use rubelet_testbed::node::{Kubelet, PodFacts};
use serde_json::{Value, json};

fn check_rejected(pod: &Pod, reason: &str, message: &str) -> Result<()> {
    let status = pod.status.as_ref().context("a status")?;
    ensure!(status.phase.as_deref() == Some("Failed"), "it has not failed");
    ensure!(status.reason.as_deref() == Some(reason), "for another reason");
    ensure!(status.message.as_deref() == Some(message), "in other words");
    Ok(())
}

/// Not BestEffort.
fn burstable(name: &str) -> Value {
    let resources = json!({"requests": {"cpu": "1m"}});
    let container = with(pause("main"), "resources", resources);
    pod(name).container(container).json()
}

fn on_rack(name: &str, rack: &str) -> Value {
    let mut manifest = burstable(name);
    manifest["spec"]["nodeSelector"] = json!({"test.example/rack": rack});
    manifest
}

async fn is_under_pressure(cluster: &Cluster<'_>) -> Result<()> {
    let node = cluster.node().await?;
    let conditions = node
        .status
        .and_then(|status| status.conditions)
        .unwrap_or_default();
    let memory = conditions.iter().find(|one| one.type_ == "MemoryPressure");
    let memory = memory.context("a condition")?;
    ensure!(memory.status == "True", "{memory:?}");
    ensure!(
        memory.reason.as_deref() == Some("KubeletHasInsufficientMemory"),
        "{memory:?}"
    );
    Ok(())
}

#[test]
fn pods_are_judged_by_the_node_as_it_is() {
    in_scope("cluster_admission", async |scope| {
        let kubelet = Kubelet::chosen()?;
        // Whatever runs here, it is more than the hundredth part. Nothing is evicted within the grace period.
        let soft = json!({"memory.available": "99%"});
        let grace = json!({"memory.available": "1h"});
        let adjust = |options: rubelet_testbed::node::Options| {
            options
                .with("evictionSoft", soft)
                .with("evictionSoftGracePeriod", grace)
        };
        let cluster = Cluster::start(scope, Options::default(), kubelet, adjust).await?;
        cluster
            .eventually("the node is under pressure", async || {
                is_under_pressure(&cluster).await
            })
            .await?;

        let best_effort = pod("best-effort").container(pause("main")).json();
        cluster.create_pod(best_effort).await?;
        let message = "Pod was rejected: The node had condition: [MemoryPressure]. ";
        cluster
            .wait_for_pod("best-effort", "is rejected", |pod| {
                check_rejected(pod, "Evicted", message)
            })
            .await?;
        cluster.create_pod(burstable("burstable")).await?;
        cluster.wait_until_ready("burstable").await?;
        // Whoever binds a pod may know of a label before the node does.
        let nodes: Api<Node> = Api::all(cluster.client());
        let label = json!({"metadata": {"labels": {"test.example/rack": "7"}}});
        nodes
            .patch(cluster.node_name(), &PatchParams::default(), &Patch::Merge(label))
            .await?;
        cluster.create_pod(on_rack("here", "7")).await?;
        cluster.create_pod(on_rack("elsewhere", "8")).await?;
        let message = "Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
        cluster
            .wait_for_pod("elsewhere", "is rejected", |pod| {
                check_rejected(pod, "NodeAffinity", message)
            })
            .await?;
        cluster.wait_until_ready("here").await?;
        a_critical_pod_takes_the_place_of_another(&cluster).await
    });
}

/// A static pod is critical. Whoever has to go for it is told so at the API server.
async fn a_critical_pod_takes_the_place_of_another(cluster: &Cluster<'_>) -> Result<()> {
    let status = cluster.node().await?.status.context("a status")?;
    let allocatable = status.allocatable.unwrap_or_default();
    let cpu = allocatable.get("cpu").context("no cpu")?.0.clone();
    let (number, unit) = cpu
        .strip_suffix('m')
        .map_or((cpu.as_str(), 1000), |millis| (millis, 1));
    let millis = number.parse::<i64>()? * unit;
    let asking = |name: &str, millis: i64| {
        let resources = json!({"requests": {"cpu": format!("{millis}m")}});
        pod(name)
            .container(with(pause("main"), "resources", resources))
            .json()
    };
    cluster.create_pod(asking("victim", millis - 50)).await?;
    cluster.wait_until_ready("victim").await?;
    cluster.bed.node.write("critical", &asking("critical", 100))?;
    cluster
        .wait_for_pod("victim", "had to go", |pod| {
            pod.check_phase("Failed")?;
            let status = pod.status.as_ref().context("a status")?;
            ensure!(status.reason.as_deref() == Some("Preempting"), "another reason");
            let (holds, reason, _) = pod.condition("DisruptionTarget");
            ensure!(
                (holds, reason) == ("True", "TerminationByKubelet"),
                "{holds} {reason}"
            );
            Ok(())
        })
        .await?;
    let critical = cluster.bed.node.pod_name("critical");
    cluster.wait_until_ready(&critical).await.map(drop)
}
