//! The order in which resizes that wait are judged, and what makes them be judged again.
//!
//! Owns upstream's order: what takes nothing first, then by priority, then Guaranteed pods, then what waits longest.

use std::cmp::Reverse;

use rubelet_model::Timestamp;
use rubelet_model::observation::PodUid;

/// What may have made room for a resize, with upstream's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trigger {
    PodsAdded,
    PodUpdated,
    PodsRemoved,
    PodTerminated,
    /// Another pod got less.
    PodResized,
    Periodic,
}

impl Trigger {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PodsAdded => "pods_added",
            Self::PodUpdated => "pod_updated",
            Self::PodsRemoved => "pods_removed",
            Self::PodTerminated => "pod_terminated",
            Self::PodResized => "pod_resized",
            Self::Periodic => "periodic_retry",
        }
    }
}

/// A resize that waits to be judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingResize {
    pub uid: PodUid,
    /// Whether the pod as a whole requests more CPU or memory than is allocated to it.
    pub is_increasing: bool,
    pub priority: i32,
    pub is_guaranteed: bool,
    /// Since when its condition shows that it waits; `None` before it was judged.
    pub since: Option<Timestamp>,
}

/// The pods in the order in which they are judged.
#[must_use]
pub fn in_order(mut pending: Vec<PendingResize>) -> Vec<PodUid> {
    // What was not judged yet has waited least.
    pending.sort_by_key(|one| {
        (
            one.is_increasing,
            Reverse(one.priority),
            !one.is_guaranteed,
            one.since.is_none(),
            one.since,
        )
    });
    pending.into_iter().map(|one| one.uid).collect()
}
