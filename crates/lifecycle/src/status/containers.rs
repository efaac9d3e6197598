//! The statuses of a pod's containers.
//!
//! Owns how an observed container, its predecessor, the previous status and a failed start become one API status. Probes
//! (`started`, `ready`) are added afterwards by `probes`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, ContainerState as ApiState, ContainerStateRunning, ContainerStateTerminated, ContainerStatus,
    ContainerUser as ApiUser, LinuxContainerUser, Pod,
};
use rubelet_model::observation::{ContainerObservation, ContainerState, ContainerUser};

use crate::deliberate::{Bug, is_on};
use crate::restart::{is_sidecar, should_start};

use super::StatusInputs;
use super::moments::api_time;
use super::phase::RESTARTING_ALL_CONTAINERS;
use super::resources::actual_resources;
use super::view::{StateView, find_status, is_deleted, spec_of, terminated_state, text, waiting_state};
use super::volumes::{mount_statuses, set_image_references};

const CONTAINER_CREATING: &str = "ContainerCreating";
const POD_INITIALIZING: &str = "PodInitializing";
const CONTAINER_STATUS_UNKNOWN: &str = "ContainerStatusUnknown";
const KILLED_EXIT_CODE: i32 = 137;

const LOST_AT_TERMINATION: &str = "The container could not be located when the pod was terminated";
const LOST_WHILE_RUNNING: &str =
    "The container could not be located when the pod was deleted.  The container used to be Running";
const REMOVED_FOR_RESTART: &str = "The container is removed because RestartAllContainers in place";
const INIT_TAKEN_AS_DONE: &str = "Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally";

/// The end of a container that was removed before its exit was observed.
pub(super) fn unseen_end() -> ContainerStateTerminated {
    unseen(CONTAINER_STATUS_UNKNOWN, LOST_AT_TERMINATION)
}

fn unseen(reason: &str, message: &str) -> ContainerStateTerminated {
    ContainerStateTerminated {
        exit_code: KILLED_EXIT_CODE,
        reason: text(reason),
        message: text(message),
        ..ContainerStateTerminated::default()
    }
}

/// Which of the pod's lists is being described.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum List {
    Init,
    Regular,
    Ephemeral,
}

/// Why a container waits that was never created.
#[must_use]
pub fn creation_reason(pod: &Pod) -> &'static str {
    let spec = pod.spec.as_ref();
    let init = spec.and_then(|spec| spec.init_containers.as_ref());
    if init.is_some_and(|list| !list.is_empty()) {
        POD_INITIALIZING
    } else {
        CONTAINER_CREATING
    }
}

/// Derives the statuses of one list of containers.
pub(super) struct ContainerStatuses<'a> {
    pub(super) inputs: &'a StatusInputs<'a>,
    pub(super) list: List,
    pub(super) previous: &'a [ContainerStatus],
    /// The whole pod is being restarted in place.
    pub(super) pod_restarting: bool,
}

