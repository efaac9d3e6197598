//! The runtime's lists of sandboxes and containers, grouped by pod.
//!
//! Owns the list calls and what a list shows of a pod. It keeps nothing.

use std::collections::BTreeMap;

use rubelet_lifecycle::configuration::labels;
use rubelet_lifecycle::observe::pod_uid_of;
use rubelet_model::observation::{
    ContainerObservation, ContainerState, PodObservation, PodUid, SandboxObservation,
};
use rubelet_ports::{RuntimeError, RuntimeReader};
use rubelet_wire::cri::v1;

/// What the runtime lists of one pod.
#[derive(Clone, Debug, Default)]
pub(super) struct Listed {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) sandboxes: Vec<v1::PodSandbox>,
    pub(super) containers: Vec<v1::Container>,
}

impl Listed {
    /// Whether anything of the pod runs or may run.
    pub(super) fn may_run(&self) -> bool {
        let is_ready =
            |sandbox: &v1::PodSandbox| sandbox.observed_state() == v1::PodSandboxState::SandboxReady;
        let may_run = |container: &v1::Container| match container.observed_state() {
            v1::ContainerState::ContainerRunning | v1::ContainerState::ContainerUnknown => true,
            v1::ContainerState::ContainerCreated | v1::ContainerState::ContainerExited => false,
        };
        self.sandboxes.iter().any(is_ready) || self.containers.iter().any(may_run)
    }

    /// Whether the lists show anything that the observation does not.
    pub(super) fn differs_from(&self, seen: &PodObservation) -> bool {
        let is_known = |sandbox| known_sandbox(sandbox, seen).is_some();
        let same_sandboxes =
            self.sandboxes.len() == seen.sandboxes.len() && self.sandboxes.iter().all(is_known);
        let is_known = |container| known_container(container, seen).is_some();
        let same_containers =
            self.containers.len() == seen.containers.len() && self.containers.iter().all(is_known);
        !(same_sandboxes && same_containers)
    }

    fn note_identity(&mut self, labels: &BTreeMap<String, String>) {
        let text = |key: &str| labels.get(key).cloned().unwrap_or_default();
        if self.name.is_empty() {
            self.name = text(labels::POD_NAME);
            self.namespace = text(labels::POD_NAMESPACE);
        }
    }
}

/// The sandbox as it was last seen, if it is listed in the same state.
pub(super) fn known_sandbox<'a>(
    listed: &v1::PodSandbox,
    seen: &'a PodObservation,
) -> Option<&'a SandboxObservation> {
    let is_ready = listed.observed_state() == v1::PodSandboxState::SandboxReady;
    seen.sandboxes
        .iter()
        .find(|sandbox| sandbox.id.as_str() == listed.id && sandbox.is_ready() == is_ready)
}

/// The container as it was last seen, if it is listed in the same state.
pub(super) fn known_container<'a>(
    listed: &v1::Container,
    seen: &'a PodObservation,
) -> Option<&'a ContainerObservation> {
    let same_state = |state: &ContainerState| match listed.observed_state() {
        v1::ContainerState::ContainerCreated => matches!(state, ContainerState::Created),
        v1::ContainerState::ContainerRunning => matches!(state, ContainerState::Running { .. }),
        v1::ContainerState::ContainerExited => matches!(state, ContainerState::Exited(_)),
        // Only its status shows what it was.
        v1::ContainerState::ContainerUnknown => false,
    };
    seen.containers
        .iter()
        .find(|container| container.id.as_str() == listed.id && same_state(&container.state))
}

/// Groups both lists by pod. What has no pod's label is not ours, and what is listed twice counts once.
fn group_by_pod(sandboxes: Vec<v1::PodSandbox>, containers: Vec<v1::Container>) -> BTreeMap<PodUid, Listed> {
    let mut pods: BTreeMap<PodUid, Listed> = BTreeMap::new();
    for sandbox in sandboxes {
        let Some(uid) = pod_uid_of(&sandbox.labels) else {
            continue;
        };
        let listed = pods.entry(uid).or_default();
        if listed.sandboxes.iter().all(|known| known.id != sandbox.id) {
            listed.note_identity(&sandbox.labels);
            listed.sandboxes.push(sandbox);
        }
    }
    for container in containers {
        let Some(uid) = pod_uid_of(&container.labels) else {
            continue;
        };
        let listed = pods.entry(uid).or_default();
        if listed.containers.iter().all(|known| known.id != container.id) {
            listed.note_identity(&container.labels);
            listed.containers.push(container);
        }
    }
    pods
}

/// Everything that the runtime has.
pub(super) async fn list_all(runtime: &dyn RuntimeReader) -> Result<BTreeMap<PodUid, Listed>, RuntimeError> {
    let lists =
        futures_util::future::try_join(runtime.list_pod_sandboxes(None), runtime.list_containers(None));
    let (sandboxes, containers) = lists.await?;
    Ok(group_by_pod(sandboxes, containers))
}

/// What the runtime has of one pod.
pub(super) async fn list_pod(runtime: &dyn RuntimeReader, uid: &PodUid) -> Result<Listed, RuntimeError> {
    let selector = BTreeMap::from([(labels::POD_UID.to_owned(), uid.to_string())]);
    let sandbox_filter = v1::PodSandboxFilter {
        label_selector: selector.clone(),
        ..v1::PodSandboxFilter::default()
    };
    let container_filter = v1::ContainerFilter {
        label_selector: selector,
        ..v1::ContainerFilter::default()
    };
    let lists = futures_util::future::try_join(
        runtime.list_pod_sandboxes(Some(sandbox_filter)),
        runtime.list_containers(Some(container_filter)),
    );
    let (sandboxes, containers) = lists.await?;
    let mut pods = group_by_pod(sandboxes, containers);
    Ok(pods.remove(uid).unwrap_or_default())
}
