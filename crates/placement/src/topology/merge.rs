//! From the hints of all resources to one.
//!
//! The best hint is chosen among all combinations of one hint per resource. A combination is worth only its common nodes and
//! whether it is preferred, so combinations of the same worth are followed once: the work grows with the number of sets of
//! nodes, and not with the product of the numbers of hints.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use super::{Hint, Hints, Merged, NumaMask, Policy, TopologyRules};
use crate::machine::Machine;

/// The combinations of one hint of each resource that was looked at, as far as they differ.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Combination {
    common: NumaMask,
    /// The nodes that all hints with nodes name; nothing while no hint names any.
    same: Option<NumaMask>,
    /// All hints are preferred, and those with nodes name the same.
    preferred: bool,
}

impl Combination {
    fn with(self, hint: Hint) -> Self {
        let Some(nodes) = hint.nodes else {
            return Self {
                preferred: self.preferred && hint.preferred,
                ..self
            }
            .reduced();
        };
        Self {
            common: self.common.intersection(nodes),
            same: Some(self.same.unwrap_or(nodes)),
            preferred: self.preferred && hint.preferred && self.same.is_none_or(|same| same == nodes),
        }
        .reduced()
    }

    /// What can no longer become preferred need not remember which nodes it began with.
    fn reduced(self) -> Self {
        Self {
            same: self.same.filter(|_| self.preferred),
            ..self
        }
    }
}

/// Merges the hints of all resources, and asks the policy whether a pod may come in with the result.
pub fn merge(rules: &TopologyRules, machine: &Machine, resources: &[Hints]) -> Merged {
    match rules.policy {
        Policy::None => Merged {
            hint: Hint::NONE,
            admits: true,
        },
        Policy::BestEffort => Merged {
            hint: best_hint(rules, machine, resources),
            admits: true,
        },
        Policy::Restricted => {
            let hint = best_hint(rules, machine, resources);
            Merged {
                hint,
                admits: hint.preferred,
            }
        }
        Policy::SingleNumaNode => {
            let single: Vec<Hints> = resources.iter().map(single_node_hints).collect();
            let mut hint = best_hint(rules, machine, &single);
            if hint.nodes == Some(machine.nodes()) {
                hint.nodes = None;
            }
            Merged {
                hint,
                admits: hint.preferred,
            }
        }
    }
}

/// The preferred hints of one node. A resource that no set of nodes can hold keeps none.
fn single_node_hints(hints: &Hints) -> Hints {
    let single = hints
        .iter()
        .filter(|hint| hint.preferred && hint.nodes.is_none_or(|nodes| nodes.count() == 1));
    single.copied().collect()
}

fn best_hint(rules: &TopologyRules, machine: &Machine, resources: &[Hints]) -> Hint {
    let anywhere = Combination {
        common: machine.nodes(),
        same: None,
        preferred: true,
    };
    let mut combinations = BTreeSet::from([anywhere]);
    for hints in resources {
        // A request that cannot be held may still be served from anywhere, as far as the policy lets it.
        let impossible = [Hint::NONE];
        let choices = match (hints.as_slice(), rules.policy) {
            ([], Policy::None | Policy::BestEffort | Policy::Restricted) => &impossible[..],
            (all, _) => all,
        };
        combinations = combinations
            .iter()
            .flat_map(|combination| choices.iter().map(|hint| combination.with(*hint)))
            .collect();
    }
    let ranking = Ranking {
        rules,
        machine,
        wanted_nodes: resources.iter().filter_map(narrowest_count).max().unwrap_or(0),
    };
    let usable = combinations
        .iter()
        .filter(|combination| !combination.common.is_empty());
    let best = usable.min_by(|left, right| ranking.compare(left, right));
    best.map_or(
        Hint {
            nodes: Some(machine.nodes()),
            preferred: false,
        },
        |best| Hint {
            nodes: Some(best.common),
            preferred: best.preferred,
        },
    )
}

fn narrowest_count(hints: &Hints) -> Option<usize> {
    hints.iter().filter_map(|hint| Some(hint.nodes?.count())).min()
}

struct Ranking<'a> {
    rules: &'a TopologyRules,
    machine: &'a Machine,
    /// The nodes of the resource that needs most of them.
    wanted_nodes: usize,
}

impl Ranking<'_> {
    /// The better one is less.
    fn compare(&self, left: &Combination, right: &Combination) -> Ordering {
        right.preferred.cmp(&left.preferred).then_with(|| {
            if left.preferred {
                self.compare_nodes(left.common, right.common)
            } else {
                self.distance_to_wanted(left.common)
                    .cmp(&self.distance_to_wanted(right.common))
                    .then_with(|| self.compare_nodes(left.common, right.common))
            }
        })
    }

    /// As many nodes as wanted are best, then fewer from below, then more.
    fn distance_to_wanted(&self, nodes: NumaMask) -> (bool, usize) {
        let count = nodes.count();
        (count > self.wanted_nodes, self.wanted_nodes.abs_diff(count))
    }

    fn compare_nodes(&self, left: NumaMask, right: NumaMask) -> Ordering {
        if !self.rules.prefer_closest || self.rules.policy == Policy::SingleNumaNode {
            return left.compare_narrowness(right);
        }
        left.count()
            .cmp(&right.count())
            .then_with(|| {
                self.machine
                    .mean_distance(left)
                    .total_cmp(&self.machine.mean_distance(right))
            })
            .then_with(|| left.cmp(&right))
    }
}
