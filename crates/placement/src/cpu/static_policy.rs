//! Hints and choices of the static policy for one container.

use std::sync::Arc;

use rubelet_model::CpuSet;

use super::options::BadCpuOptions;
use super::take::take;
use super::{CpuOptions, CpuState};
use crate::machine::Machine;
use crate::refusal::Refusal;
use crate::request::{ContainerKind, ContainerRequest, PodRequest};
use crate::topology::{Hint, Hints, NumaMask, Policy};

/// The static policy on one machine. It holds no state.
#[derive(Clone, Debug)]
pub struct StaticCpus {
    pub(super) machine: Arc<Machine>,
    pub(super) options: CpuOptions,
    reserved: CpuSet,
    /// The reserved CPUs and their siblings.
    reserved_cores: CpuSet,
}

/// The settings do not allow the static policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadStaticCpus {
    #[error("the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero")]
    NothingReserved,
    #[error("unable to reserve the required amount of CPUs (size of {cpus} did not equal {count})")]
    Reserved { cpus: CpuSet, count: usize },
    #[error("the reserved CPUs {0} are not online on this machine")]
    NotOnline(CpuSet),
    #[error(transparent)]
    Options(#[from] BadCpuOptions),
}

impl StaticCpus {
    /// `reserved_milli_cpu` is what the node keeps for itself; `named` are the CPUs for it, where the settings name them.
    pub fn new(
        machine: Arc<Machine>,
        options: CpuOptions,
        policy: Policy,
        reserved_milli_cpu: i64,
        named: Option<&CpuSet>,
    ) -> Result<Self, BadStaticCpus> {
        let count = usize::try_from(reserved_milli_cpu).unwrap_or(0).div_ceil(1000);
        if count == 0 {
            return Err(BadStaticCpus::NothingReserved);
        }
        options.check(&machine, policy)?;
        let reserved = match named {
            Some(named) => named.clone(),
            None => take(&machine, options, machine.cpus(), count).unwrap_or_default(),
        };
        if reserved.len() != count as u64 {
            return Err(BadStaticCpus::Reserved {
                cpus: reserved,
                count,
            });
        }
        let missing = reserved.difference(machine.cpus());
        if !missing.is_empty() {
            return Err(BadStaticCpus::NotOnline(missing));
        }
        Ok(Self {
            options,
            reserved_cores: machine.whole_cores(&reserved),
            machine,
            reserved,
        })
    }

    pub fn reserved(&self) -> &CpuSet {
        &self.reserved
    }

    pub fn options(&self) -> CpuOptions {
        self.options
    }

    /// What is shared while no container has CPUs of its own.
    pub fn all_shared(&self) -> CpuSet {
        if self.options.strict_reservation {
            self.machine.cpus().difference(&self.reserved)
        } else {
            self.machine.cpus().clone()
        }
    }

    /// What containers can have for themselves.
    pub fn allocatable(&self) -> CpuSet {
        self.machine.cpus().difference(&self.reserved)
    }

    pub(super) fn free(&self, state: &CpuState) -> CpuSet {
        state.shared.difference(&self.reserved)
    }

    /// Where the container's CPUs could come from. Nothing where it wants none.
    pub fn hints(
        &self,
        state: &CpuState,
        pod: &PodRequest,
        container: &ContainerRequest,
        reusable: &CpuSet,
    ) -> Option<Hints> {
        if container.cpus == 0 {
            return None;
        }
        let Some(held) = state.of_container(&pod.uid, &container.name) else {
            return Some(self.hints_for(&self.free(state), reusable, container.cpus));
        };
        if held.len() != container.cpus as u64 {
            return Some(Hints::new());
        }
        Some(self.hints_for(held, &CpuSet::default(), container.cpus))
    }

    /// All sets of nodes that hold everything reusable and, with it, enough free CPUs.
    pub(super) fn hints_for(&self, free: &CpuSet, reusable: &CpuSet, count: usize) -> Hints {
        let reusable_nodes = self.machine.nodes_of_cpus(reusable);
        let on_node = |cpus: &CpuSet| -> Vec<(NumaMask, u64)> {
            let nodes = self.machine.nodes_with_cpus().iter().map(NumaMask::from);
            nodes
                .map(|node| (node, self.machine.cpus_of_nodes(node).intersection(cpus).len()))
                .collect()
        };
        let (all_on, free_on) = (on_node(self.machine.cpus()), on_node(free));
        let sum = |counts: &[(NumaMask, u64)], nodes: NumaMask| -> u64 {
            let within = counts.iter().filter(|(node, _)| node.is_subset(nodes));
            within.map(|(_, count)| count).sum()
        };
        let wanted = count as u64;
        let mut least_nodes = self.machine.nodes_with_cpus().count();
        let mut fitting = Vec::new();
        for nodes in self.machine.nodes_with_cpus().subsets() {
            if sum(&all_on, nodes) >= wanted {
                least_nodes = least_nodes.min(nodes.count());
            }
            if reusable_nodes.is_subset(nodes) && sum(&free_on, nodes) + reusable.len() >= wanted {
                fitting.push(nodes);
            }
        }
        let hints = fitting.into_iter().map(|nodes| Hint {
            nodes: Some(nodes),
            preferred: nodes.count() == least_nodes || self.is_socket_aligned(nodes, least_nodes),
        });
        hints.collect()
    }

