//! Which pods run or may come to run: those whose images and volumes are not garbage.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rubelet_lifecycle::pod_state::PodState;
use rubelet_model::observation::PodUid;

use super::records::{PodRecord, Records};

fn is_over(status: &PodStatus) -> bool {
    matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"))
}

pub(super) fn active_pods(records: &Records) -> Vec<Arc<Pod>> {
    let mut active = Vec::new();
    for (_, record) in records.iter() {
        let desired = record.desired().filter(|pod| may_run(record, pod));
        active.extend(desired.cloned());
        // A pod that ends still uses what it has.
        let worker = record.worker();
        let worker = worker.filter(|worker| !is_over(worker.statuses.published()));
        active.extend(worker.map(|worker| Arc::clone(worker.pod())));
    }
    active
}

/// Whether anything of the pod runs or is left to clean up, as far as its own jobs do that.
pub(super) fn is_unfinished(records: &Records, uid: &PodUid) -> bool {
    records.worker(uid).is_some()
        && !matches!(
            records.standing(uid).life(),
            PodState::Absent | PodState::Finished { .. }
        )
}

fn may_run(record: &PodRecord, pod: &Pod) -> bool {
    if let Some(rejection) = record.standing().rejection() {
        return rejection.refusal.is_for_now;
    }
    match record.worker() {
        Some(worker) => !is_over(worker.statuses.published()),
        None => !pod.status.as_ref().is_some_and(is_over),
    }
}
