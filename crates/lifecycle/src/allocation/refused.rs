//! A resize that is not carried out, while the agent carries out none.

use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff;
use rubelet_model::Timestamp;

use crate::status::conditions::RESIZE_PENDING;
use crate::status::find_condition;

pub const INFEASIBLE: &str = "Infeasible";
/// The reason of the event, as upstream names it.
pub const INFEASIBLE_EVENT: &str = "ResizeInfeasible";
pub const INFEASIBLE_MESSAGE: &str =
    "Resizing a pod in place is not supported yet; it goes on with the resources it was started with";

fn reported_before(pod: &Pod) -> Option<&PodCondition> {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_deref());
    find_condition(conditions.unwrap_or_default(), RESIZE_PENDING)
        .filter(|before| before.reason.as_deref() == Some(INFEASIBLE))
}

/// Whether the pod's status already reports that the resize is infeasible.
#[must_use]
pub fn is_reported(pod: &Pod) -> bool {
    reported_before(pod).is_some_and(|before| before.observed_generation == pod.metadata.generation)
}

/// The condition of a resize that is not carried out. A condition that was reported before keeps its transition time.
#[must_use]
pub fn infeasible(pod: &Pod, now: Timestamp) -> PodCondition {
    let before = reported_before(pod);
    let now = jiff::Timestamp::from_nanosecond(i128::from(now.unix_nanos())).map(Time);
    PodCondition {
        type_: RESIZE_PENDING.to_owned(),
        status: "True".to_owned(),
        reason: Some(INFEASIBLE.to_owned()),
        message: Some(INFEASIBLE_MESSAGE.to_owned()),
        observed_generation: pod.metadata.generation,
        last_transition_time: match before {
            Some(before) => before.last_transition_time.clone(),
            None => now.ok(),
        },
        ..PodCondition::default()
    }
}
