//! Which pod is evicted when the node runs short of something, and what its users read about it.
//!
//! Owns upstream's ranking for each signal, what is reclaimed before any pod is evicted, the texts of statuses and events, and the
//! limits of local storage. It reads nothing and evicts nothing: figures come as [`PodFigures`], thresholds as
//! [`crate::pressure::Crossing`].

mod figures;
mod local_storage;
mod rank;
mod reclaim;
mod text;

pub use figures::{ContainerFigures, PodFigures, VolumeFigures};
pub use local_storage::{Exceeded, LocalStorageRules, StorageWatch};
pub use rank::{Candidate, DiskParts, DiskResource, Measure, rank};
pub use reclaim::{NodeReclaim, SpaceHolder, node_reclaim, nothing_left};
pub use text::{EvictionText, eviction_text};

/// The reason of an evicted pod's status and event.
pub const EVICTED_REASON: &str = "Evicted";
/// The reason of the node's events about what it reclaims.
pub const THRESHOLD_REASON: &str = "EvictionThresholdMet";
/// The grace period of every eviction but those of soft thresholds.
pub const IMMEDIATE_GRACE_SECONDS: i64 = 1;

/// The grace period of an eviction: short, but for a soft threshold the shorter one of the node's maximum and the pod's own.
#[must_use]
pub fn grace_seconds(is_hard: bool, most_seconds: i64, own_seconds: Option<i64>) -> i64 {
    match (is_hard, own_seconds) {
        (true, _) => IMMEDIATE_GRACE_SECONDS,
        (false, Some(own)) => most_seconds.min(own),
        (false, None) => most_seconds,
    }
}
