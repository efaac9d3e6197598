//! Records that were lost, made anew.
//!
//! Owns what a pod that ran before this agent started counts as allocated to it, by its status, and what its containers count as having,
//! by the runtime. A record that is made anew is no reason to restart anything: what cannot be known counts as it should be.

use std::str::FromStr;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use rubelet_model::Quantity;
use rubelet_model::observation::{ContainerResources, PodObservation};
use rubelet_resources::amounts::{CPU, MEMORY};
use rubelet_resources::cpu::{
    milli_cpu_of_quota, milli_cpu_of_shares, quota_of_milli_cpu, shares_of_milli_cpu,
};

use super::{Allocation, Amounts, ResourceNumbers, resizable_containers};

const LEAST_CPU_MILLIS: i64 = 10;
const LARGEST_PAGE_BYTES: u64 = 1 << 16;

/// The allocation of a pod without a record. Where its status shows other resources than its spec, those were allocated to it.
#[must_use]
pub fn allocated(pod: &Pod) -> Allocation {
    let containers = resizable_containers(pod);
    Allocation {
        pod: first_allocation_of_pod(pod),
        containers: containers
            .map(|container| {
                let resources = first_allocation(pod, container).unwrap_or_default();
                (container.name.clone(), resources)
            })
            .collect(),
        volumes: None,
    }
}

/// What the running containers of a pod have, which is to have its spec's resources. `known` is what the record has; where the runtime
/// shows something else, the runtime counts.
#[must_use]
pub fn actuated(
    pod: &Pod,
    known: Option<&Allocation>,
    observation: &PodObservation,
    quota_period_us: i64,
) -> Allocation {
    let mut found = known.cloned().unwrap_or_else(|| Allocation::asked(pod));
    for container in resizable_containers(pod) {
        let newest = observation.newest_container(&container.name);
        let Some(shown) = newest
            .filter(|newest| newest.state.is_running())
            .and_then(|newest| newest.resources)
        else {
            continue;
        };
        let Some(recorded) = found.numbers(&container.name) else {
            continue;
        };
        let actual = overlaid(recorded, shown, quota_period_us);
        if actual != recorded {
            let own = found.containers.remove(&container.name).unwrap_or_default();
            found
                .containers
                .insert(container.name.clone(), actual.written(own));
        }
    }
    found
}

/// The numbers with those that the runtime shows, unless the kernel's rounding is all that differs.
fn overlaid(recorded: ResourceNumbers, shown: ContainerResources, quota_period_us: i64) -> ResourceNumbers {
    let mut actual = recorded;
    let request = if recorded.cpu_request_millis == 0 {
        recorded.cpu_limit_millis
    } else {
        recorded.cpu_request_millis
    };
    if let Some(millis) = shown.cpu_request_millis {
        let shares = i64::try_from(shares_of_milli_cpu(request)).unwrap_or(i64::MAX);
        if millis != request && millis != milli_cpu_of_shares(shares) {
            actual.cpu_request_millis = millis;
        }
    }
    if let Some(millis) = shown.cpu_limit_millis {
        let quota = quota_of_milli_cpu(recorded.cpu_limit_millis, quota_period_us);
        if millis != recorded.cpu_limit_millis && millis != milli_cpu_of_quota(quota, quota_period_us) {
            actual.cpu_limit_millis = millis;
        }
    }
    if let Some(bytes) = shown.memory_limit_bytes
        && bytes.abs_diff(recorded.memory_limit_bytes) >= LARGEST_PAGE_BYTES
    {
        actual.memory_limit_bytes = bytes;
    }
    actual
}

fn first_allocation(pod: &Pod, container: &Container) -> Option<ResourceRequirements> {
    let asked = container.resources.clone();
    let Some(status) = status_of(pod, &container.name) else {
        return asked;
    };
    kept(
        asked,
        status.allocated_resources.as_ref(),
        status.resources.as_ref(),
    )
}

