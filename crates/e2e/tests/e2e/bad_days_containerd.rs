//! containerd dies and comes back under running pods.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use rubelet_testbed::containerd::Flavour;
use rubelet_testbed::in_scope;
use rubelet_testbed::node::manifest::{pause, pod};
use rubelet_testbed::node::{Bed, DEADLINE, Kubelet, Options, PodFacts};
use rubelet_testbed::wait::wait_until;

const PODS: usize = 20;

fn name(number: usize) -> String {
    format!("pod-{number:02}")
}

async fn wait_until_all_ready(bed: &Bed<'_>, names: &[String]) -> Result<()> {
    let wanted: Vec<String> = names.iter().map(|name| bed.node.pod_name(name)).collect();
    bed.node
        .wait_for_pods(
            "all pods are ready, and no others are there",
            DEADLINE * 2,
            |pods| {
                ensure!(pods.len() == wanted.len(), "{} pods", pods.len());
                for pod in pods {
                    let name = pod.metadata.name.clone().unwrap_or_default();
                    ensure!(wanted.contains(&name), "there is {name}");
                    pod.check_ready().context(name)?;
                }
                Ok(())
            },
        )
        .await
}

#[test]
fn a_killed_containerd_loses_and_doubles_nothing() {
    in_scope("bad_days_containerd", async |scope| {
        let mut bed = Bed::start(scope, Flavour::V2, Options::new(Kubelet::chosen()?)).await?;
        let outcome = kill_containerd(&mut bed).await;
        outcome.map_err(|error| error.context(bed.node.log_tail()))
    });
}

async fn kill_containerd(bed: &mut Bed<'_>) -> Result<()> {
    let names: Vec<String> = (0..PODS).map(name).collect();
    for name in &names {
        bed.node.write(name, &pod(name).container(pause("main")).json())?;
    }
    wait_until_all_ready(bed, &names).await?;
    let before = bed.view.identities().await?;
    ensure!(before.len() == PODS, "{before:?}");
    let ids = bed.view.running().await?;

    bed.containerd.kill()?;
    // The node says so, keeps its pods, and stays alive.
    wait_until(
        "the kubelet tells that the runtime is away",
        DEADLINE,
        async || {
            let log = bed.node.log()?.to_lowercase();
            let words = [
                "the container runtime is not ready",
                "container runtime is down",
                "runtime sanity check failed",
            ];
            ensure!(words.iter().any(|word| log.contains(word)), "nothing in the log");
            Ok(())
        },
    )
    .await?;
    ensure!(bed.node.pods()?.len() == PODS, "the kubelet forgot pods");
    let healthz = bed.node.healthz()?;
    ensure!(
        healthz.status == 200,
        "the kubelet is not alive: {}",
        healthz.text()
    );
    // Life goes on: one pod goes, one comes.
    bed.node.remove(&name(0))?;
    bed.node
        .write("late", &pod("late").container(pause("main")).json())?;
    bed.containerd.start_again()?;

    let mut names = names[1..].to_vec();
    names.push("late".to_owned());
    wait_until_all_ready(bed, &names).await?;
    wait_until("the removed pod has stopped", DEADLINE, async || {
        let running = bed.view.running().await?;
        ensure!(running.len() == PODS, "{} containers run", running.len());
        let sandboxes = bed.view.sandboxes().await?;
        let ready = sandboxes.iter().filter(|sandbox| sandbox.ready).count();
        ensure!(ready == PODS, "{ready} sandboxes");
        Ok(())
    })
    .await?;
    let after = bed.view.identities().await?;
    let kept: BTreeMap<_, _> = ids
        .iter()
        .filter(|((pod, _), _)| *pod != bed.node.pod_name(&name(0)))
        .collect();
    for (key, id) in kept {
        ensure!(after.get(id) == before.get(id), "{key:?} was restarted");
    }

    // The kubelet still sees what happens.
    let victim = bed.node.pod(&name(7))?.running_id("main")?;
    bed.view.kill_container(&victim).await?;
    bed.node
        .wait_for_pod(&name(7), "has a successor", |pod| {
            ensure!(pod.container("main")?.restart_count == 1, "not yet");
            pod.check_ready()
        })
        .await
}
