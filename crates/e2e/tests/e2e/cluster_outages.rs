//! The control plane goes away and comes back; rubelet is killed and starts again. Pods do not notice.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams};
use rubelet_testbed::cluster::Cluster;
use rubelet_testbed::control_plane::{NODE_LIFECYCLE, Options};
use rubelet_testbed::in_scope;
use rubelet_testbed::node::manifest::{Manifest, UNTIL_TERM, pause, pod, shell, with};
use rubelet_testbed::node::{Kubelet, PodFacts};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// The ids of containers by pod, as the runtime has them.
async fn running(cluster: &Cluster<'_>) -> Result<BTreeMap<String, String>> {
    let containers = cluster.bed.view.containers().await?;
    let running = containers.into_iter().filter(|container| container.running);
    Ok(running.map(|container| (container.id, container.pod)).collect())
}

/// How long the API server is away. It is the length of the outage, not a wait for something: a node's lease ends after 40 s, so
/// that the cluster has given the node up when the API server is back.
const OUTAGE: Duration = Duration::from_secs(60);

/// A container that ends with code 4 as soon as there is a file of the pod's name, in a pod that sees the folder of such files.
fn gated(name: &str, gates: &Path) -> Manifest {
    let script = format!("trap 'exit 0' TERM; while ! test -e /h/{name}; do sleep 0.1; done; exit 4");
    seeing(
        pod(name).spec("restartPolicy", json!("Never")),
        shell("main", &script),
        gates,
    )
}

fn seeing(manifest: Manifest, container: Value, gates: &Path) -> Manifest {
    let mounts = json!([{ "name": "h", "mountPath": "/h" }]);
    let volumes = json!([{ "name": "h", "hostPath": { "path": gates, "type": "Directory" } }]);
    manifest
        .container(with(container, "volumeMounts", mounts))
        .spec("volumes", volumes)
}

#[test]
fn an_api_server_that_is_away_is_waited_for() {
    in_scope("cluster_outage", async |scope| {
        let plane = Options::default().with_controller(NODE_LIFECYCLE);
        let mut cluster = Cluster::start(scope, plane, Kubelet::chosen()?, |options| options).await?;
        let gates = scope.path("gates");
        std::fs::create_dir_all(&gates)?;
        a_minute_of_churn(&mut cluster, &gates).await?;
        a_restart_during_an_outage(&mut cluster, &gates).await
    });
}

