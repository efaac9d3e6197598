//! Comparing a new status with the last one.
//!
//! Owns what may not change (container ends, start time), transition times, and whether there is anything new. It keeps
//! nothing: the last status is an argument.

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodSpec, PodStatus};
use rubelet_model::Timestamp;
use rubelet_model::observation::ContainerKind;
use rubelet_model::pod::Phase;
use thiserror::Error;

use crate::restart::{is_sidecar, restarts_after_exit};

use super::StatusGates;
use super::conditions::{
    DISRUPTION_TARGET, RESIZE_IN_PROGRESS, RESIZE_PENDING, all_containers_could_restart, is_owned,
};
use super::moments::api_time;
use super::normal::normalize;
use super::publish::same_for_node;
use super::view::{StateView, conditions, find_condition, find_status, generation, spec_of, statuses};

/// A change that may not happen and was dropped.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The pod has ended and cannot end differently.
    #[error("a pod that is {from} cannot become {to}")]
    Phase { from: Phase, to: Phase },
    /// A container that ended for good cannot be anything else again; the whole status was dropped.
    #[error("container {container} ended for good and cannot leave that state")]
    Container { container: String, kind: ContainerKind },
    /// The last status names other init containers than the specification; the whole status was dropped.
    #[error("the last status names init container {container} where the specification has another one")]
    UnknownInitContainer { container: String },
}

/// A container that was not stopped in the last status and is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Termination {
    /// The container's name.
    pub container: String,
    /// Its part in the pod; sidecars count as init containers.
    pub kind: ContainerKind,
    /// How it ended.
    pub exit_code: i32,
    /// The runtime's reason, such as `OOMKilled`.
    pub reason: String,
}

/// The last status.
#[derive(Debug, Clone, PartialEq)]
pub struct StatusBase {
    status: PodStatus,
    /// Whether it was settled by this node before, so that an equal status is nothing new.
    settled: bool,
}

impl StatusBase {
    /// The last settled status; without one what the API server has, of the mirror pod where there is one.
    pub fn of(pod: &Pod, previous: Option<&PodStatus>, mirror: Option<&PodStatus>) -> Self {
        Self {
            settled: previous.is_some(),
            status: previous
                .or(mirror)
                .or(pod.status.as_ref())
                .cloned()
                .unwrap_or_default(),
        }
    }
}

/// What a new status is compared under.
#[derive(Debug)]
pub struct Settling<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// The last status.
    pub base: StatusBase,
    /// Counts as changed even when equal.
    pub force: bool,
    /// Feature gates.
    pub gates: StatusGates,
    /// The current time.
    pub now: Timestamp,
}

/// The outcome of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Settled {
    /// What to keep.
    pub status: PodStatus,
    /// Whether there is something new to send.
    pub changed: bool,
    /// Why the new status was dropped.
    pub refused: Option<Refusal>,
    /// Containers that ended since.
    pub terminations: Vec<Termination>,
}

/// Compares a new status with the last one and gives what to keep.
pub fn settle(settling: &Settling<'_>, mut status: PodStatus) -> Settled {
    let old = &settling.base.status;
    let spec = spec_of(settling.pod);
    if let Err(refusal) = check_container_transitions(&spec, old, &status, settling.gates) {
        return Settled {
            status: old.clone(),
            changed: false,
            refused: Some(refusal),
            terminations: Vec::new(),
        };
    }
    status.observed_generation = generation(settling.pod).max(old.observed_generation);
    set_transition_times(&mut status, old, settling);
    let now = api_time(settling.now);
    status.start_time = old.start_time.clone().or(status.start_time).or(Some(now));
    if status.volume_health.as_ref().is_none_or(Vec::is_empty) {
        status.volume_health.clone_from(&old.volume_health);
    }
    normalize(settling.pod, &mut status);
    let terminations = new_terminations(old, &status);
    if settling.base.settled && !settling.force && same_for_node(old, &status, settling.gates) {
        // The last status stays as it was sent: details that do not count as a change must not drift.
        return Settled {
            status: old.clone(),
            changed: false,
            refused: None,
            terminations,
        };
    }
    Settled {
        status,
        changed: true,
        refused: None,
        terminations,
    }
}

