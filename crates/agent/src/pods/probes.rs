//! What follows from a changed result of a probe.
//!
//! Owns the way of a result to the pod's job, and past it: a job may be busy for minutes, with a pull or with the grace period,
//! and whoever sends traffic to the pod must not wait for it.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use rubelet_lifecycle::pod_state::PodState;
use rubelet_lifecycle::status::{Settling, StateView as _, StatusBase, settle, with_readiness, with_startup};
use rubelet_model::observation::{ContainerId, PodUid, ProbeResult};
use rubelet_ports::ProbeReading;

use super::Pods;

impl Pods {
    pub(super) fn probe_changed(&mut self, uid: &PodUid) {
        let Some(entry) = self.pods.get(uid) else { return };
        if entry.job.is_some() {
            self.show_probes(uid);
        }
        // While the pod ends, nothing else follows from a probe.
        if matches!(entry_state(self, uid), Some(PodState::Syncing { .. })) {
            self.look_again(uid);
        }
    }

    /// Shows what the probes say without waiting for the job that would derive it.
    fn show_probes(&mut self, uid: &PodUid) {
        let now = self.now();
        let gates = self.shared.settings.status_gates;
        let reading = self.shared.ports.probes.read(uid);
        let Some(entry) = self.pods.get_mut(uid) else {
            return;
        };
        let Some(derived) = entry.derived.clone() else {
            return;
        };
        let Some(changed) = with_results(&entry.pod, &derived, &reading) else {
            return;
        };
        let settling = Settling {
            pod: &entry.pod,
            base: StatusBase::of(&entry.pod, Some(&derived), None),
            force: false,
            gates,
            now,
        };
        entry.derived = Some(Arc::new(settle(&settling, changed).status));
        self.show_and_report(uid);
    }
}

fn entry_state(pods: &Pods, uid: &PodUid) -> Option<PodState> {
    pods.pods.get(uid).map(|entry| entry.state)
}

/// The status with what the probes of its running containers say; `None` when that is in it already.
fn with_results(pod: &Pod, status: &PodStatus, reading: &ProbeReading) -> Option<PodStatus> {
    let all = |status: &PodStatus| -> Vec<ContainerStatus> {
        let lists = [&status.init_container_statuses, &status.container_statuses];
        lists.into_iter().flatten().flatten().cloned().collect()
    };
    let mut changed: Option<PodStatus> = None;
    for container in all(status) {
        let Some(full_id) = container
            .container_id
            .as_deref()
            .filter(|_| container.running().is_some())
        else {
            continue;
        };
        let id = full_id.split_once("://").map_or(full_id, |(_, id)| id);
        let of = reading.results.of(&ContainerId::from(id));
        let is_success = |result: ProbeResult| result == ProbeResult::Success;
        if let Some(startup) = of.startup {
            let current = changed.as_ref().unwrap_or(status);
            changed = with_startup(current, full_id, is_success(startup)).or(changed);
        }
        let has_started = of.startup.map_or(container.started == Some(true), is_success);
        if let Some(readiness) = of.readiness.filter(|_| has_started) {
            let current = changed.as_ref().unwrap_or(status);
            changed = with_readiness(pod, current, full_id, is_success(readiness)).or(changed);
        }
    }
    changed
}
