//! Whether the pod needs a new sandbox.
//!
//! Owns the reasons for one and what happens to the pod around it.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use rubelet_model::observation::{
    ContainerKind, ContainerState, NetworkMode, PodObservation, SandboxId, SandboxState,
};

use super::action::{KillPodReason, RemoveReason, StartReason};
use super::{Draft, kind_of_init, pod_restarts_on_failure};
use crate::restart::{RestartPolicy, effective_policy, restarts_after_exit};

/// A sandbox that has to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxChange {
    pub reason: SandboxChangeReason,
    pub attempt: u32,
    /// The sandbox that it replaces, for the `SandboxChanged` event.
    pub replaces: Option<SandboxId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SandboxChangeReason {
    NoSandbox,
    SeveralReady,
    NotReady,
    /// The runtime cannot read its status.
    Unreadable,
    NetworkModeChanged,
    NoAddress,
}

fn wanted_network_mode(pod: &Pod) -> NetworkMode {
    let spec = pod.spec.as_ref();
    match spec.and_then(|spec| spec.host_network) {
        Some(true) => NetworkMode::Node,
        Some(false) | None => NetworkMode::Pod,
    }
}

/// `None` when the newest sandbox is good.
#[must_use]
pub fn sandbox_change(pod: &Pod, observation: &PodObservation) -> Option<SandboxChange> {
    let Some(newest) = observation.newest_sandbox() else {
        return Some(SandboxChange {
            reason: SandboxChangeReason::NoSandbox,
            attempt: 0,
            replaces: None,
        });
    };
    let ready = observation.sandboxes.iter().filter(|sandbox| sandbox.is_ready());
    let wanted_mode = wanted_network_mode(pod);
    let reason = if ready.count() > 1 {
        SandboxChangeReason::SeveralReady
    } else if newest.state == SandboxState::Unreadable {
        SandboxChangeReason::Unreadable
    } else if !newest.is_ready() {
        SandboxChangeReason::NotReady
    } else if newest.network_mode != wanted_mode {
        SandboxChangeReason::NetworkModeChanged
    } else if wanted_mode == NetworkMode::Pod && newest.primary_ip.as_deref() == Some("") {
        SandboxChangeReason::NoAddress
    } else {
        return None;
    };
    Some(SandboxChange {
        reason,
        attempt: newest.attempt.saturating_add(1),
        replaces: Some(newest.id.clone()).filter(|_| reason != SandboxChangeReason::NetworkModeChanged),
    })
}

/// The observation with the newest sandbox taken for ready, when all that is wrong with it is that its status cannot be read.
pub(super) fn assume_readable(pod: &Pod, observation: &PodObservation) -> Option<PodObservation> {
    let newest = observation.newest_sandbox()?;
    if newest.state != SandboxState::Unreadable {
        return None;
    }
    let mut assumed = observation.clone();
    let newest = assumed.sandboxes.first_mut()?;
    newest.state = SandboxState::Ready;
    newest.network_mode = wanted_network_mode(pod);
    Some(assumed)
}

pub(super) fn plan_new_sandbox(draft: &mut Draft<'_>, change: SandboxChange, restarting_all: bool) {
    let observation = draft.input.observation;
    let spec = draft.spec;
    draft.kill_pod = Some(KillPodReason::SandboxChanged);
    if !restarting_all {
        let ran_once = change.attempt != 0 && !observation.containers.is_empty();
        if !pod_restarts_on_failure(spec) && ran_once && !any_end_asks_for_a_restart(draft) {
            return draft.replace_by_kill(KillPodReason::NothingToRestart);
        }
        let to_start = containers_to_start(draft);
        if to_start.is_empty() && any_regular_container_created(spec, observation) {
            return draft.replace_by_kill(KillPodReason::NothingToRestart);
        }
        match spec.init_containers.iter().flatten().next() {
            Some(first) => draft.start(kind_of_init(first), 0, first, StartReason::NeverStarted),
            None => {
                for index in to_start {
                    let container = &spec.containers[index];
                    let reason = start_reason(observation, &container.name);
                    draft.start(ContainerKind::Regular, index, container, reason);
                }
            }
        }
    }
    for init in spec.init_containers.iter().flatten() {
        for container in observation
            .containers
            .iter()
            .filter(|seen| seen.name == init.name)
        {
            draft.remove(container, RemoveReason::SandboxChanged);
        }
    }
    draft.new_sandbox = Some(change);
}

/// Places of the regular containers that run in the new sandbox: all but those that succeeded and run only until then. Of a pod that does not
/// restart, those that restart all the same, by a policy or a rule of their own.
fn containers_to_start(draft: &Draft<'_>) -> Vec<usize> {
    let Draft { spec, input, .. } = draft;
    let runs = |container: &Container| {
        let Some(newest) = input.observation.newest_container(&container.name) else {
            return true;
        };
        let policy = effective_policy(container, spec, input.gates);
        match newest.state.exit() {
            Some(exit) if pod_restarts_on_failure(spec) => {
                policy != RestartPolicy::OnFailure || exit.exit_code != 0
            }
            Some(exit) => restarts_after_exit(container, spec, exit.exit_code, input.gates),
            None => pod_restarts_on_failure(spec) || policy != RestartPolicy::Never,
        }
    };
    let containers = spec.containers.iter().enumerate();
    containers
        .filter(|(_, container)| runs(container))
        .map(|(index, _)| index)
        .collect()
}

/// Upstream asks only for the pod's policy here, and leaves such a pod without a sandbox and without an end.
fn any_end_asks_for_a_restart(draft: &Draft<'_>) -> bool {
    draft.spec.containers.iter().any(|container| {
        let newest = draft.input.observation.newest_container(&container.name);
        let exit = newest.and_then(|newest| newest.state.exit());
        exit.is_some_and(|exit| restarts_after_exit(container, draft.spec, exit.exit_code, draft.input.gates))
    })
}

fn any_regular_container_created(spec: &PodSpec, observation: &PodObservation) -> bool {
    spec.containers
        .iter()
        .filter_map(|container| observation.newest_container(&container.name))
        .any(|container| match container.state {
            ContainerState::Created | ContainerState::Running { .. } | ContainerState::Exited(_) => true,
            ContainerState::Unknown { .. } => false,
        })
}

fn start_reason(observation: &PodObservation, name: &str) -> StartReason {
    match observation
        .newest_container(name)
        .map(|container| &container.state)
    {
        None => StartReason::NeverStarted,
        Some(ContainerState::Created) => StartReason::OnlyCreated,
        Some(ContainerState::Exited(exit)) => StartReason::Exited {
            exit_code: exit.exit_code,
        },
        Some(ContainerState::Running { .. } | ContainerState::Unknown { .. }) => StartReason::Killed,
    }
}
