//! What the agent counts, under upstream's names.
//!
//! Owns the metrics of pods on their way: jobs, starts, the observer, admission, hooks. They live in the registry that the
//! program passes in; there is nothing global. What can be counted at any time (how many pods there are) is not kept up to
//! date here but counted when the page is read: see [`CensusMetrics`].

mod census;
mod observer;
mod resizes;
mod starts;

use prometheus::{
    DEFAULT_BUCKETS, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, Registry,
    exponential_buckets,
};
use rubelet_ports::Meters;

pub(crate) use census::{Census, CensusMetrics};
pub(crate) use observer::ObserverMetrics;
pub(crate) use resizes::{ResizeMetrics, priority_bucket};
pub(crate) use starts::{StartMetrics, container_type};

/// Everything that the agent counts.
#[derive(Debug)]
pub struct AgentMetrics {
    pub(crate) jobs: JobMetrics,
    pub(crate) starts: StartMetrics,
    pub(crate) observer: ObserverMetrics,
    pub(crate) admission: AdmissionMetrics,
    pub(crate) hooks: HookMetrics,
    pub(crate) resizes: ResizeMetrics,
    pub(crate) census: CensusMetrics,
    /// Of the last search of the whole node.
    pub(crate) orphans_cleaned: IntGauge,
    pub(crate) orphans_kept: IntGauge,
    /// Ours alone.
    pub(crate) refused_statuses: IntCounter,
}

impl AgentMetrics {
    /// Makes the metrics and registers them.
    ///
    /// # Errors
    /// When the registry has metrics of these names already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let meters = Meters::new(registry);
        Ok(Self {
            jobs: JobMetrics::register(meters)?,
            starts: StartMetrics::register(meters)?,
            observer: ObserverMetrics::register(meters)?,
            admission: AdmissionMetrics::register(meters)?,
            hooks: HookMetrics::register(meters)?,
            resizes: ResizeMetrics::register(meters)?,
            census: CensusMetrics::register(meters)?,
            orphans_cleaned: meters.gauge(
                "kubelet_orphan_pod_cleaned_volumes",
                "[ALPHA] Pods that nobody knows whose directories the last search of the node had to clean up.",
            )?,
            orphans_kept: meters.gauge(
                "kubelet_orphan_pod_cleaned_volumes_errors",
                "[ALPHA] Pods that nobody knows whose directories the last search of the node could not remove.",
            )?,
            refused_statuses: meters.counter(
                "rubelet_pod_status_transitions_dropped_total",
                "[ALPHA] Changes of a pod's status that may not happen and were dropped.",
            )?,
        })
    }
}

/// Work on pods.
#[derive(Debug)]
pub(crate) struct JobMetrics {
    /// By what the work was: `create`, `update`, `sync`, `kill`, `terminated`.
    pub(crate) durations: HistogramVec,
    /// From the source's first word of a pod to its first job.
    pub(crate) first_delays: Histogram,
    pub(crate) containers_per_pod: Histogram,
    pub(crate) orphans: IntCounter,
    pub(crate) restarts: IntCounterVec,
}

impl JobMetrics {
    fn register(meters: Meters<'_>) -> prometheus::Result<Self> {
        let metrics = Self {
            durations: meters.histograms(
                "kubelet_pod_worker_duration_seconds",
                &["operation_type"],
                DEFAULT_BUCKETS,
                "[ALPHA] Duration of one piece of work on one pod in seconds, by what it was.",
            )?,
            first_delays: meters.histogram(
                "kubelet_pod_worker_start_duration_seconds",
                DEFAULT_BUCKETS,
                "[ALPHA] Seconds from first hearing of a pod to the begin of work on it.",
            )?,
            containers_per_pod: meters.histogram(
                "kubelet_containers_per_pod_count",
                &exponential_buckets(1.0, 2.0, 5)?,
                "[ALPHA] Containers of the pods that work began on.",
            )?,
            orphans: meters.counter(
                "kubelet_orphaned_runtime_pods_total",
                "[ALPHA] Pods that were found in the runtime and that nobody wants.",
            )?,
            restarts: meters.counters(
                "kubelet_restarted_pods_total",
                &["static"],
                "[ALPHA] Pods that came again with the UID of one that had ended.",
            )?,
        };
        for is_static in [false, true] {
            metrics.restarts.with_label_values(&[static_label(is_static)]);
        }
        Ok(metrics)
    }
}

