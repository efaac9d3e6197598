//! What containers that have to stop were already told: a stop that is begun again, as with a shorter grace period or because the
//! pod ends meanwhile, runs no hook twice and gives nobody more time than was said before.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use rubelet_model::observation::ContainerId;

#[derive(Clone, Copy, Default)]
struct Farewell {
    had_hook: bool,
    grace_seconds: Option<i64>,
}

/// The lock is held for a few instructions, never across an await.
#[derive(Default)]
pub(crate) struct Farewells(Mutex<BTreeMap<ContainerId, Farewell>>);

impl Farewells {
    fn with<T>(&self, change: impl FnOnce(&mut BTreeMap<ContainerId, Farewell>) -> T) -> T {
        // A panic elsewhere leaves the map whole: every change is a single step.
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn had_hook(&self, id: &ContainerId) -> bool {
        self.with(|told| told.get(id).is_some_and(|one| one.had_hook))
    }

    pub(super) fn note_hook(&self, id: &ContainerId) {
        self.with(|told| told.entry(id.clone()).or_default().had_hook = true);
    }

    /// The grace period to say now: the one asked for, or a shorter one that was said before.
    pub(super) fn shrink(&self, id: &ContainerId, asked_seconds: i64) -> i64 {
        self.with(|told| {
            let said = &mut told.entry(id.clone()).or_default().grace_seconds;
            *said.insert(said.map_or(asked_seconds, |said| said.min(asked_seconds)))
        })
    }

    /// Keeps only containers that still exist.
    pub(super) fn retain(&self, exists: impl Fn(&ContainerId) -> bool) {
        self.with(|told| told.retain(|id, _| exists(id)));
    }
}