/// Everything that can happen to pods happens while the API server is dead; rubelet runs through it.
async fn a_minute_of_churn(cluster: &mut Cluster<'_>, gates: &Path) -> Result<()> {
    let node = &cluster.bed.node;
    node.write("old", &pod("old").container(pause("main")).json())?;
    let (old, new) = (node.pod_name("old"), node.pod_name("new"));
    let healthy = json!({ "exec": { "command": ["sh", "-c", "! test -e /h/ill"] }, "periodSeconds": 1, "failureThreshold": 1 });
    let slow_end = shell("main", "trap 'sleep 1; exit 0' TERM; while :; do sleep 0.1; done");
    for manifest in [
        gated("stays", gates),
        gated("ends", gates),
        pod("killed").container(shell("main", UNTIL_TERM)),
        seeing(
            pod("ill"),
            with(shell("main", UNTIL_TERM), "readinessProbe", healthy),
            gates,
        ),
        pod("leaves")
            .container(slow_end)
            .spec("terminationGracePeriodSeconds", json!(30)),
    ] {
        cluster.create_pod(manifest.json()).await?;
    }
    let mut uids = BTreeMap::new();
    for name in ["stays", "ends", "killed", "ill", "leaves", &old] {
        uids.insert(name, cluster.wait_until_ready(name).await?.uid().to_owned());
    }
    let before = running(cluster).await?;

    // Rubelet may have heard of these two, or not.
    cluster
        .create_pod(pod("comes").container(pause("main")).json())
        .await?;
    cluster.delete_pod("leaves", None).await?;
    cluster.control_plane.kill_apiserver()?;
    let end = Instant::now() + OUTAGE;
    for gate in ["ends", "ill"] {
        std::fs::write(gates.join(gate), "")?;
    }
    cluster.bed.node.remove("old")?;
    cluster
        .bed
        .node
        .write("new", &pod("new").container(pause("main")).json())?;
    for attempt in 0..2 {
        cluster
            .bed
            .view
            .kill_container(&attempt_of(cluster, "killed", attempt).await?)
            .await?;
    }
    let killed = attempt_of(cluster, "killed", 2).await?;
    attempt_of(cluster, &new, 0).await?;
    cluster
        .eventually("what is to end has ended", async || {
            let now = running(cluster).await?;
            let left = now
                .values()
                .find(|pod| ["ends", old.as_str()].contains(&pod.as_str()));
            ensure!(left.is_none(), "{left:?} runs");
            Ok(())
        })
        .await?;
    tokio::time::sleep_until(end.into()).await;
    // Rubelet is frozen until the cluster has marked the pods of a lost node as not ready, whichever of the two is faster.
    let rubelet = cluster
        .bed
        .node
        .pid()
        .and_then(|pid| Pid::from_raw(pid.try_into().ok()?));
    let rubelet = rubelet.context("rubelet runs")?;
    kill_process(rubelet, Signal::STOP)?;
    cluster.control_plane.start_apiserver().await?;
    for name in ["stays", "killed"] {
        cluster
            .wait_for_pod(name, "is marked as not ready", |pod| {
                let (status, ..) = pod.condition("Ready");
                ensure!(status == "False", "it is {status}");
                Ok(())
            })
            .await?;
    }
    kill_process(rubelet, Signal::CONT)?;

    node_is_back(cluster).await?;
    is_as_the_outage_left_it(cluster, &killed).await?;
    cluster.wait_until_gone("leaves", &uids["leaves"]).await?;
    cluster.wait_until_ready("comes").await?;
    cluster.wait_until_ready(&new).await?;
    cluster
        .eventually("the old static pod's mirror is gone", async || {
            ensure!(cluster.pods().get_opt(&old).await?.is_none(), "it is there");
            Ok(())
        })
        .await?;
    // The cluster took all pods of a lost node for not ready.
    cluster.wait_until_ready("stays").await?;
    let after = running(cluster).await?;
    for (id, pod) in &before {
        let touched = ["killed", "ends", "leaves", old.as_str()].contains(&pod.as_str());
        ensure!(
            touched || after.contains_key(id),
            "the container of {pod} was made anew"
        );
    }
    // Probes go on.
    std::fs::remove_file(gates.join("ill"))?;
    cluster.wait_until_ready("ill").await.map(drop)
}

/// The node's lease is renewed from now on, and the node is ready.
async fn node_is_back(cluster: &Cluster<'_>) -> Result<()> {
    let since = Timestamp::now();
    let leases: Api<Lease> = Api::namespaced(cluster.client(), "kube-node-lease");
    cluster
        .eventually("the node's lease is renewed", async || {
            let lease = leases.get(cluster.node_name()).await?.spec.unwrap_or_default();
            let renewed = lease.renew_time.context("never renewed")?.0;
            ensure!(renewed > since, "the last time was {renewed}");
            Ok(())
        })
        .await?;
    cluster.wait_until_node_ready().await
}

/// The id of a pod's container once this try of it runs.
async fn attempt_of(cluster: &Cluster<'_>, pod: &str, attempt: u32) -> Result<String> {
    cluster
        .eventually(&format!("try {attempt} of {pod} runs"), async || {
            let mut containers = cluster.bed.view.containers().await?;
            containers.retain(|container| container.pod == pod);
            let found = containers
                .iter()
                .find(|container| container.running && container.attempt == attempt);
            Ok(found.with_context(|| format!("{containers:?}"))?.id.clone())
        })
        .await
}

/// What the API server hears is the newest state of everything, and none that was in between.
async fn is_as_the_outage_left_it(cluster: &Cluster<'_>, killed: &str) -> Result<()> {
    cluster
        .wait_for_pod("ends", "its end is told", |pod| {
            pod.check_phase("Failed")?;
            let end = pod.terminated("main")?;
            ensure!(end.exit_code == 4, "{end:?}");
            Ok(())
        })
        .await?;
    cluster
        .wait_for_pod("killed", "its last container is told", |pod| {
            ensure!(pod.running_id("main")? == killed, "another one than {killed}");
            let restarts = pod.container("main")?.restart_count;
            ensure!(restarts == 2, "{restarts} restarts");
            Ok(())
        })
        .await?;
    cluster
        .wait_for_pod("ill", "its illness is told", |pod| {
            ensure!(!pod.container("main")?.ready, "its container is ready");
            let (status, reason, _) = pod.condition("ContainersReady");
            ensure!(
                (status, reason) == ("False", "ContainersNotReady"),
                "{status} {reason}"
            );
            Ok(())
        })
        .await
}

