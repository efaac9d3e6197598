//! The patch of a pod's status: a strategic merge patch from the API server's status to the wanted one.
//!
//! Owns which fields and conditions are ours to change, what counts as a difference, and the form of the patch. Others' conditions
//! and claims are never touched, a terminal phase never changes. It keeps nothing and sends nothing.
//!
//! Containers' statuses are replaced as whole lists, because upstream's types are so tagged; conditions and addresses are merged by
//! their keys, so that a patch made from an old base keeps what others have added since.

mod canonical;
mod difference;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rubelet_model::Timestamp;
use serde_json::{Map, Value, json};

use crate::status::{
    Phase, StatusGates, find_condition, normalize, phase_of, published_status, same_for_node,
};

use canonical::canonical;
use difference::{Lists, map_difference};

/// Lists that are merged by a key; all others are replaced.
const STATUS_LISTS: Lists = &[("conditions", "type"), ("hostIPs", "ip"), ("podIPs", "ip")];

/// The patch of subresource `status` that makes `api` into `wanted`, with the pod's UID as its precondition. `None` when both are
/// equal.
#[must_use]
pub fn status_patch(uid: &str, api: &PodStatus, wanted: &PodStatus) -> Option<Value> {
    let difference = map_difference(&fields(api), &fields(wanted), STATUS_LISTS);
    if difference.is_empty() {
        return None;
    }
    Some(json!({"metadata": {"uid": uid}, "status": difference}))
}

fn fields(status: &PodStatus) -> Map<String, Value> {
    match serde_json::to_value(canonical(status)) {
        Ok(Value::Object(fields)) => fields,
        // A structure of texts and numbers is always an object.
        Ok(_) | Err(_) => Map::new(),
    }
}

/// The status that the API server should have of a pod. `pod` is the API server's object (of a static pod its mirror pod), `ours`
/// is the node's status.
#[must_use]
pub fn wanted_status(pod: &Pod, ours: &PodStatus, gates: StatusGates, now: Timestamp) -> PodStatus {
    let nothing = PodStatus::default();
    let api = pod.status.as_ref().unwrap_or(&nothing);
    let mut ours = ours.clone();
    let end = phase_of(api).filter(|phase| phase.is_terminal());
    if end.is_some() && phase_of(&ours) != end {
        // Another component has set a terminal phase, which never changes.
        ours.phase.clone_from(&api.phase);
        ours.reason.clone_from(&api.reason);
        ours.message.clone_from(&api.message);
    }
    normalize(pod, &mut ours);
    let mut wanted = published_status(pod, api, &ours, false, gates, now);
    keep_what_cannot_be_cleared(api, &mut wanted);
    wanted
}

/// The API server sets these again when a patch clears them, so a patch that clears them would be sent without end.
fn keep_what_cannot_be_cleared(api: &PodStatus, wanted: &mut PodStatus) {
    let known = |generation: Option<i64>| generation.filter(|generation| *generation != 0);
    wanted.observed_generation = known(wanted.observed_generation).or(api.observed_generation);
    if wanted.qos_class.as_deref().is_none_or(str::is_empty) {
        wanted.qos_class.clone_from(&api.qos_class);
    }
    let before = api.conditions.as_deref().unwrap_or_default();
    for condition in wanted.conditions.iter_mut().flatten() {
        let kept = find_condition(before, &condition.type_).and_then(|before| before.observed_generation);
        condition.observed_generation = known(condition.observed_generation).or(kept);
    }
}

/// Whether the API server's status differs from ours in what the node writes.
#[must_use]
pub fn is_overwritten(pod: &Pod, ours: &PodStatus, gates: StatusGates) -> bool {
    let written = |status: &PodStatus| {
        let mut status = canonical(status);
        normalize(pod, &mut status);
        status
    };
    let api = pod.status.clone().unwrap_or_default();
    !same_for_node(&written(&api), &written(ours), gates)
}

/// Whether others wait for this change: the pod becomes ready or unready, or its phase changes.
#[must_use]
pub fn is_urgent(api: &PodStatus, ours: &PodStatus) -> bool {
    let is_ready = |status: &PodStatus| {
        let conditions = status.conditions.as_deref().unwrap_or_default();
        find_condition(conditions, crate::status::conditions::READY)
            .is_some_and(|condition| condition.status == "True")
    };
    let phase = |status: &PodStatus| phase_of(status).unwrap_or(Phase::Pending);
    is_ready(api) != is_ready(ours) || phase(api) != phase(ours)
}
