//! The options of the static CPU policy.

use std::collections::BTreeMap;

use crate::machine::Machine;
use crate::options::{BadOption, OptionName, Stage, read_bool};
use crate::topology::Policy;

const FULL_CORES: &str = "full-pcpus-only";
const ACROSS_NODES: &str = "distribute-cpus-across-numa";
const ALIGN_BY_SOCKET: &str = "align-by-socket";
const ACROSS_CORES: &str = "distribute-cpus-across-cores";
const STRICT_RESERVATION: &str = "strict-cpu-reservation";
const ALIGN_BY_CACHE: &str = "prefer-align-cpus-by-uncorecache";

const OPTIONS: [OptionName; 6] = [
    OptionName {
        name: FULL_CORES,
        stage: Stage::Stable,
    },
    OptionName {
        name: STRICT_RESERVATION,
        stage: Stage::Stable,
    },
    OptionName {
        name: ALIGN_BY_CACHE,
        stage: Stage::Stable,
    },
    OptionName {
        name: ACROSS_NODES,
        stage: Stage::Beta,
    },
    OptionName {
        name: ALIGN_BY_SOCKET,
        stage: Stage::Alpha,
    },
    OptionName {
        name: ACROSS_CORES,
        stage: Stage::Alpha,
    },
];

const EXCLUDING: [(&str, &str); 4] = [
    (FULL_CORES, ACROSS_CORES),
    (ACROSS_NODES, ACROSS_CORES),
    (ALIGN_BY_CACHE, ACROSS_CORES),
    (ALIGN_BY_CACHE, ACROSS_NODES),
];

/// The gates `CPUManagerPolicyAlphaOptions` and `CPUManagerPolicyBetaOptions`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionGates {
    pub alpha: bool,
    pub beta: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuOptions {
    /// A container gets whole cores, or is refused.
    pub full_cores: bool,
    /// What does not fit one NUMA node is spread evenly over the fewest nodes.
    pub across_nodes: bool,
    /// A socket counts as aligned, not only a NUMA node.
    pub align_by_socket: bool,
    /// Threads of different cores before threads of the same core.
    pub across_cores: bool,
    /// Reserved CPUs are not in the shared set either.
    pub strict_reservation: bool,
    /// As few last-level caches as possible.
    pub align_by_cache: bool,
}

/// Options that cannot be followed, or not on this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadCpuOptions {
    #[error(transparent)]
    Option(#[from] BadOption),
    #[error("static policy options {0} and {1} can not be used at the same time")]
    Excluding(&'static str, &'static str),
    #[error("the topology manager's policy single-numa-node is incompatible with the option align-by-socket")]
    SocketsAndSingleNode,
    #[error(
        "align-by-socket needs at least as many NUMA nodes as sockets; this machine has {sockets} sockets and {nodes} nodes"
    )]
    SocketsAcrossNodes { sockets: usize, nodes: usize },
}

impl CpuOptions {
    pub fn read(options: &BTreeMap<String, String>, gates: OptionGates) -> Result<Self, BadCpuOptions> {
        let mut read = Self::default();
        for (name, value) in options {
            let option = OptionName::find(&OPTIONS, "CPU Manager", name)?;
            let (open, gate) = match option.stage {
                Stage::Stable => (true, ""),
                Stage::Beta => (gates.beta, "CPUManagerPolicyBetaOptions"),
                Stage::Alpha => (gates.alpha, "CPUManagerPolicyAlphaOptions"),
            };
            if !open {
                return Err(BadOption::Gate {
                    name: name.clone(),
                    gate,
                }
                .into());
            }
            *read.field(option.name) = read_bool(name, value)?;
        }
        for (left, right) in EXCLUDING {
            if *read.field(left) && *read.field(right) {
                return Err(BadCpuOptions::Excluding(left, right));
            }
        }
        Ok(read)
    }

    fn field(&mut self, name: &str) -> &mut bool {
        match name {
            FULL_CORES => &mut self.full_cores,
            ACROSS_NODES => &mut self.across_nodes,
            ALIGN_BY_SOCKET => &mut self.align_by_socket,
            ACROSS_CORES => &mut self.across_cores,
            STRICT_RESERVATION => &mut self.strict_reservation,
            _ => &mut self.align_by_cache,
        }
    }

    pub(super) fn check(self, machine: &Machine, policy: Policy) -> Result<(), BadCpuOptions> {
        if !self.align_by_socket {
            return Ok(());
        }
        if policy == Policy::SingleNumaNode {
            return Err(BadCpuOptions::SocketsAndSingleNode);
        }
        let nodes = machine.nodes_with_cpus().count();
        if machine.sockets() > nodes {
            return Err(BadCpuOptions::SocketsAcrossNodes {
                sockets: machine.sockets(),
                nodes,
            });
        }
        Ok(())
    }
}
