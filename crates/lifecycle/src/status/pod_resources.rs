//! Resources of the pod as a whole, as the API shows them.
//!
//! Owns the choice between the totals of the specification and the values of the pod's cgroup. The cgroup has what was actuated: its
//! values are derived from that instead of read, as the kernel gives them back. A CPU weight is coarser than shares, and memory is
//! counted in whole pages.

use k8s_openapi::api::core::v1::{Pod, PodStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use rubelet_model::Quantity;
use rubelet_model::pod::{Phase, phase_of};
use rubelet_model::quantity::Format;
use rubelet_resources::amounts::{Amounts, CPU, MEMORY};
use rubelet_resources::cpu::{
    MIN_SHARES, is_same_after_weight, milli_cpu_of_quota, milli_cpu_of_shares, shares_of_milli_cpu,
    shares_of_weight, weight_of_shares,
};
use rubelet_resources::demand::Overhead;
use rubelet_resources::{CgroupVersion, PodCgroup, PodDemand, pod_cgroup};

use super::PodResources;
use super::resources::{LEAST_CPU_LIMIT_MILLIS, Resources, keep, millis_of, set, set_cpu};
use crate::configuration::NodeConfiguration;

/// What the pod, with its allocated resources, has as a whole. `actuated` is the pod with those that it has by now, where they differ;
/// `previous` is the last status.
#[must_use]
pub fn pod_resources(
    pod: &Pod,
    actuated: Option<&Pod>,
    previous: Option<&PodStatus>,
    node: &NodeConfiguration,
) -> PodResources {
    // Quantities were checked before the pod was admitted.
    let Ok(demand) = PodDemand::read(pod) else {
        return PodResources::default();
    };
    let requests = listed(&demand.requests(&node.rules, Overhead::Included));
    let own = pod.spec.as_ref().and_then(|spec| spec.resources.clone());
    let own = own.unwrap_or_default();
    let resources = if is_running(pod.status.as_ref()) {
        let has = actuated.and_then(|pod| PodDemand::read(pod).ok());
        let cgroup = pod_cgroup(has.as_ref().unwrap_or(&demand), &node.rules, &node.facts, false);
        let read = CgroupReading {
            cgroup: node.cgroups_per_qos.then_some(&cgroup),
            version: node.facts.cgroup,
            page_bytes: node.facts.page_size_bytes,
        };
        let previous = previous.or(pod.status.as_ref());
        let before = previous.filter(|status| is_running(Some(status)));
        let before = before.and_then(|status| status.resources.as_ref());
        actual(own, &requests, &read, before)
    } else {
        ResourceRequirements {
            requests: filled(requests.clone()),
            limits: filled(listed(&demand.limits(&node.rules, Overhead::Included))),
            ..own
        }
    };
    PodResources {
        resources: Some(resources),
        allocated: filled(requests),
    }
}

fn is_running(status: Option<&PodStatus>) -> bool {
    status.and_then(phase_of) == Some(Phase::Running)
}

fn listed(amounts: &Amounts) -> Resources {
    let entries = amounts.iter();
    entries
        .map(|(name, quantity)| (name.to_owned(), ApiQuantity(quantity.canonical())))
        .collect()
}

fn filled(list: Resources) -> Option<Resources> {
    (!list.is_empty()).then_some(list)
}

/// The values in the files of the pod's cgroup.
struct CgroupReading<'a> {
    /// Nothing without cgroups per QoS class.
    cgroup: Option<&'a PodCgroup>,
    version: CgroupVersion,
    page_bytes: i64,
}

impl CgroupReading<'_> {
    fn shares(&self) -> Option<u64> {
        let written = self.cgroup?.cpu_shares?;
        Some(match self.version {
            CgroupVersion::V1 => written,
            CgroupVersion::V2 => shares_of_weight(weight_of_shares(written)),
        })
    }

    fn cpu_limit_millis(&self) -> Option<i64> {
        let cgroup = self.cgroup?;
        let millis = milli_cpu_of_quota(cgroup.cpu_quota_us?, cgroup.cpu_period_us?);
        Some(millis).filter(|millis| *millis > 0)
    }

    /// Version 1 has a number also where there is no limit, and upstream shows it.
    fn memory_limit_bytes(&self) -> Option<i64> {
        let written = self.cgroup?.memory_bytes.filter(|bytes| *bytes > 0);
        let bytes = match self.version {
            CgroupVersion::V1 => written.unwrap_or(i64::MAX),
            CgroupVersion::V2 => written?,
        };
        // Less than a page is given back as none.
        Some(bytes - bytes % self.page_bytes.max(1)).filter(|bytes| *bytes > 0)
    }
}

/// What a running pod asks for as a whole, overlaid with the values of its cgroup. What the cgroup does not have stays as `before`.
fn actual(
    own: ResourceRequirements,
    totals: &Resources,
    read: &CgroupReading<'_>,
    before: Option<&ResourceRequirements>,
) -> ResourceRequirements {
    let mut requests = own.requests.unwrap_or_default();
    let mut limits = own.limits.unwrap_or_default();
    let requests_before = before.and_then(|all| all.requests.as_ref());
    let limits_before = before.and_then(|all| all.limits.as_ref());
    match read.shares() {
        Some(shares) => set_cpu_request(&mut requests, shares),
        None => keep(&mut requests, CPU, requests_before),
    }
    if let (false, Some(total)) = (requests.contains_key(MEMORY), totals.get(MEMORY)) {
        requests.insert(MEMORY.to_owned(), total.clone());
    }
    let cpu_limit = read.cpu_limit_millis();
    set_cpu(&mut limits, cpu_limit, LEAST_CPU_LIMIT_MILLIS, limits_before);
    match read.memory_limit_bytes() {
        Some(bytes) => set(&mut limits, MEMORY, &Quantity::new(bytes, Format::BinarySi)),
        None => keep(&mut limits, MEMORY, limits_before),
    }
    ResourceRequirements {
        requests: filled(requests),
        limits: filled(limits),
        claims: own.claims,
    }
}

/// The request that the pod itself has stays when the shares are no more than its own with the loss of a weight.
fn set_cpu_request(requests: &mut Resources, shares: u64) {
    let millis = milli_cpu_of_shares(i64::try_from(shares).unwrap_or(i64::MAX));
    let own = millis_of(requests, CPU);
    let floor = MIN_SHARES as i64;
    let is_shown = millis > floor || own > floor;
    if is_shown && !is_same_after_weight(shares_of_milli_cpu(own), shares) {
        set(requests, CPU, &Quantity::from_millis(millis, Format::DecimalSi));
    }
}
