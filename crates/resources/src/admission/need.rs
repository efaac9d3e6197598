//! Resources as plain numbers: what a pod needs, what others hold, what the node has.
//!
//! Owns which resources are counted at all and in which unit. Sums of these numbers are what admission compares.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use rubelet_model::names::is_qualified_name;

use crate::allocatable::PODS;
use crate::amounts::{Amounts, CPU, EPHEMERAL_STORAGE, HUGE_PAGES_PREFIX, MEMORY};
use crate::demand::{Overhead, PodDemand};
use crate::rules::Rules;

const NATIVE_PREFIX: &str = "kubernetes.io/";
const QUOTA_PREFIX: &str = "requests.";
const ATTACHABLE_PREFIX: &str = "attachable-volumes-";
/// A device class is asked for by this and its name.
pub const DEVICE_CLASS_PREFIX: &str = "deviceclass.resource.kubernetes.io/";

/// Amounts of every resource that admission counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Need {
    pub milli_cpu: i64,
    pub memory_bytes: i64,
    pub ephemeral_storage_bytes: i64,
    /// Huge pages, devices and the like, in whole units.
    pub others: BTreeMap<String, i64>,
}

impl Need {
    pub fn of(amounts: &Amounts) -> Self {
        let counted = amounts.iter().filter(|(name, _)| is_counted(name));
        Self {
            milli_cpu: amounts.milli_value(CPU),
            memory_bytes: amounts.value(MEMORY),
            ephemeral_storage_bytes: amounts.value(EPHEMERAL_STORAGE),
            others: counted
                .map(|(name, quantity)| (name.to_owned(), quantity.value()))
                .collect(),
        }
    }

    /// What the pod as a whole requests, overhead included.
    pub fn of_pod(demand: &PodDemand, rules: &Rules) -> Self {
        Self::of(&demand.requests(rules, Overhead::Included))
    }

    /// Whether nothing is asked for, not even zero of an unusual resource.
    pub fn is_nothing(&self) -> bool {
        self.milli_cpu == 0
            && self.memory_bytes == 0
            && self.ephemeral_storage_bytes == 0
            && self.others.is_empty()
    }

    pub fn other(&self, name: &str) -> i64 {
        self.others.get(name).copied().unwrap_or(0)
    }

    /// Takes whatever is more in `other`.
    pub fn raise_to(&mut self, other: &Self) {
        self.milli_cpu = self.milli_cpu.max(other.milli_cpu);
        self.memory_bytes = self.memory_bytes.max(other.memory_bytes);
        self.ephemeral_storage_bytes = self.ephemeral_storage_bytes.max(other.ephemeral_storage_bytes);
        for (name, amount) in &other.others {
            let own = self.others.entry(name.clone()).or_default();
            *own = (*own).max(*amount);
        }
    }
}

/// A sum of needs that can be taken back. It is exact however large the amounts are.
#[derive(Clone, Debug, Default)]
pub(super) struct Sum {
    milli_cpu: i128,
    memory_bytes: i128,
    ephemeral_storage_bytes: i128,
    others: BTreeMap<String, i128>,
}

impl Sum {
    pub(super) fn add(&mut self, need: &Need) {
        self.change(need, 1);
    }

    pub(super) fn remove(&mut self, need: &Need) {
        self.change(need, -1);
    }

    fn change(&mut self, need: &Need, sign: i128) {
        self.milli_cpu += sign * i128::from(need.milli_cpu);
        self.memory_bytes += sign * i128::from(need.memory_bytes);
        self.ephemeral_storage_bytes += sign * i128::from(need.ephemeral_storage_bytes);
        for (name, amount) in &need.others {
            let own = self.others.entry(name.clone()).or_default();
            *own += sign * i128::from(*amount);
            if *own == 0 {
                self.others.remove(name);
            }
        }
    }

    /// The sum, as far as the numbers reach.
    pub(super) fn amounts(&self) -> Need {
        let bounded = |sum: i128| i64::try_from(sum).unwrap_or(if sum < 0 { i64::MIN } else { i64::MAX });
        Need {
            milli_cpu: bounded(self.milli_cpu),
            memory_bytes: bounded(self.memory_bytes),
            ephemeral_storage_bytes: bounded(self.ephemeral_storage_bytes),
            others: self
                .others
                .iter()
                .map(|(name, sum)| (name.clone(), bounded(*sum)))
                .collect(),
        }
    }
}

/// What pods may have in sum, and how many there may be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocatable {
    pub resources: Need,
    pub pods: i64,
}

impl Allocatable {
    pub fn of(amounts: &Amounts) -> Self {
        Self {
            resources: Need::of(amounts),
            pods: amounts.value(PODS),
        }
    }
}

/// Resources that nodes get from device plugins and administrators.
pub fn is_extended(name: &str) -> bool {
    name.contains('/')
        && !name.contains(NATIVE_PREFIX)
        && !name.starts_with(QUOTA_PREFIX)
        && is_qualified_name(&format!("{QUOTA_PREFIX}{name}"))
}

/// Whether a resource beside cpu, memory and storage counts.
fn is_counted(name: &str) -> bool {
    is_extended(name)
        || name.starts_with(HUGE_PAGES_PREFIX)
        || name.contains(NATIVE_PREFIX)
        || name.starts_with(ATTACHABLE_PREFIX)
}

/// The pod's demand without extended resources that the node does not know, and without those that a resource claim covers:
/// admission does not count either.
pub fn without_unknown(pod: &Pod, demand: &PodDemand, allocatable: &Allocatable) -> PodDemand {
    let status = pod.status.as_ref();
    let claims = status.and_then(|status| status.extended_resource_claim_status.as_ref());
    let is_claimed = |container: &str, name: &str| {
        let mut mappings = claims.into_iter().flat_map(|claims| &claims.request_mappings);
        (is_extended(name) || name.starts_with(DEVICE_CLASS_PREFIX))
            && mappings.any(|one| one.container_name == container && one.resource_name == name)
    };
    let is_known = |name: &str| !is_extended(name) || allocatable.resources.others.contains_key(name);
    let mut known = demand.clone();
    for container in known.containers.iter_mut().chain(&mut known.init_containers) {
        let requests = container.resources.requests.iter();
        container.resources.requests = requests
            .filter(|(name, _)| is_known(name) && !is_claimed(&container.name, name))
            .map(|(name, quantity)| (name.to_owned(), quantity.clone()))
            .collect();
    }
    known
}
