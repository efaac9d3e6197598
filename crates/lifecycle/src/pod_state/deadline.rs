//! The active deadline: how long a pod may be active on a node.
//!
//! Owns the comparison. What follows from it is decided by the state machine and by the status.

use k8s_openapi::api::core::v1::Pod;
use rubelet_model::{Timestamp, period};

pub const DEADLINE_REASON: &str = "DeadlineExceeded";
pub const DEADLINE_MESSAGE: &str = "Pod was active on the node longer than the specified deadline";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActiveDeadline {
    /// The pod has none, or has not started.
    None,
    At(Timestamp),
    Passed,
}

/// `started_at` is `status.startTime` as the node knows it.
#[must_use]
pub fn active_deadline(pod: &Pod, started_at: Option<Timestamp>, now: Timestamp) -> ActiveDeadline {
    let allowed = pod.spec.as_ref().and_then(|spec| spec.active_deadline_seconds);
    let (Some(allowed), Some(started_at)) = (allowed, started_at) else {
        return ActiveDeadline::None;
    };
    let deadline = started_at.plus(period(allowed));
    if now >= deadline {
        ActiveDeadline::Passed
    } else {
        ActiveDeadline::At(deadline)
    }
}
