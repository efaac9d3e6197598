//! A map that forgets what was not used for longest.

use std::collections::BTreeMap;

pub(super) struct Lru<V> {
    limit: usize,
    last_use: u64,
    values: BTreeMap<u128, (u64, V)>,
    by_use: BTreeMap<u64, u128>,
}

impl<V> Lru<V> {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            last_use: 0,
            values: BTreeMap::new(),
            by_use: BTreeMap::new(),
        }
    }

    /// The value of this key, which counts as used; made if there is none.
    pub(super) fn get_or(&mut self, key: u128, make: impl FnOnce() -> V) -> &mut V {
        self.last_use += 1;
        let now = self.last_use;
        if let Some((used, _)) = self.values.get(&key) {
            self.by_use.remove(used);
        } else if self.values.len() >= self.limit
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.values.remove(&oldest);
        }
        self.by_use.insert(now, key);
        let entry = self.values.entry(key).or_insert_with(|| (now, make()));
        entry.0 = now;
        &mut entry.1
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.values.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_unused_for_longest_goes() {
        let mut lru = Lru::new(2);
        *lru.get_or(1, || 0) = 10;
        *lru.get_or(2, || 0) = 20;
        assert_eq!(*lru.get_or(1, || 0), 10);
        *lru.get_or(3, || 0) = 30;
        assert_eq!(lru.len(), 2);
        assert_eq!(*lru.get_or(1, || 0), 10);
        assert_eq!(*lru.get_or(2, || 0), 0, "it was forgotten");
        assert_eq!(lru.by_use.len(), 2);
    }
}
