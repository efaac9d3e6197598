//! The resources of a pod apart from what its spec asks for by now.
//!
//! Owns the record of a pod's resources. The same form has two uses: what was *allocated* to the pod when it was admitted or its resize
//! was accepted, and what was *actuated*, which its containers and cgroups have. [`checkpoint`] is the form of both on disk, and
//! [`rebuilt`] what a record is made from that was lost.

pub mod checkpoint;
pub mod numbers;
pub mod rebuilt;

use std::collections::BTreeMap;
use std::str::FromStr;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use rubelet_model::Quantity;

pub use numbers::ResourceNumbers;

/// Named amounts as the API has them.
pub type Amounts = BTreeMap<String, ApiQuantity>;

/// The resources of a pod and of its init and regular containers, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Allocation {
    /// `spec.resources`
    pub pod: Option<ResourceRequirements>,
    pub containers: BTreeMap<String, ResourceRequirements>,
    /// Limits of volumes in memory, as another kubelet with the gate `InPlacePodVerticalScalingMemoryBackedVolumes` wrote them. They
    /// are kept and mean nothing here.
    pub volumes: Option<BTreeMap<String, Option<ApiQuantity>>>,
}

impl Allocation {
    /// What the spec asks for.
    #[must_use]
    pub fn asked(pod: &Pod) -> Self {
        let containers = resizable_containers(pod);
        let own = containers.map(|one| (one.name.clone(), one.resources.clone().unwrap_or_default()));
        Self {
            containers: own.collect(),
            pod: pod.spec.as_ref().and_then(|spec| spec.resources.clone()),
            volumes: None,
        }
    }

    /// Whether the pod asks for something else.
    #[must_use]
    pub fn differs_from(&self, pod: &Pod) -> bool {
        let differs = |container: &Container| {
            let known = self.containers.get(&container.name);
            known.is_some_and(|known| !is_same(Some(known), container.resources.as_ref()))
        };
        let asked = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref());
        !is_same(self.pod.as_ref(), asked) || resizable_containers(pod).any(differs)
    }

    /// The pod with these resources; `None` when its spec asks for the same.
    #[must_use]
    pub fn applied(&self, pod: &Pod) -> Option<Pod> {
        if !self.differs_from(pod) {
            return None;
        }
        let mut pod = pod.clone();
        let spec = pod.spec.get_or_insert_default();
        if !is_same(self.pod.as_ref(), spec.resources.as_ref()) {
            spec.resources.clone_from(&self.pod);
        }
        let init = spec.init_containers.iter_mut().flatten();
        for container in init.chain(&mut spec.containers) {
            if let Some(known) = self.containers.get(&container.name)
                && !is_same(Some(known), container.resources.as_ref())
            {
                container.resources = Some(known.clone());
            }
        }
        Some(pod)
    }

    /// The four numbers of a container; `None` for one without a record.
    #[must_use]
    pub fn numbers(&self, container: &str) -> Option<ResourceNumbers> {
        let known = self.containers.get(container)?;
        Some(ResourceNumbers::of(self.pod.as_ref(), known))
    }

    /// The four numbers of the pod as a whole.
    #[must_use]
    pub fn pod_numbers(&self) -> ResourceNumbers {
        let own = self.pod.as_ref();
        own.map_or_else(ResourceNumbers::default, |own| ResourceNumbers::of(None, own))
    }
}

/// Init and regular containers, in the order of the spec. Ephemeral containers have no resources of their own.
pub fn resizable_containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    let spec = pod.spec.iter();
    spec.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers))
}

/// Whether two requirements mean the same, however they are written. Missing ones are empty.
#[must_use]
pub fn is_same(one: Option<&ResourceRequirements>, other: Option<&ResourceRequirements>) -> bool {
    requests(one) == requests(other) && limits(one) == limits(other)
}

fn requests(all: Option<&ResourceRequirements>) -> Vec<(&str, Option<Quantity>)> {
    read(all.and_then(|all| all.requests.as_ref()))
}

fn limits(all: Option<&ResourceRequirements>) -> Vec<(&str, Option<Quantity>)> {
    read(all.and_then(|all| all.limits.as_ref()))
}

fn read(list: Option<&Amounts>) -> Vec<(&str, Option<Quantity>)> {
    let read = |(name, value)| (String::as_str(name), quantity(value));
    list.into_iter().flatten().map(read).collect()
}

fn quantity(value: &ApiQuantity) -> Option<Quantity> {
    Quantity::from_str(&value.0).ok()
}
