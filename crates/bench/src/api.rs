//! The rows through the API server: the pods are made there, and are Running and Ready, or gone, when it says so.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::budget::Row;
use super::cluster::Cluster;
use super::kubelet::{Kubelet, Place};
use super::runtime::{DEADLINE, Runtime};
use super::samples::Samples;
use super::sightings::Pods;
use super::{Options, SETTLING, pod};

/// A start takes a few milliseconds more or less each time, and what volumes add is no larger than that.
const PODS_PER_ROUND: usize = 10;
/// Between two actions on a pod, at least.
const REST: Duration = Duration::from_millis(400);
/// Added to the rest in growing multiples: what happens once a second must not always be met at the same point.
const SHIFT: Duration = Duration::from_millis(190);
const SHIFTS: usize = 5;
/// Before memory is read and everything is deleted.
const LONG_REST: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(10);

/// All rows of one kubelet, which is a node of the cluster and has no pod before and after.
pub(super) async fn measure(
    options: &Options,
    place: &Place<'_>,
    at_rest_too: bool,
    cluster: &mut Cluster,
    runtime: &Runtime,
    samples: &mut Samples,
) -> Result<()> {
    let (mut kubelet, _) = place.start()?;
    cluster.wait_until_ready(place.node()).await?;
    kubelet.settle(SETTLING).await?;
    let idle = kubelet.memory()?;
    samples.record(Row::ApiMemoryIdle, kubelet.column(), idle.resident_mib);
    measure_single(&kubelet, cluster, runtime, samples)
        .await
        .context("with one pod")?;
    measure_many(options, &mut kubelet, at_rest_too, cluster, runtime, samples)
        .await
        .with_context(|| format!("with {} pods", options.pods))?;
    kubelet.stop()?;
    cluster.forget(place.node()).await
}

/// One pod after the other, without and with volumes in turns.
async fn measure_single(
    kubelet: &Kubelet,
    cluster: &mut Cluster,
    runtime: &Runtime,
    samples: &mut Samples,
) -> Result<()> {
    let column = kubelet.column();
    for number in 0..PODS_PER_ROUND {
        let rest = REST + SHIFT * u32::try_from(number % SHIFTS).unwrap_or_default();
        let name = format!("one-{number}");
        let plain = pod::without_volumes(&name, kubelet.node());
        let (started, ended) = measure_pod(plain, rest, kubelet, cluster, runtime, samples).await?;
        samples.record(Row::ApiOneStart, column, ms(started));
        samples.record(Row::ApiOneStop, column, ms(ended));
        let name = format!("volumes-{number}");
        let rich = pod::with_api_volumes(&name, kubelet.node());
        let (with_volumes, _) = measure_pod(rich, rest, kubelet, cluster, runtime, samples).await?;
        samples.record(Row::ApiVolumesStart, column, ms(with_volumes) - ms(started));
    }
    Ok(())
}

/// From its creation until it is gone; gives how long its start and its end took.
async fn measure_pod(
    manifest: Value,
    rest: Duration,
    kubelet: &Kubelet,
    cluster: &mut Cluster,
    runtime: &Runtime,
    samples: &mut Samples,
) -> Result<(Duration, Duration)> {
    let name = manifest["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let name = name.as_str();
    let begin = Instant::now();
    cluster.create(&[manifest]).await?;
    let is_ready = |pods: &Pods| pods.get(name).is_some_and(|pod| pod.is_ready);
    let ready = cluster.sightings.wait(name, DEADLINE, is_ready).await?;
    let containers = cluster.sightings.pods()[name].container_ids.clone();
    let container = containers.first().context("a Ready pod names its container")?;
    if !runtime.is_running(container).await? {
        samples.note(format!(
            "{} told the API server Ready of a container that the runtime did not call running",
            kubelet.column()
        ));
    }
    tokio::time::sleep(rest).await;
    let deleted = Instant::now();
    cluster.delete(&[name.to_owned()]).await?;
    let is_gone = |pods: &Pods| !pods.contains_key(name);
    let gone = cluster.sightings.wait(name, DEADLINE, is_gone).await?;
    if runtime.is_running(container).await.unwrap_or(false) {
        samples.note(format!(
            "{} let the API server forget a pod whose container the runtime called running",
            kubelet.column()
        ));
    }
    tokio::time::sleep(rest).await;
    Ok((ready - begin, gone - deleted))
}

async fn measure_many(
    options: &Options,
    kubelet: &mut Kubelet,
    at_rest_too: bool,
    cluster: &mut Cluster,
    runtime: &Runtime,
    samples: &mut Samples,
) -> Result<()> {
    let column = kubelet.column();
    let names: Vec<String> = (0..options.pods).map(|number| format!("many-{number}")).collect();
    let pods: Vec<_> = names
        .iter()
        .map(|name| pod::with_service_account(name, kubelet.node()))
        .collect();
    let cpu_before = kubelet.cpu_seconds()?;
    let begin = Instant::now();
    cluster.create(&pods).await?;
    let all_ready = |pods: &Pods| pods.values().filter(|pod| pod.is_ready).count() == names.len();
    let ready = cluster.sightings.wait("all pods", DEADLINE, all_ready).await?;
    let cpu = kubelet.cpu_seconds()? - cpu_before;
    let ready = ready.max(until_all_run(kubelet, names.len(), ready, runtime, samples).await?);
    samples.record(Row::ApiManyStart, column, (ready - begin).as_secs_f64());
    samples.record(Row::ApiManyStartCpu, column, cpu);

    kubelet.settle(LONG_REST).await?;
    samples.record(Row::ApiMemoryMany, column, kubelet.memory()?.resident_mib);
    if at_rest_too {
        let (before, begin) = (kubelet.cpu_seconds()?, Instant::now());
        kubelet.settle(options.steady()).await?;
        let share = (kubelet.cpu_seconds()? - before) / begin.elapsed().as_secs_f64();
        samples.record(Row::ApiSteadyCpu, column, share * 100.0);
    }

    let begin = Instant::now();
    cluster.delete(&names).await?;
    let gone = cluster
        .sightings
        .wait("no pods", DEADLINE, Pods::is_empty)
        .await?;
    samples.record(Row::ApiManyStop, column, (gone - begin).as_secs_f64());
    let left = runtime.running().await?.len();
    if left > 0 {
        samples.note(format!(
            "{column} let the API server forget pods while the runtime still ran some"
        ));
    }
    Ok(())
}

/// When the runtime agrees that all containers run: at once, or the pods were not Ready when they were called so.
async fn until_all_run(
    kubelet: &Kubelet,
    count: usize,
    ready: Instant,
    runtime: &Runtime,
    samples: &mut Samples,
) -> Result<Instant> {
    if runtime.running().await?.len() == count {
        return Ok(ready);
    }
    samples.note(format!(
        "{} told the API server Ready of all pods while the runtime called fewer running",
        kubelet.column()
    ));
    while runtime.running().await?.len() < count {
        ensure!(
            ready.elapsed() < DEADLINE,
            "not all containers run after {DEADLINE:?}"
        );
        tokio::time::sleep(POLL).await;
    }
    Ok(Instant::now())
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
