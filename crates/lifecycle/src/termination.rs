//! How long a container may take to stop, and which containers it waits for.
//!
//! Owns the arithmetic of grace periods and the order of sidecars. The executor of a stop runs hooks and calls the runtime.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, Pod, Probe};
use rubelet_model::MAX_PERIOD_SECONDS;
use rubelet_model::observation::{
    ContainerId, ContainerObservation, ContainerState, PodObservation, SandboxId, SandboxObservation,
};

use crate::deliberate::{Bug, is_on};
use crate::hooks::{Hook, pre_stop};
use crate::restart::is_sidecar;
use crate::status::conditions::all_containers_could_restart;

/// The shortest time that a runtime is given to stop a container.
pub const MIN_RUNTIME_GRACE_SECONDS: i64 = 2;

/// Why a container is stopped, as far as its grace period depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopCause {
    StartupProbe,
    LivenessProbe,
    Other,
}

/// One container to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerStop {
    pub id: ContainerId,
    pub name: String,
    pub grace_seconds: i64,
    /// The hook that runs first. It uses up the grace period.
    pub pre_stop: Option<Hook>,
    /// Names of containers that have to end first. Waiting for them uses up the grace period too.
    pub waits_for: Vec<String>,
}

/// Everything to stop of a pod: the containers at the same time, each when its turn comes, then all sandboxes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodStop {
    pub containers: Vec<ContainerStop>,
    /// Also those that are not ready: stopping is what releases their network.
    pub sandboxes: Vec<SandboxId>,
}

impl PodStop {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.containers.is_empty() && self.sandboxes.is_empty()
    }
}

/// What is left for the runtime's own stop after the hook and the wait, both in whole seconds that passed.
#[must_use]
pub fn runtime_grace_seconds(grace_seconds: i64, pre_stop_seconds: i64, turn_seconds: i64) -> i64 {
    grace_seconds
        .saturating_sub(pre_stop_seconds)
        .saturating_sub(turn_seconds)
        .max(MIN_RUNTIME_GRACE_SECONDS)
}

fn container_of<'a>(pod: &'a Pod, name: &str) -> Option<&'a Container> {
    let spec = pod.spec.as_ref()?;
    spec.init_containers
        .iter()
        .flatten()
        .chain(&spec.containers)
        .find(|container| container.name == name)
}

fn own_grace_seconds(probe: Option<&Probe>) -> Option<i64> {
    probe?.termination_grace_period_seconds
}

/// The grace period of a container, before hooks and turns; at most [`MAX_PERIOD_SECONDS`].
#[must_use]
pub fn grace_seconds(
    pod: &Pod,
    container: &ContainerObservation,
    cause: StopCause,
    requested_seconds: Option<i64>,
) -> i64 {
    asked_grace_seconds(pod, container, cause, requested_seconds).min(MAX_PERIOD_SECONDS)
}

fn asked_grace_seconds(
    pod: &Pod,
    container: &ContainerObservation,
    cause: StopCause,
    requested_seconds: Option<i64>,
) -> i64 {
    if let Some(seconds) = requested_seconds.or(pod.metadata.deletion_grace_period_seconds) {
        return seconds;
    }
    let of_pod = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.termination_grace_period_seconds);
    let Some(of_pod) = of_pod else {
        // The pod has no grace period of its own; the one recorded when the container was created applies.
        return container
            .recorded
            .termination_grace_period_seconds
            .unwrap_or(MIN_RUNTIME_GRACE_SECONDS);
    };
    let spec = container_of(pod, &container.name);
    let of_probe = match cause {
        StopCause::StartupProbe => own_grace_seconds(spec.and_then(|spec| spec.startup_probe.as_ref())),
        StopCause::LivenessProbe => own_grace_seconds(spec.and_then(|spec| spec.liveness_probe.as_ref())),
        StopCause::Other => None,
    };
    of_probe.unwrap_or(of_pod)
}

/// The grace period of a container whose pod is not known any more.
#[must_use]
pub fn orphan_grace_seconds(container: &ContainerObservation, requested_seconds: Option<i64>) -> i64 {
    requested_seconds
        .or(container.recorded.deletion_grace_period_seconds)
        .or(container.recorded.termination_grace_period_seconds)
        .unwrap_or(MIN_RUNTIME_GRACE_SECONDS)
        .min(MAX_PERIOD_SECONDS)
}

