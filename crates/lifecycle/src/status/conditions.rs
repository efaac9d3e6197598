//! The conditions that the node owns on a pod.
//!
//! Owns their types, reasons and messages. `settle` sets the transition times, because it compares with the previous status.

use k8s_openapi::api::core::v1::{
    Container, ContainerStateTerminated, ContainerStatus, Pod, PodCondition, PodSpec, PodStatus,
};
use rubelet_model::observation::{ContainerObservation, PodObservation};
use rubelet_model::pod::Phase;

use crate::deliberate::{Bug, is_on};
use crate::plan::{SandboxChangeReason, sandbox_change};
use crate::restart::{asks_for_restart_of_all, is_sidecar};

use super::StatusGates;
use super::view::{StateView, conditions, find_condition, find_status, generation, spec_of, statuses, text};

/// All init containers are done.
pub const INITIALIZED: &str = "Initialized";
/// The pod may get traffic.
pub const READY: &str = "Ready";
/// Every container is ready.
pub const CONTAINERS_READY: &str = "ContainersReady";
/// The pod has a node.
pub const POD_SCHEDULED: &str = "PodScheduled";
/// The sandbox is ready and has its network.
pub const READY_TO_START_CONTAINERS: &str = "PodReadyToStartContainers";
/// The pod is ended by an event outside of it.
pub const DISRUPTION_TARGET: &str = "DisruptionTarget";
/// The whole pod is being restarted in place.
pub const ALL_CONTAINERS_RESTARTING: &str = "AllContainersRestarting";
/// A resize waits.
pub const RESIZE_PENDING: &str = "PodResizePending";
/// A resize is being carried out.
pub const RESIZE_IN_PROGRESS: &str = "PodResizeInProgress";

const UNKNOWN_CONTAINER_STATUSES: &str = "UnknownContainerStatuses";
const POD_COMPLETED: &str = "PodCompleted";
const POD_FAILED: &str = "PodFailed";
const CONTAINERS_NOT_READY: &str = "ContainersNotReady";
const CONTAINERS_NOT_INITIALIZED: &str = "ContainersNotInitialized";
const READINESS_GATES_NOT_READY: &str = "ReadinessGatesNotReady";
const RESTART_ALL_STARTED: &str = "RestartAllContainersStarted";
const SANDBOX_NOT_READY: &str = "PodSandboxNotReady";

/// Whether only the node writes conditions of this type.
pub fn is_owned(type_: &str, gates: StatusGates) -> bool {
    match type_ {
        POD_SCHEDULED
        | READY
        | INITIALIZED
        | CONTAINERS_READY
        | RESIZE_IN_PROGRESS
        | RESIZE_PENDING
        | READY_TO_START_CONTAINERS => true,
        ALL_CONTAINERS_RESTARTING => gates.restart.restart_all_containers,
        _ => false,
    }
}

/// Whether others write conditions of this type too.
pub fn is_shared(type_: &str) -> bool {
    type_ == DISRUPTION_TARGET
}

pub(super) fn condition(pod: &Pod, type_: &str, holds: bool, reason: &str, message: &str) -> PodCondition {
    PodCondition {
        type_: type_.to_owned(),
        status: if holds { "True" } else { "False" }.to_owned(),
        observed_generation: generation(pod),
        reason: text(reason),
        message: text(message),
        ..PodCondition::default()
    }
}

/// Containers whose state makes a condition false.
#[derive(Default)]
struct Blame<'a> {
    unknown: Vec<&'a str>,
    other: Vec<&'a str>,
}

impl Blame<'_> {
    /// Upstream's message for these containers; empty when there is none.
    fn message(&self, other: &str) -> String {
        let mut parts = Vec::new();
        if !self.unknown.is_empty() {
            parts.push(format!(
                "containers with unknown status: [{}]",
                self.unknown.join(" ")
            ));
        }
        if !self.other.is_empty() {
            parts.push(format!(
                "containers with {other} status: [{}]",
                self.other.join(" ")
            ));
        }
        parts.join(", ")
    }
}

fn init_containers(spec: &PodSpec) -> &[Container] {
    spec.init_containers.as_deref().unwrap_or_default()
}

