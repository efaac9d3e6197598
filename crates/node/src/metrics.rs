//! How long the node took to register and become ready, under upstream's names.
//!
//! Owns the five gauges and what they are computed from. They live in the registry that the program passes in; there is nothing
//! global. Only a node that is new to its cluster is measured, and only once.

use prometheus::{Gauge, Registry};
use rubelet_model::Timestamp;
use rubelet_ports::Meters;

/// When things began, on the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beginnings {
    /// Of the machine; unknown in some sandboxes.
    pub booted_at: Option<Timestamp>,
    /// Of this program.
    pub started_at: Timestamp,
}

#[derive(Clone, Debug)]
pub struct NodeMetrics {
    before_program: Gauge,
    before_registration: Gauge,
    registration: Gauge,
    after_registration: Gauge,
    total: Gauge,
    beginnings: Beginnings,
}

impl NodeMetrics {
    /// Makes the metrics and registers them.
    ///
    /// # Errors
    /// When the registry has metrics of these names already.
    pub fn register(registry: &Registry, beginnings: Beginnings) -> prometheus::Result<Self> {
        let meters = Meters::new(registry);
        Ok(Self {
            before_program: meters.fine_gauge(
                "kubelet_node_startup_pre_kubelet_duration_seconds",
                "[ALPHA] Seconds from the machine's boot to the start of this program.",
            )?,
            before_registration: meters.fine_gauge(
                "kubelet_node_startup_pre_registration_duration_seconds",
                "[ALPHA] Seconds from the start of this program to its first try to register the node.",
            )?,
            registration: meters.fine_gauge(
                "kubelet_node_startup_registration_duration_seconds",
                "[ALPHA] Seconds from the first try to register the node to its being registered.",
            )?,
            after_registration: meters.fine_gauge(
                "kubelet_node_startup_post_registration_duration_seconds",
                "[ALPHA] Seconds from the node's registration to its being ready.",
            )?,
            total: meters.fine_gauge(
                "kubelet_node_startup_duration_seconds",
                "[ALPHA] Seconds from the machine's boot to the node's being ready.",
            )?,
            beginnings,
        })
    }
}

/// The start of one node, step by step.
#[derive(Debug)]
pub(crate) struct MeasuredStart {
    metrics: NodeMetrics,
    tried_at: Option<Timestamp>,
    registered_at: Option<Timestamp>,
    is_ready: bool,
}

impl MeasuredStart {
    pub(crate) fn new(metrics: NodeMetrics) -> Self {
        Self {
            metrics,
            tried_at: None,
            registered_at: None,
            is_ready: false,
        }
    }

    pub(crate) fn tries(&mut self, now: Timestamp) {
        self.tried_at.get_or_insert(now);
    }

    /// The API server had no Node of this name before.
    pub(crate) fn is_registered(&mut self, now: Timestamp) {
        let (Some(tried_at), None) = (self.tried_at, self.registered_at) else {
            return;
        };
        self.registered_at = Some(now);
        let Beginnings {
            booted_at,
            started_at,
        } = self.metrics.beginnings;
        if let Some(booted_at) = booted_at {
            set(&self.metrics.before_program, booted_at, started_at);
        }
        set(&self.metrics.before_registration, started_at, tried_at);
        set(&self.metrics.registration, tried_at, now);
    }

    pub(crate) fn is_ready(&mut self, now: Timestamp) {
        let Some(registered_at) = self.registered_at.filter(|_| !self.is_ready) else {
            return;
        };
        self.is_ready = true;
        set(&self.metrics.after_registration, registered_at, now);
        if let Some(booted_at) = self.metrics.beginnings.booted_at {
            set(&self.metrics.total, booted_at, now);
        }
    }
}

fn set(gauge: &Gauge, from: Timestamp, to: Timestamp) {
    gauge.set(to.since(from).as_secs_f64());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_unix_seconds(seconds)
    }

    fn metrics(booted_at: Option<Timestamp>) -> NodeMetrics {
        let beginnings = Beginnings {
            booted_at,
            started_at: at(30),
        };
        NodeMetrics::register(&Registry::new(), beginnings).expect("an empty registry takes them")
    }

    fn shown(metrics: &NodeMetrics) -> [f64; 5] {
        [
            metrics.before_program.get(),
            metrics.before_registration.get(),
            metrics.registration.get(),
            metrics.after_registration.get(),
            metrics.total.get(),
        ]
    }

    #[test]
    fn every_step_is_measured_once() {
        let metrics = metrics(Some(at(0)));
        let mut start = MeasuredStart::new(metrics.clone());
        start.tries(at(31));
        start.tries(at(33));
        start.is_registered(at(35));
        start.is_registered(at(99));
        start.is_ready(at(42));
        start.is_ready(at(99));
        assert_eq!(shown(&metrics), [30.0, 1.0, 4.0, 7.0, 42.0]);
    }

    #[test]
    fn a_node_that_was_there_is_not_measured() {
        let metrics = metrics(Some(at(0)));
        let mut start = MeasuredStart::new(metrics.clone());
        start.tries(at(31));
        start.is_ready(at(42));
        assert_eq!(shown(&metrics), [0.0; 5]);
    }

    #[test]
    fn without_a_boot_time_there_is_no_total() {
        let metrics = metrics(None);
        let mut start = MeasuredStart::new(metrics.clone());
        start.tries(at(31));
        start.is_registered(at(35));
        start.is_ready(at(42));
        assert_eq!(shown(&metrics), [0.0, 1.0, 4.0, 7.0, 0.0]);
    }
}