/// Names that a container waits for: a sidecar waits for every regular container and for the next sidecar after it, as far
/// as they run.
#[must_use]
pub fn waits_for(pod: &Pod, name: &str, running: &BTreeSet<&str>) -> Vec<String> {
    let Some(spec) = pod.spec.as_ref() else {
        return Vec::new();
    };
    let sidecars: Vec<&Container> = spec
        .init_containers
        .iter()
        .flatten()
        .filter(|container| is_sidecar(container))
        .collect();
    if is_on(Bug::SidecarsFirst) {
        return Vec::new();
    }
    let Some(position) = sidecars.iter().position(|sidecar| sidecar.name == name) else {
        return Vec::new();
    };
    // A sidecar that does not run is skipped: the next one that runs counts.
    let next = sidecars[position + 1..]
        .iter()
        .find(|sidecar| running.contains(sidecar.name.as_str()));
    spec.containers
        .iter()
        .filter(|container| running.contains(container.name.as_str()))
        .chain(next.copied())
        .map(|container| container.name.clone())
        .collect()
}

/// One container alone, without waiting for others.
#[must_use]
pub fn stop_container(
    pod: &Pod,
    container: &ContainerObservation,
    cause: StopCause,
    requested_seconds: Option<i64>,
) -> ContainerStop {
    let grace_seconds = grace_seconds(pod, container, cause, requested_seconds);
    let spec = container_of(pod, &container.name);
    let is_forgotten = is_on(Bug::PreStopSkipped)
        && container.restart_count > 0
        && pod.spec.as_ref().is_some_and(all_containers_could_restart);
    ContainerStop {
        id: container.id.clone(),
        name: container.name.clone(),
        grace_seconds,
        // Without any grace there is no time for it.
        pre_stop: pre_stop(spec, container).filter(|_| grace_seconds > 0 && !is_forgotten),
        waits_for: Vec::new(),
    }
}

/// The whole pod, with sidecars after the containers that use them.
#[must_use]
pub fn stop_pod(pod: &Pod, observation: &PodObservation, requested_seconds: Option<i64>) -> PodStop {
    let running: BTreeSet<&str> = observation
        .running_containers()
        .map(|container| container.name.as_str())
        .collect();
    let containers = observation
        .running_containers()
        .map(|container| ContainerStop {
            waits_for: waits_for(pod, &container.name, &running),
            ..stop_container(pod, container, StopCause::Other, requested_seconds)
        })
        .collect();
    PodStop {
        containers,
        sandboxes: all_sandboxes(observation),
    }
}

/// Stops an orphan, a pod that only the runtime knows.
#[must_use]
pub fn stop_orphan(observation: &PodObservation, requested_seconds: Option<i64>) -> PodStop {
    let containers = observation
        .running_containers()
        .map(|container| {
            let grace_seconds = orphan_grace_seconds(container, requested_seconds);
            ContainerStop {
                id: container.id.clone(),
                name: container.name.clone(),
                grace_seconds,
                pre_stop: pre_stop(None, container).filter(|_| grace_seconds > 0),
                waits_for: Vec::new(),
            }
        })
        .collect();
    PodStop {
        containers,
        sandboxes: all_sandboxes(observation),
    }
}

/// Whether nothing of the pod can run any more, though a sandbox of it cannot be stopped: every container is known not to run,
/// and the runtime shows no sandbox as ready. Such a sandbox is garbage; the pod need not wait for its removal.
#[must_use]
pub fn can_leave_sandboxes(observation: &PodObservation) -> bool {
    let has_ended = |container: &ContainerObservation| match container.state {
        ContainerState::Created | ContainerState::Exited(_) => true,
        ContainerState::Running { .. } | ContainerState::Unknown { .. } => false,
    };
    observation.containers.iter().all(has_ended)
        && !observation.sandboxes.iter().any(SandboxObservation::is_ready)
}

fn all_sandboxes(observation: &PodObservation) -> Vec<SandboxId> {
    observation
        .sandboxes
        .iter()
        .map(|sandbox| sandbox.id.clone())
        .collect()
}
