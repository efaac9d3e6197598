//! The rows of many pods and of a dense node: all manifests are written at once, the pods are at rest, the kubelet is killed and
//! comes back, all manifests are removed at once.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::budget::Row;
use super::kubelet::{Kubelet, Place};
use super::pod;
use super::runtime::{DEADLINE, Runtime, namespaces_beside};
use super::samples::Samples;

/// How often the runtime is asked while it works for the pods.
const LOOK: Duration = Duration::from_millis(50);
/// How often the kubelet is asked when the answer is near; with five times the pods an answer costs it five times as much.
const GLANCE: Duration = Duration::from_millis(10);
const DENSE_GLANCE: Duration = Duration::from_millis(50);
/// Five hundred pods take minutes on a busy machine.
const DENSE_DEADLINE: Duration = Duration::from_secs(900);
/// Before the processor time at rest is measured, and before everything is removed.
const REST: Duration = Duration::from_secs(5);

/// How many pods are measured together, and in which rows.
pub(super) struct Scale {
    pub(super) pods: usize,
    pub(super) start: Row,
    pub(super) stop: Row,
    start_cpu: Row,
    kubelet_restart: Row,
    steady_cpu: Row,
    memory: Row,
    anonymous: Row,
    glance: Duration,
    deadline: Duration,
}

impl Scale {
    /// The rows of many pods.
    pub(super) fn many(pods: usize) -> Self {
        Self {
            pods,
            start: Row::ManyStart,
            stop: Row::ManyStop,
            start_cpu: Row::ManyStartCpu,
            kubelet_restart: Row::KubeletRestart,
            steady_cpu: Row::SteadyCpu,
            memory: Row::MemoryMany,
            anonymous: Row::AnonymousMany,
            glance: GLANCE,
            deadline: DEADLINE,
        }
    }

    /// The rows of a dense node.
    pub(super) fn dense(pods: usize) -> Self {
        Self {
            pods,
            start: Row::DenseStart,
            stop: Row::DenseStop,
            start_cpu: Row::DenseStartCpu,
            kubelet_restart: Row::DenseKubeletRestart,
            steady_cpu: Row::DenseSteadyCpu,
            memory: Row::DenseMemory,
            anonymous: Row::DenseAnonymous,
            glance: DENSE_GLANCE,
            deadline: DENSE_DEADLINE,
        }
    }
}

/// All rows of a scale; the kubelet has no pods before, and is ended. At rest it is measured for `steady`.
pub(super) async fn measure(
    scale: &Scale,
    steady: Duration,
    place: &Place<'_>,
    mut kubelet: Kubelet,
    runtime: &mut Runtime,
    samples: &mut Samples,
) -> Result<()> {
    let names: Vec<String> = (0..scale.pods).map(|number| format!("many-{number}")).collect();
    measure_start(scale, &kubelet, &names, runtime, samples)
        .await
        .context("start")?;
    kubelet.settle(REST).await?;
    measure_rest(scale, &mut kubelet, steady, samples)
        .await
        .context("at rest")?;
    let kubelet = measure_kubelet_restart(scale, place, kubelet, runtime, samples)
        .await
        .context("kubelet killed")?;
    tokio::time::sleep(REST).await;
    measure_stop(scale, &kubelet, &names, runtime, samples)
        .await
        .context("manifests removed")?;
    kubelet.stop()
}

async fn measure_start(
    scale: &Scale,
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
            begin.elapsed() < scale.deadline,
            "not all containers run after {:?}",
            scale.deadline
        );
        tokio::time::sleep(LOOK).await;
    }
    let ready = wait_until_ready(scale, kubelet, begin, runtime, samples).await?;
    samples.record(scale.start, column, (ready - begin).as_secs_f64());
    samples.record(scale.start_cpu, column, kubelet.cpu_seconds()? - cpu_before);
    Ok(())
}

/// When the kubelet called all pods Running and Ready while the runtime called all their containers running.
async fn wait_until_ready(
    scale: &Scale,
    kubelet: &Kubelet,
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
            if ready == scale.pods {
                let running = runtime.running().await?.len();
                if running == scale.pods {
                    return Ok(at);
                }
                samples.note(format!(
                    "{} called all pods Ready while the runtime called fewer running",
                    kubelet.column()
                ));
            }
            last = format!("{ready} of {} pods are Ready", scale.pods);
        }
        ensure!(
            begin.elapsed() < scale.deadline,
            "after {:?}: {last}",
            scale.deadline
        );
        tokio::time::sleep(scale.glance).await;
    }
}

async fn measure_rest(
    scale: &Scale,
    kubelet: &mut Kubelet,
    time: Duration,
    samples: &mut Samples,
) -> Result<()> {
    let column = kubelet.column();
    let before = kubelet.cpu_seconds()?;
    let begin = Instant::now();
    kubelet.settle(time).await?;
    let share = (kubelet.cpu_seconds()? - before) / begin.elapsed().as_secs_f64();
    samples.record(scale.steady_cpu, column, share * 100.0);
    let memory = kubelet.memory()?;
    samples.record(scale.memory, column, memory.resident_mib);
    samples.record(scale.anonymous, column, memory.anonymous_mib);
    Ok(())
}

async fn measure_kubelet_restart(
    scale: &Scale,
    place: &Place<'_>,
    kubelet: Kubelet,
    runtime: &Runtime,
    samples: &mut Samples,
) -> Result<Kubelet> {
    let before = runtime.running().await?;
    let begin = Instant::now();
    kubelet.kill(Signal::KILL)?;
    let kubelet = place.spawn()?;
    let ready = wait_until_ready(scale, &kubelet, begin, runtime, samples).await?;
    samples.record(
        scale.kubelet_restart,
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
    scale: &Scale,
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
            begin.elapsed() < scale.deadline,
            "not all sandboxes are stopped after {:?}",
            scale.deadline
        );
        tokio::time::sleep(GLANCE).await;
    }
    samples.record(scale.stop, kubelet.column(), begin.elapsed().as_secs_f64());
    Ok(())
}
