//! Regular containers.
//!
//! Owns which of them start, which are killed, and when nothing is left to run.

use k8s_openapi::api::core::v1::Container;
use rubelet_model::observation::{ContainerKind, ContainerObservation, ContainerState, ProbeResult};

use super::Draft;
use super::action::{KillPodReason, KillReason, StartReason};
use crate::hash::container_hash;
use crate::restart::{RestartPolicy, effective_policy, should_start};

pub(super) fn plan_regular_containers(draft: &mut Draft<'_>) {
    let mut alive = false;
    for (index, container) in draft.spec.containers.iter().enumerate() {
        let seen = draft.input.observation.newest_container(&container.name);
        alive |= match seen {
            Some(seen) if seen.state.is_running() => plan_running(draft, index, container, seen),
            Some(_) | None => plan_not_running(draft, index, container, seen),
        };
    }
    if !alive {
        // Sidecars and ephemeral containers do not keep a pod alive.
        draft.replace_by_kill(KillPodReason::AllContainersEnded);
    }
}

/// Whether the container runs or will run.
fn plan_running(
    draft: &mut Draft<'_>,
    index: usize,
    container: &Container,
    seen: &ContainerObservation,
) -> bool {
    // Rules need an exit code, which a running container does not have: only the policies count.
    let restarts = effective_policy(container, draft.spec, draft.input.gates) != RestartPolicy::Never;
    let probes = draft.input.probes.of(&seen.id);
    let (reason, restarts) = if container_hash(container) != seen.hash {
        (KillReason::DefinitionChanged, true)
    } else if probes.liveness == Some(ProbeResult::Failure) {
        (KillReason::LivenessProbe { restarts }, restarts)
    } else if probes.startup == Some(ProbeResult::Failure) {
        (KillReason::StartupProbe { restarts }, restarts)
    } else if draft.input.resize.restarts.contains(&container.name) {
        (KillReason::ResizeNeedsRestart, true)
    } else {
        draft.keep(seen);
        return true;
    };
    draft.kill(seen, reason);
    if restarts {
        draft.start(ContainerKind::Regular, index, container, StartReason::Killed);
    }
    restarts
}

/// Whether the container will run.
fn plan_not_running(
    draft: &mut Draft<'_>,
    index: usize,
    container: &Container,
    seen: Option<&ContainerObservation>,
) -> bool {
    let input = draft.input;
    if !should_start(container, input.pod, input.observation, input.gates) {
        return false;
    }
    let reason = match seen.map(|seen| (seen, &seen.state)) {
        None => StartReason::NeverStarted,
        Some((_, ContainerState::Created)) => StartReason::OnlyCreated,
        Some((_, ContainerState::Exited(exit))) => StartReason::Exited {
            exit_code: exit.exit_code,
        },
        Some((seen, ContainerState::Unknown { .. } | ContainerState::Running { .. })) => {
            draft.kill(seen, KillReason::UnknownState);
            StartReason::Killed
        }
    };
    draft.start(ContainerKind::Regular, index, container, reason);
    true
}
