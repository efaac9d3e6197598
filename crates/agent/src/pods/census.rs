//! Counts what there is, for the metrics.

use rubelet_lifecycle::pod_state::{PodFacts, PodState};
use rubelet_lifecycle::resize::conditions::DEFERRED;
use rubelet_lifecycle::standing::Standing;
use rubelet_model::observation::{ContainerState, PodObservation, SandboxObservation};

use super::records::{PodRecord, Records};
use super::resizes::bucket_of;
use super::worker::Worker;
use crate::metrics::{Census, static_label};

pub(super) fn take(records: &Records, mirrors: usize) -> Census {
    let mut census = Census {
        mirrors,
        ..Census::default()
    };
    for (_, record) in records.iter() {
        if let Some(seen) = record.seen() {
            count_seen(&mut census, seen);
        }
        count_desired(&mut census, record);
        count_working(&mut census, record);
    }
    census
}

fn count_seen(census: &mut Census, seen: &PodObservation) {
    census.running_pods += usize::from(seen.sandboxes.iter().any(SandboxObservation::is_ready));
    for container in &seen.containers {
        let state = match container.state {
            ContainerState::Created => "created",
            ContainerState::Running { .. } => "running",
            ContainerState::Exited(_) => "exited",
            ContainerState::Unknown { .. } => "unknown",
        };
        *census.containers.entry(state).or_default() += 1;
    }
}

fn count_desired(census: &mut Census, record: &PodRecord) {
    let Some(pod) = record.desired() else { return };
    let is_static = PodFacts::of(pod).is_static;
    *census.desired.entry(is_static).or_default() += 1;
    let is_active = match record.standing() {
        Standing::Managed(state) => state.may_run() || *state == PodState::Absent,
        standing => standing.rejection().is_none(),
    };
    if is_active {
        *census.active.entry(is_static).or_default() += 1;
    }
    let spec = pod.spec.as_ref();
    let ephemeral = spec.and_then(|spec| spec.ephemeral_containers.as_ref());
    census.ephemeral_containers += ephemeral.map_or(0, Vec::len);
}

fn count_working(census: &mut Census, record: &PodRecord) {
    let Some(worker) = record.worker() else { return };
    count_resize(census, worker);
    let lifecycle = match record.standing().life() {
        PodState::Absent | PodState::Waiting { .. } | PodState::Syncing { .. } => "sync",
        PodState::Terminating { .. } => "terminating",
        PodState::Terminated { .. } | PodState::Finished { .. } => "terminated",
    };
    let is_static = static_label(PodFacts::of(worker.pod()).is_static);
    let (config, is_static) = if record.desired().is_some() {
        ("desired", is_static)
    } else if worker.pod().spec.is_some() {
        ("orphan", is_static)
    } else {
        ("runtime_only", "unknown")
    };
    *census.working.entry((lifecycle, config, is_static)).or_default() += 1;
}

fn count_resize(census: &mut Census, worker: &Worker) {
    census.resizes_in_progress += usize::from(worker.resize.is_in_progress());
    if let Some(reason) = worker.resize.pending_reason() {
        let reason = if reason == DEFERRED {
            "deferred"
        } else {
            "infeasible"
        };
        let key = (reason, bucket_of(worker.asked()));
        *census.pending_resizes.entry(key).or_default() += 1;
    }
}
