//! What to do with a call whose outcome is not known.
//!
//! A call that creates a sandbox or container may pass its deadline, or find the name reserved by an earlier call of ours. The
//! sandbox or container may then exist, half or whole. Owns the decision between adopting it, removing it and waiting for it. A
//! second one is never started beside it.

use std::time::Duration;

use rubelet_model::Timestamp;
use rubelet_model::observation::{ContainerId, ContainerState, NetworkMode, PodObservation, SandboxId};

/// How long the runtime may work on a call whose deadline has passed, before what holds the name is removed.
pub const IN_FLIGHT_LIMIT: Duration = Duration::from_secs(240);

/// A sandbox whose creation was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InFlightSandbox {
    pub attempt: u32,
    pub network_mode: NetworkMode,
    pub asked_at: Timestamp,
    /// The id that holds the name, from the error of the runtime.
    pub holder: Option<SandboxId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SandboxRecovery {
    Adopt {
        id: SandboxId,
    },
    Remove {
        id: SandboxId,
    },
    /// The runtime may still be at it: look again, at the latest at this time.
    Wait {
        until: Timestamp,
    },
    /// Nothing is there: ask again.
    Retry,
}

/// A container whose creation was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InFlightContainer {
    pub name: String,
    pub sandbox_id: SandboxId,
    pub restart_count: u32,
    pub hash: u64,
    pub asked_at: Timestamp,
    /// The id that holds the name, from the error of the runtime.
    pub holder: Option<ContainerId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContainerRecovery {
    /// It was created and only needs its start.
    Start {
        id: ContainerId,
    },
    /// It runs, or has already ended: the next plan goes on from there.
    Adopt {
        id: ContainerId,
    },
    Remove {
        id: ContainerId,
    },
    /// The runtime may still be at it: look again, at the latest at this time.
    Wait {
        until: Timestamp,
    },
    /// Nothing is there: ask again.
    Retry,
}

/// The id in containerd's `name "…" is reserved for "…"`.
#[must_use]
pub fn reserved_for(message: &str) -> Option<&str> {
    let (_, rest) = message.rsplit_once("is reserved for \"")?;
    let (id, _) = rest.split_once('"')?;
    (!id.is_empty()).then_some(id)
}

#[must_use]
pub fn recover_sandbox(
    asked: &InFlightSandbox,
    observation: &PodObservation,
    now: Timestamp,
) -> SandboxRecovery {
    let found = observation.sandboxes.iter().find(|sandbox| match &asked.holder {
        Some(holder) => sandbox.id == *holder,
        None => sandbox.attempt == asked.attempt,
    });
    match (found, &asked.holder) {
        (Some(found), _) => {
            let is_ours = found.attempt == asked.attempt && found.network_mode == asked.network_mode;
            let id = found.id.clone();
            if is_ours && found.is_ready() {
                SandboxRecovery::Adopt { id }
            } else {
                SandboxRecovery::Remove { id }
            }
        }
        (None, Some(holder)) => match still_in_flight(asked.asked_at, now) {
            Some(until) => SandboxRecovery::Wait { until },
            None => SandboxRecovery::Remove { id: holder.clone() },
        },
        (None, None) => match still_in_flight(asked.asked_at, now) {
            Some(until) => SandboxRecovery::Wait { until },
            None => SandboxRecovery::Retry,
        },
    }
}

#[must_use]
pub fn recover_container(
    asked: &InFlightContainer,
    observation: &PodObservation,
    now: Timestamp,
) -> ContainerRecovery {
    let found = observation
        .containers
        .iter()
        .find(|container| match &asked.holder {
            Some(holder) => container.id == *holder,
            None => {
                container.name == asked.name
                    && container.sandbox_id == asked.sandbox_id
                    && container.restart_count == asked.restart_count
            }
        });
    match (found, &asked.holder) {
        (Some(found), _) => {
            let id = found.id.clone();
            let is_ours = found.name == asked.name
                && found.sandbox_id == asked.sandbox_id
                && found.restart_count == asked.restart_count
                && found.hash == asked.hash;
            match found.state {
                ContainerState::Created if is_ours => ContainerRecovery::Start { id },
                ContainerState::Running { .. } | ContainerState::Exited(_) if is_ours => {
                    ContainerRecovery::Adopt { id }
                }
                ContainerState::Created
                | ContainerState::Running { .. }
                | ContainerState::Exited(_)
                | ContainerState::Unknown { .. } => ContainerRecovery::Remove { id },
            }
        }
        (None, Some(holder)) => match still_in_flight(asked.asked_at, now) {
            Some(until) => ContainerRecovery::Wait { until },
            None => ContainerRecovery::Remove { id: holder.clone() },
        },
        (None, None) => match still_in_flight(asked.asked_at, now) {
            Some(until) => ContainerRecovery::Wait { until },
            None => ContainerRecovery::Retry,
        },
    }
}

fn still_in_flight(asked_at: Timestamp, now: Timestamp) -> Option<Timestamp> {
    // A question from the future comes from before the clock was set back.
    (asked_at <= now && now.since(asked_at) < IN_FLIGHT_LIMIT).then(|| asked_at.plus(IN_FLIGHT_LIMIT))
}
