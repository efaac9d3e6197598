//! Spreads CPUs evenly over the fewest NUMA nodes that can give them so (option `distribute-cpus-across-numa`).
//!
//! For a growing number of nodes all combinations of nodes are compared: the best leaves the CPUs that stay free most evenly
//! on all nodes. CPUs that cannot be divided go in groups to some of the chosen nodes, the best choice of these again being
//! the one that leaves the nodes most even. Where no combination works, CPUs are packed.

use std::collections::BTreeMap;

use rubelet_model::CpuSet;
use rubelet_model::machine::NumaId;

use super::CpuOptions;
use super::take::{Part, Taking, TooFewCpus, take_packed};
use crate::machine::Machine;
use crate::topology::NumaMask;

pub(super) fn take_distributed(
    machine: &Machine,
    options: CpuOptions,
    free: &CpuSet,
    count: usize,
) -> Result<CpuSet, TooFewCpus> {
    // Caches are not looked at here.
    let packing = CpuOptions {
        align_by_cache: false,
        ..options
    };
    let group = match options.full_cores {
        true => machine.cpus_per_core().max(1),
        false => 1,
    };
    if !count.is_multiple_of(group) {
        return take_packed(machine, packing, free, count);
    }
    let taking = Taking::new(machine, free, count)?;
    if count == 0 {
        return Ok(CpuSet::default());
    }
    let wish = Wish::new(&taking, machine, options, group);
    let (fewest, most) = wish.node_counts();
    for nodes in fewest..=most {
        if let Some(share) = wish.best_share(nodes) {
            return wish.take_share(taking, packing, &share);
        }
    }
    take_packed(machine, packing, free, count)
}

/// How many CPUs come from which node.
struct Share {
    nodes: Vec<i64>,
    /// From each of the nodes.
    each: usize,
    /// Groups for the rest go round over these.
    rest_from: Vec<i64>,
    balance: f64,
    in_one_socket: bool,
}

struct Wish<'a> {
    machine: &'a Machine,
    by_socket: bool,
    group: usize,
    count: usize,
    /// Nodes with free CPUs in the order of the search, and how many are free.
    nodes: Vec<i64>,
    free: BTreeMap<i64, usize>,
}

impl<'a> Wish<'a> {
    fn new(taking: &Taking<'_>, machine: &'a Machine, options: CpuOptions, group: usize) -> Self {
        let nodes = taking.sorted_parts(Part::Node);
        let free = nodes
            .iter()
            .map(|node| (*node, taking.free_on_node(*node).len() as usize));
        Self {
            machine,
            by_socket: options.align_by_socket,
            group,
            count: taking.missing,
            free: free.collect(),
            nodes,
        }
    }

    fn free_on(&self, node: i64) -> usize {
        self.free.get(&node).copied().unwrap_or(0)
    }

    /// The fewest nodes that could ever hold the request, and the most that are worth a try.
    fn node_counts(&self) -> (usize, usize) {
        let all_groups = (self.machine.cpus().len() as usize).div_ceil(self.group);
        let nodes = self.machine.nodes_with_cpus().count().max(1);
        let groups_per_node = all_groups.div_ceil(nodes).max(1);
        let groups = self.count.div_ceil(self.group);
        (groups.div_ceil(groups_per_node), groups.min(self.nodes.len()))
    }

    fn best_share(&self, nodes: usize) -> Option<Share> {
        let mut best: Option<Share> = None;
        for combination in combinations(&self.nodes, nodes) {
            if let Some(best) = &best
                && best.balance == 0.0
                && (!self.by_socket || best.in_one_socket)
            {
                break;
            }
            let Some(share) = self.share_over(combination) else {
                continue;
            };
            let is_better = match &best {
                None => share.balance < f64::MAX || share.in_one_socket,
                Some(best) if self.by_socket && best.in_one_socket != share.in_one_socket => {
                    share.in_one_socket
                }
                Some(best) => share.balance < best.balance,
            };
            if is_better {
                best = Some(share);
            }
        }
        best
    }

