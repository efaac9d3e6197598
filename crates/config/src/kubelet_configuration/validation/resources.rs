//! Rules about resources: cgroups, what is set aside for the system, CPU quota, topology, memory protection.

use std::collections::BTreeSet;

use rubelet_model::{CpuSet, GoDuration};

use super::Rules;
use crate::gates::Gate;

const DEFAULT_CFS_QUOTA_PERIOD: GoDuration = GoDuration::from_millis(100);
/// The default before 1.37; files that still carry it stay valid without the gate.
const FORMER_DEFAULT_THROTTLING_FACTOR: f64 = 0.9;

pub(super) fn check(rules: &mut Rules<'_>) {
    cgroups(rules);
    cfs_quota(rules);
    topology(rules);
    allocatable(rules);
    reserved_cpus(rules);
    reserved_memory(rules);
    memory_protection(rules);
}

fn cgroups(rules: &mut Rules<'_>) {
    let c = rules.configuration;
    if !c.system_cgroups.is_empty() && c.cgroup_root.is_empty() {
        rules.refuse_text("systemCgroups", &c.system_cgroups, "needs cgroupRoot to be set");
    }
}

fn cfs_quota(rules: &mut Rules<'_>) {
    let period = rules.configuration.cpu_cfs_quota_period.unwrap_or_default();
    if !rules.enabled(Gate::CustomCPUCFSQuotaPeriod) {
        if period != DEFAULT_CFS_QUOTA_PERIOD {
            rules.refuse(
                "cpuCFSQuotaPeriod",
                period,
                "must be 100ms without the feature gate CustomCPUCFSQuotaPeriod",
            );
        }
    } else if period < GoDuration::from_millis(1) || period > GoDuration::from_secs(1) {
        rules.refuse("cpuCFSQuotaPeriod", period, "must be between 1ms and 1s");
    }
}

fn topology(rules: &mut Rules<'_>) {
    let c = rules.configuration;
    rules.one_of(
        "topologyManagerPolicy",
        &c.topology_manager_policy,
        &["none", "best-effort", "restricted", "single-numa-node"],
    );
    rules.one_of(
        "topologyManagerScope",
        &c.topology_manager_scope,
        &["container", "pod"],
    );
}

const PATH: &str = "enforceNodeAllocatable";

fn allocatable(rules: &mut Rules<'_>) {
    let c = rules.configuration;
    let enforced: &[String] = c.enforce_node_allocatable.as_deref().unwrap_or_default();
    let has = |word: &str| enforced.iter().any(|enforcement| enforcement == word);
    for (whole, part) in [
        ("system-reserved", "system-reserved-compressible"),
        ("kube-reserved", "kube-reserved-compressible"),
    ] {
        if has(whole) && has(part) {
            rules.refuse(PATH, "the list", format!("must not have both {whole} and {part}"));
        }
    }
    let mut seen = BTreeSet::new();
    for (position, word) in enforced.iter().enumerate() {
        let path = format!("{PATH}[{position}]");
        if !seen.insert(word) {
            rules.refuse_text(path, word, "must not stand twice in the list");
            continue;
        }
        if enforcement(rules, &path, word, enforced.len()) && !c.cgroups_per_qos.unwrap_or_default() {
            rules.refuse_text(path, word, "needs cgroupsPerQOS to be true");
        }
    }
}

/// True for a word that is an enforcement.
fn enforcement(rules: &mut Rules<'_>, path: &str, word: &str, words: usize) -> bool {
    let c = rules.configuration;
    match word {
        "pods" => {}
        "system-reserved" | "system-reserved-compressible" => {
            if c.system_reserved_cgroup.is_empty() {
                rules.refuse_text(path, word, "needs systemReservedCgroup to be set");
            }
        }
        "kube-reserved" | "kube-reserved-compressible" => {
            if c.kube_reserved_cgroup.is_empty() {
                rules.refuse_text(path, word, "needs kubeReservedCgroup to be set");
            }
        }
        "none" => {
            if words > 1 {
                rules.refuse_text(path, word, "must be the only word of the list");
            }
            return false;
        }
        _ => {
            rules.one_of(
                path,
                word,
                &[
                    "pods",
                    "system-reserved",
                    "system-reserved-compressible",
                    "kube-reserved",
                    "kube-reserved-compressible",
                    "none",
                ],
            );
            return false;
        }
    }
    true
}

fn reserved_cpus(rules: &mut Rules<'_>) {
    let c = rules.configuration;
    if c.reserved_system_cpus.is_empty() {
        return;
    }
    if !c.system_reserved_cgroup.is_empty() || !c.kube_reserved_cgroup.is_empty() {
        rules.refuse_text(
            "reservedSystemCPUs",
            &c.reserved_system_cpus,
            "must not be set together with systemReservedCgroup or kubeReservedCgroup",
        );
    }
    if let Err(error) = c.reserved_system_cpus.parse::<CpuSet>() {
        rules.refuse_text(
            "reservedSystemCPUs",
            &c.reserved_system_cpus,
            format!("must be a list of CPUs, such as 0-3,8 ({error})"),
        );
    }
}

fn reserved_memory(rules: &mut Rules<'_>) {
    let mut seen = BTreeSet::new();
    for (position, reservation) in rules.configuration.reserved_memory.iter().enumerate() {
        for (resource, amount) in reservation.limits.iter().flatten() {
            let path = format!("reservedMemory[{position}].limits.{resource}");
            if resource != "memory" && !resource.starts_with("hugepages-") {
                rules.refuse_text(&path, resource, "must be memory or hugepages-<size>");
            }
            if amount.is_zero() {
                rules.refuse(&path, amount, "must not be zero");
            }
            if !seen.insert((reservation.numa_node, resource)) {
                rules.refuse(
                    &path,
                    amount,
                    format!("must be given once for NUMA node {}", reservation.numa_node),
                );
            }
        }
    }
}

fn memory_protection(rules: &mut Rules<'_>) {
    let c = rules.configuration;
    let enabled = rules.enabled(Gate::MemoryQoS);
    if let Some(factor) = c.memory_throttling_factor {
        // Recognised by its exact value.
        if !enabled && factor != FORMER_DEFAULT_THROTTLING_FACTOR {
            rules.refuse(
                "memoryThrottlingFactor",
                factor,
                "needs the feature gate MemoryQoS",
            );
        }
        if factor <= 0.0 || factor > 1.0 {
            rules.refuse(
                "memoryThrottlingFactor",
                factor,
                "must be more than 0 and at most 1.0",
            );
        }
    }
    let policy = &c.memory_reservation_policy;
    if !enabled && policy == "TieredReservation" {
        rules.refuse_text(
            "memoryReservationPolicy",
            policy,
            "needs the feature gate MemoryQoS",
        );
    }
    rules.one_of("memoryReservationPolicy", policy, &["None", "TieredReservation"]);
}
