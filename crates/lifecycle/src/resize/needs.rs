//! What has to be done so that a pod has the resources that are allocated to it.
//!
//! Owns the comparison with what the containers have, and the order of the updates: what shrinks comes before what grows.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Pod};
use rubelet_model::observation::{ContainerId, PodObservation};
use serde::{Deserialize, Serialize};

use crate::allocation::numbers::Resource;
use crate::allocation::{Allocation, ResourceNumbers, resizable_containers};
use crate::restart::is_sidecar;

/// From what a container has to what it is to have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerChange {
    pub current: ResourceNumbers,
    pub desired: ResourceNumbers,
}

impl ContainerChange {
    fn changes(&self, resource: Resource) -> bool {
        self.current.part(resource) != self.desired.part(resource)
    }

    /// Whether the resource gets less: its limit, or its request where the limit stays.
    fn shrinks(&self, resource: Resource) -> bool {
        let ((request, limit), (new_request, new_limit)) =
            (self.current.part(resource), self.desired.part(resource));
        if limit == new_limit {
            new_request < request
        } else {
            new_limit < limit
        }
    }
}

/// What of a pod differs from what is allocated to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResizeNeeds {
    /// Containers with other resources than they are to have, whether they run or not, by name.
    pub differing: BTreeMap<String, ContainerChange>,
    /// Those of them that have to be restarted for it if they run.
    pub restarts: BTreeSet<String>,
    /// The pod as a whole has other resources of its own.
    pub pod: bool,
}

/// An update of a running container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerUpdate {
    pub id: ContainerId,
    pub name: String,
    pub change: ContainerChange,
}

/// What is resized without a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodResize {
    /// The pod's cgroup is compared also where no container is updated.
    pub pod: bool,
    /// In the order of the updates.
    pub memory: Vec<ContainerUpdate>,
    pub cpu: Vec<ContainerUpdate>,
}

impl PodResize {
    /// The running containers that stay, in the order of the spec.
    #[must_use]
    pub fn of<'a>(
        needs: &ResizeNeeds,
        kept: impl IntoIterator<Item = (&'a ContainerId, &'a str)>,
        pod: bool,
    ) -> Self {
        let updates: Vec<ContainerUpdate> = kept
            .into_iter()
            .filter_map(|(id, name)| {
                Some(ContainerUpdate {
                    id: id.clone(),
                    name: name.to_owned(),
                    change: *needs.differing.get(name)?,
                })
            })
            .collect();
        let of = |resource| {
            let changed = updates.iter().filter(|one| one.change.changes(resource));
            let mut list: Vec<ContainerUpdate> = changed.cloned().collect();
            list.sort_by_key(|one| !one.change.shrinks(resource));
            list
        };
        Self {
            pod: pod || needs.pod,
            memory: of(Resource::Memory),
            cpu: of(Resource::Cpu),
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.pod && self.memory.is_empty() && self.cpu.is_empty()
    }

    #[must_use]
    pub fn updates(&self, resource: Resource) -> &[ContainerUpdate] {
        match resource {
            Resource::Memory => &self.memory,
            Resource::Cpu => &self.cpu,
        }
    }
}

/// Compares what is allocated to the pod with what it has. Without a record of that, nothing of the pod was started yet.
#[must_use]
pub fn resize_needs(pod: &Pod, actuated: Option<&Allocation>) -> ResizeNeeds {
    let Some(actuated) = actuated else {
        return ResizeNeeds::default();
    };
    let mut needs = ResizeNeeds::default();
    for (container, change) in differing(pod, actuated) {
        if needs_restart(container, &change) {
            needs.restarts.insert(container.name.clone());
        }
        needs.differing.insert(container.name.clone(), change);
    }
    needs.pod = Allocation::asked(pod).pod_numbers() != actuated.pod_numbers();
    needs
}

/// Whether a running container, or the pod as a whole, has other resources than it is to have. Containers that do not run are resized
/// when they start, and init containers that end are none of it.
#[must_use]
pub fn is_in_progress(pod: &Pod, actuated: Option<&Allocation>, observation: &PodObservation) -> bool {
    let Some(actuated) = actuated else {
        return false;
    };
    let is_running = |name: &str| {
        let newest = observation.newest_container(name);
        newest.is_some_and(|newest| newest.state.is_running())
    };
    let spec = pod.spec.as_ref();
    let is_init = |name: &str| {
        let mut init = spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
        init.any(|one| one.name == name && !is_sidecar(one))
    };
    let mut containers = differing(pod, actuated);
    let asked = spec.and_then(|spec| spec.resources.as_ref());
    let differs_as_a_whole = asked.is_some()
        && actuated.pod.is_some()
        && Allocation::asked(pod).pod_numbers() != actuated.pod_numbers();
    differs_as_a_whole || containers.any(|(one, _)| is_running(&one.name) && !is_init(&one.name))
}

fn differing<'a>(
    pod: &'a Pod,
    actuated: &'a Allocation,
) -> impl Iterator<Item = (&'a Container, ContainerChange)> {
    let own = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    resizable_containers(pod).filter_map(move |container| {
        let resources = container.resources.clone().unwrap_or_default();
        let change = ContainerChange {
            current: actuated.numbers(&container.name)?,
            desired: ResourceNumbers::of(own, &resources),
        };
        (change.current != change.desired).then_some((container, change))
    })
}

/// Validation lets only sidecars and regular containers ask for a restart.
fn needs_restart(container: &Container, change: &ContainerChange) -> bool {
    let mut policies = container.resize_policy.iter().flatten();
    policies.any(|policy| {
        let resource = [Resource::Memory, Resource::Cpu]
            .into_iter()
            .find(|resource| resource.as_str() == policy.resource_name);
        policy.restart_policy == "RestartContainer"
            && resource.is_some_and(|resource| change.changes(resource))
    })
}
