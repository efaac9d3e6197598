//! Conditions and fields of a pod's status that are owned by other controllers, and that rubelet keeps.
//!
//! Owns which ones these are. `publish` decides about rubelet's own part; this module only merges both.

use k8s_openapi::api::core::v1::{Pod, PodCondition, PodStatus};
use rubelet_model::Timestamp;
use rubelet_model::pod::is_terminal;

use super::StatusGates;
use super::conditions::{is_owned, is_shared};
use super::publish::published_status;
use super::view::{conditions, find_condition};

/// The status that is sent to the API server: our newest status, with everything in the pod's own status that is not ours to change.
/// `shown` is the status that we sent last. As long as containers may run (`may_run`), a new terminal phase is held back.
pub fn reported_status(
    pod: &Pod,
    shown: &PodStatus,
    ours: &PodStatus,
    may_run: bool,
    gates: StatusGates,
    now: Timestamp,
) -> PodStatus {
    let api = pod.status.clone().unwrap_or_default();
    let sent = with_foreign(shown, &api, gates);
    let mut status = published_status(pod, &sent, ours, may_run, gates, now);
    status.nominated_node_name.clone_from(&api.nominated_node_name);
    if api.qos_class.is_some() {
        status.qos_class = api.qos_class;
    }
    status
}

/// The status that we sent last, with the others' fields.
fn with_foreign(shown: &PodStatus, api: &PodStatus, gates: StatusGates) -> PodStatus {
    let mut merged: Vec<PodCondition> = conditions(api)
        .iter()
        .filter(|condition| !is_owned(&condition.type_, gates))
        .cloned()
        .collect();
    for condition in conditions(shown) {
        let is_ours = is_owned(&condition.type_, gates);
        // A condition that both write: ours may not have reached the API server yet.
        let is_new = is_shared(&condition.type_) && find_condition(&merged, &condition.type_).is_none();
        if is_ours || is_new {
            merged.push(condition.clone());
        }
    }
    let mut status = PodStatus {
        conditions: (!merged.is_empty()).then_some(merged),
        resource_claim_statuses: api.resource_claim_statuses.clone(),
        extended_resource_claim_status: api.extended_resource_claim_status.clone(),
        node_allocatable_resource_claim_statuses: api.node_allocatable_resource_claim_statuses.clone(),
        ..shown.clone()
    };
    if is_terminal(api) && !is_terminal(shown) {
        // Another component has set a terminal phase, which never changes.
        status.phase.clone_from(&api.phase);
        status.reason.clone_from(&api.reason);
        status.message.clone_from(&api.message);
    }
    status
}