impl ContainerStatuses<'_> {
    /// Init containers in the order of the specification, the others by name.
    pub(super) fn derive(&self, containers: &[Container]) -> Vec<ContainerStatus> {
        let mut derived: Vec<_> = containers.iter().map(|container| self.one(container)).collect();
        if self.list != List::Init {
            derived.sort_by(|a, b| a.name.cmp(&b.name));
        }
        derived
    }

    fn one(&self, container: &Container) -> ContainerStatus {
        let old = find_status(self.previous, &container.name);
        let observation = self.inputs.observation;
        let mut newest_first = observation
            .containers
            .iter()
            .filter(|one| one.name == container.name);
        let mut status = match newest_first.next() {
            Some(newest) => self.observed(container, newest, old),
            None => self.missing(container, old),
        };
        if let Some(before) = newest_first.next() {
            status.last_state = self.observed(container, before, old).state;
        }
        if self.list == List::Init && self.init_is_settled(container, &mut status) {
            return status;
        }
        self.explain_waiting(container, &mut status);
        status
    }

    /// The status of a container that the runtime does not show, made from the last status.
    fn assumed(&self, container: &Container, old: Option<&ContainerStatus>) -> ContainerStatus {
        if let Some(old) = old
            && old.terminated().is_some()
        {
            return old.clone();
        }
        ContainerStatus {
            name: container.name.clone(),
            image: container.image.clone().unwrap_or_default(),
            state: Some(waiting_state(creation_reason(self.inputs.pod), "")),
            volume_mounts: mount_statuses(container, self.inputs.runtime.recursive_read_only),
            restart_count: old.map_or(0, |old| old.restart_count),
            last_state: old.and_then(|old| old.last_state.clone()),
            ..ContainerStatus::default()
        }
    }

    /// The runtime has no container of this name.
    fn missing(&self, container: &Container, old: Option<&ContainerStatus>) -> ContainerStatus {
        let mut status = self.assumed(container, old);
        let Some(old) = old else { return status };
        if self.inputs.gates.restart.restart_all_containers && self.pod_restarting && old.waiting().is_none()
        {
            let end = unseen(RESTARTING_ALL_CONTAINERS, REMOVED_FOR_RESTART);
            status.last_state.get_or_insert_default().terminated = Some(end);
            status.state = Some(waiting_state(RESTARTING_ALL_CONTAINERS, REMOVED_FOR_RESTART));
            status.restart_count = old.restart_count.saturating_add(1);
            return status;
        }
        if old.running().is_some() && old.terminated().is_none() && status.last_terminated().is_none() {
            // It ran and is gone: an end in its past keeps the pod from falling back to Pending.
            let end = unseen(CONTAINER_STATUS_UNKNOWN, LOST_WHILE_RUNNING);
            status.last_state.get_or_insert_default().terminated = Some(end);
            let restarted = i32::from(!is_deleted(self.inputs.pod));
            status.restart_count = status.restart_count.saturating_add(restarted);
        }
        status
    }

    /// The runtime has this container.
    fn observed(
        &self,
        container: &Container,
        seen: &ContainerObservation,
        old: Option<&ContainerStatus>,
    ) -> ContainerStatus {
        let gates = self.inputs.gates;
        let mut status = ContainerStatus {
            name: seen.name.clone(),
            restart_count: i32::try_from(seen.restart_count).unwrap_or(i32::MAX),
            image: seen.image.clone(),
            image_id: seen.image_ref.clone(),
            container_id: Some(seen.id.with_runtime(self.inputs.runtime.name)),
            // A container that is seen before any status was made, such as after a restart, has its mounts too.
            volume_mounts: match old {
                Some(old) => old.volume_mounts.clone(),
                None => mount_statuses(container, self.inputs.runtime.recursive_read_only),
            },
            ..ContainerStatus::default()
        };
        if let Some(old) = old
            && gates.restart.restart_all_containers
        {
            inherit(&mut status, old);
        }
        if is_on(Bug::RestartsForgotten) {
            status.restart_count = 0;
        }
        let references = self.inputs.image_volume_references.get(&container.name);
        set_image_references(&mut status.volume_mounts, references);
        self.set_state(&mut status, seen, old);
        if seen.state.is_running()
            && !gates.change_container_status_on_restart
            && let Some(started) = old.and_then(|old| old.started)
        {
            status.started = Some(started);
        }
        status.resources = Some(actual_resources(
            container,
            &status,
            seen,
            old,
            self.inputs.actuated,
        ));
        status.allocated_resources = container.resources.as_ref().and_then(|all| all.requests.clone());
        status.user = seen.user.as_ref().map(api_user);
        if gates.container_stop_signals {
            status.stop_signal.clone_from(&seen.stop_signal);
        }
        status
    }

    fn set_state(
        &self,
        status: &mut ContainerStatus,
        seen: &ContainerObservation,
        old: Option<&ContainerStatus>,
    ) {
        match &seen.state {
            ContainerState::Running { started_at } => {
                status.state = Some(ApiState {
                    running: Some(ContainerStateRunning {
                        started_at: Some(api_time(*started_at)),
                    }),
                    ..ApiState::default()
                });
                if let Some(old) = old
                    && self.inputs.gates.restart.restart_all_containers
                    && old.terminated().is_some()
                    && i64::from(old.restart_count) >= i64::from(seen.restart_count)
                {
                    status.restart_count = old.restart_count.saturating_add(1);
                }
            }
            ContainerState::Exited(exit) => {
                status.state = Some(terminated_state(ContainerStateTerminated {
                    exit_code: exit.exit_code,
                    reason: text(&exit.reason),
                    message: text(&exit.message),
                    started_at: Some(api_time(exit.started_at)),
                    finished_at: Some(api_time(exit.finished_at)),
                    container_id: status.container_id.clone(),
                    signal: None,
                }));
            }
            ContainerState::Unknown { .. } if old.is_some_and(|old| old.running().is_some()) => {
                // It ran before and cannot be found any more. "Waiting" would let a run-once pod run twice.
                let restarting = self.inputs.gates.restart.restart_all_containers && self.pod_restarting;
                let reason = if restarting {
                    RESTARTING_ALL_CONTAINERS
                } else {
                    CONTAINER_STATUS_UNKNOWN
                };
                status.state = Some(terminated_state(unseen(reason, LOST_AT_TERMINATION)));
                status.restart_count = old.map_or(0, |old| old.restart_count).saturating_add(1);
            }
            ContainerState::Created | ContainerState::Unknown { .. } => {
                status.state = Some(waiting_state("", ""));
            }
        }
    }

    /// Whether an init container needs no further look: it is done, or must have been.
    fn init_is_settled(&self, container: &Container, status: &mut ContainerStatus) -> bool {
        match self.inputs.observation.newest_container(&container.name) {
            Some(newest) => newest.state.exit().is_some_and(|exit| exit.exit_code == 0),
            None => {
                let done = self.any_regular_created() && !is_sidecar(container) && status.waiting().is_some();
                if done {
                    status.state = Some(terminated_state(ContainerStateTerminated {
                        reason: text("Completed"),
                        message: text(INIT_TAKEN_AS_DONE),
                        ..ContainerStateTerminated::default()
                    }));
                }
                done
            }
        }
    }

    fn any_regular_created(&self) -> bool {
        spec_of(self.inputs.pod).containers.iter().any(|container| {
            let newest = self.inputs.observation.newest_container(&container.name);
            newest.is_some_and(|one| !matches!(one.state, ContainerState::Unknown { .. }))
        })
    }

    /// A container that is to be started again shows why that does not happen, if a start failed.
    fn explain_waiting(&self, container: &Container, status: &mut ContainerStatus) {
        let inputs = self.inputs;
        if !should_start(container, inputs.pod, inputs.observation, inputs.gates.restart) {
            return;
        }
        let Some(failure) = inputs.start_failures.get(&container.name) else {
            return;
        };
        if status.terminated().is_some() {
            status.last_state = status.state.take();
        }
        status.state = Some(waiting_state(&failure.reason, &failure.message));
    }
}

/// A restart of the whole pod removes old containers from the runtime, so that only the status still has their ends.
fn inherit(status: &mut ContainerStatus, old: &ContainerStatus) {
    status.restart_count = status.restart_count.max(old.restart_count);
    let replaced = old.container_id != status.container_id;
    let end = old
        .terminated()
        .filter(|_| replaced)
        .or_else(|| old.last_terminated());
    if let Some(end) = end {
        status.last_state = Some(terminated_state(end.clone()));
    }
}

fn api_user(user: &ContainerUser) -> ApiUser {
    ApiUser {
        linux: Some(LinuxContainerUser {
            uid: user.uid,
            gid: user.gid,
            supplemental_groups: (!user.supplemental_groups.is_empty())
                .then(|| user.supplemental_groups.clone()),
        }),
    }
}

/// Why the last attempts to start containers failed, by the container's name.
pub type StartFailures = BTreeMap<String, StartFailure>;

/// Why a container does not start: what the API shows as the reason and message of waiting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartFailure {
    /// Such as `ErrImagePull` or `CrashLoopBackOff`.
    pub reason: String,
    /// The text that users read.
    pub message: String,
}
