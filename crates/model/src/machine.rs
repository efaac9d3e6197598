//! What the machine has: NUMA nodes with memory, huge pages and distances, and the place of every online CPU.
//!
//! Owns plain facts as they are read from the machine, and nothing derived from them.

use std::collections::BTreeMap;
use std::fmt;

/// The number of a NUMA node. Sets of nodes are masks of 64 bits, so larger numbers do not exist here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NumaId(u8);

impl NumaId {
    /// The largest number that fits a mask of nodes.
    pub const MAX: u8 = 63;

    /// Nothing for a number that no mask of nodes can hold.
    pub fn new(id: i64) -> Option<Self> {
        u8::try_from(id).ok().filter(|id| *id <= Self::MAX).map(Self)
    }

    pub fn get(self) -> u8 {
        self.0
    }
}

impl fmt::Display for NumaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Everything that placement has to know of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineFacts {
    pub numa_nodes: BTreeMap<NumaId, NumaNode>,
    /// Online CPUs by their number.
    pub cpus: BTreeMap<i64, Cpu>,
}

/// One NUMA node. It may have memory and no CPU, or CPUs and no memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumaNode {
    /// All memory of the node, what huge pages take included.
    pub memory_bytes: u64,
    /// The number of huge pages by their size in bytes.
    pub huge_pages: BTreeMap<u64, u64>,
    /// The distance to each node, itself included; empty where the machine does not name distances.
    pub distances: BTreeMap<NumaId, u64>,
}

/// Where a CPU is. CPUs are what the kernel schedules on: threads of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    pub numa_node: NumaId,
    pub socket: i64,
    /// The lowest online CPU of the core, so that the number is unique on the machine.
    pub core: i64,
    /// The last-level cache; the number of the socket where the machine names no such cache.
    pub cache: i64,
}
