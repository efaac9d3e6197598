//! How critical a pod is to its node.

use k8s_openapi::api::core::v1::Pod;

use super::{is_mirror_pod, is_static_pod};

/// The priority class of pods that the node itself needs, and its priority.
pub const SYSTEM_NODE_CRITICAL: &str = "system-node-critical";
pub const SYSTEM_NODE_CRITICAL_PRIORITY: i32 = 2_000_001_000;
/// Pods of at least this priority are critical.
pub const SYSTEM_CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// Upstream's three levels. Static and mirror pods are critical whatever their priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Importance {
    #[default]
    Ordinary,
    Critical,
    NodeCritical,
}

impl Importance {
    #[must_use]
    pub fn of(pod: &Pod) -> Self {
        let spec = pod.spec.as_ref();
        let has_priority = spec
            .and_then(|spec| spec.priority)
            .is_some_and(|priority| priority >= SYSTEM_CRITICAL_PRIORITY);
        let class = spec.and_then(|spec| spec.priority_class_name.as_deref());
        match is_static_pod(pod) || is_mirror_pod(pod) || has_priority {
            false => Self::Ordinary,
            true if class == Some(SYSTEM_NODE_CRITICAL) => Self::NodeCritical,
            true => Self::Critical,
        }
    }

    #[must_use]
    pub fn is_critical(self) -> bool {
        self >= Self::Critical
    }
}
