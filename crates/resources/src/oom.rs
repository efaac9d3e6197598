//! How readily the kernel kills a container when memory runs out.
//!
//! Owns `oom_score_adj` of containers and of node agents.

use rubelet_model::pod::{Importance, QosClass};

use crate::amounts::MEMORY;
use crate::demand::{ContainerDemand, PodDemand};
use crate::qos::qos_class;
use crate::rules::Rules;

pub const KUBELET: i64 = -999;
pub const GUARANTEED: i64 = -997;
pub const BEST_EFFORT: i64 = 1000;

/// The container's `oom_score_adj`. `memory_capacity_bytes` is the machine's.
pub fn score_adjustment(
    demand: &PodDemand,
    container: &ContainerDemand,
    rules: &Rules,
    memory_capacity_bytes: i64,
) -> i64 {
    if demand.importance == Importance::NodeCritical {
        return GUARANTEED;
    }
    match qos_class(demand, rules) {
        QosClass::Guaranteed => GUARANTEED,
        QosClass::BestEffort => BEST_EFFORT,
        QosClass::Burstable => burstable(demand, container, rules, memory_capacity_bytes),
    }
}

/// The more of the machine's memory was requested, the later the container is killed.
fn burstable(demand: &PodDemand, container: &ContainerDemand, rules: &Rules, capacity_bytes: i64) -> i64 {
    let spare = spare_per_container(demand, rules);
    let score = |request: i64| {
        let thousandths = request.wrapping_add(spare).wrapping_mul(1000);
        // Without a known capacity there is no share.
        1000_i64.wrapping_sub(thousandths.checked_div(capacity_bytes).unwrap_or(0))
    };
    let request = |one: &ContainerDemand| one.resources.requests.value(MEMORY);
    let mut adjustment = score(request(container));
    if container.is_sidecar
        && let Some(least) = demand.containers.iter().map(request).min()
    {
        // A sidecar must not die before the containers that it serves.
        adjustment = adjustment.min(score(least));
    }
    if adjustment == BEST_EFFORT {
        return BEST_EFFORT - 1;
    }
    adjustment.max(BEST_EFFORT + GUARANTEED)
}

/// What the pod requests beyond its containers, in equal parts.
fn spare_per_container(demand: &PodDemand, rules: &Rules) -> i64 {
    let Some(pod_level) = demand.effective_pod_level_requests(rules) else {
        return 0;
    };
    let count = demand.started_containers().count();
    if pod_level.is_zero(MEMORY) || count == 0 {
        return 0;
    }
    let used = demand.container_requests().value(MEMORY);
    pod_level.value(MEMORY).wrapping_sub(used).max(0) / count as i64
}
