//! Resizes: what was asked for, what waits, and how long the work takes.

use prometheus::{HistogramVec, IntCounterVec, IntGauge, IntGaugeVec};
use rubelet_ports::Meters;

use super::Census;

/// Upstream's: from 10 ms to 10 minutes.
const DURATION_BUCKETS_MS: [f64; 14] = [
    10.0, 50.0, 100.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 20_000.0, 30_000.0, 60_000.0, 120_000.0,
    300_000.0, 600_000.0,
];
const DEFERRED_BUCKETS: [f64; 16] = [
    5.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 150.0, 180.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0,
];

#[derive(Debug)]
pub(crate) struct ResizeMetrics {
    /// By resource, `requests` or `limits`, and how it changes.
    pub(crate) requested: IntCounterVec,
    /// By `true` or `false`.
    pub(crate) durations: HistogramVec,
    pub(crate) infeasible: IntCounterVec,
    /// By what made room.
    pub(crate) deferred_accepted: IntCounterVec,
    /// By how the wait ended and by priority.
    pub(crate) deferred_durations: HistogramVec,
    /// By reason and priority.
    pub(super) pending: IntGaugeVec,
    pub(super) in_progress: IntGauge,
}

impl ResizeMetrics {
    pub(super) fn register(meters: Meters<'_>) -> prometheus::Result<Self> {
        Ok(Self {
            requested: meters.counters(
                "kubelet_container_requested_resizes_total",
                &["resource", "requirement", "operation"],
                "[ALPHA] Changes of containers' resources that were asked for, by the number that changes and how.",
            )?,
            durations: meters.histograms(
                "kubelet_pod_resize_duration_milliseconds",
                &["success"],
                &DURATION_BUCKETS_MS,
                "[ALPHA] Milliseconds that giving a pod its new resources took.",
            )?,
            pending: meters.gauges(
                "kubelet_pod_pending_resizes",
                &["reason", "priority_bucket"],
                "[ALPHA] Pods whose resize waits, by reason and priority.",
            )?,
            infeasible: meters.counters(
                "kubelet_pod_infeasible_resizes_total",
                &["reason_detail"],
                "[ALPHA] Resizes that this node can never carry out, by reason.",
            )?,
            in_progress: meters.gauge(
                "kubelet_pod_in_progress_resizes",
                "[ALPHA] Pods that do not have the resources yet that are allocated to them.",
            )?,
            deferred_accepted: meters.counters(
                "kubelet_pod_deferred_accepted_resizes_total",
                &["retry_trigger"],
                "[ALPHA] Resizes that were accepted after they had waited, by what made room.",
            )?,
            deferred_durations: meters.histograms(
                "kubelet_pod_deferred_resize_duration_seconds",
                &["resolution", "priority_bucket"],
                &DEFERRED_BUCKETS,
                "[ALPHA] Seconds that resizes waited, by how the wait ended and by priority.",
            )?,
        })
    }
}

impl ResizeMetrics {
    pub(crate) fn show(&self, census: &Census) {
        self.in_progress.set(signed(census.resizes_in_progress));
        self.pending.reset();
        for ((reason, bucket), count) in &census.pending_resizes {
            self.pending
                .with_label_values(&[reason, bucket])
                .set(signed(*count));
        }
    }
}

fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Upstream's name for a range of priorities.
pub(crate) fn priority_bucket(priority: Option<i32>) -> &'static str {
    match priority.unwrap_or_default() {
        2_000_000_000.. => "system-critical",
        100_000.. => "high",
        1.. => "medium",
        0 => "normal",
        -999..0 => "low",
        _ => "very-low",
    }
}
