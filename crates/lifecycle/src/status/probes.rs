//! Whether containers count as started and as ready.
//!
//! Owns the reading of probe results. It runs no probe: a readiness probe that should run now is named in the answer.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rubelet_model::Timestamp;
use rubelet_model::observation::{ContainerId, ProbeResult, ProbeResults};

use crate::restart::is_sidecar;

use super::StatusGates;
use super::conditions::READY;
use super::moments::api_time;
use super::view::{StateView, conditions, find_condition, spec_of};

/// Containers that were started longer than this before the agent belong to an earlier run of the agent.
const RESTART_MARGIN: Duration = Duration::from_secs(10);

/// What the prober knows of a pod.
#[derive(Debug, Clone, Default)]
pub struct Probes {
    /// The latest results.
    pub results: ProbeResults,
    /// Names of containers whose startup probe is being run or will be.
    pub startup: BTreeSet<String>,
    /// Names of containers whose readiness probe is being run or will be.
    pub readiness: BTreeSet<String>,
    /// When this agent started; older containers were probed by an earlier run.
    pub agent_started_at: Timestamp,
}

/// Sets `started` and `ready`, and names the containers whose readiness probe should run at once.
pub(super) struct ProbeReading<'a> {
    pub(super) pod: &'a Pod,
    /// The pod's status at the API server.
    pub(super) known: &'a PodStatus,
    pub(super) probes: &'a Probes,
    pub(super) gates: StatusGates,
    pub(super) probe_now: BTreeSet<String>,
}

impl ProbeReading<'_> {
    pub(super) fn regular(&mut self, statuses: &mut [ContainerStatus]) {
        for status in statuses {
            let started = self.is_started(status);
            status.started = Some(started);
            if started {
                let spec = spec_of(self.pod);
                let container = spec.containers.iter().find(|one| one.name == status.name);
                status.ready = self.is_ready(status, container);
            }
        }
    }

    /// `statuses` are in the order of the specification, one for each init container.
    pub(super) fn init(&mut self, statuses: &mut [ContainerStatus]) {
        let spec = spec_of(self.pod);
        for (status, container) in statuses.iter_mut().zip(spec.init_containers.iter().flatten()) {
            let started = self.is_started(status);
            status.started = Some(started);
            if !is_sidecar(container) {
                status.ready |= status.terminated().is_some_and(|end| end.exit_code == 0);
            } else if started {
                status.ready = self.is_ready(status, Some(container));
            }
        }
    }

    fn is_started(&self, status: &ContainerStatus) -> bool {
        if status.running().is_none() {
            return false;
        }
        if let Some(result) = self.probes.results.of(&instance(status)).startup {
            return result == ProbeResult::Success;
        }
        let was_started = status.started == Some(true)
            || self
                .known_of(status)
                .is_some_and(|known| known.started == Some(true));
        (was_started && !self.gates.change_container_status_on_restart)
            || !self.probes.startup.contains(&status.name)
    }

    fn is_ready(&mut self, status: &ContainerStatus, container: Option<&Container>) -> bool {
        let Some(running) = status.running() else {
            return false;
        };
        let result = self.probes.results.of(&instance(status)).readiness;
        if result == Some(ProbeResult::Success) {
            return true;
        }
        let probed = self.probes.readiness.contains(&status.name);
        if probed {
            self.probe_now.insert(status.name.clone());
        }
        let was_ready = self.known_of(status).is_some_and(|known| known.ready);
        let inherited = !self.gates.change_container_status_on_restart
            && (was_ready || self.is_inherited(running.started_at.as_ref()));
        match container {
            Some(container) if inherited => {
                // The earlier run's result stays until our own probe has one.
                let ready = !probed || result.is_none();
                ready && (container.readiness_probe.is_none() || was_ready || self.pod_was_ready())
            }
            Some(_) | None => !probed,
        }
    }

    fn is_inherited(&self, container_started: Option<&Time>) -> bool {
        let margin = self.probes.agent_started_at.minus(RESTART_MARGIN);
        container_started.is_some_and(|started| *started < api_time(margin))
    }

    /// The API server's status of this very instance of the container.
    fn known_of(&self, status: &ContainerStatus) -> Option<&ContainerStatus> {
        let lists = [
            &self.known.init_container_statuses,
            &self.known.container_statuses,
        ];
        let mut all = lists.into_iter().flatten().flatten();
        all.find(|known| known.container_id.is_some() && known.container_id == status.container_id)
    }

    fn pod_was_ready(&self) -> bool {
        find_condition(conditions(self.known), READY).is_some_and(|condition| condition.status == "True")
    }
}

/// The runtime's id, without the runtime's name.
fn instance(status: &ContainerStatus) -> ContainerId {
    let text = status.container_id.as_deref().unwrap_or_default();
    ContainerId::from(text.split_once("://").map_or(text, |(_, id)| id))
}
