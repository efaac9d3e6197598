//! The machine as placement asks for it: which CPUs a NUMA node, a socket, a cache or a core has.
//!
//! Owns indexes over `MachineFacts`. It must not know what is given to a pod.

use std::collections::BTreeSet;

use rubelet_model::CpuSet;
use rubelet_model::machine::{Cpu, MachineFacts, NumaId, NumaNode};

use crate::topology::NumaMask;

/// The machine. It does not change while rubelet runs.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    facts: MachineFacts,
    cpus: CpuSet,
    nodes: NumaMask,
    nodes_with_cpus: NumaMask,
    sockets: usize,
    cores: usize,
    caches: usize,
}

impl Machine {
    pub fn new(facts: MachineFacts) -> Self {
        let count = |of: fn(&Cpu) -> i64| facts.cpus.values().map(of).collect::<BTreeSet<_>>().len();
        Self {
            cpus: facts.cpus.keys().copied().collect(),
            nodes: facts.numa_nodes.keys().copied().collect(),
            nodes_with_cpus: facts.cpus.values().map(|cpu| cpu.numa_node).collect(),
            sockets: count(|cpu| cpu.socket),
            cores: count(|cpu| cpu.core),
            caches: count(|cpu| cpu.cache),
            facts,
        }
    }

    /// All online CPUs.
    pub fn cpus(&self) -> &CpuSet {
        &self.cpus
    }

    /// All NUMA nodes, also those without a CPU.
    pub fn nodes(&self) -> NumaMask {
        self.nodes
    }

    pub fn nodes_with_cpus(&self) -> NumaMask {
        self.nodes_with_cpus
    }

    pub fn node(&self, id: NumaId) -> Option<&NumaNode> {
        self.facts.numa_nodes.get(&id)
    }

    pub fn cpu(&self, cpu: i64) -> Option<&Cpu> {
        self.facts.cpus.get(&cpu)
    }

    /// Every online CPU with its place, in the order of their numbers.
    pub fn cpu_places(&self) -> impl Iterator<Item = (i64, &Cpu)> {
        self.facts.cpus.iter().map(|(cpu, place)| (*cpu, place))
    }

    pub fn cpus_where(&self, wanted: impl Fn(&Cpu) -> bool) -> CpuSet {
        self.cpu_places()
            .filter(|(_, place)| wanted(place))
            .map(|(cpu, _)| cpu)
            .collect()
    }

    pub fn cpus_of_nodes(&self, nodes: NumaMask) -> CpuSet {
        self.cpus_where(|place| nodes.contains(place.numa_node))
    }

    /// The nodes that the CPUs are on.
    pub fn nodes_of_cpus(&self, cpus: &CpuSet) -> NumaMask {
        self.cpu_places()
            .filter(|(cpu, _)| cpus.contains(*cpu))
            .map(|(_, place)| place.numa_node)
            .collect()
    }

    /// The sockets that the nodes' CPUs are on.
    pub fn sockets_of_nodes(&self, nodes: NumaMask) -> BTreeSet<i64> {
        self.cpu_places()
            .filter(|(_, place)| nodes.contains(place.numa_node))
            .map(|(_, place)| place.socket)
            .collect()
    }

    /// All CPUs of the cores that the given CPUs belong to.
    pub fn whole_cores(&self, cpus: &CpuSet) -> CpuSet {
        let cores: BTreeSet<i64> = self
            .cpu_places()
            .filter(|(cpu, _)| cpus.contains(*cpu))
            .map(|(_, place)| place.core)
            .collect();
        self.cpus_where(|place| cores.contains(&place.core))
    }

    pub fn sockets(&self) -> usize {
        self.sockets
    }

    /// Rounded down where cores differ; zero without a core.
    pub fn cpus_per_core(&self) -> usize {
        self.facts.cpus.len().checked_div(self.cores).unwrap_or(0)
    }

    pub fn cpus_per_socket(&self) -> usize {
        self.facts.cpus.len().checked_div(self.sockets).unwrap_or(0)
    }

    pub fn cpus_per_cache(&self) -> usize {
        self.facts.cpus.len().checked_div(self.caches).unwrap_or(0)
    }

    /// The mean distance between all pairs of the nodes, each with itself included; a distance that is not known counts as the
    /// kernel's for a remote node.
    pub fn mean_distance(&self, nodes: NumaMask) -> f64 {
        const REMOTE: u64 = 20;
        let (mut sum, mut pairs) = (0.0, 0.0);
        for from in nodes.iter() {
            for to in nodes.iter() {
                let known = self.node(from).and_then(|node| node.distances.get(&to));
                sum += *known.unwrap_or(&REMOTE) as f64;
                pairs += 1.0;
            }
        }
        if pairs == 0.0 { 0.0 } else { sum / pairs }
    }
}