/// Rubelet is started again while nobody can tell it of its pods; then the store goes away as well.
async fn a_restart_during_an_outage(cluster: &mut Cluster<'_>, gates: &Path) -> Result<()> {
    cluster.create_pod(gated("ends-too", gates).json()).await?;
    cluster.wait_until_ready("ends-too").await?;
    let stays = cluster.wait_until_ready("stays").await?;
    let before = running(cluster).await?;

    cluster.control_plane.stop_apiserver().await?;
    // What happens meanwhile is told afterwards.
    std::fs::write(gates.join("ends-too"), "")?;
    cluster
        .eventually("the container has ended", async || {
            let now = running(cluster).await?;
            ensure!(now.len() == before.len() - 1, "{now:?}");
            Ok(())
        })
        .await?;
    cluster
        .bed
        .node
        .restart()
        .context("restart the kubelet with no API server")?;
    cluster.control_plane.start_apiserver().await?;
    cluster
        .wait_for_pod("ends-too", "its end is told", |pod| {
            ensure!(pod.phase() == "Failed", "{}", pod.phase());
            ensure!(
                pod.terminated("main")?.exit_code == 4,
                "{:?}",
                pod.terminated("main")?
            );
            Ok(())
        })
        .await?;
    let after = cluster.wait_until_ready("stays").await?;
    ensure!(
        after.container("main")?.container_id == stays.container("main")?.container_id,
        "the container was made anew"
    );
    ensure!(after.container("main")?.restart_count == 0, "it was restarted");
    // And the node goes on working.
    cluster
        .create_pod(pod("later").container(pause("main")).json())
        .await?;
    cluster.wait_until_ready("later").await?;
    cluster.control_plane.restart_etcd().await?;
    let uid = cluster.pod("later").await?.uid().to_owned();
    cluster.delete_pod("later", None).await?;
    cluster.wait_until_gone("later", &uid).await
}

#[test]
fn a_restart_harms_nobody() {
    in_scope("cluster_restart", async |scope| {
        let mut cluster =
            Cluster::start(scope, Options::default(), Kubelet::chosen()?, |options| options).await?;
        let probe = json!({ "exec": { "command": ["true"] }, "periodSeconds": 1, "timeoutSeconds": 30 });
        cluster
            .create_pod(
                pod("probed")
                    .container(with(shell("main", UNTIL_TERM), "readinessProbe", probe))
                    .json(),
            )
            .await?;
        cluster
            .create_pod(pod("deleted").container(pause("main")).json())
            .await?;
        let nodes: Api<Node> = Api::all(cluster.client());
        let node_name = cluster.node_name().to_owned();
        let change = async |patch: Value| {
            let patch = Patch::Merge(patch);
            let patched = nodes.patch(&node_name, &PatchParams::default(), &patch).await;
            patched.map(drop)
        };
        change(json!({ "metadata": { "labels": { "test.example/rack": "7" } } })).await?;
        let selected = pod("selected")
            .container(pause("main"))
            .spec("nodeSelector", json!({ "test.example/rack": "7" }));
        cluster.create_pod(selected.json()).await?;
        let ready = cluster.wait_until_ready("probed").await?;
        let deleted = cluster.wait_until_ready("deleted").await?;
        let selected = cluster.wait_until_ready("selected").await?;
        let since = |pod: &k8s_openapi::api::core::v1::Pod| -> Option<String> {
            let conditions = pod.status.as_ref()?.conditions.as_ref()?;
            let condition = conditions.iter().find(|condition| condition.type_ == "Ready")?;
            serde_json::to_string(&condition.last_transition_time).ok()
        };
        cluster.bed.node.kill_nine()?;
        cluster.delete_pod("deleted", None).await?;
        // Neither would be let in now, but both live.
        change(json!({ "metadata": { "labels": { "test.example/rack": "8" } } })).await?;
        change(json!({ "spec": { "taints": [{ "key": "test.example/full", "effect": "NoExecute" }] } }))
            .await?;
        cluster.bed.node.start_again()?;
        cluster.wait_until_gone("deleted", deleted.uid()).await?;
        cluster.wait_until_node_ready().await?;
        let after = cluster.wait_until_ready("probed").await?;
        ensure!(
            since(&after) == since(&ready),
            "Ready has flipped: {:?}",
            after.status
        );
        ensure!(
            after.container("main")?.container_id == ready.container("main")?.container_id,
            "the container was made anew"
        );
        let still = cluster.wait_until_ready("selected").await?;
        ensure!(
            still.running_id("main")? == selected.running_id("main")?,
            "the container of a pod that would not be let in was made anew"
        );
        Ok(())
    });
}
