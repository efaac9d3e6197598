//! How much swap a container may use.
//!
//! Owns the choice between none and a share of the node's swap, and how each is passed to the runtime.

use std::cmp::Ordering;

use rubelet_model::pod::QosClass;
use rubelet_wire::cri::v1::LinuxContainerResources;

use crate::amounts::MEMORY;
use crate::demand::{ContainerDemand, PodDemand};
use crate::qos::qos_class;
use crate::rules::{CgroupVersion, NodeFacts, Rules};

pub const SWAP_MAX: &str = "memory.swap.max";

/// `memorySwap.swapBehavior`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SwapBehavior {
    #[default]
    NoSwap,
    LimitedSwap,
}

impl SwapBehavior {
    /// Whatever is not `LimitedSwap` is no swap; validation has refused other values.
    pub fn by_name(name: &str) -> Self {
        match name {
            "LimitedSwap" => Self::LimitedSwap,
            _ => Self::NoSwap,
        }
    }
}

/// What applies to one container: only Burstable, not critical pods with a request below the limit may swap.
pub fn container_swap(
    demand: &PodDemand,
    container: &ContainerDemand,
    rules: &Rules,
    facts: &NodeFacts,
) -> SwapBehavior {
    let (requests, limits) = (&container.resources.requests, &container.resources.limits);
    let asks_nothing = requests.is_zero(MEMORY) && limits.is_zero(MEMORY);
    let is_fixed = requests.quantity(MEMORY).cmp(&limits.quantity(MEMORY)) == Ordering::Equal;
    let may_swap = rules.swap == SwapBehavior::LimitedSwap
        && facts.has_swap_controller
        && facts.cgroup == CgroupVersion::V2
        && !demand.importance.is_critical()
        && qos_class(demand, rules) == QosClass::Burstable
        && !asks_nothing
        && !is_fixed;
    if may_swap {
        SwapBehavior::LimitedSwap
    } else {
        SwapBehavior::NoSwap
    }
}

/// The share of the node's swap that belongs to a memory request; `None` when it cannot be computed.
pub fn swap_share_bytes(request_bytes: i64, facts: &NodeFacts) -> Option<i64> {
    if facts.memory_capacity_bytes <= 0 || request_bytes > facts.memory_capacity_bytes {
        return None;
    }
    let share = request_bytes as f64 / facts.memory_capacity_bytes as f64;
    Some((share * facts.swap_capacity_bytes as f64) as i64)
}

/// Writes the swap limit; without a swap controller there is none.
pub(crate) fn limit_swap(
    resources: &mut LinuxContainerResources,
    demand: &PodDemand,
    container: &ContainerDemand,
    rules: &Rules,
    facts: &NodeFacts,
) {
    if !facts.has_swap_controller {
        return;
    }
    let allowed = match container_swap(demand, container, rules, facts) {
        SwapBehavior::LimitedSwap => {
            swap_share_bytes(container.resources.requests.value(MEMORY), facts).unwrap_or(0)
        }
        SwapBehavior::NoSwap => 0,
    };
    match facts.cgroup {
        // The sum of memory and swap, so that the memory limit leaves none for swap.
        CgroupVersion::V1 => resources.memory_swap_limit_in_bytes = resources.memory_limit_in_bytes,
        CgroupVersion::V2 => {
            resources.unified.insert(SWAP_MAX.to_owned(), allowed.to_string());
        }
    }
}
