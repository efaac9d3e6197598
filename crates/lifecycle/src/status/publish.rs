//! The status that is sent to the API server.
//!
//! Owns the merge of our status with the API server's, and the questions whether it must be sent and whether the pod may be
//! deleted. Sending is done elsewhere.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodCondition, PodStatus};
use rubelet_model::Timestamp;
use rubelet_model::pod::{is_mirror_pod, is_terminal, phase_of};

use crate::deliberate::{Bug, is_on};

use super::StatusGates;
use super::conditions::{
    CONTAINERS_READY, DISRUPTION_TARGET, READY, is_owned, is_shared, pod_ready, unready_for_good,
};
use super::moments::api_time;
use super::normal::normalize;
use super::view::{conditions, find_condition, is_deleted, replace_or_append};

/// Merges our status into the API server's: others' conditions and claims stay, and as long as containers may run
/// (`may_run`) a new terminal phase is held back together with its reason, message and disruption.
pub fn published_status(
    pod: &Pod,
    api: &PodStatus,
    ours: &PodStatus,
    may_run: bool,
    gates: StatusGates,
    now: Timestamp,
) -> PodStatus {
    let ends = !is_terminal(api) && is_terminal(ours);
    let mut status = ours.clone();
    let mut merged: Vec<PodCondition> = conditions(api)
        .iter()
        .filter(|condition| !is_owned(&condition.type_, gates))
        .cloned()
        .collect();
    for condition in conditions(ours) {
        if is_owned(&condition.type_, gates) {
            merged.push(condition.clone());
        } else if condition.type_ == DISRUPTION_TARGET && ends && !may_run {
            // It was held back until now, so its own time is stale.
            let before = find_condition(conditions(api), DISRUPTION_TARGET)
                .filter(|before| before.status == condition.status);
            let last_transition_time = match before {
                Some(before) => before.last_transition_time.clone(),
                None => Some(api_time(now)),
            };
            let disruption = PodCondition {
                last_transition_time,
                ..condition.clone()
            };
            replace_or_append(&mut merged, disruption);
        }
    }
    status.conditions = (!merged.is_empty()).then_some(merged);
    status
        .resource_claim_statuses
        .clone_from(&api.resource_claim_statuses);
    status
        .extended_resource_claim_status
        .clone_from(&api.extended_resource_claim_status);
    status
        .node_allocatable_resource_claim_statuses
        .clone_from(&api.node_allocatable_resource_claim_statuses);
    if ends && may_run && !is_on(Bug::EarlyTerminal) {
        status.phase.clone_from(&api.phase);
        status.reason.clone_from(&api.reason);
        status.message.clone_from(&api.message);
    }
    forbid_ready_when_ended(pod, &mut status, now);
    status
}

fn forbid_ready_when_ended(pod: &Pod, status: &mut PodStatus, now: Timestamp) {
    let Some(phase) = phase_of(status).filter(|phase| phase.is_terminal()) else {
        return;
    };
    let holds =
        |type_: &str| find_condition(conditions(status), type_).is_some_and(|one| one.status == "True");
    if !holds(READY) && !holds(CONTAINERS_READY) {
        return;
    }
    for type_ in [CONTAINERS_READY, READY] {
        let mut condition = unready_for_good(pod, type_, phase);
        let before =
            find_condition(conditions(status), type_).filter(|before| before.status == condition.status);
        condition.last_transition_time = match before {
            Some(before) => before.last_transition_time.clone(),
            None => Some(api_time(now)),
        };
        replace_or_append(status.conditions.get_or_insert_default(), condition);
    }
}

/// Whether two normalised statuses are equal in what the node writes. Times and generations of conditions do not count.
pub fn same_for_node(old: &PodStatus, new: &PodStatus, gates: StatusGates) -> bool {
    let ours = |status: &PodStatus| -> BTreeMap<String, (String, String, String)> {
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        conditions(status)
            .iter()
            .filter(|condition| is_owned(&condition.type_, gates) || is_shared(&condition.type_))
            .map(|one| {
                let content = (one.status.clone(), text(&one.reason), text(&one.message));
                (one.type_.clone(), content)
            })
            .collect()
    };
    let rest = |status: &PodStatus| PodStatus {
        conditions: None,
        resource_claim_statuses: None,
        extended_resource_claim_status: None,
        node_allocatable_resource_claim_statuses: None,
        ..status.clone()
    };
    ours(old) == ours(new) && rest(old) == rest(new)
}

/// Whether the API server shows something else than our (normalised) status. `pod` is the mirror pod of a static pod.
pub fn needs_reconcile(pod: &Pod, ours: &PodStatus, gates: StatusGates) -> bool {
    let mut api = pod.status.clone().unwrap_or_default();
    normalize(pod, &mut api);
    !same_for_node(&api, ours, gates)
}

/// Whether the API object may be deleted: its deletion is requested, the API server shows a terminal phase, and the worker is done.
pub fn may_be_deleted(pod: &Pod, worker_finished: bool) -> bool {
    is_deleted(pod) && !is_mirror_pod(pod) && pod.status.as_ref().is_some_and(is_terminal) && worker_finished
}

/// Whether a readiness gate changed, so that the `Ready` condition on the API server is out of date.
pub fn readiness_is_stale(pod: &Pod) -> bool {
    let gates = pod.spec.as_ref().and_then(|spec| spec.readiness_gates.as_ref());
    if gates.is_none_or(Vec::is_empty) {
        return false;
    }
    let status = pod.status.clone().unwrap_or_default();
    let now = pod_ready(
        pod,
        conditions(&status),
        status.container_statuses.as_deref(),
        phase_of(&status),
    );
    find_condition(conditions(&status), READY).is_some_and(|shown| {
        shown.status != now.status
            || shown.message.as_deref().unwrap_or_default() != now.message.as_deref().unwrap_or_default()
    })
}
