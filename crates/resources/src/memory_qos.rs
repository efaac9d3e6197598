//! Memory protection and throttling on cgroup v2.
//!
//! Owns `memory.min`, `memory.low` and `memory.high` of containers and pods.

use rubelet_model::pod::QosClass;

use std::collections::BTreeMap;

use crate::amounts::MEMORY;
use crate::demand::{ContainerDemand, Overhead, PodDemand};
use crate::qos::qos_class;
use crate::rules::{NodeFacts, Rules};

pub const MIN: &str = "memory.min";
pub const LOW: &str = "memory.low";
pub const HIGH: &str = "memory.high";
pub const OOM_GROUP: &str = "memory.oom.group";
pub const UNLIMITED: &str = "max";

/// Guaranteed memory is never taken back, Burstable memory is taken last.
pub(crate) fn protection(class: QosClass) -> &'static str {
    match class {
        QosClass::Guaranteed => MIN,
        QosClass::Burstable | QosClass::BestEffort => LOW,
    }
}

/// Where throttling starts: between request and limit by the factor, on a page boundary; `None` when that is not above the request.
pub fn throttle_at_bytes(request: i64, limit: i64, factor: f64, page_size_bytes: i64) -> Option<i64> {
    let between = request as f64 + (limit as f64 - request as f64) * factor;
    // Upstream divides the rounded number by the page size and cuts the rest off.
    let pages = between.floor() / page_size_bytes as f64;
    let high = (pages as i64).wrapping_mul(page_size_bytes);
    (high != 0 && high > request).then_some(high)
}

/// The values of a container's cgroup.
pub(crate) fn container_values(
    demand: &PodDemand,
    container: &ContainerDemand,
    rules: &Rules,
    facts: &NodeFacts,
) -> BTreeMap<String, String> {
    let request = container.resources.requests.value(MEMORY);
    let limit = container.resources.limits.value(MEMORY);
    let mut values = BTreeMap::new();
    let mut set = |key: &str, value: i64| values.insert(key.to_owned(), value.to_string());
    if request != 0 && rules.is_tiered() {
        set(protection(qos_class(demand, rules)), request);
    } else {
        set(MIN, 0);
        set(LOW, 0);
    }
    // The pod's own cgroup throttles a container that has no limit of its own.
    let pod_throttles = limit == 0
        && demand
            .effective_pod_level(rules)
            .is_some_and(|pod_level| !pod_level.limits.is_zero(MEMORY));
    let is_fixed = request == limit && request != 0;
    if let Some(factor) = rules.memory_throttling_factor
        && !pod_throttles
        && !is_fixed
    {
        let bound = if limit == 0 {
            facts.allocatable.value(MEMORY)
        } else {
            limit
        };
        let is_known = limit != 0 || bound > 0;
        if let Some(high) = is_known
            .then(|| throttle_at_bytes(request, bound, factor, facts.page_size_bytes))
            .flatten()
        {
            set(HIGH, high);
        }
    }
    values
}

/// The pod cgroup's `memory.high`, when the pod has resources of its own and a limit in sum.
pub(crate) fn pod_high(demand: &PodDemand, rules: &Rules, facts: &NodeFacts) -> Option<i64> {
    let factor = rules.memory_throttling_factor?;
    let pod_level = demand.effective_pod_level(rules)?;
    let is_bounded = !pod_level.limits.is_zero(MEMORY)
        || demand
            .started_containers()
            .all(|container| !container.resources.limits.is_zero(MEMORY));
    if !is_bounded {
        return None;
    }
    let request = demand.requests(rules, Overhead::Included).value(MEMORY);
    let limit = demand.limits(rules, Overhead::Included).value(MEMORY);
    if limit == 0 || request == limit {
        return None;
    }
    throttle_at_bytes(request, limit, factor, facts.page_size_bytes).filter(|high| *high > 0)
}