/// Letting pods in.
#[derive(Debug)]
pub(crate) struct AdmissionMetrics {
    rejections: IntCounterVec,
    /// Pods that had to end, by the resource that was short.
    pub(crate) preemptions: IntCounterVec,
    pub(crate) resource_levels: IntCounterVec,
}

impl AdmissionMetrics {
    fn register(meters: Meters<'_>) -> prometheus::Result<Self> {
        Ok(Self {
            rejections: meters.counters(
                "kubelet_admission_rejections_total",
                &["reason"],
                "[ALPHA] Pods that were not let in, by reason.",
            )?,
            preemptions: meters.counters(
                "kubelet_preemptions",
                &["preemption_signal"],
                "[ALPHA] Pods that had to make room for a critical one, by the resource that was short.",
            )?,
            resource_levels: meters.counters(
                "kubelet_pod_level_resources_admission_total",
                &["config_mode", "qos_class"],
                "[ALPHA] Pods that were let in, by where they say what they need and by their QoS class.",
            )?,
        })
    }

    /// Reasons that are not upstream's count together, because plugins could make up any number of them.
    pub(crate) fn rejected(&self, reason: &str) {
        const KNOWN: [&str; 21] = [
            "AppArmor",
            "PodOSSelectorNodeLabelDoesNotMatch",
            "PodOSNotSupported",
            "InvalidNodeInfo",
            "InitContainerRestartPolicyForbidden",
            "SupplementalGroupsPolicyNotSupported",
            "UnexpectedAdmissionError",
            "UnknownReason",
            "UnexpectedPredicateFailureType",
            "OutOfcpu",
            "OutOfmemory",
            "OutOfephemeral-storage",
            "OutOfpods",
            "PodLevelResourcesNotSupported",
            "PodFeatureUnsupported",
            "node(s) had taints that the pod didn't tolerate",
            "Evicted",
            "SysctlForbidden",
            "TopologyAffinityError",
            "NodeShutdown",
            "VolumeAttachmentLimitExceeded",
        ];
        let label = match reason {
            known if KNOWN.contains(&known) => known,
            other if other.starts_with("OutOf") => "OutOfExtendedResources",
            _ => "Other",
        };
        self.rejections.with_label_values(&[label]).inc();
    }
}

/// Lifecycle hooks.
#[derive(Debug)]
pub(crate) struct HookMetrics {
    pub(crate) http_fallbacks: IntCounter,
    pub(crate) sleeps_cut_short: IntCounter,
}

impl HookMetrics {
    fn register(meters: Meters<'_>) -> prometheus::Result<Self> {
        Ok(Self {
            http_fallbacks: meters.counter(
                "kubelet_lifecycle_handler_http_fallbacks_total",
                "[ALPHA] Hooks over HTTPS that were answered in plain HTTP and succeeded there.",
            )?,
            sleeps_cut_short: meters.counter(
                "kubelet_sleep_action_terminated_early_total",
                "[ALPHA] Sleep hooks that were over before their time.",
            )?,
        })
    }
}

/// How upstream spells whether a pod is static.
pub(crate) fn static_label(is_static: bool) -> &'static str {
    if is_static { "true" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_of_our_own_and_of_plugins_count_together() {
        let metrics =
            AdmissionMetrics::register(Meters::new(&Registry::new())).expect("an empty registry takes them");
        let check = |reason: &str, label: &str| {
            let before = metrics.rejections.with_label_values(&[label]).get();
            metrics.rejected(reason);
            let after = metrics.rejections.with_label_values(&[label]).get();
            assert_eq!(after, before + 1, "{reason}");
        };
        check("OutOfcpu", "OutOfcpu");
        check("OutOfexample.com/gpu", "OutOfExtendedResources");
        check("NotSupported", "Other");
        check("SysctlForbidden", "SysctlForbidden");
    }
}
