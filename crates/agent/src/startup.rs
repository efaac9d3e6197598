//! Times of a pod's start that its jobs know.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Shared by the sync loop and whichever job of the pod runs.
#[derive(Debug, Default)]
pub(crate) struct StartupTimes {
    pulling_micros: AtomicU64,
}

impl StartupTimes {
    /// Of one pod one pull runs at a time, so that the sum is the time that pulls took.
    pub(crate) fn pulled(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.pulling_micros.fetch_add(micros, Ordering::Relaxed);
    }

    pub(crate) fn pulling(&self) -> Duration {
        Duration::from_micros(self.pulling_micros.load(Ordering::Relaxed))
    }
}