/// A condition's time moves only with its status. The conditions of a resize carry their own times.
fn set_transition_times(status: &mut PodStatus, old: &PodStatus, settling: &Settling<'_>) {
    for condition in status.conditions.iter_mut().flatten() {
        let resize = matches!(condition.type_.as_str(), RESIZE_PENDING | RESIZE_IN_PROGRESS);
        let ours = is_owned(&condition.type_, settling.gates) || condition.type_ == DISRUPTION_TARGET;
        if !ours || resize {
            continue;
        }
        let unchanged = find_condition(conditions(old), &condition.type_)
            .filter(|before| before.status == condition.status);
        condition.last_transition_time = match unchanged {
            Some(before) => before.last_transition_time.clone(),
            None => Some(api_time(settling.now)),
        };
    }
}

fn new_terminations(old: &PodStatus, new: &PodStatus) -> Vec<Termination> {
    let lists = [
        (
            ContainerKind::Init,
            &old.init_container_statuses,
            &new.init_container_statuses,
        ),
        (
            ContainerKind::Regular,
            &old.container_statuses,
            &new.container_statuses,
        ),
        (
            ContainerKind::Ephemeral,
            &old.ephemeral_container_statuses,
            &new.ephemeral_container_statuses,
        ),
    ];
    let mut ended = Vec::new();
    for (kind, old, new) in lists {
        for status in new.iter().flatten() {
            let before = find_status(statuses(old.as_ref()), &status.name).and_then(StateView::terminated);
            if let (None, Some(end)) = (before, status.terminated()) {
                ended.push(Termination {
                    container: status.name.clone(),
                    kind,
                    exit_code: end.exit_code,
                    reason: end.reason.clone().unwrap_or_default(),
                });
            }
        }
    }
    ended
}

/// Whether every container that ended for good stays so.
pub fn check_container_transitions(
    spec: &PodSpec,
    old: &PodStatus,
    new: &PodStatus,
    gates: StatusGates,
) -> Result<(), Refusal> {
    let restarts_always = spec.restart_policy.as_deref() == Some("Always");
    if restarts_always || (gates.restart.restart_all_containers && all_containers_could_restart(spec)) {
        return Ok(());
    }
    let leaves = |status: &ContainerStatus, container: Option<&Container>, new: &[ContainerStatus]| {
        status
            .terminated()
            .is_some_and(|end| ends_for_good(spec, container, end.exit_code, gates))
            && find_status(new, &status.name).is_some_and(|now| now.terminated().is_none())
    };
    for status in old.container_statuses.iter().flatten() {
        let container = spec.containers.iter().find(|one| one.name == status.name);
        if leaves(status, container, statuses(new.container_statuses.as_ref())) {
            return Err(Refusal::Container {
                container: status.name.clone(),
                kind: ContainerKind::Regular,
            });
        }
    }
    for (index, status) in old.init_container_statuses.iter().flatten().enumerate() {
        let container = spec.init_containers.as_deref().unwrap_or_default().get(index);
        let Some(container) = container.filter(|container| container.name == status.name) else {
            return Err(Refusal::UnknownInitContainer {
                container: status.name.clone(),
            });
        };
        let in_new = statuses(new.init_container_statuses.as_ref());
        if !is_sidecar(container) && leaves(status, Some(container), in_new) {
            return Err(Refusal::Container {
                container: status.name.clone(),
                kind: ContainerKind::Init,
            });
        }
    }
    Ok(())
}

fn ends_for_good(spec: &PodSpec, container: Option<&Container>, exit_code: i32, gates: StatusGates) -> bool {
    let by_pod = exit_code != 0 && spec.restart_policy.as_deref() == Some("OnFailure");
    let by_container = gates.restart.container_restart_rules
        && container.is_some_and(|one| restarts_after_exit(one, spec, exit_code, gates.restart));
    !by_pod && !by_container
}
