//! Metric counters of reporting.
//!
//! Owns the counters, the buckets of the delays, and the snapshot of both that the metrics page reads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the delays, in milliseconds, as upstream's `kubelet_pod_status_sync_duration_seconds` has them. One more bucket
/// is for all that is longer.
pub const DELAY_BOUNDS_MILLIS: [u64; 11] = [
    10, 50, 100, 500, 1_000, 5_000, 10_000, 20_000, 30_000, 45_000, 60_000,
];
const BUCKETS: usize = DELAY_BOUNDS_MILLIS.len() + 1;

/// What was done since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportingFigures {
    /// Statuses that the API server took.
    pub statuses_sent: u64,
    /// Looks that found nothing to send.
    pub statuses_unchanged: u64,
    /// Statuses that were overwritten at the API server; part of those sent.
    pub statuses_reconciled: u64,
    pub status_failures: u64,
    pub pods_deleted: u64,
    pub mirrors_created: u64,
    pub mirrors_deleted: u64,
    pub mirror_failures: u64,
    /// From the first report that was not delivered to its delivery; not cumulative.
    pub delays: [u64; BUCKETS],
    pub delays_sum: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) statuses_sent: AtomicU64,
    pub(crate) statuses_unchanged: AtomicU64,
    pub(crate) statuses_reconciled: AtomicU64,
    pub(crate) status_failures: AtomicU64,
    pub(crate) pods_deleted: AtomicU64,
    pub(crate) mirrors_created: AtomicU64,
    pub(crate) mirrors_deleted: AtomicU64,
    pub(crate) mirror_failures: AtomicU64,
    delays: [AtomicU64; BUCKETS],
    delays_micros: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn delivered_after(&self, delay: Duration) {
        let millis = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        let place = DELAY_BOUNDS_MILLIS
            .iter()
            .filter(|bound| **bound < millis)
            .count();
        if let Some(bucket) = self.delays.get(place) {
            count(bucket);
        }
        let micros = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        self.delays_micros.fetch_add(micros, Ordering::Relaxed);
    }

    pub(crate) fn figures(&self) -> ReportingFigures {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ReportingFigures {
            statuses_sent: read(&self.statuses_sent),
            statuses_unchanged: read(&self.statuses_unchanged),
            statuses_reconciled: read(&self.statuses_reconciled),
            status_failures: read(&self.status_failures),
            pods_deleted: read(&self.pods_deleted),
            mirrors_created: read(&self.mirrors_created),
            mirrors_deleted: read(&self.mirrors_deleted),
            mirror_failures: read(&self.mirror_failures),
            delays: self.delays.each_ref().map(read),
            delays_sum: Duration::from_micros(read(&self.delays_micros)),
        }
    }
}
