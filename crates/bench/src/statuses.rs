//! The rows of many changes at once: how soon the API server has all of them when it is far away.
//!
//! The pods' readiness probes ask a server of ours, which keeps them waiting until all have come and then answers all of them
//! otherwise than before.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::budget::Row;
use super::cluster::Cluster;
use super::gate::Gate;
use super::kubelet::{Kubelet, Place};
use super::pod;
use super::samples::Samples;
use super::sightings::Pods;

/// How many pods change.
pub(super) const PODS: usize = 200;
/// From the kubelet to the API server and back.
pub(super) const ROUND_TRIP: Duration = Duration::from_millis(20);
/// There and back again, twice.
const CHANGES: [bool; 4] = [false, true, false, true];
/// Before every change, for what the one before has left to do.
const REST: Duration = Duration::from_secs(5);
const GATHERING: Duration = Duration::from_secs(25);
/// Hundreds of containers take their time on a busy machine; how long is measured elsewhere.
const START_DEADLINE: Duration = Duration::from_secs(600);

/// The row of one kubelet, which is a node of the cluster on folders of its own and has the limits for requests that a kubelet has
/// unless it is told otherwise.
pub(super) async fn measure(
    place: &Place<'_>,
    gate: &Gate,
    cluster: &mut Cluster,
    samples: &mut Samples,
) -> Result<()> {
    let (mut kubelet, _) = place.start()?;
    cluster.wait_until_ready(place.node()).await?;
    gate.answer(true);
    let pods: Vec<_> = (0..PODS)
        .map(|number| pod::with_readiness(&format!("changing-{number}"), place.node(), gate.address()))
        .collect();
    cluster.create(&pods).await?;
    change(&mut kubelet, gate, cluster, samples).await?;
    kubelet.stop()?;
    cluster.forget(place.node()).await
}

async fn change(
    kubelet: &mut Kubelet,
    gate: &Gate,
    cluster: &mut Cluster,
    samples: &mut Samples,
) -> Result<()> {
    let all_are = |is_ready: bool| {
        move |pods: &Pods| {
            let fitting = pods
                .values()
                .filter(|pod| pod.is_running && pod.is_ready == is_ready);
            fitting.count() == PODS
        }
    };
    for is_ready in CHANGES {
        let sightings = &mut cluster.sightings;
        sightings
            .wait("all pods", START_DEADLINE, all_are(!is_ready))
            .await?;
        kubelet.settle(REST).await?;
        gate.gather(PODS, GATHERING).await.context("gather the probes")?;
        // A kubelet that has just been started may have said otherwise meanwhile.
        sightings
            .wait("all pods", START_DEADLINE, all_are(!is_ready))
            .await?;
        let begin = Instant::now();
        gate.answer(is_ready);
        let written = sightings
            .wait("all changes", START_DEADLINE, all_are(is_ready))
            .await?;
        samples.record(Row::Statuses, kubelet.column(), (written - begin).as_secs_f64());
    }
    Ok(())
}
