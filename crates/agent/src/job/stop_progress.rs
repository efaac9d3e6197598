//! How far the stop of each container has come. A stop that begins again, as with a shorter grace period or because the pod ends
//! meanwhile, runs no preStop hook twice and never gives a container a longer grace period than before.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use rubelet_model::observation::ContainerId;
use rubelet_ports::Moment;

#[derive(Clone, Copy, Default)]
struct Progress {
    had_hook: bool,
    grace_seconds: Option<i64>,
    /// With which grace period, and since when, it waits for other containers to end.
    turn: Option<(i64, Moment)>,
}

/// The lock is held for a few instructions, never across an await.
#[derive(Default)]
pub(super) struct StopProgress(Mutex<BTreeMap<ContainerId, Progress>>);

impl StopProgress {
    fn with<T>(&self, change: impl FnOnce(&mut BTreeMap<ContainerId, Progress>) -> T) -> T {
        // A panic elsewhere leaves the map whole: every change is a single step.
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn had_hook(&self, id: &ContainerId) -> bool {
        self.with(|stops| stops.get(id).is_some_and(|one| one.had_hook))
    }

    pub(super) fn note_hook(&self, id: &ContainerId) {
        self.with(|stops| stops.entry(id.clone()).or_default().had_hook = true);
    }

    /// The grace period for the runtime: the requested one, or a shorter one that it got before.
    pub(super) fn shrink(&self, id: &ContainerId, requested_seconds: i64) -> i64 {
        self.with(|stops| {
            let last = &mut stops.entry(id.clone()).or_default().grace_seconds;
            *last.insert(last.map_or(requested_seconds, |last| last.min(requested_seconds)))
        })
    }

    /// Since when the container waits for others. Trying the stop again does not begin the wait anew; another grace period does.
    pub(super) fn begin_turn(&self, id: &ContainerId, grace_seconds: i64, now: Moment) -> Moment {
        self.with(|stops| {
            let turn = &mut stops.entry(id.clone()).or_default().turn;
            let known = turn.filter(|(grace, _)| *grace == grace_seconds);
            turn.insert(known.unwrap_or((grace_seconds, now))).1
        })
    }

    /// Keeps only containers that still exist.
    pub(super) fn retain(&self, exists: impl Fn(&ContainerId) -> bool) {
        self.with(|stops| stops.retain(|id, _| exists(id)));
    }
}
