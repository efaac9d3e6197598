//! A node changes from upstream's kubelet to rubelet and back on the same containerd and directories.

use anyhow::{Result, ensure};
use rubelet_testbed::containerd::Flavour;
use rubelet_testbed::in_scope;
use rubelet_testbed::node::manifest::{UNTIL_TERM, pause, pod, shell, with};
use rubelet_testbed::node::{Bed, Kubelet, Options, PodFacts};
use rubelet_testbed::wait::wait_until;
use serde_json::{Value, json};

const WITH_UID: [&str; 4] = ["plain", "sidecar", "host", "restarted"];

fn manifests(id: &str) -> Vec<(&'static str, Value)> {
    let uid = |name: &str| json!(format!("uid-{name}-{id}"));
    let sidecar = with(shell("sidecar", UNTIL_TERM), "restartPolicy", json!("Always"));
    let limits = json!({ "limits": { "cpu": "100m", "memory": "32Mi" } });
    vec![
        (
            "plain",
            pod("plain")
                .metadata("uid", uid("plain"))
                .metadata("labels", json!({ "app": "plain" }))
                .container(with(pause("main"), "resources", limits))
                .container(with(
                    pause("port"),
                    "ports",
                    json!([{ "name": "web", "containerPort": 80 }]),
                ))
                .json(),
        ),
        (
            "sidecar",
            pod("sidecar")
                .metadata("uid", uid("sidecar"))
                .init(shell("first", "true"))
                .init(sidecar)
                .container(pause("main"))
                .json(),
        ),
        (
            "host",
            pod("host")
                .metadata("uid", uid("host"))
                .container(pause("main"))
                .spec("hostNetwork", json!(true))
                .json(),
        ),
        (
            "restarted",
            pod("restarted")
                .metadata("uid", uid("restarted"))
                .container(pause("main"))
                .json(),
        ),
    ]
}

/// Waits until the kubelet says that the pods are ready and knows the restart from before its own time.
async fn wait_until_known(bed: &Bed<'_>, names: &[&str]) -> Result<()> {
    for name in names {
        bed.node.wait_until_ready(name).await?;
    }
    bed.node
        .wait_for_pod("restarted", "remembers its restart", |pod| {
            let container = pod.container("main")?;
            ensure!(container.restart_count == 1, "{container:?}");
            Ok(())
        })
        .await
}

#[test]
fn containers_keep_running_when_the_kubelet_is_exchanged() {
    in_scope("pods_switch", async |scope| {
        let ours = Kubelet::chosen()?;
        let mut bed = Bed::start(scope, Flavour::V2, Options::new(Kubelet::Upstream)).await?;
        for (name, manifest) in manifests(scope.id()) {
            bed.node.write(name, &manifest)?;
        }
        let restarted = bed.node.wait_until_ready("restarted").await?;
        bed.view.kill_container(&restarted.running_id("main")?).await?;
        wait_until_known(&bed, &WITH_UID).await?;
        let before = bed.view.identities().await?;
        ensure!(before.len() == 6, "{before:?}");

        bed.node.terminate()?;
        bed.node.switch_to(ours.clone())?;
        let outcome = under_the_other(&bed).await;
        outcome.map_err(|error| error.context(bed.node.log_tail()))?;
        let during = bed.view.identities().await?;
        ensure!(
            before.iter().all(|(id, start)| during.get(id) == Some(start)),
            "{before:?} became {during:?}\n{}",
            bed.node.log_tail()
        );
        ensure!(during.len() == 7, "{during:?}");

        bed.node.terminate()?;
        bed.node.switch_to(Kubelet::Upstream)?;
        let names = [&WITH_UID[..], &["added"]].concat();
        wait_until_known(&bed, &names).await?;
        let after = bed.view.identities().await?;
        ensure!(during == after, "{during:?} became {after:?}");

        // And the new one is still in charge of them.
        bed.node.remove("sidecar")?;
        wait_until(
            "the removed pod is gone",
            rubelet_testbed::node::DEADLINE,
            async || {
                let running = bed.view.running().await?;
                let name = bed.node.pod_name("sidecar");
                ensure!(running.keys().all(|(pod, _)| *pod != name), "{running:?}");
                Ok(())
            },
        )
        .await
    });
}

async fn under_the_other(bed: &Bed<'_>) -> Result<()> {
    wait_until_known(bed, &WITH_UID).await?;
    let uid = format!("uid-added-{}", bed.scope.id());
    let added = pod("added").metadata("uid", json!(uid)).container(pause("main"));
    bed.node.write("added", &added.json())?;
    bed.node.wait_until_ready("added").await.map(|_| ())
}

/// Without a UID of its own a pod is another pod to another kubelet: it restarts once, and the log says why.
#[test]
fn a_pod_without_a_uid_restarts_once() {
    in_scope("pods_switch_once", async |scope| {
        let ours = Kubelet::chosen()?;
        let mut bed = Bed::start(scope, Flavour::V2, Options::new(Kubelet::Upstream)).await?;
        bed.node
            .write("plain", &pod("plain").container(pause("main")).json())?;
        let before = bed.node.wait_until_ready("plain").await?;
        bed.node.terminate()?;
        bed.node.switch_to(ours.clone())?;
        let after = bed.node.wait_until_ready("plain").await;
        let after = after.map_err(|error| error.context(bed.node.log_tail()))?;
        if !ours.is_rubelet() {
            ensure!(before.uid() == after.uid());
            return Ok(());
        }
        ensure!(before.uid() != after.uid(), "both kubelets found the same uid");
        bed.node
            .wait_for_log(&[
                "made this static pod under another UID; it is replaced",
                before.uid(),
            ])
            .await?;
        let running = bed.view.running().await?;
        ensure!(running.len() == 1, "{running:?}");
        // A second start of the same kubelet changes nothing any more.
        let identities = bed.view.identities().await?;
        bed.node.restart()?;
        bed.node.wait_until_ready("plain").await?;
        ensure!(identities == bed.view.identities().await?);
        Ok(())
    });
}