/// `ContainersReady`: every sidecar and regular container is ready. `None`: no statuses exist at all.
pub fn containers_ready(pod: &Pod, all: Option<&[ContainerStatus]>, phase: Option<Phase>) -> PodCondition {
    let Some(all) = all else {
        return condition(pod, CONTAINERS_READY, false, UNKNOWN_CONTAINER_STATUSES, "");
    };
    let spec = spec_of(pod);
    let mut blame = Blame::default();
    let sidecars = init_containers(&spec).iter().filter(|one| is_sidecar(one));
    for container in sidecars.chain(&spec.containers) {
        match find_status(all, &container.name) {
            Some(status) if status.ready => {}
            Some(_) => blame.other.push(&container.name),
            None => blame.unknown.push(&container.name),
        }
    }
    match phase {
        Some(phase @ Phase::Failed) => return unready_for_good(pod, CONTAINERS_READY, phase),
        Some(phase @ Phase::Succeeded) if blame.unknown.is_empty() => {
            return unready_for_good(pod, CONTAINERS_READY, phase);
        }
        Some(_) | None => {}
    }
    let message = blame.message("unready");
    if message.is_empty() {
        condition(pod, CONTAINERS_READY, true, "", "")
    } else {
        condition(pod, CONTAINERS_READY, false, CONTAINERS_NOT_READY, &message)
    }
}

/// The readiness conditions of a pod that has ended.
pub(super) fn unready_for_good(pod: &Pod, type_: &str, phase: Phase) -> PodCondition {
    let reason = match phase {
        Phase::Failed => POD_FAILED,
        Phase::Succeeded => POD_COMPLETED,
        Phase::Pending | Phase::Running => "",
    };
    condition(pod, type_, false, reason, "")
}

/// `Ready`: the containers are, and every readiness gate's condition holds among `known`.
pub fn pod_ready(
    pod: &Pod,
    known: &[PodCondition],
    all: Option<&[ContainerStatus]>,
    phase: Option<Phase>,
) -> PodCondition {
    let containers = containers_ready(pod, all, phase);
    let is_taken_as_ready = is_on(Bug::ReadyTooEarly) && phase == Some(Phase::Running);
    if containers.status != "True" && !is_taken_as_ready {
        return PodCondition {
            type_: READY.to_owned(),
            ..containers
        };
    }
    let gates = spec_of(pod).readiness_gates.clone().unwrap_or_default();
    let mut problems = Vec::new();
    for gate in gates.iter().map(|gate| gate.condition_type.as_str()) {
        match find_condition(known, gate) {
            None => problems.push(format!(
                "corresponding condition of pod readiness gate {gate:?} does not exist."
            )),
            Some(found) if found.status != "True" => problems.push(format!(
                "the status of pod readiness gate {gate:?} is not \"True\", but {}",
                found.status
            )),
            Some(_) => {}
        }
    }
    if problems.is_empty() {
        condition(pod, READY, true, "", "")
    } else {
        condition(pod, READY, false, READINESS_GATES_NOT_READY, &problems.join(", "))
    }
}

/// `Initialized`: every init container did its part. Once true it stays so, also while the pod restarts in place.
pub fn pod_initialized(
    pod: &Pod,
    previous: &PodStatus,
    all: Option<&[ContainerStatus]>,
    phase: Option<Phase>,
    gates: StatusGates,
) -> PodCondition {
    let spec = spec_of(pod);
    let Some(all) = all.or(init_containers(&spec).is_empty().then_some(&[])) else {
        return condition(pod, INITIALIZED, false, UNKNOWN_CONTAINER_STATUSES, "");
    };
    let mut blame = Blame::default();
    for container in init_containers(&spec) {
        match find_status(all, &container.name) {
            None => blame.unknown.push(&container.name),
            Some(status) if is_sidecar(container) && status.started == Some(true) => {}
            Some(status) if !is_sidecar(container) && status.ready => {}
            Some(_) => blame.other.push(&container.name),
        }
    }
    if phase == Some(Phase::Succeeded) && blame.unknown.is_empty() {
        return condition(pod, INITIALIZED, true, POD_COMPLETED, "");
    }
    let message = blame.message("incomplete");
    let was_initialized = gates.restart.restart_all_containers
        && find_condition(conditions(previous), INITIALIZED).is_some_and(|old| old.status == "True");
    if message.is_empty() || any_regular_started(&spec, all) || was_initialized {
        return condition(pod, INITIALIZED, true, "", "");
    }
    condition(pod, INITIALIZED, false, CONTAINERS_NOT_INITIALIZED, &message)
}

fn any_regular_started(spec: &PodSpec, all: &[ContainerStatus]) -> bool {
    spec.containers
        .iter()
        .flat_map(|container| all.iter().filter(|status| status.name == container.name))
        .any(|status| status.running().is_some() || status.terminated().is_some())
}

/// `PodReadyToStartContainers`: a sandbox exists that needs no replacement.
pub fn ready_to_start_containers(pod: &Pod, observation: &PodObservation) -> PodCondition {
    match sandbox_problem(pod, observation) {
        None => condition(pod, READY_TO_START_CONTAINERS, true, "", ""),
        Some(problem) => condition(pod, READY_TO_START_CONTAINERS, false, SANDBOX_NOT_READY, problem),
    }
}

