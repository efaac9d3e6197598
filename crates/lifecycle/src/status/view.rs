//! Reading API statuses whose fields are all optional.
//!
//! Owns only accessors: what upstream sees as a zero value is `None` here.

use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    Pod, PodCondition, PodSpec, PodStatus,
};

/// A container status read by state.
pub trait StateView {
    /// The running state, if the container runs.
    fn running(&self) -> Option<&ContainerStateRunning>;
    /// The end, if the container is stopped.
    fn terminated(&self) -> Option<&ContainerStateTerminated>;
    /// What the container waits for, if it does.
    fn waiting(&self) -> Option<&ContainerStateWaiting>;
    /// How the run before this one ended.
    fn last_terminated(&self) -> Option<&ContainerStateTerminated>;
    /// The end of a stopped container, or the last end of one that waits. None while it runs or has never run.
    fn latest_end(&self) -> Option<&ContainerStateTerminated> {
        match (self.running(), self.terminated(), self.waiting()) {
            (Some(_), _, _) => None,
            (None, Some(end), _) => Some(end),
            (None, None, Some(_)) => self.last_terminated(),
            (None, None, None) => None,
        }
    }
}

impl StateView for ContainerStatus {
    fn running(&self) -> Option<&ContainerStateRunning> {
        self.state.as_ref()?.running.as_ref()
    }

    fn terminated(&self) -> Option<&ContainerStateTerminated> {
        self.state.as_ref()?.terminated.as_ref()
    }

    fn waiting(&self) -> Option<&ContainerStateWaiting> {
        self.state.as_ref()?.waiting.as_ref()
    }

    fn last_terminated(&self) -> Option<&ContainerStateTerminated> {
        self.last_state.as_ref()?.terminated.as_ref()
    }
}

pub(super) fn waiting_state(reason: &str, message: &str) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting {
            reason: text(reason),
            message: text(message),
        }),
        ..ContainerState::default()
    }
}

pub(super) fn terminated_state(end: ContainerStateTerminated) -> ContainerState {
    ContainerState {
        terminated: Some(end),
        ..ContainerState::default()
    }
}

/// An empty text is an absent one.
pub(super) fn text(value: &str) -> Option<String> {
    (!value.is_empty()).then(|| value.to_owned())
}

/// The status of the container with this name.
pub fn find_status<'a>(statuses: &'a [ContainerStatus], name: &str) -> Option<&'a ContainerStatus> {
    statuses.iter().find(|status| status.name == name)
}

/// The condition of this type.
pub fn find_condition<'a>(conditions: &'a [PodCondition], type_: &str) -> Option<&'a PodCondition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

pub(super) fn replace_or_append(conditions: &mut Vec<PodCondition>, condition: PodCondition) {
    match conditions.iter_mut().find(|one| one.type_ == condition.type_) {
        Some(place) => *place = condition,
        None => conditions.push(condition),
    }
}

pub(super) fn conditions(status: &PodStatus) -> &[PodCondition] {
    status.conditions.as_deref().unwrap_or_default()
}

pub(super) fn statuses(list: Option<&Vec<ContainerStatus>>) -> &[ContainerStatus] {
    list.map(Vec::as_slice).unwrap_or_default()
}

/// A pod without a specification cannot come from any source; reading it as an empty one keeps every function total.
pub(super) fn spec_of(pod: &Pod) -> PodSpecRef<'_> {
    PodSpecRef(pod.spec.as_ref())
}

/// A borrowed specification, or the empty one.
pub(super) struct PodSpecRef<'a>(Option<&'a PodSpec>);

impl std::ops::Deref for PodSpecRef<'_> {
    type Target = PodSpec;

    fn deref(&self) -> &PodSpec {
        static EMPTY: std::sync::LazyLock<PodSpec> = std::sync::LazyLock::new(PodSpec::default);
        self.0.unwrap_or(&EMPTY)
    }
}

pub(super) fn generation(pod: &Pod) -> Option<i64> {
    pod.metadata.generation.filter(|generation| *generation != 0)
}

pub(super) fn is_deleted(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}
