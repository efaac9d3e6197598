//! The pods that may be evicted, with what they use.
//!
//! Owns who is a candidate: no critical pod, and before those of which nothing runs always one of which something does. What a pod
//! uses comes through [`PodUsageReader`], read after the last victim's end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rubelet_model::Timestamp;
use rubelet_model::observation::PodUid;
use rubelet_model::pod::{Importance, PodName, uid_of};
use rubelet_ports::{Clock, NoPodUsage, PodUsage, PodUsageReader, UsageExtent, within};
use rubelet_resources::eviction::{
    Candidate, ContainerFigures, DiskResource, Measure, PodFigures, SpaceHolder, VolumeFigures, rank,
};
use rubelet_resources::{PodDemand, Rules};

/// What reading the usage of all pods may take.
const USAGE_LIMIT: Duration = Duration::from_secs(30);
/// Readings are shared by all who ask within a second: one that was shared is older than it seems.
const SHARED_FOR: Duration = Duration::from_secs(1);

/// A pod of the node with what it uses.
pub(crate) struct KnownPod {
    pub(crate) pod: Arc<Pod>,
    pub(crate) uid: PodUid,
    pub(crate) demand: PodDemand,
    pub(crate) figures: Option<PodFigures>,
}

impl KnownPod {
    pub(crate) fn is_critical(&self) -> bool {
        Importance::of(&self.pod).is_critical()
    }

    pub(crate) fn candidate(&self) -> Candidate<'_> {
        Candidate {
            pod: &self.pod,
            demand: &self.demand,
            figures: self.figures.as_ref(),
        }
    }

    fn holder(&self, measure: Measure) -> SpaceHolder {
        let figures = self.figures.clone().unwrap_or_default();
        let amount = match measure {
            Measure::Memory => figures.working_set_bytes.unwrap_or(0),
            Measure::Processes => figures.processes.unwrap_or(0),
            Measure::Disk { parts, of } => {
                let used = figures.disk(&self.pod, parts);
                match of {
                    DiskResource::Bytes => used.bytes,
                    DiskResource::Inodes => used.inodes,
                }
            }
        };
        let note = if self.is_critical() { " (critical)" } else { "" };
        SpaceHolder {
            name: format!("pod {}{note}", PodName::of(&self.pod)),
            amount,
        }
    }
}

/// One entry for each pod that a source has, the newest definition where there are several.
pub(crate) fn known_pods(pods: Vec<Arc<Pod>>) -> Vec<KnownPod> {
    let newest: BTreeMap<PodUid, Arc<Pod>> = pods.into_iter().map(|pod| (uid_of(&pod), pod)).collect();
    let known = newest.into_iter().filter_map(|(uid, pod)| {
        // Of a pod that only the runtime knows it is not known whether it is critical.
        let has_containers = pod.spec.as_ref().is_some_and(|spec| !spec.containers.is_empty());
        // Quantities were checked when the pod was read.
        let demand = PodDemand::read(&pod).unwrap_or_default();
        has_containers.then_some(KnownPod {
            pod,
            uid,
            demand,
            figures: None,
        })
    });
    known.collect()
}

/// Adds what each pod uses.
pub(crate) fn add_usage(pods: &mut [KnownPod], usage: Vec<PodUsage>) {
    let mut usage: BTreeMap<PodUid, PodUsage> = usage.into_iter().map(|one| (one.uid.clone(), one)).collect();
    for known in pods {
        known.figures = usage.remove(&known.uid).map(figures_of);
    }
}

pub(crate) fn figures_of(usage: PodUsage) -> PodFigures {
    PodFigures {
        working_set_bytes: usage.working_set_bytes.map(|aged| aged.value),
        processes: usage.processes.map(|aged| aged.value),
        ephemeral_storage_bytes: usage.ephemeral_storage.map(|aged| aged.value.bytes),
        containers: usage
            .containers
            .into_iter()
            .map(|container| ContainerFigures {
                name: container.name,
                working_set_bytes: container.working_set_bytes.map(|aged| aged.value),
                writable_layer: container.writable_layer.map(|aged| aged.value),
                logs: container.logs.map(|aged| aged.value),
            })
            .collect(),
        volumes: usage
            .volumes
            .into_iter()
            .map(|volume| VolumeFigures {
                name: volume.name,
                used: volume.used.value,
            })
            .collect(),
    }
}

/// The pod to evict: the first of upstream's ranking among those of which something runs. A pod of which nothing runs has nothing but
/// files to give, and goes only where disks are short and no other is left.
pub(crate) fn choose<'p>(
    pods: &'p [KnownPod],
    left_out: &BTreeSet<PodUid>,
    measure: Measure,
    rules: &Rules,
) -> Option<&'p KnownPod> {
    let may_go = |known: &&KnownPod| !known.is_critical() && !left_out.contains(&known.uid);
    let (running, others): (Vec<&KnownPod>, Vec<&KnownPod>) = pods
        .iter()
        .filter(may_go)
        .partition(|known| known.figures.is_some());
    let pool = match measure {
        Measure::Disk { .. } if running.is_empty() => others,
        Measure::Disk { .. } | Measure::Memory | Measure::Processes => running,
    };
    let mut candidates: Vec<Candidate<'_>> = pool.iter().map(|known| known.candidate()).collect();
    rank(&mut candidates, measure, rules);
    let names: Vec<String> = candidates
        .iter()
        .map(|one| PodName::of(one.pod).to_string())
        .collect();
    tracing::info!(pods = ?names, "Pods ranked for eviction");
    let first = candidates.first()?;
    pool.iter()
        .copied()
        .find(|known| std::ptr::eq::<Pod>(&*known.pod, first.pod))
}

/// What takes most of what is short.
pub(crate) fn holders(pods: &[KnownPod], measure: Measure) -> Vec<SpaceHolder> {
    pods.iter().map(|known| known.holder(measure)).collect()
}

/// What pods use, read after `not_before` as far as the kernel says it; disks are as old as their last walk.
pub(crate) async fn fresh_usage(
    reader: &dyn PodUsageReader,
    clock: &dyn Clock,
    extent: UsageExtent,
    not_before: Timestamp,
) -> Result<Vec<PodUsage>, NoPodUsage> {
    let read = async || {
        let read = within(clock, USAGE_LIMIT, reader.usage_of_pods(extent)).await;
        read.unwrap_or_else(|elapsed| Err(NoPodUsage(elapsed.to_string())))
    };
    let usage = read().await?;
    let is_old = usage
        .iter()
        .filter_map(|pod| pod.working_set_bytes)
        .any(|memory| memory.read_at < not_before);
    if !is_old {
        return Ok(usage);
    }
    clock.sleep(SHARED_FOR).await;
    read().await
}
