//! The control plane goes away and comes back; rubelet is killed and starts again. Pods do not notice.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use rubelet_testkit::cluster::Cluster;
use rubelet_testkit::control_plane::Options;
use rubelet_testkit::in_scope;
use rubelet_testkit::node::manifest::{UNTIL_TERM, pause, pod, shell, with};
use rubelet_testkit::node::{Kubelet, PodFacts};
use serde_json::json;

/// The ids of containers by pod, as the runtime has them.
async fn running(cluster: &Cluster<'_>) -> Result<BTreeMap<String, String>> {
    let containers = cluster.bed.view.containers().await?;
    let running = containers.into_iter().filter(|container| container.running);
    Ok(running.map(|container| (container.id, container.pod)).collect())
}

#[test]
fn an_api_server_that_is_away_is_waited_for() {
    in_scope("cluster_outage", async |scope| {
        let mut cluster =
            Cluster::start(scope, Options::default(), Kubelet::chosen()?, |options| options).await?;
        let exits = cluster.bed.scope.path("exits");
        std::fs::create_dir_all(&exits)?;
        let volumes = json!([{ "name": "h", "hostPath": { "path": exits, "type": "Directory" } }]);
        let mounts = json!([{ "name": "h", "mountPath": "/h" }]);
        for name in ["stays", "ends"] {
            let script = format!("trap 'exit 0' TERM; while ! test -e /h/{name}; do sleep 0.1; done; exit 4");
            let container = with(shell("main", &script), "volumeMounts", mounts.clone());
            let manifest = pod(name)
                .container(container)
                .spec("volumes", volumes.clone())
                .spec("restartPolicy", json!("Never"));
            cluster.create_pod(manifest.json()).await?;
        }
        let stays = cluster.wait_until_ready("stays").await?;
        cluster.wait_until_ready("ends").await?;
        let before = running(&cluster).await?;

        cluster.control_plane.stop_apiserver().await?;
        // What happens meanwhile is told afterwards.
        std::fs::write(exits.join("ends"), "")?;
        cluster
            .eventually("the container has ended", async || {
                let now = running(&cluster).await?;
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
            .wait_for_pod("ends", "its end is told", |pod| {
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
    });
}

#[test]
fn a_restart_harms_nobody() {
    in_scope("cluster_restart", async |scope| {
        let mut cluster =
            Cluster::start(scope, Options::default(), Kubelet::chosen()?, |options| options).await?;
        let probe = json!({ "exec": { "command": ["true"] }, "periodSeconds": 1 });
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
        let ready = cluster.wait_until_ready("probed").await?;
        let deleted = cluster.wait_until_ready("deleted").await?;
        let since = |pod: &k8s_openapi::api::core::v1::Pod| -> Option<String> {
            let conditions = pod.status.as_ref()?.conditions.as_ref()?;
            let condition = conditions.iter().find(|condition| condition.type_ == "Ready")?;
            serde_json::to_string(&condition.last_transition_time).ok()
        };
        cluster.bed.node.kill_nine()?;
        cluster.delete_pod("deleted", None).await?;
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
        Ok(())
    });
}
