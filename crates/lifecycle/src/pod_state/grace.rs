//! The grace period of a pod that ends.
//!
//! Owns one rule: whatever is asked later, it only gets shorter, and it is never below one second.

use std::time::Duration;

use rubelet_model::{MAX_PERIOD_SECONDS, period};

use super::PodFacts;

pub const MIN_GRACE_SECONDS: i64 = 1;

/// How long the end of an orphan may take.
pub(super) const ORPHAN_GRACE_SECONDS: i64 = 1;

/// The shortest of the previous grace period, the deletion's and the requested one; the pod's own value where none is given.
#[must_use]
pub fn effective_grace_seconds(previous: Option<i64>, pod: &PodFacts, requested: Option<i64>) -> i64 {
    [previous, pod.deletion_grace_seconds, requested]
        .into_iter()
        .flatten()
        .min()
        .or(pod.termination_grace_seconds)
        .unwrap_or(MIN_GRACE_SECONDS)
        .clamp(MIN_GRACE_SECONDS, MAX_PERIOD_SECONDS)
}

/// How long the requester of a kill waits for its answer, before an `ExceededGracePeriod` event.
#[must_use]
pub fn kill_timeout(grace_seconds: i64) -> Duration {
    let seconds = grace_seconds.max(0);
    period(seconds.saturating_add(seconds / 2).max(10))
}
