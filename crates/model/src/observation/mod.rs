//! What the runtime reports about one pod, at one time.
//!
//! Owns the observed facts that plans and statuses are derived from. It does not know how they were obtained, and holds
//! nothing of the desired state: that is the pod.

mod container;
mod identity;
mod probe;
mod sandbox;

pub use container::{
    ContainerExit, ContainerKind, ContainerMount, ContainerObservation, ContainerResources, ContainerState,
    ContainerUser, OOM_KILLED, RecordedSpec,
};
pub use identity::{ContainerId, PodUid, SandboxId};
pub use probe::{ContainerProbes, ProbeResult, ProbeResults};
pub use sandbox::{NetworkMode, SandboxObservation, SandboxState};

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// Everything that the runtime has of one pod. [`PodObservation::new`] puts both lists in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodObservation {
    pub uid: PodUid,
    pub namespace: String,
    pub name: String,
    /// Newest first.
    pub sandboxes: Vec<SandboxObservation>,
    /// Of all sandboxes, by name, and newest first within a name.
    pub containers: Vec<ContainerObservation>,
    /// The pod's addresses, primary first. They outlive the sandbox: the observer carries them over.
    pub ips: Vec<String>,
    pub observed_at: Timestamp,
}

impl PodObservation {
    /// A pod of which the runtime has nothing.
    pub fn empty(
        uid: impl Into<PodUid>,
        namespace: impl Into<String>,
        name: impl Into<String>,
        observed_at: Timestamp,
    ) -> Self {
        Self {
            uid: uid.into(),
            namespace: namespace.into(),
            name: name.into(),
            sandboxes: Vec::new(),
            containers: Vec::new(),
            ips: Vec::new(),
            observed_at,
        }
    }

    /// Puts both lists in order and takes the addresses from the active sandbox.
    #[must_use]
    pub fn new(
        identity: (PodUid, String, String),
        mut sandboxes: Vec<SandboxObservation>,
        mut containers: Vec<ContainerObservation>,
        observed_at: Timestamp,
    ) -> Self {
        // Counters come before times: they still order old and new after a step of the clock.
        sandboxes.sort_by(|left, right| {
            (right.attempt, right.created_at, &left.id).cmp(&(left.attempt, left.created_at, &right.id))
        });
        containers.sort_by(|left, right| {
            let newest_first =
                (right.restart_count, right.created_at).cmp(&(left.restart_count, left.created_at));
            left.name
                .cmp(&right.name)
                .then(newest_first)
                .then(left.id.cmp(&right.id))
        });
        let (uid, namespace, name) = identity;
        let mut observation = Self {
            uid,
            namespace,
            name,
            sandboxes,
            containers,
            ips: Vec::new(),
            observed_at,
        };
        observation.ips = observation
            .active_sandbox()
            .map(|sandbox| sandbox.ips.clone())
            .unwrap_or_default();
        observation
    }

    #[must_use]
    pub fn newest_sandbox(&self) -> Option<&SandboxObservation> {
        self.sandboxes.first()
    }

    /// The newest sandbox, when it is ready. Containers of other sandboxes are history.
    #[must_use]
    pub fn active_sandbox(&self) -> Option<&SandboxObservation> {
        self.newest_sandbox().filter(|sandbox| sandbox.is_ready())
    }

    /// Containers of the active sandbox, by name, newest first within a name.
    pub fn active_containers(&self) -> impl Iterator<Item = &ContainerObservation> {
        let active = self.active_sandbox().map(|sandbox| &sandbox.id);
        self.containers
            .iter()
            .filter(move |container| Some(&container.sandbox_id) == active)
    }

    /// The newest container of a name, whatever its sandbox.
    #[must_use]
    pub fn newest_container(&self, name: &str) -> Option<&ContainerObservation> {
        self.containers.iter().find(|container| container.name == name)
    }

    /// The newest container of a name in the active sandbox.
    #[must_use]
    pub fn newest_active_container(&self, name: &str) -> Option<&ContainerObservation> {
        self.active_containers().find(|container| container.name == name)
    }

    /// All containers that run, of all sandboxes, by name, newest first within a name.
    pub fn running_containers(&self) -> impl Iterator<Item = &ContainerObservation> {
        self.containers
            .iter()
            .filter(|container| container.state.is_running())
    }

    /// Whether the runtime has nothing of the pod.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sandboxes.is_empty() && self.containers.is_empty()
    }
}

#[cfg(test)]
mod tests;
