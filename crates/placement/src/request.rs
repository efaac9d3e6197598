//! What a pod wants of CPUs and memory, read from it once.
//!
//! Only Guaranteed pods want anything: whole CPUs for themselves, and memory of certain NUMA nodes.

use std::collections::BTreeMap;

use rubelet_model::pod::QosClass;
use rubelet_resources::amounts::{CPU, HUGE_PAGES_PREFIX, MEMORY};
use rubelet_resources::qos::qos_class;
use rubelet_resources::{Amounts, ContainerDemand, PodDemand, Rules};

/// When a container runs, which decides what it can leave to others of its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerKind {
    /// Ends before the containers after it start.
    Init,
    /// Restartable init container: runs as long as the pod.
    Sidecar,
    Regular,
}

/// Bytes by resource: `memory`, `hugepages-2Mi` and so on.
pub type MemoryRequest = BTreeMap<String, u64>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerRequest {
    pub name: String,
    pub kind: ContainerKind,
    /// CPUs for itself; zero for a container that shares.
    pub cpus: usize,
    /// Nothing where a quantity is no whole number of bytes.
    pub memory: Option<MemoryRequest>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRequest {
    pub uid: String,
    /// Init containers, then regular ones, in the order of the pod.
    pub containers: Vec<ContainerRequest>,
    /// CPUs of all containers together: the larger of what runs in the end and what any step of the start needs.
    pub cpus: usize,
    pub memory: Option<MemoryRequest>,
    /// The pod's own resources count (gate `PodLevelResourceManagers`), and its containers share what is the pod's.
    pub is_pod_level: bool,
    is_guaranteed: bool,
}

impl PodRequest {
    /// `pod_level_managers` is the gate `PodLevelResourceManagers`.
    pub fn read(uid: &str, demand: &PodDemand, rules: &Rules, pod_level_managers: bool) -> Self {
        let pod_level = demand.effective_pod_level(rules);
        let is_guaranteed = qos_class(demand, rules) == QosClass::Guaranteed;
        let reading = Reading {
            // Without the gate, pods with resources of their own hold nothing of their own.
            wants: is_guaranteed && (pod_level.is_none() || pod_level_managers),
            is_pod_level: pod_level.is_some() && pod_level_managers,
        };
        let containers: Vec<ContainerRequest> = demand
            .init_containers
            .iter()
            .map(|container| {
                let kind = match container.is_sidecar {
                    true => ContainerKind::Sidecar,
                    false => ContainerKind::Init,
                };
                reading.container(container, kind)
            })
            .chain(
                demand
                    .containers
                    .iter()
                    .map(|container| reading.container(container, ContainerKind::Regular)),
            )
            .collect();
        let (cpus, memory) = match pod_level.filter(|_| reading.wants && reading.is_pod_level) {
            Some(pod_level) => (
                whole_cpus(&pod_level.requests),
                memory_of(&pod_level.requests).map(|mut memory| {
                    memory.retain(|_, bytes| *bytes > 0);
                    memory
                }),
            ),
            None => (total_cpus(&containers), total_memory(&containers)),
        };
        Self {
            uid: uid.to_owned(),
            containers,
            cpus,
            memory,
            is_pod_level: reading.is_pod_level,
            is_guaranteed,
        }
    }

    pub fn container(&self, name: &str) -> Option<&ContainerRequest> {
        self.containers.iter().find(|container| container.name == name)
    }

    pub fn is_guaranteed(&self) -> bool {
        self.is_guaranteed
    }
}

struct Reading {
    wants: bool,
    is_pod_level: bool,
}

impl Reading {
    fn container(&self, container: &ContainerDemand, kind: ContainerKind) -> ContainerRequest {
        let wants = self.wants && (!self.is_pod_level || is_guaranteed_alone(container));
        ContainerRequest {
            name: container.name.clone(),
            kind,
            cpus: match wants {
                true => whole_cpus(&container.resources.requests),
                false => 0,
            },
            memory: match wants {
                true => memory_of(&container.resources.requests),
                false => Some(MemoryRequest::new()),
            },
        }
    }
}

/// Requests of CPU and memory are set, and are the limits.
fn is_guaranteed_alone(container: &ContainerDemand) -> bool {
    let resources = &container.resources;
    [CPU, MEMORY].into_iter().all(|name| {
        !resources.requests.is_zero(name)
            && resources.requests.quantity(name) == resources.limits.quantity(name)
    })
}

/// Zero for a request with a fraction.
fn whole_cpus(requests: &Amounts) -> usize {
    let cpus = requests.value(CPU);
    let is_whole = cpus.checked_mul(1000) == Some(requests.milli_value(CPU));
    usize::try_from(cpus).ok().filter(|_| is_whole).unwrap_or(0)
}

fn memory_of(requests: &Amounts) -> Option<MemoryRequest> {
    let names = requests
        .iter()
        .filter(|(name, _)| *name == MEMORY || name.starts_with(HUGE_PAGES_PREFIX));
    names
        .map(|(name, quantity)| {
            let bytes = u64::try_from(quantity.as_i64()?).ok()?;
            Some((name.to_owned(), bytes))
        })
        .collect()
}

fn total_cpus(containers: &[ContainerRequest]) -> usize {
    total(
        containers
            .iter()
            .map(|container| (container.kind, container.cpus as u64)),
    ) as usize
}

fn total_memory(containers: &[ContainerRequest]) -> Option<MemoryRequest> {
    let of_all: Vec<(ContainerKind, &MemoryRequest)> = containers
        .iter()
        .map(|container| Some((container.kind, container.memory.as_ref()?)))
        .collect::<Option<_>>()?;
    let regular = of_all.iter().filter(|(kind, _)| *kind == ContainerKind::Regular);
    // What only init containers want is theirs alone and no part of the pod's total.
    let names = regular.flat_map(|(_, memory)| memory.keys());
    let totals = names.map(|name| {
        let amounts = of_all
            .iter()
            .map(|(kind, memory)| (*kind, memory.get(name).copied().unwrap_or(0)));
        (name.clone(), total(amounts))
    });
    Some(totals.collect())
}

fn total(amounts: impl Iterator<Item = (ContainerKind, u64)>) -> u64 {
    let (mut sidecars, mut starting, mut regular) = (0_u64, 0_u64, 0_u64);
    for (kind, amount) in amounts {
        match kind {
            ContainerKind::Sidecar => sidecars = sidecars.saturating_add(amount),
            ContainerKind::Init => starting = starting.max(sidecars.saturating_add(amount)),
            ContainerKind::Regular => regular = regular.saturating_add(amount),
        }
    }
    starting.max(sidecars.saturating_add(regular))
}
