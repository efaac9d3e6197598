//! Who a pod belongs to, as far as the kernel's killer and the swap are concerned.
//!
//! Owns the reading of source, mirror and priority marks. It decides nothing about admission or preemption.

use k8s_openapi::api::core::v1::Pod;

/// Where the kubelet notes which source a pod came from.
pub const SOURCE_ANNOTATION: &str = "kubernetes.io/config.source";
/// The mark of a static pod's image in the API.
pub const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";
/// The source that is not a static one.
pub const API_SOURCE: &str = "api";
pub const SYSTEM_NODE_CRITICAL: &str = "system-node-critical";
/// Priorities from here up are critical.
pub const SYSTEM_CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// Upstream's three steps of how much a pod matters to its node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Importance {
    #[default]
    Ordinary,
    Critical,
    NodeCritical,
}

impl Importance {
    pub fn of(pod: &Pod) -> Self {
        let annotations = pod.metadata.annotations.as_ref();
        let annotation = |key: &str| annotations.and_then(|all| all.get(key));
        let is_static = annotation(SOURCE_ANNOTATION).is_some_and(|source| source != API_SOURCE);
        let is_mirror = annotation(MIRROR_ANNOTATION).is_some();
        let spec = pod.spec.as_ref();
        let has_priority = spec
            .and_then(|spec| spec.priority)
            .is_some_and(|priority| priority >= SYSTEM_CRITICAL_PRIORITY);
        let class = spec.and_then(|spec| spec.priority_class_name.as_deref());
        match is_static || is_mirror || has_priority {
            false => Self::Ordinary,
            true if class == Some(SYSTEM_NODE_CRITICAL) => Self::NodeCritical,
            true => Self::Critical,
        }
    }

    pub fn is_critical(self) -> bool {
        self >= Self::Critical
    }
}
