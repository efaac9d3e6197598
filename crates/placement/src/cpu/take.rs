//! Takes CPUs out of a set of free ones, close together: whole NUMA nodes and sockets, caches, whole cores, single threads.
//!
//! Among parts of one kind the fullest one that is not full comes first, so that free parts stay whole for later requests.

use std::collections::{BTreeMap, BTreeSet};

use rubelet_model::CpuSet;
use rubelet_model::machine::Cpu;

use super::CpuOptions;
use super::distribute::take_distributed;
use crate::machine::Machine;

/// There are not as many CPUs as were asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooFewCpus {
    #[error("not enough cpus available to satisfy request: requested={requested}, available={available}")]
    Available { requested: usize, available: u64 },
    #[error("failed to allocate cpus")]
    NotTaken,
}

/// Takes `count` of the free CPUs, as the options want them.
pub fn take(
    machine: &Machine,
    options: CpuOptions,
    free: &CpuSet,
    count: usize,
) -> Result<CpuSet, TooFewCpus> {
    if options.across_nodes {
        return take_distributed(machine, options, free, count);
    }
    take_packed(machine, options, free, count)
}

pub(super) fn take_packed(
    machine: &Machine,
    options: CpuOptions,
    free: &CpuSet,
    count: usize,
) -> Result<CpuSet, TooFewCpus> {
    let mut taking = Taking::new(machine, free, count)?;
    let levels = if taking.nodes_first {
        [Part::Node, Part::Socket]
    } else {
        [Part::Socket, Part::Node]
    };
    for level in levels {
        taking.take_whole(level);
    }
    if options.align_by_cache {
        taking.take_caches();
    }
    if !options.across_cores {
        taking.take_whole(Part::Core);
    }
    taking.take_single(options.across_cores);
    if taking.missing == 0 {
        Ok(taking.taken)
    } else {
        Err(TooFewCpus::NotTaken)
    }
}

/// What CPUs are grouped by.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Node,
    Socket,
    Cache,
    Core,
}

impl Part {
    fn of(self, place: &Cpu) -> i64 {
        match self {
            Self::Node => place.numa_node.get().into(),
            Self::Socket => place.socket,
            Self::Cache => place.cache,
            Self::Core => place.core,
        }
    }
}

/// CPUs that are being taken.
pub(super) struct Taking<'a> {
    machine: &'a Machine,
    pub(super) free: BTreeMap<i64, &'a Cpu>,
    pub(super) missing: usize,
    pub(super) taken: CpuSet,
    /// A NUMA node has one socket or more; otherwise a socket has several nodes.
    nodes_first: bool,
}

impl<'a> Taking<'a> {
    pub(super) fn new(machine: &'a Machine, free: &CpuSet, count: usize) -> Result<Self, TooFewCpus> {
        let places = machine.cpu_places().filter(|(cpu, _)| free.contains(*cpu));
        let taking = Self {
            machine,
            free: places.collect(),
            missing: count,
            taken: CpuSet::default(),
            nodes_first: machine.sockets() >= machine.nodes_with_cpus().count(),
        };
        if count > taking.free.len() {
            return Err(TooFewCpus::Available {
                requested: count,
                available: free.len(),
            });
        }
        Ok(taking)
    }

    pub(super) fn take(&mut self, cpus: &CpuSet) {
        for cpu in cpus.iter() {
            if self.free.remove(&cpu).is_some() {
                self.missing = self.missing.saturating_sub(1);
            }
        }
        self.taken = self.taken.union(cpus);
    }

    pub(super) fn free_where(&self, wanted: impl Fn(&Cpu) -> bool) -> CpuSet {
        let wanted = self.free.iter().filter(|(_, place)| wanted(place));
        wanted.map(|(cpu, _)| *cpu).collect()
    }

    pub(super) fn free_on_node(&self, node: i64) -> CpuSet {
        self.free_where(|place| Part::Node.of(place) == node)
    }

