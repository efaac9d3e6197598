//! Whether a container that ended runs again.
//!
//! Owns the order of decision: the container's rules by exit code, then its own policy, then the pod's. Backoff only delays
//! a restart and is not decided here.

use k8s_openapi::api::core::v1::{Container, ContainerRestartRule, Pod, PodSpec};
use rubelet_model::observation::{ContainerState, PodObservation};
use serde::{Deserialize, Serialize};

const ACTION_RESTART: &str = "Restart";
const ACTION_RESTART_ALL: &str = "RestartAllContainers";

/// The feature gates that restarts depend on, all on by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RestartGates {
    /// `ContainerRestartRules`
    pub container_restart_rules: bool,
    /// `RestartAllContainersOnContainerExits`
    pub restart_all_containers: bool,
}

impl Default for RestartGates {
    fn default() -> Self {
        Self {
            container_restart_rules: true,
            restart_all_containers: true,
        }
    }
}

/// When a container that ended is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

impl RestartPolicy {
    fn parse(text: Option<&str>) -> Option<Self> {
        match text? {
            "Always" => Some(Self::Always),
            "OnFailure" => Some(Self::OnFailure),
            "Never" => Some(Self::Never),
            _ => None,
        }
    }

    /// The pod's policy; `Always` where it sets none.
    #[must_use]
    pub fn of_pod(spec: &PodSpec) -> Self {
        Self::parse(spec.restart_policy.as_deref()).unwrap_or(Self::Always)
    }

    /// The container's own policy, if it has one.
    #[must_use]
    pub fn of_container(container: &Container) -> Option<Self> {
        Self::parse(container.restart_policy.as_deref())
    }

    fn restarts_after(self, exit_code: i32) -> bool {
        match self {
            Self::Always => true,
            Self::OnFailure => exit_code != 0,
            Self::Never => false,
        }
    }
}

/// The policy for a container that has no exit code yet: its own, else the pod's.
#[must_use]
pub fn effective_policy(container: &Container, spec: &PodSpec, gates: RestartGates) -> RestartPolicy {
    RestartPolicy::of_container(container)
        .filter(|_| gates.container_restart_rules)
        .unwrap_or_else(|| RestartPolicy::of_pod(spec))
}

/// Whether an init container is one that runs beside the regular containers.
#[must_use]
pub fn is_sidecar(container: &Container) -> bool {
    RestartPolicy::of_container(container) == Some(RestartPolicy::Always)
}

/// The first rule that matches the exit code.
#[must_use]
pub fn matching_rule(container: &Container, exit_code: i32) -> Option<&ContainerRestartRule> {
    container.restart_policy_rules.iter().flatten().find(|rule| {
        let Some(codes) = &rule.exit_codes else {
            return false;
        };
        let listed = codes.values.iter().flatten().any(|code| *code == exit_code);
        match codes.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        }
    })
}

/// Whether this exit asks for a restart of all containers of the pod.
#[must_use]
pub fn asks_for_restart_of_all(container: &Container, exit_code: i32) -> bool {
    matching_rule(container, exit_code).is_some_and(|rule| rule.action == ACTION_RESTART_ALL)
}

/// Whether an exit with this code is followed by a restart, by rules and policies alone.
#[must_use]
pub fn restarts_after_exit(
    container: &Container,
    spec: &PodSpec,
    exit_code: i32,
    gates: RestartGates,
) -> bool {
    if !gates.container_restart_rules {
        return RestartPolicy::of_pod(spec).restarts_after(exit_code);
    }
    if container.restart_policy.is_some() {
        match matching_rule(container, exit_code).map(|rule| rule.action.as_str()) {
            Some(ACTION_RESTART) => return true,
            Some(ACTION_RESTART_ALL) if gates.restart_all_containers => return true,
            // An action that is unknown or switched off leaves the decision to the policies.
            Some(_) | None => {}
        }
    }
    effective_policy(container, spec, gates).restarts_after(exit_code)
}

/// Whether a container that does not run has to be started, judged by its newest instance.
#[must_use]
pub fn should_start(
    container: &Container,
    pod: &Pod,
    observation: &PodObservation,
    gates: RestartGates,
) -> bool {
    if pod.metadata.deletion_timestamp.is_some() {
        return false;
    }
    let Some(newest) = observation.newest_container(&container.name) else {
        return true;
    };
    match &newest.state {
        ContainerState::Running { .. } => false,
        ContainerState::Created | ContainerState::Unknown { .. } => true,
        ContainerState::Exited(exit) => pod
            .spec
            .as_ref()
            .is_some_and(|spec| restarts_after_exit(container, spec, exit.exit_code, gates)),
    }
}
