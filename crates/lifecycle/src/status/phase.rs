//! The phase of a pod from its containers' statuses.
//!
//! Owns the counting rules. It does not know the previous phase: that a terminal phase stays is decided by the caller.

use k8s_openapi::api::core::v1::{Container, ContainerStateTerminated, ContainerStatus, PodSpec};
use rubelet_model::pod::Phase;

use crate::restart::{is_sidecar, restarts_after_exit};

use super::StatusGates;
use super::view::{StateView, find_status};

/// The reason of containers that are removed because the whole pod restarts in place.
pub const RESTARTING_ALL_CONTAINERS: &str = "RestartingAllContainers";

/// What the phase depends on beside the statuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PhaseFacts {
    /// The pod is terminated: no container restarts, whatever the policy.
    pub terminal: bool,
    /// Static pods get no terminal phase merely because they are stopped.
    pub static_pod: bool,
    /// A regular container exists in the current sandbox, so initialisation is over.
    pub initialized: bool,
}

/// How many regular init containers are where.
#[derive(Debug, Default)]
struct InitCount {
    pending: usize,
    failed: usize,
    failed_for_good: usize,
}

/// How many sidecars and regular containers are where.
#[derive(Debug, Default)]
struct Count {
    pending_sidecars: usize,
    unknown: usize,
    running: usize,
    waiting: usize,
    stopped: usize,
    stopped_for_good: usize,
    succeeded: usize,
}

/// The phase that these statuses (regular and init containers together) amount to.
pub fn pod_phase(
    spec: &PodSpec,
    statuses: &[ContainerStatus],
    facts: PhaseFacts,
    gates: StatusGates,
) -> Phase {
    let judge = Judge { spec, gates };
    let init = judge.count_init(statuses);
    let mut count = Count::default();
    judge.count_sidecars(statuses, &mut count);
    judge.count_regular(statuses, &mut count);
    if judge.initialization_failed(&init) {
        return Phase::Failed;
    }
    let uninitialized = init.pending > 0 || (count.pending_sidecars > 0 && !facts.initialized);
    if uninitialized || count.waiting > 0 || count.unknown > 0 {
        return Phase::Pending;
    }
    if count.running > 0 {
        return Phase::Running;
    }
    if count.stopped == 0 {
        return Phase::Pending;
    }
    judge.stopped_phase(&count, facts)
}

struct Judge<'a> {
    spec: &'a PodSpec,
    gates: StatusGates,
}

impl Judge<'_> {
    fn init_containers(&self) -> &[Container] {
        self.spec.init_containers.as_deref().unwrap_or_default()
    }

    fn restarts(&self, container: &Container, end: &ContainerStateTerminated) -> bool {
        let swept = self.gates.restart.restart_all_containers
            && end.reason.as_deref() == Some(RESTARTING_ALL_CONTAINERS);
        swept || restarts_after_exit(container, self.spec, end.exit_code, self.gates.restart)
    }

    fn count_init(&self, statuses: &[ContainerStatus]) -> InitCount {
        let mut count = InitCount::default();
        for container in self.init_containers().iter().filter(|one| !is_sidecar(one)) {
            let status = find_status(statuses, &container.name);
            let Some(end) = status.and_then(StateView::latest_end) else {
                count.pending += 1;
                continue;
            };
            if end.exit_code != 0 {
                count.failed += 1;
                count.failed_for_good += usize::from(!self.restarts(container, end));
            }
        }
        count
    }

    fn count_sidecars(&self, statuses: &[ContainerStatus], count: &mut Count) {
        for container in self.init_containers().iter().filter(|one| is_sidecar(one)) {
            let Some(status) = find_status(statuses, &container.name) else {
                count.unknown += 1;
                continue;
            };
            if status.running().is_some() {
                count.pending_sidecars += usize::from(status.started != Some(true));
                count.running += 1;
            } else if status.latest_end().is_some() {
                // A stopped sidecar neither keeps a pod running nor ends it.
            } else {
                count.pending_sidecars += 1;
                count.waiting += usize::from(status.waiting().is_some());
                count.unknown += usize::from(status.waiting().is_none());
            }
        }
    }

    fn count_regular(&self, statuses: &[ContainerStatus], count: &mut Count) {
        for container in &self.spec.containers {
            let Some(status) = find_status(statuses, &container.name) else {
                count.unknown += 1;
                continue;
            };
            if status.running().is_some() {
                count.running += 1;
            } else if let Some(end) = status.latest_end() {
                count.stopped += 1;
                count.stopped_for_good += usize::from(!self.restarts(container, end));
                // A container that waits to run again has not succeeded, however its last run ended.
                count.succeeded += usize::from(status.terminated().is_some() && end.exit_code == 0);
            } else if status.waiting().is_some() {
                count.waiting += 1;
            } else {
                count.unknown += 1;
            }
        }
    }

    fn policy(&self) -> &str {
        self.spec.restart_policy.as_deref().unwrap_or_default()
    }

    fn initialization_failed(&self, count: &InitCount) -> bool {
        if self.gates.restart.container_restart_rules {
            count.failed_for_good > 0
        } else {
            count.failed > 0 && self.policy() == "Never"
        }
    }

    /// Nothing runs, nothing waits for its first start, and something has stopped.
    fn stopped_phase(&self, count: &Count, facts: PhaseFacts) -> Phase {
        let ended = if count.stopped == count.succeeded {
            Phase::Succeeded
        } else {
            Phase::Failed
        };
        if facts.terminal && !facts.static_pod {
            return ended;
        }
        if self.gates.restart.container_restart_rules {
            return if count.stopped == count.stopped_for_good {
                ended
            } else {
                Phase::Running
            };
        }
        match (self.policy(), ended) {
            ("Always", _) => Phase::Running,
            (_, Phase::Succeeded) => Phase::Succeeded,
            ("Never", _) => Phase::Failed,
            (_, _) => Phase::Running,
        }
    }
}
