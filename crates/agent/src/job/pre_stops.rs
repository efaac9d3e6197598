//! Which containers had their preStop hook: a stop that is begun again, as with a shorter grace period, does not run it twice.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use rubelet_model::observation::ContainerId;

/// The lock is held for a few instructions, never across an await.
#[derive(Default)]
pub(crate) struct PreStops(Mutex<BTreeSet<ContainerId>>);

impl PreStops {
    fn with<T>(&self, change: impl FnOnce(&mut BTreeSet<ContainerId>) -> T) -> T {
        // A panic elsewhere leaves the set whole: every change is a single step.
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn has(&self, id: &ContainerId) -> bool {
        self.with(|had| had.contains(id))
    }

    pub(super) fn add(&self, id: ContainerId) {
        self.with(|had| had.insert(id));
    }

    /// Keeps only containers that still exist.
    pub(super) fn retain(&self, exists: impl Fn(&ContainerId) -> bool) {
        self.with(|had| had.retain(|id| exists(id)));
    }
}
