//! Sandboxes that the runtime cannot remove.
//!
//! Owns when each of them is tried again, with growing gaps, and what went wrong at the last try.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rubelet_model::Timestamp;
use rubelet_model::observation::{PodUid, SandboxId};
use rubelet_ports::{Clock, Moment};

use super::GarbageError;

const FIRST_GAP: Duration = Duration::from_secs(60);
const LAST_GAP: Duration = Duration::from_secs(300);

/// A sandbox whose removal fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StuckSandbox {
    pub(crate) pod: PodUid,
    pub(crate) since: Timestamp,
    pub(crate) problem: GarbageError,
    gap: Duration,
    next_try: Moment,
}

#[derive(Default)]
pub(super) struct StuckSandboxes {
    // Held for a few instructions, never across an await.
    by_id: Mutex<BTreeMap<SandboxId, StuckSandbox>>,
}

impl StuckSandboxes {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<SandboxId, StuckSandbox>> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last problem of a sandbox that is not to be tried again yet.
    pub(super) fn not_yet(&self, id: &SandboxId, now: Moment) -> Option<GarbageError> {
        let by_id = self.lock();
        let stuck = by_id.get(id).filter(|stuck| now < stuck.next_try)?;
        Some(stuck.problem.clone())
    }

    pub(super) fn failed(&self, id: &SandboxId, pod: &PodUid, problem: &GarbageError, clock: &dyn Clock) {
        let mut by_id = self.lock();
        let known = by_id.get(id);
        let gap = known.map_or(FIRST_GAP, |stuck| (stuck.gap * 2).min(LAST_GAP));
        let stuck = StuckSandbox {
            pod: pod.clone(),
            since: known.map_or_else(|| clock.now(), |stuck| stuck.since),
            problem: problem.clone(),
            gap,
            next_try: clock.moment().plus(gap),
        };
        by_id.insert(id.clone(), stuck);
    }

    pub(super) fn removed(&self, id: &SandboxId) {
        self.lock().remove(id);
    }

    /// Forgets what the runtime does not have any more.
    pub(super) fn keep(&self, found: &BTreeSet<&SandboxId>) {
        self.lock().retain(|id, _| found.contains(id));
    }

    pub(super) fn all(&self) -> BTreeMap<SandboxId, StuckSandbox> {
        self.lock().clone()
    }
}