/// Why the pod needs a new sandbox.
pub fn sandbox_problem(pod: &Pod, observation: &PodObservation) -> Option<&'static str> {
    let change = sandbox_change(pod, observation)?;
    Some(match change.reason {
        SandboxChangeReason::NoSandbox => "no pod sandbox exists",
        SandboxChangeReason::SeveralReady => "multiple pod sandboxes are ready and need to be reconciled",
        SandboxChangeReason::NotReady => "pod sandbox is not ready",
        SandboxChangeReason::Unreadable => "pod sandbox status cannot be read",
        SandboxChangeReason::NetworkModeChanged => {
            "network namespace mode changed and sandbox needs to be recreated"
        }
        SandboxChangeReason::NoAddress => "pod sandbox has no IP address",
    })
}

/// `PodScheduled`: true by the fact that a node sees the pod.
pub fn pod_scheduled(pod: &Pod) -> PodCondition {
    condition(pod, POD_SCHEDULED, true, "", "")
}

/// `AllContainersRestarting`. Upstream sets no observed generation here, and comparing statuses would see one.
pub fn all_containers_restarting(
    pod: &Pod,
    observation: &PodObservation,
    previous: &PodStatus,
    phase: Option<Phase>,
) -> PodCondition {
    let ended = match phase {
        Some(Phase::Succeeded) => Some(POD_COMPLETED),
        Some(Phase::Failed) => Some(POD_FAILED),
        Some(Phase::Pending | Phase::Running) | None => None,
    };
    let restarting =
        ended.is_none() && should_restart_all(pod, observation, previous) && !is_cleaned_up(pod, observation);
    let (reason, message) = match (ended, restarting) {
        (Some(reason), _) => (reason, ""),
        (None, true) => (RESTART_ALL_STARTED, "container exited with restart policy rule"),
        (None, false) => ("", ""),
    };
    PodCondition {
        observed_generation: None,
        ..condition(pod, ALL_CONTAINERS_RESTARTING, restarting, reason, message)
    }
}

fn init_and_regular(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    init_containers(spec).iter().chain(&spec.containers)
}

fn is_cleaned_up(pod: &Pod, observation: &PodObservation) -> bool {
    let spec = spec_of(pod);
    init_and_regular(&spec).all(|container| observation.newest_container(&container.name).is_none())
}

/// Whether any container of the pod may ask for a restart of the whole pod.
pub fn all_containers_could_restart(spec: &PodSpec) -> bool {
    init_and_regular(spec)
        .flat_map(|container| container.restart_policy_rules.iter().flatten())
        .any(|rule| rule.action == "RestartAllContainers")
}

/// Whether the end may be that of this container: the API server's status may show the end of an earlier instance.
fn is_end_of(end: &ContainerStateTerminated, container: &ContainerObservation) -> bool {
    let named = end.container_id.as_deref().unwrap_or_default();
    named.is_empty() || named.rsplit('/').next() == Some(container.id.as_str())
}

/// Whether a container was created since the restart began, which begins with the removal of all containers. The API server's
/// condition may be older, when the API server could not be reached at the restart's end.
fn is_carried_out(condition: &PodCondition, spec: &PodSpec, observation: &PodObservation) -> bool {
    let Some(began) = &condition.last_transition_time else {
        return false;
    };
    // The API keeps whole seconds. A container that was created in the same second before the restart may count here; then the one
    // whose exit asked for the restart, which is removed last, still exists and asks again.
    init_and_regular(spec)
        .filter_map(|container| observation.newest_container(&container.name))
        .any(|newest| newest.created_at.unix_seconds() >= began.0.as_second())
}

/// Whether a restart of the whole pod in place is under way or has just been asked for.
pub fn should_restart_all(pod: &Pod, observation: &PodObservation, previous: &PodStatus) -> bool {
    let spec = spec_of(pod);
    let under_way = find_condition(conditions(previous), ALL_CONTAINERS_RESTARTING);
    if under_way.is_some_and(|one| one.status == "True" && !is_carried_out(one, &spec, observation)) {
        return true;
    }
    init_and_regular(&spec).any(|container| {
        // A container that the runtime does not show as ended is not judged by an older status either.
        let Some(newest) = observation.newest_container(&container.name) else {
            return false;
        };
        let Some(exit) = newest.state.exit() else {
            return false;
        };
        let recorded = find_status(statuses(previous.container_statuses.as_ref()), &container.name)
            .or_else(|| {
                find_status(
                    statuses(previous.init_container_statuses.as_ref()),
                    &container.name,
                )
            })
            .and_then(StateView::terminated)
            .filter(|end| is_end_of(end, newest));
        asks_for_restart_of_all(container, exit.exit_code)
            || recorded.is_some_and(|end| asks_for_restart_of_all(container, end.exit_code))
    })
}
