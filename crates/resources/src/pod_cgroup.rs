//! The values of a pod's own cgroup.
//!
//! Owns what is limited at pod level and for which class. Writing the files belongs to the host adapter.

use rubelet_model::cgroup::PodCgroupPart;
use rubelet_model::pod::QosClass;

use std::collections::BTreeMap;

use crate::amounts::{CPU, MEMORY};
use crate::cpu::{MIN_SHARES, UNLIMITED_QUOTA, quota_of_milli_cpu, shares_of_milli_cpu};
use crate::demand::{Overhead, PodDemand};
use crate::huge_pages::limits_by_size;
use crate::memory_qos;
use crate::qos::qos_class;
use crate::rules::{NodeFacts, Rules};

/// The values of a cgroup; `None` leaves the kernel's value alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodCgroup {
    pub memory_bytes: Option<i64>,
    pub cpu_shares: Option<u64>,
    pub cpu_quota_us: Option<i64>,
    pub cpu_period_us: Option<i64>,
    pub pids: Option<i64>,
    /// The processors that everything below may use, as the kernel lists them.
    pub cpus: Option<String>,
    /// Bytes by page size in bytes.
    pub huge_page_limits: BTreeMap<i64, i64>,
    /// cgroup v2 files by name.
    pub unified: BTreeMap<String, String>,
}

impl PodCgroup {
    /// Only one part of the values, to be written while the pod runs.
    #[must_use]
    pub fn part(&self, part: PodCgroupPart) -> Self {
        match part {
            PodCgroupPart::MemoryLimit => Self {
                memory_bytes: self.memory_bytes,
                unified: self.unified.clone(),
                ..Self::default()
            },
            PodCgroupPart::CpuQuota => Self {
                cpu_quota_us: self.cpu_quota_us,
                cpu_period_us: self.cpu_period_us,
                ..Self::default()
            },
            PodCgroupPart::CpuShares => Self {
                cpu_shares: self.cpu_shares,
                ..Self::default()
            },
        }
    }
}

/// The pod's cgroup. A pod with CPUs of its own has no quota.
pub fn pod_cgroup(
    demand: &PodDemand,
    rules: &Rules,
    facts: &NodeFacts,
    has_exclusive_cpus: bool,
) -> PodCgroup {
    let requests = demand.requests(rules, Overhead::Included);
    let limits = demand.limits(rules, Overhead::Included);
    let class = qos_class(demand, rules);
    let mut cgroup = PodCgroup {
        cpu_shares: Some(match class {
            QosClass::Guaranteed | QosClass::Burstable => shares_of_milli_cpu(requests.milli_value(CPU)),
            QosClass::BestEffort => MIN_SHARES,
        }),
        pids: (rules.pod_pids_limit > 0).then_some(rules.pod_pids_limit),
        huge_page_limits: limits_by_size(&requests),
        ..PodCgroup::default()
    };
    if is_bounded(demand, rules, class, CPU) {
        let quota = quota_of_milli_cpu(limits.milli_value(CPU), rules.quota_period_us());
        let has_quota = rules.cpu_cfs_quota && !has_exclusive_cpus;
        cgroup.cpu_quota_us = Some(if has_quota { quota } else { UNLIMITED_QUOTA });
        cgroup.cpu_period_us = Some(rules.cpu_cfs_quota_period_us);
    }
    if is_bounded(demand, rules, class, MEMORY) {
        cgroup.memory_bytes = Some(limits.value(MEMORY));
    }
    if rules.enforces_memory_qos(facts) {
        let request = requests.value(MEMORY);
        if rules.is_tiered() && request > 0 {
            let key = memory_qos::protection(class);
            cgroup.unified.insert(key.to_owned(), request.to_string());
        }
        if let Some(high) = memory_qos::pod_high(demand, rules, facts) {
            cgroup
                .unified
                .insert(memory_qos::HIGH.to_owned(), high.to_string());
        }
    }
    cgroup
}

/// Whether the sum of a resource is a bound: every container has a limit, or the pod as a whole has one.
fn is_bounded(demand: &PodDemand, rules: &Rules, class: QosClass, name: &str) -> bool {
    let pod_level = demand.effective_pod_level(rules);
    match class {
        QosClass::Guaranteed => true,
        QosClass::BestEffort => false,
        QosClass::Burstable => {
            pod_level.is_some_and(|all| !all.limits.is_zero(name))
                || demand
                    .started_containers()
                    .all(|container| !container.resources.limits.is_zero(name))
        }
    }
}
