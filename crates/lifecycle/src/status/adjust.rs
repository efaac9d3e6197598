//! Small changes of a status between two derivations.
//!
//! Owns what follows from one new fact: a probe's verdict, a sandbox, a refusal. Each result is to be settled like a derived
//! status. `None` means that nothing changes.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition, PodStatus};
use rubelet_model::pod::{Phase, phase_of};

use super::conditions::{
    READY_TO_START_CONTAINERS, RESIZE_IN_PROGRESS, RESIZE_PENDING, condition, containers_ready, pod_ready,
};
use super::view::{conditions, replace_or_append, text};

fn find<'a>(status: &'a mut PodStatus, container_id: &str) -> Option<&'a mut ContainerStatus> {
    status
        .container_statuses
        .iter_mut()
        .chain(&mut status.init_container_statuses)
        .flatten()
        .find(|one| one.container_id.as_deref() == Some(container_id))
}

/// The container with this id (`containerd://…`) became ready or unready, and with it perhaps the pod.
pub fn with_readiness(pod: &Pod, status: &PodStatus, container_id: &str, ready: bool) -> Option<PodStatus> {
    let mut changed = status.clone();
    let container = find(&mut changed, container_id).filter(|one| one.ready != ready)?;
    container.ready = ready;
    let all: Vec<_> = changed
        .init_container_statuses
        .iter()
        .chain(&changed.container_statuses)
        .flatten()
        .cloned()
        .collect();
    let phase = phase_of(&changed);
    let pod_condition = pod_ready(pod, conditions(&changed), Some(&all), phase);
    let list = changed.conditions.get_or_insert_default();
    replace_or_append(list, pod_condition);
    replace_or_append(list, containers_ready(pod, Some(&all), phase));
    Some(changed)
}

/// The startup probe of the container with this id passed or failed.
pub fn with_startup(status: &PodStatus, container_id: &str, started: bool) -> Option<PodStatus> {
    let mut changed = status.clone();
    let container = find(&mut changed, container_id).filter(|one| one.started != Some(started))?;
    container.started = Some(started);
    Some(changed)
}

/// The sandbox is ready: reported before the first container starts, because pulling its image may take long.
pub fn with_sandbox_ready(pod: &Pod, status: &PodStatus) -> PodStatus {
    let mut changed = status.clone();
    let ready = condition(pod, READY_TO_START_CONTAINERS, true, "", "");
    replace_or_append(changed.conditions.get_or_insert_default(), ready);
    changed
}

/// The status of a pod that was not admitted.
pub fn rejected_status(qos_class: &str, reason: &str, message: &str) -> PodStatus {
    PodStatus {
        phase: Some(Phase::Failed.as_str().to_owned()),
        qos_class: text(qos_class),
        reason: text(reason),
        message: Some(format!("Pod was rejected: {message}")),
        ..PodStatus::default()
    }
}

/// The status with these conditions of a resize and no others. They come first, as where a status is derived with them.
#[must_use]
pub fn with_resize(status: &PodStatus, resize: &[PodCondition]) -> PodStatus {
    let is_other =
        |condition: &&PodCondition| !matches!(condition.type_.as_str(), RESIZE_PENDING | RESIZE_IN_PROGRESS);
    let others = conditions(status).iter().filter(is_other);
    let all: Vec<PodCondition> = resize.iter().chain(others).cloned().collect();
    PodStatus {
        conditions: (!all.is_empty()).then_some(all),
        ..status.clone()
    }
}