/// The pod's own resources, which only `spec.resources` can ask for. The status shows totals of every pod there: the sums of the
/// containers where the pod asks for nothing itself, and its overhead in all of them.
fn first_allocation_of_pod(pod: &Pod) -> Option<ResourceRequirements> {
    let spec = pod.spec.as_ref()?;
    let asked = spec.resources.clone()?;
    let Some(status) = &pod.status else {
        return Some(asked);
    };
    let overhead = spec.overhead.as_ref();
    let own = |shown: Option<&Amounts>, asked: Option<&Amounts>| -> Option<Amounts> {
        let asked = asked?;
        let shown = shown?.iter().filter(|(name, _)| asked.contains_key(*name));
        let own = shown.map(|(name, shown)| (name.clone(), without_overhead(name, shown, overhead)));
        Some(own.collect())
    };
    let shown = status.resources.as_ref();
    let allocated = own(status.allocated_resources.as_ref(), asked.requests.as_ref());
    let limits = own(
        shown.and_then(|shown| shown.limits.as_ref()),
        asked.limits.as_ref(),
    );
    let actual = limits.map(|limits| ResourceRequirements {
        limits: Some(limits),
        ..ResourceRequirements::default()
    });
    kept(Some(asked), allocated.as_ref(), actual.as_ref())
}

/// A total of the pod less the pod's overhead; as it is when one of them cannot be read.
fn without_overhead(name: &str, total: &ApiQuantity, overhead: Option<&Amounts>) -> ApiQuantity {
    let part = overhead.and_then(|overhead| overhead.get(name));
    let part = part.and_then(|part| Quantity::from_str(&part.0).ok());
    let (Some(part), Ok(mut rest)) = (part, Quantity::from_str(&total.0)) else {
        return total.clone();
    };
    rest.sub(&part);
    ApiQuantity(rest.canonical())
}

/// The resources of the spec, overlaid with those that the status shows.
fn kept(
    asked: Option<ResourceRequirements>,
    allocated: Option<&Amounts>,
    actual: Option<&ResourceRequirements>,
) -> Option<ResourceRequirements> {
    let asked_requests = asked.as_ref().and_then(|asked| asked.requests.clone());
    let asked_limits = asked.as_ref().and_then(|asked| asked.limits.clone());
    let requests = allocated.filter(|shown| !same(shown, asked_requests.as_ref().unwrap_or(&Amounts::new())));
    // The runtime may show a limit that only the pod as a whole has.
    let limits = actual.and_then(|actual| actual.limits.as_ref());
    let limits = limits.filter(|shown| {
        let mut asked = asked_limits.iter().flatten();
        asked.any(|(name, asked)| {
            !shown
                .get(name)
                .is_some_and(|shown| is_same_limit(name, asked, shown))
        })
    });
    if requests.is_none() && limits.is_none() {
        return asked;
    }
    let limits = limits.map(|shown| {
        let is_asked = |name: &String| {
            asked_limits
                .as_ref()
                .is_some_and(|asked| asked.contains_key(name))
        };
        let shown = shown.iter().filter(|(name, _)| is_asked(name));
        shown.map(|(name, value)| (name.clone(), value.clone())).collect()
    });
    Some(ResourceRequirements {
        requests: requests.cloned().or(asked_requests),
        limits: limits.or(asked_limits),
        claims: asked.and_then(|asked| asked.claims),
    })
}

/// Whether the kernel shows one limit for the other: CPU limits are at least a hundredth of a processor, memory is in whole pages.
fn is_same_limit(name: &str, asked: &ApiQuantity, shown: &ApiQuantity) -> bool {
    let (Ok(asked), Ok(shown)) = (Quantity::from_str(&asked.0), Quantity::from_str(&shown.0)) else {
        return false;
    };
    match name {
        CPU => asked.milli_value().max(LEAST_CPU_MILLIS) == shown.milli_value().max(LEAST_CPU_MILLIS),
        MEMORY => asked.value().abs_diff(shown.value()) < LARGEST_PAGE_BYTES,
        _ => asked == shown,
    }
}

fn status_of<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let lists = [&status.init_container_statuses, &status.container_statuses];
    let mut all = lists.into_iter().flatten().flatten();
    all.find(|status| status.name == name)
}

/// Whether two lists mean the same amounts, however they are written.
fn same(left: &Amounts, right: &Amounts) -> bool {
    let read = |list: &Amounts| -> Vec<(String, Option<Quantity>)> {
        let read = |(name, value): (&String, &ApiQuantity)| (name.clone(), Quantity::from_str(&value.0).ok());
        list.iter().map(read).collect()
    };
    read(left) == read(right)
}
