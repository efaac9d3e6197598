//! Sets of NUMA nodes as bits.

use std::cmp::Ordering;
use std::fmt;

use rubelet_model::machine::NumaId;

/// A set of NUMA nodes.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NumaMask(u64);

impl NumaMask {
    pub const EMPTY: Self = Self(0);

    pub fn bits(self) -> u64 {
        self.0
    }

    pub fn contains(self, node: NumaId) -> bool {
        self.0 & (1 << node.get()) != 0
    }

    pub fn insert(&mut self, node: NumaId) {
        self.0 |= 1 << node.get();
    }

    pub fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn is_subset(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[must_use]
    pub fn difference(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The nodes by their number.
    pub fn iter(self) -> impl Iterator<Item = NumaId> {
        (0..=NumaId::MAX).filter_map(move |bit| NumaId::new(bit.into()).filter(|node| self.contains(*node)))
    }

    /// Fewer nodes first; among as many, the lower numbers.
    pub fn compare_narrowness(self, other: Self) -> Ordering {
        self.count().cmp(&other.count()).then(self.0.cmp(&other.0))
    }

    /// Every set of at least one of these nodes: by size, then by the numbers of the nodes.
    pub fn subsets(self) -> Vec<Self> {
        let nodes: Vec<NumaId> = self.iter().collect();
        let mut all = Vec::new();
        for size in 1..=nodes.len() {
            append_subsets(&nodes, size, Self::EMPTY, &mut all);
        }
        all
    }
}

fn append_subsets(nodes: &[NumaId], size: usize, chosen: NumaMask, all: &mut Vec<NumaMask>) {
    if size == 0 {
        all.push(chosen);
        return;
    }
    for (position, node) in nodes.iter().enumerate() {
        let mut with_node = chosen;
        with_node.insert(*node);
        append_subsets(&nodes[position + 1..], size - 1, with_node, all);
    }
}

impl FromIterator<NumaId> for NumaMask {
    fn from_iter<I: IntoIterator<Item = NumaId>>(nodes: I) -> Self {
        let mut mask = Self::EMPTY;
        for node in nodes {
            mask.insert(node);
        }
        mask
    }
}

impl From<NumaId> for NumaMask {
    fn from(node: NumaId) -> Self {
        Self(1 << node.get())
    }
}

impl fmt::Debug for NumaMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(NumaId::get)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(nodes: &[i64]) -> NumaMask {
        nodes.iter().filter_map(|node| NumaId::new(*node)).collect()
    }

    #[test]
    fn subsets_go_by_size_then_by_numbers() {
        let subsets = mask(&[0, 2, 5]).subsets();
        let expected: Vec<NumaMask> = [&[0][..], &[2], &[5], &[0, 2], &[0, 5], &[2, 5], &[0, 2, 5]]
            .into_iter()
            .map(mask)
            .collect();
        assert_eq!(subsets, expected);
        assert!(NumaMask::EMPTY.subsets().is_empty());
    }

    #[test]
    fn fewer_nodes_are_narrower_then_lower_numbers() {
        for (narrower, wider) in [(&[7][..], &[0, 1][..]), (&[0, 2], &[1, 2]), (&[0, 1], &[0, 2])] {
            assert_eq!(mask(narrower).compare_narrowness(mask(wider)), Ordering::Less);
        }
    }

    #[test]
    fn the_last_node_fits() {
        assert_eq!(mask(&[63]).iter().map(NumaId::get).collect::<Vec<_>>(), [63]);
        assert_eq!(NumaId::new(64), None);
        assert_eq!(NumaId::new(-1), None);
    }
}
