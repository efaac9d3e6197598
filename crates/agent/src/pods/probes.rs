//! A pod's status with the newest probe results.
//!
//! Owns the merge of results into a computed status. A job may be busy for minutes, with a pull or with the grace period, and
//! traffic to the pod must not wait for it: the sync loop publishes what this returns at once.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use rubelet_lifecycle::status::{StateView as _, with_readiness, with_startup};
use rubelet_model::observation::{ContainerId, ProbeResult};
use rubelet_ports::ProbeReading;

/// The status with what the probes of its running containers say; `None` when that is in it already.
pub(super) fn with_results(pod: &Pod, status: &PodStatus, reading: &ProbeReading) -> Option<PodStatus> {
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
