//! Gauges that count pods, containers and workers when `/metrics` is read.
//!
//! Owns the gauges. The sync loop counts, because it has the pods.

use std::collections::BTreeMap;

use prometheus::{IntGauge, IntGaugeVec};
use rubelet_ports::Meters;

use super::static_label;

/// How far pods are, as upstream calls it.
const LIFECYCLES: [&str; 3] = ["sync", "terminating", "terminated"];
/// Who wants them, and whether they are static.
const CONFIGS: [(&str, &str); 5] = [
    ("desired", ""),
    ("desired", "true"),
    ("orphan", ""),
    ("orphan", "true"),
    ("runtime_only", "unknown"),
];
const CONTAINER_STATES: [&str; 4] = ["created", "running", "exited", "unknown"];

/// One count.
#[derive(Debug, Default)]
pub(crate) struct Census {
    /// With a sandbox that is ready.
    pub(crate) running_pods: usize,
    pub(crate) containers: BTreeMap<&'static str, usize>,
    /// By whether they are static.
    pub(crate) desired: BTreeMap<bool, usize>,
    pub(crate) active: BTreeMap<bool, usize>,
    pub(crate) mirrors: usize,
    /// By lifecycle, configuration and `static`.
    pub(crate) working: BTreeMap<(&'static str, &'static str, &'static str), usize>,
    pub(crate) ephemeral_containers: usize,
    /// Pods whose resize waits, by reason and priority.
    pub(crate) pending_resizes: BTreeMap<(&'static str, &'static str), usize>,
    pub(crate) resizes_in_progress: usize,
}

#[derive(Debug)]
pub(crate) struct CensusMetrics {
    running_pods: IntGauge,
    containers: IntGaugeVec,
    desired: IntGaugeVec,
    active: IntGaugeVec,
    mirrors: IntGauge,
    working: IntGaugeVec,
    ephemeral_containers: IntGauge,
}

impl CensusMetrics {
    pub(super) fn register(meters: Meters<'_>) -> prometheus::Result<Self> {
        Ok(Self {
            running_pods: meters.gauge("kubelet_running_pods", "[ALPHA] Pods whose sandbox is ready.")?,
            containers: meters.gauges(
                "kubelet_running_containers",
                &["container_state"],
                "[ALPHA] Containers that the runtime has, by their state.",
            )?,
            desired: meters.gauges(
                "kubelet_desired_pods",
                &["static"],
                "[ALPHA] Pods that sources want to run here; static ones are not the API server's.",
            )?,
            active: meters.gauges(
                "kubelet_active_pods",
                &["static"],
                "[ALPHA] Pods that have a place on the node or are about to get one.",
            )?,
            mirrors: meters.gauge(
                "kubelet_mirror_pods",
                "[ALPHA] Mirrors of static pods that the API server has.",
            )?,
            working: meters.gauges(
                "kubelet_working_pods",
                &["lifecycle", "config", "static"],
                "[ALPHA] Pods that are worked on, by how far they are and by who wants them.",
            )?,
            ephemeral_containers: meters.gauge(
                "kubelet_managed_ephemeral_containers",
                "[ALPHA] Ephemeral containers in the pods of this node.",
            )?,
        })
    }

    pub(crate) fn show(&self, census: &Census) {
        self.running_pods.set(signed(census.running_pods));
        for state in CONTAINER_STATES {
            let count = census.containers.get(state).copied().unwrap_or_default();
            self.containers.with_label_values(&[state]).set(signed(count));
        }
        for is_static in [false, true] {
            let labels = [static_label(is_static)];
            let of =
                |counts: &BTreeMap<bool, usize>| signed(counts.get(&is_static).copied().unwrap_or_default());
            self.desired.with_label_values(&labels).set(of(&census.desired));
            self.active.with_label_values(&labels).set(of(&census.active));
        }
        self.mirrors.set(signed(census.mirrors));
        for lifecycle in LIFECYCLES {
            for (config, is_static) in CONFIGS {
                let count = census.working.get(&(lifecycle, config, is_static));
                self.working
                    .with_label_values(&[lifecycle, config, is_static])
                    .set(signed(count.copied().unwrap_or_default()));
            }
        }
        self.ephemeral_containers.set(signed(census.ephemeral_containers));
    }
}

fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
