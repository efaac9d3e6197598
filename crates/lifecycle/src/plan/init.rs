//! Init containers and sidecars.
//!
//! Owns the scan from the last init container to the first. It goes backwards because ended init containers may already be
//! gone from the runtime: the last one that is known shows how far the initialization is. Only the active sandbox counts.

use k8s_openapi::api::core::v1::Container;
use rubelet_model::observation::{
    ContainerExit, ContainerObservation, ContainerState, OOM_KILLED, ProbeResult,
};

use super::action::{KillReason, StartReason, WaitReason};
use super::{Draft, kind_of_init, pod_restarts_on_failure};
use crate::deliberate::{Bug, is_on};
use crate::hash::container_hash;
use crate::restart::{RestartPolicy, effective_policy, is_sidecar, should_start};

pub(super) enum Initialization {
    /// An init container failed for good.
    Failed {
        container: String,
    },
    InProgress,
    Done,
}

/// What one look at an init container found.
enum Look {
    /// It has done its part: it ended well, or it is a sidecar that has started.
    Initialized,
    Pending,
    FailedForGood,
}

struct Scan {
    /// In reverse order, like the scan.
    starts: Vec<(usize, StartReason)>,
    waits: Vec<(usize, WaitReason)>,
}

pub(super) fn plan_init_containers(draft: &mut Draft<'_>) -> Initialization {
    let Some(containers) = draft
        .spec
        .init_containers
        .as_deref()
        .filter(|list| !list.is_empty())
    else {
        return Initialization::Done;
    };
    let observation = draft.input.observation;
    let mut done = regular_proves_initialized(draft, containers);
    let mut passed = done;
    let mut scan = Scan {
        starts: Vec::new(),
        waits: Vec::new(),
    };
    for (index, container) in containers.iter().enumerate().rev() {
        let Some(seen) = observation.newest_active_container(&container.name) else {
            if passed && is_sidecar(container) {
                scan.starts.push((index, StartReason::NeverStarted));
            }
            continue;
        };
        if passed && !is_sidecar(container) {
            continue;
        }
        match look_at(draft, &mut scan, index, container, seen) {
            Look::FailedForGood => {
                return Initialization::Failed {
                    container: container.name.clone(),
                };
            }
            Look::Initialized if index + 1 == containers.len() => done = true,
            // The scan came here first, so the one after it has never run in this sandbox.
            Look::Initialized if !passed => insert_next(&mut scan, index + 1),
            Look::Initialized | Look::Pending => {}
        }
        passed = true;
    }
    if !passed {
        scan.starts.push((0, StartReason::NeverStarted));
    }
    finish_scan(draft, containers, scan);
    if done || is_on(Bug::InitSkipped) {
        Initialization::Done
    } else {
        Initialization::InProgress
    }
}

/// A regular container in this sandbox proves that all init containers were done, even if they are gone by now. One that never ran
/// may be from before a restart of all: it was still being made when the others were removed, and proves nothing while an init
/// container has work to do.
fn regular_proves_initialized(draft: &Draft<'_>, containers: &[Container]) -> bool {
    let observation = draft.input.observation;
    let is_unfinished = |container: &Container| {
        let newest = observation.newest_active_container(&container.name);
        newest.is_some_and(|newest| match &newest.state {
            ContainerState::Created | ContainerState::Running { .. } => true,
            ContainerState::Exited(exit) => exit.exit_code != 0,
            ContainerState::Unknown { .. } => false,
        })
    };
    let mut ordinary = containers.iter().filter(|one| !is_sidecar(one));
    let has_unfinished = ordinary.any(is_unfinished);
    observation.active_containers().any(|seen| {
        let mut regular = draft.spec.containers.iter();
        regular.any(|one| one.name == seen.name) && (seen.state != ContainerState::Created || !has_unfinished)
    })
}

/// The next container comes before this one's own restart in the reversed list.
fn insert_next(scan: &mut Scan, next: usize) {
    let position = scan
        .starts
        .iter()
        .position(|(index, _)| *index < next)
        .unwrap_or(scan.starts.len());
    scan.starts.insert(position, (next, StartReason::NeverStarted));
}