    /// How these nodes would share the CPUs; nothing where they cannot.
    fn share_over(&self, nodes: Vec<i64>) -> Option<Share> {
        let groups: usize = nodes.iter().map(|node| self.free_on(*node) / self.group).sum();
        if groups * self.group < self.count {
            return None;
        }
        let mut each = self.count / nodes.len() / self.group * self.group;
        if self.by_socket {
            each = each.min(self.smallest_in_groups(&nodes));
        }
        if nodes.iter().any(|node| self.free_on(*node) < each) {
            return None;
        }
        let mut left = self.free.clone();
        for node in &nodes {
            *left.entry(*node).or_default() -= each;
        }
        let rest = self.count - each * nodes.len();
        let (balance, rest_from) = self.best_rest(&nodes, &left, rest);
        let in_one_socket = self.by_socket && self.are_in_one_socket(&nodes);
        Some(Share {
            nodes,
            each,
            rest_from,
            balance,
            in_one_socket,
        })
    }

    fn smallest_in_groups(&self, nodes: &[i64]) -> usize {
        let in_groups = nodes
            .iter()
            .map(|node| self.free_on(*node) / self.group * self.group);
        in_groups.min().unwrap_or(0)
    }

    fn are_in_one_socket(&self, nodes: &[i64]) -> bool {
        let mask: NumaMask = nodes.iter().filter_map(|node| NumaId::new(*node)).collect();
        self.machine.sockets_of_nodes(mask).len() <= 1
    }

    /// The nodes that the rest comes from, as many as possible, and how even the nodes are afterwards.
    fn best_rest(&self, nodes: &[i64], left: &BTreeMap<i64, usize>, rest: usize) -> (f64, Vec<i64>) {
        if rest == 0 {
            return (deviation(left), Vec::new());
        }
        let able: Vec<i64> = nodes
            .iter()
            .copied()
            .filter(|node| left.get(node).is_some_and(|free| *free >= self.group))
            .collect();
        let mut best = (f64::MAX, Vec::new());
        for size in (1..=able.len()).rev() {
            for subset in combinations(&able, size) {
                if let Some(after) = self.without_rest(left, &subset, rest) {
                    let balance = deviation(&after);
                    if balance < best.0 {
                        best = (balance, subset);
                    }
                }
            }
        }
        best
    }

    fn without_rest(
        &self,
        left: &BTreeMap<i64, usize>,
        subset: &[i64],
        mut rest: usize,
    ) -> Option<BTreeMap<i64, usize>> {
        let mut left = left.clone();
        while rest > 0 {
            let before = rest;
            for node in subset {
                let free = left.entry(*node).or_default();
                if rest > 0 && *free >= self.group {
                    *free -= self.group;
                    rest -= self.group;
                }
            }
            if rest == before {
                return None;
            }
        }
        Some(left)
    }

    fn take_share(
        &self,
        mut taking: Taking<'_>,
        packing: CpuOptions,
        share: &Share,
    ) -> Result<CpuSet, TooFewCpus> {
        let each = share.each.min(self.smallest_in_groups(&share.nodes));
        for node in &share.nodes {
            let cpus = take_packed(self.machine, packing, &taking.free_on_node(*node), each)?;
            taking.take(&cpus);
        }
        while taking.missing > 0 {
            let before = taking.missing;
            for node in &share.rest_from {
                let free = taking.free_on_node(*node);
                if taking.missing > 0 && free.len() >= self.group as u64 {
                    let cpus = take_packed(self.machine, packing, &free, self.group)?;
                    taking.take(&cpus);
                }
            }
            if taking.missing == before {
                return Err(TooFewCpus::NotTaken);
            }
        }
        Ok(taking.taken)
    }
}

/// The standard deviation, by steps of a thousandth.
fn deviation(left: &BTreeMap<i64, usize>) -> f64 {
    let thousandths = |value: f64| (value * 1000.0).round() / 1000.0;
    let count = left.len() as f64;
    let mean = thousandths(left.values().map(|free| *free as f64).sum::<f64>() / count);
    let squares: f64 = left.values().map(|free| (*free as f64 - mean).powi(2)).sum();
    thousandths((squares / count).sqrt())
}

/// All choices of `size` of the nodes, in their order.
fn combinations(nodes: &[i64], size: usize) -> Vec<Vec<i64>> {
    if size == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (position, node) in nodes.iter().enumerate() {
        for mut rest in combinations(&nodes[position + 1..], size - 1) {
            rest.insert(0, *node);
            all.push(rest);
        }
    }
    all
}
