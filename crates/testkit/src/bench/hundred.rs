//! The rows of many pods: all manifests are written at once, the pods are at rest, the kubelet is killed and comes back, all
//! manifests are removed at once.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::budget::Row;
use super::kubelet::{Kubelet, Place};
use super::runtime::{DEADLINE, Runtime, namespaces_beside};
use super::samples::Samples;
use super::{Options, pod};

/// How often the runtime is asked while it works for the pods.
const LOOK: Duration = Duration::from_millis(50);
/// How often the kubelet is asked when the answer is near.
const GLANCE: Duration = Duration::from_millis(10);
/// Before the processor time at rest is measured, and before everything is removed.
const REST: Duration = Duration::from_secs(5);

/// All rows of many pods; the kubelet has none before, and is ended.
pub(super) async fn measure(
    options: &Options,
    place: &Place<'_>,
    mut kubelet: Kubelet,
    runtime: &mut Runtime,
    samples: &mut Samples,
) -> Result<()> {
    let names: Vec<String> = (0..options.pods).map(|number| format!("many-{number}")).collect();
    measure_start(&kubelet, &names, runtime, samples)
        .await
        .context("start")?;
    kubelet.settle(REST).await?;
    measure_rest(&mut kubelet, options.steady(), samples)
        .await
        .context("at rest")?;
    let kubelet = measure_kubelet_restart(place, kubelet, &names, runtime, samples)
        .await
        .context("kubelet killed")?;
    tokio::time::sleep(REST).await;
    measure_stop(&kubelet, &names, runtime, samples)
        .await
        .context("manifests removed")?;
    kubelet.stop()
}

async fn measure_start(
    kubelet: &Kubelet,
    names: &[String],
    runtime: &Runtime,
    samples: &mut Samples,
) -> Result<()> {
    let column = kubelet.column();
    for name in names {
        kubelet.stage(name, &pod::manifest(name))?;
    }
    let cpu_before = kubelet.cpu_seconds()?;
    let begin = Instant::now();
    for name in names {
        kubelet.put(name)?;
    }
    // The kubelet is not asked before the runtime has all containers: asking costs the processor time that is measured.
    while runtime.running().await?.len() < names.len() {
        ensure!(
            begin.elapsed() < DEADLINE,
            "not all containers run after {DEADLINE:?}"
        );
        tokio::time::sleep(LOOK).await;
    }
    let ready = wait_until_ready(kubelet, names, begin, runtime, samples).await?;
    samples.record(Row::ManyStart, column, (ready - begin).as_secs_f64());
    samples.record(Row::ManyStartCpu, column, kubelet.cpu_seconds()? - cpu_before);
    Ok(())
}

/// When the kubelet called all pods Running and Ready while the runtime called all their containers running.
async fn wait_until_ready(
    kubelet: &Kubelet,
    names: &[String],
    begin: Instant,
    runtime: &Runtime,
    samples: &mut Samples,
) -> Result<Instant> {
    let mut last = "it does not answer".to_owned();
    loop {
        // A kubelet that has just been started does not listen yet.
        if let Ok(pods) = kubelet.pods() {
            let at = Instant::now();
            let ready = pods.iter().filter(|pod| pod.is_ready()).count();
            if ready == names.len() {
                let running = runtime.running().await?.len();
                if running == names.len() {
                    return Ok(at);
                }
                samples.note(format!(
                    "{} called all pods Ready while the runtime called fewer running",
                    kubelet.column()
                ));
            }
            last = format!("{ready} of {} pods are Ready", names.len());
        }
        ensure!(begin.elapsed() < DEADLINE, "after {DEADLINE:?}: {last}");
        tokio::time::sleep(GLANCE).await;
    }
}

async fn measure_rest(kubelet: &mut Kubelet, time: Duration, samples: &mut Samples) -> Result<()> {
    let column = kubelet.column();
    let before = kubelet.cpu_seconds()?;
    let begin = Instant::now();
    kubelet.settle(time).await?;
    let share = (kubelet.cpu_seconds()? - before) / begin.elapsed().as_secs_f64();
    samples.record(Row::SteadyCpu, column, share * 100.0);
    let memory = kubelet.memory()?;
    samples.record(Row::MemoryMany, column, memory.resident_mib);
    samples.record(Row::AnonymousMany, column, memory.anonymous_mib);
    Ok(())
}

async fn measure_kubelet_restart(
    place: &Place<'_>,
    kubelet: Kubelet,
    names: &[String],
    runtime: &Runtime,
    samples: &mut Samples,
) -> Result<Kubelet> {
    let before = runtime.running().await?;
    let begin = Instant::now();
    kubelet.kill(Signal::KILL)?;
    let kubelet = place.spawn()?;
    let ready = wait_until_ready(&kubelet, names, begin, runtime, samples).await?;
    samples.record(
        Row::KubeletRestart,
        kubelet.column(),
        (ready - begin).as_secs_f64(),
    );
    let after = runtime.running().await?;
    let kept = before.iter().filter(|id| after.contains(id)).count();
    if kept < before.len() {
        samples.note(format!(
            "{} replaced containers when it was restarted",
            kubelet.column()
        ));
    }
    Ok(kubelet)
}

async fn measure_stop(
    kubelet: &Kubelet,
    names: &[String],
    runtime: &Runtime,
    samples: &mut Samples,
) -> Result<()> {
    let first = runtime.running().await?.into_iter().next();
    let sandbox = runtime.sandbox_of(&first.context("no container runs")?).await?;
    let namespace = runtime.network_namespace(&sandbox).await?;
    let begin = Instant::now();
    for name in names {
        kubelet.take(name)?;
    }
    loop {
        // Stopped is what a call to stop it leaves: not ready and without a network.
        if namespaces_beside(&namespace) == 0 && runtime.ready_sandboxes().await? == 0 {
            break;
        }
        ensure!(
            begin.elapsed() < DEADLINE,
            "not all sandboxes are stopped after {DEADLINE:?}"
        );
        tokio::time::sleep(GLANCE).await;
    }
    samples.record(Row::ManyStop, kubelet.column(), begin.elapsed().as_secs_f64());
    Ok(())
}
