//! Resizes that can never be carried out on this node.
//!
//! Owns the checks that only resizes have, with upstream's words. Whether the resources fit is admission's question.

use k8s_openapi::api::core::v1::{Container, Pod};
use rubelet_resources::swap::{SwapBehavior, container_swap};
use rubelet_resources::{NodeFacts, PodDemand, QosClass, Rules, qos_class};

use crate::allocation::numbers::Resource;
use crate::allocation::{Allocation, ResourceNumbers, is_same, resizable_containers};

/// The node's settings that resizes depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResizeTerms {
    /// Gate `InPlacePodLevelResourcesVerticalScaling`.
    pub pod_level: bool,
    /// Containers of Guaranteed pods may have CPUs of their own, and those are not resized.
    pub has_static_cpus: bool,
    /// The same for memory of NUMA nodes.
    pub has_static_memory: bool,
}

impl Default for ResizeTerms {
    fn default() -> Self {
        Self {
            pod_level: true,
            has_static_cpus: false,
            has_static_memory: false,
        }
    }
}

/// Why a resize can never be carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Infeasible {
    /// For the metric.
    pub detail: &'static str,
    pub message: String,
}

/// Checks a change from what is allocated to the pod to what it asks for.
#[must_use]
pub fn infeasible(
    pod: &Pod,
    allocation: &Allocation,
    terms: ResizeTerms,
    rules: &Rules,
    facts: &NodeFacts,
) -> Option<Infeasible> {
    let refused = |detail, message: &str| {
        Some(Infeasible {
            detail,
            message: message.to_owned(),
        })
    };
    if changes_swap(pod, allocation, rules, facts) {
        let message = "In-place resize of containers with swap is not supported.";
        return refused("swap_limitation", message);
    }
    let own = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    if !terms.pod_level && !is_same(own, allocation.pod.as_ref()) {
        let message = "InPlacePodLevelResourcesVerticalScaling is disabled";
        return refused("plr_feature_gate_off", message);
    }
    let class = PodDemand::read(pod).ok().map(|demand| qos_class(&demand, rules));
    if class != Some(QosClass::Guaranteed) {
        return None;
    }
    if terms.has_static_cpus && changes_request(pod, allocation, Resource::Cpu) {
        let message = "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\"";
        return refused("guaranteed_pod_cpu_manager_static_policy", message);
    }
    if terms.has_static_memory && changes_request(pod, allocation, Resource::Memory) {
        let message = "Resize is infeasible for Guaranteed Pods alongside Memory Manager policy \"Static\"";
        return refused("guaranteed_pod_memory_manager_static_policy", message);
    }
    None
}

fn own_numbers(allocation: &Allocation, container: &Container) -> (ResourceNumbers, ResourceNumbers) {
    let of = |resources| ResourceNumbers::of(None, resources);
    let asked = container
        .resources
        .as_ref()
        .map_or_else(ResourceNumbers::default, of);
    let known = allocation.containers.get(&container.name);
    (asked, known.map_or(asked, of))
}

fn changes_request(pod: &Pod, allocation: &Allocation, resource: Resource) -> bool {
    resizable_containers(pod).any(|container| {
        let (asked, known) = own_numbers(allocation, container);
        asked.part(resource).0 != known.part(resource).0
    })
}

/// How much a container may swap follows from its memory request, and is not changed while it runs.
fn changes_swap(pod: &Pod, allocation: &Allocation, rules: &Rules, facts: &NodeFacts) -> bool {
    let restarts = |container: &Container| {
        let mut policies = container.resize_policy.iter().flatten();
        let of_memory = policies.find(|policy| policy.resource_name == Resource::Memory.as_str());
        of_memory.is_some_and(|policy| policy.restart_policy == "RestartContainer")
    };
    let changed = resizable_containers(pod).filter(|container| {
        let (asked, known) = own_numbers(allocation, container);
        asked.memory_request_bytes != known.memory_request_bytes && !restarts(container)
    });
    let names: Vec<&str> = changed.map(|container| container.name.as_str()).collect();
    let swaps = |pod: &Pod| {
        let Ok(demand) = PodDemand::read(pod) else {
            return false;
        };
        let mut containers = names.iter().filter_map(|name| demand.container(name));
        containers.any(|one| container_swap(&demand, one, rules, facts) != SwapBehavior::NoSwap)
    };
    !names.is_empty() && (swaps(pod) || allocation.applied(pod).is_some_and(|before| swaps(&before)))
}
