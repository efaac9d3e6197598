//! The rows of one pod: its manifest is written, its container is killed, its manifest is removed; and how much longer a start
//! takes with volumes and with probes.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rubelet_wire::cri::v1::ContainerEventType as Event;
use rustix::process::{Pid, Signal, kill_process};

use super::budget::Row;
use super::gate::Gate;
use super::kubelet::Kubelet;
use super::marks::Mark;
use super::pod;
use super::runtime::{DEADLINE, Runtime, Seen};
use super::samples::{Column, Samples};

/// Cheap, so that a round has several.
pub(super) const PODS_PER_ROUND: usize = 5;
/// Starts of pods that have more, beside as many plain ones. A start takes a few milliseconds more or less each time, and the
/// difference is no larger than that.
pub(super) const PAIRS_PER_ROUND: usize = 12;
/// How often is looked while something is about to happen.
const GLANCE: Duration = Duration::from_millis(1);
/// Between two actions on a pod, at least.
const REST: Duration = Duration::from_millis(1000);
/// Between two starts that are compared.
pub(super) const SHORT_REST: Duration = Duration::from_millis(300);
/// Added to the rest in growing multiples: what happens once a second must not always be met at the same point.
const SHIFT: Duration = Duration::from_millis(190);

/// The points of a restart that events tell.
pub(super) const RESTART_MARKS: [(Mark, Event, bool); 3] = [
    (Mark::RestartContainerDead, Event::ContainerStoppedEvent, false),
    (Mark::RestartContainerCreated, Event::ContainerCreatedEvent, false),
    (Mark::RestartContainerStarted, Event::ContainerStartedEvent, false),
];
/// The points of a removal that events tell.
pub(super) const STOP_MARKS: [(Mark, Event, bool); 2] = [
    (Mark::StopContainerStopped, Event::ContainerStoppedEvent, false),
    (Mark::StopSandboxStopped, Event::ContainerStoppedEvent, true),
];

/// The rows, pod by pod.
pub(super) async fn measure(kubelet: &Kubelet, runtime: &mut Runtime, samples: &mut Samples) -> Result<()> {
    for number in 0..PODS_PER_ROUND {
        let rest = rest(number);
        let name = format!("one-{number}");
        let (first, _) = measure_start(kubelet, &name, &pod::manifest(&name), runtime, samples)
            .await
            .context("start")?;
        tokio::time::sleep(rest).await;
        let second = measure_restart(kubelet, &name, &first, runtime, samples)
            .await
            .context("container killed")?;
        tokio::time::sleep(rest).await;
        measure_stop(kubelet, &name, &second, runtime, samples)
            .await
            .context("manifest removed")?;
        kubelet.wait_until_gone(&name).await?;
        tokio::time::sleep(rest).await;
    }
    Ok(())
}

/// How much longer starts take with volumes, and with probes that this server answers.
pub(super) async fn measure_more(
    kubelet: &Kubelet,
    prober: &Gate,
    runtime: &mut Runtime,
    samples: &mut Samples,
) -> Result<()> {
    for number in 0..PAIRS_PER_ROUND {
        let name = format!("plain-{number}");
        let plain = time_start(kubelet, &name, &pod::manifest(&name), runtime).await?;
        let name = format!("volumes-{number}");
        let took = time_start(kubelet, &name, &pod::manifest_with_volumes(&name), runtime)
            .await
            .context("with volumes")?;
        samples.record(Row::VolumesStart, kubelet.column(), ms(took) - ms(plain));
        let name = format!("probes-{number}");
        let manifest = pod::manifest_with_probes(&name, prober.address());
        let took = time_start(kubelet, &name, &manifest, runtime)
            .await
            .context("with probes")?;
        samples.record(Row::ProbesStart, kubelet.column(), ms(took) - ms(plain));
    }
    Ok(())
}

/// The time of one start; the pod is gone afterwards.
pub(super) async fn time_start(
    kubelet: &Kubelet,
    name: &str,
    manifest: &str,
    runtime: &mut Runtime,
) -> Result<Duration> {
    // Its points in time are not those of the rows of one pod.
    let mut apart = Samples::unheard();
    let (_, took) = measure_start(kubelet, name, manifest, runtime, &mut apart).await?;
    tokio::time::sleep(SHORT_REST).await;
    kubelet.take(name)?;
    kubelet.wait_until_gone(name).await?;
    tokio::time::sleep(SHORT_REST).await;
    Ok(took)
}

/// The pause between the actions on the pod of this number.
pub(super) fn rest(number: usize) -> Duration {
    REST + SHIFT * u32::try_from(number).unwrap_or_default()
}

