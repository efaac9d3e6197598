//! The resources of containers and sandboxes in CRI requests.
//!
//! Owns `LinuxContainerResources`. CPU sets and NUMA nodes are not decided here.

use rubelet_model::Quantity;
use rubelet_wire::cri::v1::LinuxContainerResources;

use crate::amounts::{Amounts, CPU, MEMORY};
use crate::cpu::{UNLIMITED_QUOTA, milli_cpu_of_shares, quota_of_milli_cpu, shares_of_milli_cpu};
use crate::demand::{ContainerDemand, Overhead, PodDemand};
use crate::huge_pages::container_limits;
use crate::memory_qos::{self, HIGH, OOM_GROUP, UNLIMITED};
use crate::oom::score_adjustment;
use crate::pod_cgroup::PodCgroup;
use crate::rules::{CgroupVersion, NodeFacts, Rules};
use crate::swap::limit_swap;

/// The resources of one container of the pod.
pub fn container_resources(
    demand: &PodDemand,
    container: &ContainerDemand,
    rules: &Rules,
    facts: &NodeFacts,
    has_exclusive_cpus: bool,
) -> LinuxContainerResources {
    let limit = |name: &str| effective_limit(demand, container, rules, name);
    let cpu_limit = limit(CPU);
    let cpu_request = match container.resources.requests.get(CPU) {
        Some(request) => request.milli_value(),
        None => cpu_limit.milli_value(),
    };
    let mut resources = base(
        Basis {
            cpu_request_milli: cpu_request,
            cpu_limit_milli: cpu_limit.milli_value(),
            memory_limit_bytes: limit(MEMORY).value(),
            has_exclusive_cpus,
        },
        rules,
        facts,
    );
    resources.oom_score_adj = score_adjustment(demand, container, rules, facts.memory_capacity_bytes);
    resources.hugepage_limits = container_limits(demand, container, rules, facts);
    limit_swap(&mut resources, demand, container, rules, facts);
    if rules.enforces_memory_qos(facts) {
        let values = memory_qos::container_values(demand, container, rules, facts);
        resources.unified.extend(values);
    } else if facts.cgroup == CgroupVersion::V2 {
        // Resets the value that a start with the gate on has written.
        resources.unified.insert(HIGH.to_owned(), UNLIMITED.to_owned());
    }
    resources
}

/// A container without a limit has the pod's.
fn effective_limit(demand: &PodDemand, container: &ContainerDemand, rules: &Rules, name: &str) -> Quantity {
    let own = &container.resources.limits;
    match demand.effective_pod_level(rules) {
        Some(pod_level) if own.is_zero(name) => pod_level.limits.quantity(name),
        Some(_) | None => own.quantity(name),
    }
}

/// The sum of the pod's containers, for runtimes that size a virtual machine; overhead not included.
pub fn sandbox_resources(
    demand: &PodDemand,
    rules: &Rules,
    facts: &NodeFacts,
    has_exclusive_cpus: bool,
) -> LinuxContainerResources {
    let requests = demand.requests(rules, Overhead::Excluded);
    let limits = demand.limits(rules, Overhead::Excluded);
    let cpu_limit_milli = limits.milli_value(CPU);
    let basis = Basis {
        cpu_request_milli: requests.get(CPU).map_or(cpu_limit_milli, Quantity::milli_value),
        cpu_limit_milli,
        memory_limit_bytes: limits.value(MEMORY),
        has_exclusive_cpus,
    };
    base(basis, rules, facts)
}

/// The pod's overhead, which counts as request and limit alike; all zero when there is none.
pub fn overhead_resources(demand: &PodDemand, rules: &Rules, facts: &NodeFacts) -> LinuxContainerResources {
    let Some(overhead) = &demand.overhead else {
        return LinuxContainerResources::default();
    };
    let milli = |list: &Amounts| list.milli_value(CPU);
    let basis = Basis {
        cpu_request_milli: milli(overhead),
        cpu_limit_milli: milli(overhead),
        memory_limit_bytes: overhead.value(MEMORY),
        has_exclusive_cpus: false,
    };
    base(basis, rules, facts)
}

/// The values of the pod's cgroup less the pod's overhead.
pub fn without_overhead(demand: &PodDemand, cgroup: &PodCgroup) -> LinuxContainerResources {
    let overhead = demand.overhead.clone().unwrap_or_default();
    let period = cgroup.cpu_period_us.unwrap_or_default();
    let cpu_milli = overhead.milli_value(CPU);
    let quota = cgroup.cpu_quota_us.unwrap_or_default();
    let shares = cgroup.cpu_shares.unwrap_or_default();
    let signed = |shares: u64| i64::try_from(shares).unwrap_or(i64::MAX);
    let shares = match cpu_milli {
        0 => shares,
        milli => shares_of_milli_cpu(milli_cpu_of_shares(signed(shares)) - milli),
    };
    LinuxContainerResources {
        cpu_period: period,
        // No quota has nothing to take from.
        cpu_quota: if quota > 0 {
            quota - quota_of_milli_cpu(cpu_milli, period)
        } else {
            quota
        },
        cpu_shares: signed(shares),
        memory_limit_in_bytes: cgroup
            .memory_bytes
            .filter(|bytes| *bytes > 0)
            .map_or(0, |bytes| bytes - overhead.value(MEMORY)),
        unified: cgroup.unified.clone(),
        ..LinuxContainerResources::default()
    }
}

#[derive(Clone, Copy)]
struct Basis {
    cpu_request_milli: i64,
    cpu_limit_milli: i64,
    memory_limit_bytes: i64,
    has_exclusive_cpus: bool,
}

fn base(basis: Basis, rules: &Rules, facts: &NodeFacts) -> LinuxContainerResources {
    let mut resources = LinuxContainerResources {
        cpu_shares: shares_of_milli_cpu(basis.cpu_request_milli) as i64,
        memory_limit_in_bytes: basis.memory_limit_bytes,
        ..LinuxContainerResources::default()
    };
    if rules.cpu_cfs_quota {
        let period = rules.quota_period_us();
        resources.cpu_period = period;
        resources.cpu_quota = if basis.has_exclusive_cpus {
            UNLIMITED_QUOTA
        } else {
            quota_of_milli_cpu(basis.cpu_limit_milli, period)
        };
    }
    if facts.cgroup == CgroupVersion::V2 && !rules.single_process_oom_kill.unwrap_or(false) {
        resources.unified.insert(OOM_GROUP.to_owned(), "1".to_owned());
    }
    resources
}
