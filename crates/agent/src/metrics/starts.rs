//! Starts and ends: of pods, of their containers, and how long pods take to run.

use prometheus::{Gauge, Histogram, IntCounter, IntCounterVec};
use rubelet_model::observation::ContainerKind;
use rubelet_ports::Meters;

/// Upstream's: round numbers of everyday units.
const POD_START_BUCKETS: [f64; 25] = [
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0,
    480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];

#[derive(Debug)]
pub(crate) struct StartMetrics {
    pub(crate) pods: IntCounter,
    pub(crate) pod_errors: IntCounter,
    pub(crate) pods_with_own_users: IntCounter,
    pub(crate) pod_errors_with_own_users: IntCounter,
    pub(crate) containers: IntCounterVec,
    pub(crate) container_errors: IntCounterVec,
    pub(crate) container_ends: IntCounterVec,
    pub(crate) image_volumes: ImageVolumeMetrics,
    /// From the first word of a pod on this node to its running.
    pub(crate) durations: Histogram,
    /// From its creation to the API server showing it as running, less what users answer for.
    pub(crate) sli_durations: Histogram,
    pub(crate) total_durations: Histogram,
    pub(crate) first_network_pod: Gauge,
}

#[derive(Debug)]
pub(crate) struct ImageVolumeMetrics {
    pub(crate) requested: IntCounter,
    pub(crate) mounted: IntCounter,
    pub(crate) failed: IntCounter,
}

impl StartMetrics {
    pub(super) fn register(meters: Meters<'_>) -> prometheus::Result<Self> {
        let histogram = |name: &str, help: &str| meters.histogram(name, &POD_START_BUCKETS, help);
        Ok(Self {
            pods: meters.counter(
                "kubelet_started_pods_total",
                "[ALPHA] Sandboxes that the runtime was asked for.",
            )?,
            pod_errors: meters.counter(
                "kubelet_started_pods_errors_total",
                "[ALPHA] Sandboxes that could not be had.",
            )?,
            pods_with_own_users: meters.counter(
                "kubelet_started_user_namespaced_pods_total",
                "[ALPHA] Sandboxes that the runtime was asked for, of pods with users of their own.",
            )?,
            pod_errors_with_own_users: meters.counter(
                "kubelet_started_user_namespaced_pods_errors_total",
                "[ALPHA] Sandboxes that could not be had, of pods with users of their own.",
            )?,
            containers: meters.counters(
                "kubelet_started_containers_total",
                &["container_type"],
                "[ALPHA] Starts of containers that were begun, by their part in the pod.",
            )?,
            container_errors: meters.counters(
                "kubelet_started_containers_errors_total",
                &["container_type", "code"],
                "[ALPHA] Starts of containers that failed, by their part in the pod and by what went wrong.",
            )?,
            container_ends: meters.counters(
                "kubelet_terminated_containers_total",
                &["container_type", "exit_code", "reason"],
                "[ALPHA] Containers that ended, by their part in the pod and by how they ended.",
            )?,
            image_volumes: ImageVolumeMetrics {
                requested: meters.counter(
                    "kubelet_image_volume_requested_total",
                    "[BETA] Image volumes that containers were started with.",
                )?,
                mounted: meters.counter(
                    "kubelet_image_volume_mounted_succeed_total",
                    "[BETA] Image volumes that were mounted.",
                )?,
                failed: meters.counter(
                    "kubelet_image_volume_mounted_errors_total",
                    "[BETA] Image volumes that the runtime could not mount.",
                )?,
            },
            durations: histogram(
                "kubelet_pod_start_duration_seconds",
                "[ALPHA] Seconds from first hearing of a pod to its running.",
            )?,
            sli_durations: histogram(
                "kubelet_pod_start_sli_duration_seconds",
                "[ALPHA] Seconds from the creation of a pod to all its containers showing as started, \
                 without the time of pulls and of init containers.",
            )?,
            total_durations: histogram(
                "kubelet_pod_start_total_duration_seconds",
                "[ALPHA] Seconds from the creation of a pod to all its containers showing as started.",
            )?,
            first_network_pod: meters.fine_gauge(
                "kubelet_first_network_pod_start_sli_duration_seconds",
                "[INTERNAL] Seconds from the creation of the first pod with a network of its own to all its containers \
                 showing as started, without the time of pulls and of init containers.",
            )?,
        })
    }
}

/// Upstream's word for a container's part. Sidecars are init containers.
pub(crate) fn container_type(kind: ContainerKind) -> &'static str {
    match kind {
        ContainerKind::Init | ContainerKind::Sidecar => "init_container",
        ContainerKind::Regular => "container",
        ContainerKind::Ephemeral => "ephemeral_container",
    }
}