    /// The parts among the free CPUs that `within` lets in: fewest free CPUs first, then by number.
    fn sorted(&self, part: Part, within: impl Fn(&Cpu) -> bool) -> Vec<i64> {
        let mut counted: BTreeMap<i64, usize> = BTreeMap::new();
        for place in self.free.values() {
            *counted.entry(part.of(place)).or_default() += 1;
        }
        let inside = self.free.values().filter(|place| within(place));
        let ids: BTreeSet<i64> = inside.map(|place| part.of(place)).collect();
        let mut ids: Vec<i64> = ids.into_iter().collect();
        ids.sort_by_key(|id| (counted.get(id).copied().unwrap_or(0), *id));
        ids
    }

    /// Lower parts within each of the higher ones, in the order of those.
    fn sorted_within(&self, higher: Part, lower: Part) -> Vec<i64> {
        let inner = self.sorted_parts(higher).into_iter();
        inner
            .flat_map(|id| self.sorted(lower, |place| higher.of(place) == id))
            .collect()
    }

    pub(super) fn sorted_parts(&self, part: Part) -> Vec<i64> {
        match (part, self.nodes_first) {
            (Part::Node, true) | (Part::Socket, false) => self.sorted(part, |_| true),
            (Part::Node, false) => self.sorted_within(Part::Socket, Part::Node),
            (Part::Socket, true) => self.sorted_within(Part::Node, Part::Socket),
            (Part::Core, true) => self.sorted_within(Part::Socket, Part::Core),
            (Part::Core, false) => self.sorted_within(Part::Node, Part::Core),
            (Part::Cache, _) => self.sorted_within(Part::Node, Part::Cache),
        }
    }

    /// The CPUs of a part that is free as a whole.
    fn whole(&self, part: Part, id: i64) -> Option<CpuSet> {
        let all = self.machine.cpus_where(|place| part.of(place) == id);
        let free = self.free_where(|place| part.of(place) == id).len();
        let is_whole = match part {
            Part::Node | Part::Cache => free == all.len(),
            // Where sockets or cores differ in size, whole ones are those of the usual size.
            Part::Socket => free == self.machine.cpus_per_socket() as u64,
            Part::Core => free == self.machine.cpus_per_core() as u64,
        };
        is_whole.then_some(all)
    }

    fn take_whole(&mut self, part: Part) {
        let ids = self.sorted_parts(part).into_iter();
        let whole: Vec<CpuSet> = ids.filter_map(|id| self.whole(part, id)).collect();
        for cpus in whole {
            if self.missing as u64 >= cpus.len() && self.missing > 0 && !cpus.is_empty() {
                self.take(&cpus);
            }
        }
    }

    /// Whole caches, then the first cache that gives exactly the rest by whole cores.
    fn take_caches(&mut self) {
        for cache in self.sorted_parts(Part::Cache) {
            if self.missing >= self.machine.cpus_per_cache() {
                self.take_whole(Part::Cache);
            }
            if self.missing == 0 {
                return;
            }
            self.take_rest_of_cache(cache);
            if self.missing == 0 {
                return;
            }
        }
    }

    fn take_rest_of_cache(&mut self, cache: i64) {
        let threads = self.machine.cpus_per_core().max(1);
        let in_cache = self.free.values().filter(|place| place.cache == cache);
        let cores: BTreeSet<i64> = in_cache.map(|place| place.core).collect();
        let cores: BTreeSet<i64> = cores.into_iter().take(self.missing.div_ceil(threads)).collect();
        let mut cpus: Vec<i64> = self
            .free_where(|place| cores.contains(&place.core))
            .iter()
            .collect();
        // An odd number leaves one thread of the last core.
        if !self.missing.is_multiple_of(2) && threads > 1 && cpus.len() > self.missing {
            cpus.pop();
        }
        if cpus.len() == self.missing {
            self.take(&cpus.into_iter().collect());
        }
    }

    fn take_single(&mut self, across_cores: bool) {
        let part = if across_cores { Part::Socket } else { Part::Core };
        let ids = self.sorted_parts(part).into_iter();
        let cpus: Vec<i64> = ids
            .flat_map(|id| {
                self.free_where(|place| part.of(place) == id)
                    .iter()
                    .collect::<Vec<_>>()
            })
            .collect();
        for cpu in cpus {
            if self.missing == 0 {
                return;
            }
            if self.free.contains_key(&cpu) {
                self.take(&[cpu].into_iter().collect());
            }
        }
    }
}