    fn is_socket_aligned(&self, nodes: NumaMask, least_nodes: usize) -> bool {
        let all_nodes = self.machine.nodes_with_cpus().count();
        let nodes_per_socket = all_nodes.checked_div(self.machine.sockets()).unwrap_or(0);
        self.options.align_by_socket
            && nodes_per_socket > 0
            && self.machine.sockets_of_nodes(nodes).len() == least_nodes.div_ceil(nodes_per_socket)
    }

    /// A request that breaks cores, or for which there are not enough whole ones.
    pub(super) fn check_cores(&self, state: &CpuState, count: usize) -> Result<(), Refusal> {
        if !self.options.full_cores {
            return Ok(());
        }
        let per_core = self.machine.cpus_per_core().max(1);
        if !count.is_multiple_of(per_core) {
            return Err(Refusal::PartOfCore {
                requested: count,
                per_core,
            });
        }
        let available = state.shared.difference(&self.reserved_cores).len();
        if count as u64 > available {
            return Err(Refusal::TooFewCores {
                available,
                requested: count,
                per_core,
            });
        }
        Ok(())
    }

    /// Gives the container its CPUs. What it already has stays, also where it breaks today's options.
    ///
    /// `reusable` are CPUs of the pod's init containers that ended; it is changed for the containers that follow.
    pub fn allocate(
        &self,
        state: &mut CpuState,
        pod: &PodRequest,
        container: &ContainerRequest,
        hint: Hint,
        reusable: &mut CpuSet,
    ) -> Result<Given, Refusal> {
        if container.cpus == 0 {
            return Ok(Given::Nothing);
        }
        let held = state.of_container(&pod.uid, &container.name).cloned();
        let (cpus, given) = match held {
            Some(held) => (held, Given::Held),
            None => {
                self.check_cores(state, container.cpus)?;
                let cpus = self.choose(state, container.cpus, hint, reusable)?;
                state.set(&pod.uid, &container.name, cpus.clone());
                (cpus.clone(), Given::New(cpus))
            }
        };
        *reusable = match container.kind {
            ContainerKind::Init => reusable.union(&cpus),
            ContainerKind::Sidecar | ContainerKind::Regular => reusable.difference(&cpus),
        };
        Ok(given)
    }

    /// Takes CPUs on the hint's nodes first, the rest anywhere, and takes them out of the shared set.
    pub(super) fn choose(
        &self,
        state: &mut CpuState,
        count: usize,
        hint: Hint,
        reusable: &CpuSet,
    ) -> Result<CpuSet, Refusal> {
        let free = self.free(state).union(reusable);
        let mut chosen = CpuSet::default();
        if let Some(nodes) = hint.nodes {
            let aligned = free.intersection(&self.cpus_for(nodes));
            let from_nodes = count.min(aligned.len() as usize);
            chosen = take(&self.machine, self.options, &aligned, from_nodes)
                .map_err(|error| Refusal::unexpected(&error))?;
        }
        let rest = count.saturating_sub(chosen.len() as usize);
        let rest = take(&self.machine, self.options, &free.difference(&chosen), rest)
            .map_err(|error| Refusal::unexpected(&error))?;
        let chosen = chosen.union(&rest);
        state.shared = state.shared.difference(&chosen);
        Ok(chosen)
    }

    fn cpus_for(&self, nodes: NumaMask) -> CpuSet {
        if !self.options.align_by_socket {
            return self.machine.cpus_of_nodes(nodes);
        }
        let sockets = self.machine.sockets_of_nodes(nodes);
        self.machine.cpus_where(|place| sockets.contains(&place.socket))
    }

    /// Gives back everything of the pod, and answers what is shared again.
    pub fn release(&self, state: &mut CpuState, pod: &str) -> CpuSet {
        state.release(pod, &self.all_shared())
    }
}

/// What a container got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Given {
    /// It wants nothing.
    Nothing,
    /// It had it before.
    Held,
    New(CpuSet),
}