/// Until the kubelet says Ready and the runtime agrees; gives the container and the time.
async fn measure_start(
    kubelet: &Kubelet,
    name: &str,
    manifest: &str,
    runtime: &mut Runtime,
    samples: &mut Samples,
) -> Result<(String, Duration)> {
    let (column, pod) = (kubelet.column(), kubelet.pod_name(name));
    kubelet.stage(name, manifest)?;
    runtime.forget_events();
    let begin = Instant::now();
    kubelet.put(name)?;
    // Nothing is asked before the container runs: no pod can be Ready earlier, and asking takes time from everybody.
    let is_start = |seen: &Seen| is_container(seen, &pod, Event::ContainerStartedEvent);
    let started = runtime.event("the container's start", is_start).await?;
    let ready = loop {
        let ready = kubelet
            .pods()?
            .into_iter()
            .any(|status| status.name == pod && status.is_ready());
        let at = Instant::now();
        if ready {
            if runtime.is_running(&started.container_id).await? {
                break at;
            }
            samples.note(format!(
                "{column} said Ready of a container that the runtime did not call running"
            ));
        }
        ensure!(at - begin < DEADLINE, "{pod} is not Ready after {DEADLINE:?}");
        tokio::time::sleep(GLANCE).await;
    };
    samples.record(Row::OneStart, column, ms(ready - begin));
    let marks = [
        (Mark::StartSandboxRuns, Event::ContainerStartedEvent, true),
        (Mark::StartContainerCreated, Event::ContainerCreatedEvent, false),
        (Mark::StartContainerStarted, Event::ContainerStartedEvent, false),
    ];
    mark_events(&pod, begin, &marks, column, runtime, samples);
    samples.mark(Mark::StartReady, column, ms(ready - begin));
    Ok((started.container_id, ready - begin))
}

/// Until the runtime says that another container of the pod runs; gives it.
async fn measure_restart(
    kubelet: &Kubelet,
    name: &str,
    container_id: &str,
    runtime: &mut Runtime,
    samples: &mut Samples,
) -> Result<String> {
    let (column, pod) = (kubelet.column(), kubelet.pod_name(name));
    let pid = runtime.pid(container_id).await?;
    runtime.forget_events();
    let begin = Instant::now();
    kill_process(
        Pid::from_raw(pid).context("a container without a process")?,
        Signal::KILL,
    )?;
    let is_successor = |seen: &Seen| {
        is_container(seen, &pod, Event::ContainerStartedEvent) && seen.container_id != container_id
    };
    let successor = runtime.event("the successor's start", is_successor).await?;
    ensure!(
        runtime.is_running(&successor.container_id).await?,
        "the successor was started and does not run"
    );
    samples.record(Row::OneRestart, column, ms(successor.at - begin));
    mark_events(&pod, begin, &RESTART_MARKS, column, runtime, samples);
    Ok(successor.container_id)
}

/// Until the sandbox is not ready and its network is taken down, which is when a call to stop it returns.
async fn measure_stop(
    kubelet: &Kubelet,
    name: &str,
    container_id: &str,
    runtime: &mut Runtime,
    samples: &mut Samples,
) -> Result<()> {
    let (column, pod) = (kubelet.column(), kubelet.pod_name(name));
    let sandbox_id = runtime.sandbox_of(container_id).await?;
    let namespace = runtime.network_namespace(&sandbox_id).await?;
    runtime.forget_events();
    let begin = Instant::now();
    kubelet.take(name)?;
    while namespace.exists() {
        ensure!(
            begin.elapsed() < DEADLINE,
            "the network of {pod} is there after {DEADLINE:?}"
        );
        tokio::time::sleep(GLANCE).await;
    }
    let elapsed = begin.elapsed();
    ensure!(
        !runtime.is_sandbox_ready(&sandbox_id).await?,
        "the sandbox has no network and is ready"
    );
    samples.record(Row::OneStop, column, ms(elapsed));
    mark_events(&pod, begin, &STOP_MARKS, column, runtime, samples);
    samples.mark(Mark::StopNetworkGone, column, ms(elapsed));
    Ok(())
}

/// Records the points that the runtime's events have told of since they were forgotten.
pub(super) fn mark_events(
    pod: &str,
    begin: Instant,
    marks: &[(Mark, Event, bool)],
    column: Column,
    runtime: &mut Runtime,
    samples: &mut Samples,
) {
    for (mark, kind, is_sandbox) in marks {
        if let Some(at) = runtime.time_of(pod, *kind, *is_sandbox) {
            samples.mark(*mark, column, ms(at - begin));
        }
    }
}

fn is_container(seen: &Seen, pod: &str, kind: Event) -> bool {
    seen.pod == pod && seen.kind == kind && !seen.is_sandbox
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
