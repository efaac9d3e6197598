//! The settings of the topology manager.

use std::collections::BTreeMap;

use crate::machine::Machine;
use crate::options::{BadOption, OptionName, Stage, read_bool};

/// How strictly the resources of a pod have to come from the same NUMA nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// No policy: nodes are not looked at.
    #[default]
    None,
    BestEffort,
    Restricted,
    SingleNumaNode,
}

/// What gets one set of nodes: each container, or the pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    #[default]
    Container,
    Pod,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyRules {
    pub policy: Policy,
    pub scope: Scope,
    /// Among sets of as many nodes, those with the least mean distance.
    pub prefer_closest: bool,
    /// More nodes than this make too many sets of nodes.
    pub max_nodes: usize,
}

impl Default for TopologyRules {
    fn default() -> Self {
        Self {
            policy: Policy::None,
            scope: Scope::Container,
            prefer_closest: false,
            max_nodes: DEFAULT_MAX_NODES,
        }
    }
}

const DEFAULT_MAX_NODES: usize = 8;
const PREFER_CLOSEST: &str = "prefer-closest-numa-nodes";
const MAX_NODES: &str = "max-allowable-numa-nodes";

const OPTIONS: [OptionName; 2] = [
    OptionName {
        name: PREFER_CLOSEST,
        stage: Stage::Stable,
    },
    OptionName {
        name: MAX_NODES,
        stage: Stage::Stable,
    },
];

/// Settings that cannot be followed, or not on this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTopologyRules {
    #[error("unknown policy: {0:?}")]
    Policy(String),
    #[error("unknown scope: {0:?}")]
    Scope(String),
    #[error("topologyManagerPolicyOptions")]
    Option(#[from] BadOption),
    #[error("the minimum value of \"max-allowable-numa-nodes\" should not be less than 8, and is {0}")]
    TooFewNodes(usize),
    #[error("unsupported on machines with more than {max} NUMA Nodes; this machine has {nodes}")]
    TooManyNodes { max: usize, nodes: usize },
    #[error(
        "prefer-closest-numa-nodes needs the distances of NUMA nodes, and this machine does not name those of node {0}"
    )]
    NoDistances(u8),
}

impl TopologyRules {
    /// Reads the settings. With the policy none, scope and options are not looked at.
    pub fn read(
        policy: &str,
        scope: &str,
        options: &BTreeMap<String, String>,
        machine: &Machine,
    ) -> Result<Self, BadTopologyRules> {
        let policy = match policy {
            "none" => return Ok(Self::default()),
            "best-effort" => Policy::BestEffort,
            "restricted" => Policy::Restricted,
            "single-numa-node" => Policy::SingleNumaNode,
            other => return Err(BadTopologyRules::Policy(other.to_owned())),
        };
        let mut rules = Self {
            policy,
            scope: match scope {
                "container" => Scope::Container,
                "pod" => Scope::Pod,
                other => return Err(BadTopologyRules::Scope(other.to_owned())),
            },
            ..Self::default()
        };
        for (name, value) in options {
            match OptionName::find(&OPTIONS, "Topology Manager", name)?.name {
                PREFER_CLOSEST => rules.prefer_closest = read_bool(name, value)?,
                _ => rules.max_nodes = read_max_nodes(name, value)?,
            }
        }
        rules.check(machine)?;
        Ok(rules)
    }

    fn check(&self, machine: &Machine) -> Result<(), BadTopologyRules> {
        let nodes = machine.nodes();
        if self.prefer_closest {
            let without = nodes
                .iter()
                .find(|id| machine.node(*id).is_none_or(|node| node.distances.is_empty()));
            if let Some(id) = without {
                return Err(BadTopologyRules::NoDistances(id.get()));
            }
        }
        if nodes.count() > self.max_nodes {
            return Err(BadTopologyRules::TooManyNodes {
                max: self.max_nodes,
                nodes: nodes.count(),
            });
        }
        Ok(())
    }

    /// A pod that is let in has all its resources on one node.
    pub fn guarantees_alignment(&self) -> bool {
        self.policy == Policy::SingleNumaNode
    }
}

fn read_max_nodes(name: &str, value: &str) -> Result<usize, BadTopologyRules> {
    let bad = || BadOption::Value {
        name: name.to_owned(),
        value: value.to_owned(),
        expected: "a whole number",
    };
    let max: usize = value.parse().map_err(|_| bad())?;
    if max < DEFAULT_MAX_NODES {
        return Err(BadTopologyRules::TooFewNodes(max));
    }
    Ok(max)
}