fn finish_scan(draft: &mut Draft<'_>, containers: &[Container], scan: Scan) {
    for (index, reason) in scan.waits.into_iter().rev() {
        let container = &containers[index];
        draft.wait(&container.name, kind_of_init(container), reason);
    }
    for (index, reason) in scan.starts.into_iter().rev() {
        let container = &containers[index];
        draft.start(kind_of_init(container), index, container, reason);
    }
}

fn look_at(
    draft: &mut Draft<'_>,
    scan: &mut Scan,
    index: usize,
    container: &Container,
    seen: &ContainerObservation,
) -> Look {
    match &seen.state {
        ContainerState::Created => {
            scan.starts.push((index, StartReason::OnlyCreated));
            Look::Pending
        }
        ContainerState::Running { .. } if is_sidecar(container) => {
            look_at_running_sidecar(draft, scan, index, container, seen)
        }
        ContainerState::Running { .. } => {
            draft.keep(seen);
            scan.waits.push((index, WaitReason::InitContainerRunning));
            Look::Pending
        }
        ContainerState::Exited(exit) => look_at_exited(draft, scan, index, container, exit),
        ContainerState::Unknown { .. } => {
            let policy = effective_policy(container, draft.spec, draft.input.gates);
            if !is_sidecar(container) && policy == RestartPolicy::Never {
                return Look::FailedForGood;
            }
            draft.kill(seen, KillReason::UnknownState);
            scan.starts.push((index, StartReason::Killed));
            Look::Pending
        }
    }
}

fn look_at_exited(
    draft: &Draft<'_>,
    scan: &mut Scan,
    index: usize,
    container: &Container,
    exit: &ContainerExit,
) -> Look {
    let restart = (
        index,
        StartReason::Exited {
            exit_code: exit.exit_code,
        },
    );
    if is_sidecar(container) {
        scan.starts.push(restart);
        return Look::Pending;
    }
    // Out of memory counts as failed even when the process then ended with success.
    if exit.exit_code == 0 && exit.reason != OOM_KILLED {
        return Look::Initialized;
    }
    let input = &draft.input;
    let restarts = if input.gates.container_restart_rules {
        should_start(container, input.pod, input.observation, input.gates)
    } else {
        pod_restarts_on_failure(draft.spec)
    };
    if !restarts {
        return Look::FailedForGood;
    }
    scan.starts.push(restart);
    Look::Pending
}

fn look_at_running_sidecar(
    draft: &mut Draft<'_>,
    scan: &mut Scan,
    index: usize,
    container: &Container,
    seen: &ContainerObservation,
) -> Look {
    let probes = draft.input.probes.of(&seen.id);
    if container.startup_probe.is_some() {
        match probes.startup {
            Some(ProbeResult::Success) => {}
            Some(ProbeResult::Failure) => {
                draft.kill(seen, KillReason::StartupProbe { restarts: true });
                scan.starts.push((index, StartReason::Killed));
                return Look::Pending;
            }
            Some(ProbeResult::Unknown) | None => {
                draft.keep(seen);
                scan.waits.push((index, WaitReason::StartupProbe));
                return Look::Pending;
            }
        }
    }
    // From here on the sidecar counts as started; a restart of it does not hold up the others.
    let failed_liveness = container.liveness_probe.is_some() && probes.liveness == Some(ProbeResult::Failure);
    let reason = if container_hash(container) != seen.hash {
        Some(KillReason::DefinitionChanged)
    } else if failed_liveness {
        Some(KillReason::LivenessProbe { restarts: true })
    } else if draft.input.resize.restarts.contains(&container.name) {
        Some(KillReason::ResizeNeedsRestart)
    } else {
        None
    };
    match reason {
        Some(reason) => {
            draft.kill(seen, reason);
            scan.starts.push((index, StartReason::Killed));
        }
        None => draft.keep(seen),
    }
    Look::Initialized
}
