//! Where two sets of pods differ.
//!
//! Owns the comparison of a set with the one before. It compares places and pointers, and never looks into a pod: sources give a pod that
//! did not change as the same value.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

/// The parts of two sets between what they begin and what they end with in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch<'a> {
    pub(crate) old: &'a [Arc<Pod>],
    pub(crate) new: &'a [Arc<Pod>],
}

impl<'a> Stretch<'a> {
    pub(crate) fn of(old: &'a [Arc<Pod>], new: &'a [Arc<Pod>]) -> Self {
        let is_same = |(old, new): &(&Arc<Pod>, &Arc<Pod>)| Arc::ptr_eq(old, new);
        let begin = old.iter().zip(new).take_while(is_same).count();
        let (old, new) = (&old[begin..], &new[begin..]);
        let end = old.iter().rev().zip(new.iter().rev()).take_while(is_same).count();
        Self {
            old: &old[..old.len() - end],
            new: &new[..new.len() - end],
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.old.is_empty() && self.new.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_compared_from_both_ends() {
        let pods: Vec<Arc<Pod>> = (0..6).map(|_| Arc::default()).collect();
        let pick = |places: &[usize]| -> Vec<Arc<Pod>> {
            places.iter().map(|place| Arc::clone(&pods[*place])).collect()
        };
        let check = |old: &[usize], new: &[usize], old_part: &[usize], new_part: &[usize]| {
            let is = |part: &[Arc<Pod>], places: &[usize]| {
                part.len() == places.len()
                    && part
                        .iter()
                        .zip(places)
                        .all(|(pod, place)| Arc::ptr_eq(pod, &pods[*place]))
            };
            let (old, new) = (pick(old), pick(new));
            let stretch = Stretch::of(&old, &new);
            assert!(
                is(stretch.old, old_part) && is(stretch.new, new_part),
                "{stretch:?}"
            );
        };
        check(&[], &[], &[], &[]);
        check(&[0, 1, 2], &[0, 1, 2], &[], &[]);
        check(&[0, 1, 2], &[0, 3, 2], &[1], &[3]);
        check(&[0, 2], &[0, 1, 2], &[], &[1]);
        check(&[0, 1, 2], &[0, 2], &[1], &[]);
        check(&[0, 1, 2, 3], &[4, 1, 2, 5], &[0, 1, 2, 3], &[4, 1, 2, 5]);
        check(&[0, 0], &[0], &[0], &[]);
        check(&[], &[0, 1], &[], &[0, 1]);
    }
}
