//! How well the runtime's state is known.

use prometheus::{DEFAULT_BUCKETS, Histogram, IntCounter, IntGauge};
use rubelet_ports::Meters;

#[derive(Debug)]
pub(crate) struct ObserverMetrics {
    pub(crate) relists: Histogram,
    /// From the begin of one list to the begin of the next.
    pub(crate) relist_intervals: Histogram,
    /// In seconds of the wall clock.
    pub(crate) last_relist: IntGauge,
    pub(crate) looks: Histogram,
    /// Streams of events that the runtime gave.
    pub(crate) streams: IntCounter,
    pub(crate) stream_errors: IntCounter,
    /// From an event at the runtime to its arrival.
    pub(crate) event_delays: Histogram,
}

impl ObserverMetrics {
    pub(super) fn register(meters: Meters<'_>) -> prometheus::Result<Self> {
        // Nothing that the observer tells is ever dropped: it stays at zero, for whoever has an alarm on it.
        let _discarded: IntCounter = meters.counter(
            "kubelet_pleg_discard_events",
            "[ALPHA] News of pods that were dropped because nobody took them.",
        )?;
        Ok(Self {
            relists: meters.histogram(
                "kubelet_pleg_relist_duration_seconds",
                DEFAULT_BUCKETS,
                "[ALPHA] Duration of a list of everything that the runtime has in seconds.",
            )?,
            relist_intervals: meters.histogram(
                "kubelet_pleg_relist_interval_seconds",
                DEFAULT_BUCKETS,
                "[ALPHA] Seconds between the begins of two such lists.",
            )?,
            last_relist: meters.gauge(
                "kubelet_pleg_last_seen_seconds",
                "[ALPHA] When the last list of everything that succeeded began, in seconds since 1970.",
            )?,
            looks: meters.histogram(
                "kubelet_pleg_pod_relist_duration_seconds",
                DEFAULT_BUCKETS,
                "[ALPHA] Duration of a look at one pod in seconds.",
            )?,
            streams: meters.counter(
                "kubelet_evented_pleg_connection_success_count",
                "[ALPHA] Streams of container events that the runtime has opened.",
            )?,
            stream_errors: meters.counter(
                "kubelet_evented_pleg_connection_error_count",
                "[ALPHA] Streams of container events that failed or broke.",
            )?,
            event_delays: meters.histogram(
                "kubelet_evented_pleg_connection_latency_seconds",
                DEFAULT_BUCKETS,
                "[ALPHA] Seconds from a container event at the runtime to its arrival.",
            )?,
        })
    }
}
