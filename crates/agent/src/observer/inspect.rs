//! One look at one pod: from the runtime's lists and statuses to an observation.
//!
//! Owns which calls a look needs: the status of what is listed in the state in which it was last seen is not asked for again,
//! because the facts of a sandbox or container change only with its state. It keeps nothing.

use std::time::Duration;

use futures_util::future::try_join_all;
use rubelet_lifecycle::observe::{observe_container, observe_sandbox, observe_unreadable_sandbox};
use rubelet_model::Timestamp;
use rubelet_model::observation::{
    ContainerObservation, ContainerState, OOM_KILLED, PodObservation, PodUid, SandboxId, SandboxObservation,
    SandboxState,
};
use rubelet_ports::{MemoryKills, RuntimeError, RuntimeErrorKind};
use rubelet_wire::cri::v1;

use super::listing::{Listed, known_container, known_sandbox};
use super::termination_message::add_termination_message;
use crate::settings::AgentPorts;

/// Statuses of one pod that are asked for at the same time.
const STATUSES_IN_FLIGHT: usize = 4;
/// How often a sandbox's status is asked for before it counts as unreadable: such a pod may lose its sandbox, so that one
/// failure must not be enough.
const STATUS_TRIES: usize = 4;
const STATUS_RETRY: Duration = Duration::from_millis(500);
/// The exit code of a process that was killed.
const KILLED: i32 = 128 + 9;

/// The pod as the lists show it, with the statuses of what has changed.
pub(super) async fn inspect(
    ports: &AgentPorts,
    uid: &PodUid,
    listed: Listed,
    seen: Option<&PodObservation>,
    observed_at: Timestamp,
) -> Result<PodObservation, RuntimeError> {
    let mut sandboxes = Vec::with_capacity(listed.sandboxes.len());
    for chunk in listed.sandboxes.chunks(STATUSES_IN_FLIGHT) {
        let mut looks = Vec::with_capacity(chunk.len());
        for sandbox in chunk {
            looks.push(look_at_sandbox(ports, sandbox, seen));
        }
        sandboxes.extend(try_join_all(looks).await?.into_iter().flatten());
    }
    let mut containers = Vec::with_capacity(listed.containers.len());
    for chunk in listed.containers.chunks(STATUSES_IN_FLIGHT) {
        let mut looks = Vec::with_capacity(chunk.len());
        for container in chunk {
            looks.push(look_at_container(ports, container, seen));
        }
        containers.extend(try_join_all(looks).await?.into_iter().flatten());
    }
    let identity = (uid.clone(), listed.namespace, listed.name);
    let mut observation = PodObservation::new(identity, sandboxes, containers, observed_at);
    if let Some(seen) = seen {
        if observation.ips.is_empty() && observation.active_sandbox().is_none() {
            observation.ips.clone_from(&seen.ips);
        }
        if observation.name.is_empty() {
            observation.name.clone_from(&seen.name);
            observation.namespace.clone_from(&seen.namespace);
        }
    }
    Ok(observation)
}

/// `None` when it was removed since it was listed.
async fn look_at_sandbox(
    ports: &AgentPorts,
    listed: &v1::PodSandbox,
    seen: Option<&PodObservation>,
) -> Result<Option<SandboxObservation>, RuntimeError> {
    if let Some(known) = seen.and_then(|seen| known_sandbox(listed, seen)) {
        return Ok(Some(known.clone()));
    }
    let was_unreadable = is_known_unreadable(listed, seen);
    let mut tries_left = if was_unreadable { 1 } else { STATUS_TRIES };
    loop {
        tries_left -= 1;
        let error = match ports.runtime_reader.pod_sandbox_status(&listed.id, false).await {
            Ok(answer) => return Ok(answer.status.as_ref().map(observe_sandbox)),
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) if !is_about_sandbox(&error) => return Err(error),
            Err(error) => error,
        };
        let unreadable = observe_unreadable_sandbox(listed);
        // What the list shows as stopped stays so, whatever its status holds.
        if tries_left == 0 || unreadable.state == SandboxState::NotReady {
            if !was_unreadable {
                let sandbox = &listed.id;
                tracing::warn!(sandbox, %error, "The runtime cannot read the sandbox; its pod is shown without it");
            }
            return Ok(Some(unreadable));
        }
        ports.clock.sleep(STATUS_RETRY).await;
    }
}

fn is_known_unreadable(listed: &v1::PodSandbox, seen: Option<&PodObservation>) -> bool {
    let mut sandboxes = seen.iter().flat_map(|seen| &seen.sandboxes);
    sandboxes.any(|one| one.id.as_str() == listed.id && one.state == SandboxState::Unreadable)
}

/// Whether the runtime answered that it cannot read the sandbox. Without an answer nothing is known of the sandbox.
fn is_about_sandbox(error: &RuntimeError) -> bool {
    matches!(
        error.kind(),
        RuntimeErrorKind::Unknown | RuntimeErrorKind::Internal | RuntimeErrorKind::FailedPrecondition
    )
}

async fn look_at_container(
    ports: &AgentPorts,
    listed: &v1::Container,
    seen: Option<&PodObservation>,
) -> Result<Option<ContainerObservation>, RuntimeError> {
    if let Some(known) = seen.and_then(|seen| known_container(listed, seen)) {
        return Ok(Some(known.clone()));
    }
    let answer = match ports.runtime_reader.container_status(&listed.id, false).await {
        Ok(answer) => answer,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error),
    };
    let sandbox_id = SandboxId::new(listed.pod_sandbox_id.clone());
    let mut container = answer
        .status
        .as_ref()
        .map(|status| observe_container(&sandbox_id, status));
    if let Some(container) = &mut container {
        correct_reason(ports.memory_kills.as_ref(), container).await;
        add_termination_message(ports.file_reader.as_ref(), container).await;
    }
    Ok(container)
}

/// A runtime may learn too late, or never, that the kernel killed a container for its memory.
async fn correct_reason(kills: &dyn MemoryKills, container: &mut ContainerObservation) {
    let ContainerState::Exited(exit) = &mut container.state else {
        return;
    };
    if exit.exit_code != KILLED || exit.reason == OOM_KILLED {
        return;
    }
    match kills.was_killed(container.id.as_str()).await {
        Ok(true) => OOM_KILLED.clone_into(&mut exit.reason),
        Ok(false) => {}
        Err(error) => {
            tracing::debug!(%error, "Cannot find out whether the kernel killed a container for its memory");
        }
    }
}
