//! The rows of volumes fed by objects of the pods' own: how soon a kubelet that was restarted serves all of them again.
//!
//! Every object is changed while no kubelet runs. A file with the new content proves that the restarted kubelet has read the object
//! and written the volume, whichever kubelet it is.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::audit::Requests;
use super::budget::Row;
use super::cluster::Cluster;
use super::kubelet::{Kubelet, Place};
use super::samples::{Column, Samples};
use super::sightings::Pods;
use super::{SETTLING, pod};

/// Objects that no other pod uses.
pub(super) const OBJECTS_PER_POD: usize = pod::OWN_FILES.len();
const BEFORE: &str = "before";
const AFTER: &str = "after";
/// Hundreds of pods take minutes to start on a busy machine, and upstream's retries of volumes are minutes apart.
const DEADLINE: Duration = Duration::from_secs(900);
/// How often the files are read.
const LOOK: Duration = Duration::from_millis(20);

/// The rows of one kubelet, which is a node of the cluster and has no pod before and after.
pub(super) async fn measure(
    count: usize,
    place: &Place<'_>,
    cluster: &mut Cluster,
    samples: &mut Samples,
) -> Result<()> {
    let (mut kubelet, _) = place.start()?;
    cluster.wait_until_ready(place.node()).await?;
    let names: Vec<String> = (0..count).map(|number| format!("own-{number}")).collect();
    cluster.write_objects(&names, BEFORE).await?;
    let pods: Vec<_> = names
        .iter()
        .map(|name| pod::with_own_objects(name, place.node()))
        .collect();
    cluster.create(&pods).await?;
    let all_ready = |pods: &Pods| pods.values().filter(|pod| pod.is_ready).count() == count;
    cluster.sightings.wait("all pods", DEADLINE, all_ready).await?;
    kubelet.settle(SETTLING).await?;
    wait_until_served(place, cluster, BEFORE)
        .await
        .context("before the restart")?;

    kubelet.kill(Signal::KILL)?;
    cluster.write_objects(&names, AFTER).await?;
    let kubelet = measure_restart(place, cluster, samples).await?;
    kubelet.stop()?;
    cluster.forget(place.node()).await?;
    cluster.delete_objects(&names).await
}

async fn measure_restart(place: &Place<'_>, cluster: &Cluster, samples: &mut Samples) -> Result<Kubelet> {
    let column = place.column();
    let position = cluster.audit.end()?;
    let begin = Instant::now();
    let kubelet = place.spawn()?;
    let served = wait_until_served(place, cluster, AFTER).await?;
    let cpu = kubelet.cpu_seconds()?;
    let requests = cluster.audit.requests_since(position, place.node())?;
    samples.record(Row::ObjectsRestart, column, (served - begin).as_secs_f64());
    let total: usize = requests.values().map(|kind| kind.requests).sum();
    samples.record(Row::ObjectsRequests, column, total as f64);
    samples.record(Row::ObjectsCpu, column, cpu);
    print_requests(column, &requests);
    Ok(kubelet)
}

fn print_requests(column: Column, requests: &Requests) {
    for (kind, count) in requests {
        println!(
            "bench:     {column}: {} × {kind}, {:.2} s to {:.2} s after the first request",
            count.requests, count.first_seconds, count.last_seconds
        );
    }
}

/// When all files of all pods had this content, and all tokens were there.
async fn wait_until_served(place: &Place<'_>, cluster: &Cluster, content: &str) -> Result<Instant> {
    let begin = Instant::now();
    let mut files = Vec::new();
    let mut tokens = Vec::new();
    for pod in cluster.sightings.pods().values() {
        let path = |(plugin, volume, file): (&str, &str, &str)| -> PathBuf {
            place.volume(&pod.uid, plugin, volume).join(file)
        };
        files.extend(pod::OWN_FILES.map(path));
        tokens.push(path(pod::TOKEN_FILE));
    }
    let all = files.len();
    // A file that has the content keeps it, so that each look goes on where the last one ended: looking takes processor time from
    // the kubelet.
    while let Some(file) = files.last() {
        if fs::read(file).is_ok_and(|read| read == content.as_bytes()) {
            files.pop();
            continue;
        }
        ensure!(
            begin.elapsed() < DEADLINE,
            "after {DEADLINE:?} {} of {all} files are still to come, the next is {}",
            files.len(),
            file.display()
        );
        tokio::time::sleep(LOOK).await;
    }
    let served = Instant::now();
    for token in tokens {
        let read = fs::read(&token).with_context(|| format!("read {}", token.display()))?;
        ensure!(!read.is_empty(), "{} is empty", token.display());
    }
    Ok(served)
}
