//! How many pods were evicted and on how old figures, under upstream's names.

use std::time::Duration;

use prometheus::{DEFAULT_BUCKETS, HistogramVec, IntCounterVec, Registry};
use rubelet_ports::Meters;

const SIGNAL: &str = "eviction_signal";

#[derive(Clone, Debug)]
pub struct EvictionMetrics {
    evictions: IntCounterVec,
    ages: HistogramVec,
}

impl EvictionMetrics {
    /// Makes the metrics and registers them.
    ///
    /// # Errors
    /// When the registry has metrics of these names already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let meters = Meters::new(registry);
        Ok(Self {
            evictions: meters.counters(
                "kubelet_evictions",
                &[SIGNAL],
                "[ALPHA] Pods that were evicted, by the signal that was short or the limit that they exceeded.",
            )?,
            ages: meters.histograms(
                "kubelet_eviction_stats_age_seconds",
                &[SIGNAL],
                DEFAULT_BUCKETS,
                "[ALPHA] How old the readings were on which a pod was evicted, by signal.",
            )?,
        })
    }

    pub(crate) fn evicted(&self, signal: &str) {
        self.evictions.with_label_values(&[signal]).inc();
    }

    pub(crate) fn show_age(&self, signal: &str, age: Duration) {
        let ages = self.ages.with_label_values(&[signal]);
        ages.observe(age.as_secs_f64());
    }
}
