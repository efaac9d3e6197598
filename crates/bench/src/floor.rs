//! The CRI floor: what the calls alone take, with the fewest that make and end the pod, and nobody who decides anything.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures_util::{StreamExt, TryStreamExt};
use rubelet_cri::CriClient;
use rubelet_ports::RuntimeWriter;
use rubelet_wire::cri::v1::ContainerEventType as Event;
use rustix::process::{Pid, Signal, kill_process};

use super::budget::Row;
use super::many::Scale;
use super::marks::Mark;
use super::pod::{BareConfig, GRACE_SECONDS};
use super::runtime::Runtime;
use super::samples::{Column, Samples};
use super::{Group, Options, one};
use rubelet_testbed::Scope;

/// A pod that was made by calls alone.
struct BarePod {
    config: BareConfig,
    sandbox_id: String,
    container_id: String,
}

/// The rows of one pod.
pub(super) async fn measure_one_by_one(
    options: &Options,
    scope: &Scope,
    runtime: &mut Runtime,
    samples: &mut Samples,
) -> Result<()> {
    if !options.wants(Group::One) {
        return Ok(());
    }
    let image_id = runtime.image_id().await?;
    for number in 0..one::PODS_PER_ROUND {
        let config = BareConfig::prepare(scope, &image_id, &format!("floor-{number}"))?;
        measure_one(config, one::rest(number), runtime, samples)
            .await
            .context("the floor with one pod")?;
        runtime.remove_everything().await?;
        tokio::time::sleep(one::rest(number)).await;
    }
    for number in 0..one::PAIRS_PER_ROUND {
        let plain = BareConfig::prepare(scope, &image_id, &format!("plain-{number}"))?;
        let plain = time_start(plain, runtime).await?;
        let mounts = BareConfig::prepare(scope, &image_id, &format!("mounts-{number}"))?;
        let with_mounts = time_start(mounts.with_volumes(scope)?, runtime).await?;
        samples.record(Row::VolumesStart, Column::Floor, ms(with_mounts) - ms(plain));
    }
    Ok(())
}

/// The time of one start; the pod is gone afterwards.
async fn time_start(config: BareConfig, runtime: &mut Runtime) -> Result<Duration> {
    let begin = Instant::now();
    let pod = start(runtime.client(), config).await?;
    let took = begin.elapsed();
    tokio::time::sleep(one::SHORT_REST).await;
    stop(runtime.client(), &pod.sandbox_id, &pod.container_id).await?;
    runtime.remove_everything().await?;
    tokio::time::sleep(one::SHORT_REST).await;
    Ok(took)
}

/// The rows of many pods, with each of these numbers of pods in flight.
pub(super) async fn measure_at_once(
    scale: &Scale,
    widths: &[usize],
    scope: &Scope,
    runtime: &mut Runtime,
    samples: &mut Samples,
) -> Result<()> {
    let image_id = runtime.image_id().await?;
    for width in widths {
        let configs = (0..scale.pods)
            .map(|number| BareConfig::prepare(scope, &image_id, &format!("floor-{number}")))
            .collect::<Result<Vec<_>>>()?;
        measure_many(scale, configs, *width, runtime, samples)
            .await
            .with_context(|| format!("the floor with {} pods", scale.pods))?;
        runtime.remove_everything().await?;
        tokio::time::sleep(one::rest(0)).await;
    }
    Ok(())
}

async fn measure_one(
    config: BareConfig,
    rest: Duration,
    runtime: &mut Runtime,
    samples: &mut Samples,
) -> Result<()> {
    let column = Column::Floor;
    let client = runtime.client().clone();
    let name = config.sandbox.hostname.clone();
    runtime.forget_events();
    let begin = Instant::now();
    let pod = start(&client, config).await?;
    samples.record(Row::OneStart, column, ms(begin.elapsed()));
    let marks = [
        (Mark::StartSandboxRuns, Event::ContainerStartedEvent, true),
        (Mark::StartContainerCreated, Event::ContainerCreatedEvent, false),
        (Mark::StartContainerStarted, Event::ContainerStartedEvent, false),
    ];
    one::mark_events(&name, begin, &marks, column, runtime, samples);

    tokio::time::sleep(rest).await;
    let pid = runtime.pid(&pod.container_id).await?;
    runtime.forget_events();
    let begin = Instant::now();
    kill_process(
        Pid::from_raw(pid).context("a container without a process")?,
        Signal::KILL,
    )?;
    let first = pod.container_id.clone();
    let is_death =
        |seen: &super::runtime::Seen| seen.container_id == first && seen.kind == Event::ContainerStoppedEvent;
    runtime.event("the container's death", is_death).await?;
    let created = client.create_container(
        &pod.sandbox_id,
        pod.config.successor(),
        pod.config.sandbox.clone(),
    );
    let container_id = created.await.context("create the successor")?;
    client
        .start_container(&container_id)
        .await
        .context("start the successor")?;
    samples.record(Row::OneRestart, column, ms(begin.elapsed()));
    one::mark_events(&name, begin, &one::RESTART_MARKS, column, runtime, samples);

    tokio::time::sleep(rest).await;
    runtime.forget_events();
    let begin = Instant::now();
    stop(&client, &pod.sandbox_id, &container_id).await?;
    let elapsed = begin.elapsed();
    samples.record(Row::OneStop, column, ms(elapsed));
    one::mark_events(&name, begin, &one::STOP_MARKS, column, runtime, samples);
    samples.mark(Mark::StopNetworkGone, column, ms(elapsed));
    Ok(())
}

async fn measure_many(
    scale: &Scale,
    configs: Vec<BareConfig>,
    width: usize,
    runtime: &mut Runtime,
    samples: &mut Samples,
) -> Result<()> {
    let client = runtime.client();
    let begin = Instant::now();
    let pods: Vec<BarePod> = futures_util::stream::iter(configs)
        .map(|config| start(client, config))
        .buffer_unordered(width)
        .try_collect()
        .await?;
    samples.record_width(scale.start, width, begin.elapsed().as_secs_f64());
    tokio::time::sleep(one::rest(0)).await;
    let begin = Instant::now();
    futures_util::stream::iter(&pods)
        .map(|pod| stop(client, &pod.sandbox_id, &pod.container_id))
        .buffer_unordered(width)
        .try_collect::<Vec<()>>()
        .await?;
    samples.record_width(scale.stop, width, begin.elapsed().as_secs_f64());
    Ok(())
}

async fn start(client: &CriClient, config: BareConfig) -> Result<BarePod> {
    let sandbox_id = client
        .run_pod_sandbox(config.sandbox.clone(), "")
        .await
        .context("run a sandbox")?;
    let container_id = client
        .create_container(&sandbox_id, config.container.clone(), config.sandbox.clone())
        .await
        .context("create a container")?;
    client
        .start_container(&container_id)
        .await
        .context("start a container")?;
    Ok(BarePod {
        config,
        sandbox_id,
        container_id,
    })
}

async fn stop(client: &CriClient, sandbox_id: &str, container_id: &str) -> Result<()> {
    client
        .stop_container(container_id, GRACE_SECONDS)
        .await
        .context("stop a container")?;
    client
        .stop_pod_sandbox(sandbox_id)
        .await
        .context("stop a sandbox")
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
