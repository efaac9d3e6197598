//! The resources that a pod was admitted with, while its spec already asks for others.
//!
//! Owns the resources that containers really get. Resizing in place is not implemented yet: a pod whose resources are changed keeps
//! its allocation, and a condition reports it. Nothing is checkpointed; after a restart the allocation is read from the pod's status.

use std::collections::BTreeMap;
use std::str::FromStr;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodCondition, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff;
use rubelet_model::{Quantity, Timestamp};
use rubelet_resources::amounts::{CPU, MEMORY};

use crate::status::conditions::RESIZE_PENDING;
use crate::status::find_condition;

type Amounts = BTreeMap<String, ApiQuantity>;

const LEAST_CPU_MILLIS: i64 = 10;
const LARGEST_PAGE_BYTES: u64 = 1 << 16;

pub const INFEASIBLE: &str = "Infeasible";
/// The reason of the event, as upstream names it.
pub const INFEASIBLE_EVENT: &str = "ResizeInfeasible";
pub const INFEASIBLE_MESSAGE: &str =
    "Resizing a pod in place is not supported yet; it goes on with the resources it was started with";

/// The resources of a pod and of its containers, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Allocation {
    pod: Option<ResourceRequirements>,
    containers: BTreeMap<String, Option<ResourceRequirements>>,
}

impl Allocation {
    /// The allocation of a pod that is seen for the first time. Where its status shows other resources than its spec, the agent refused
    /// that resize before it was restarted.
    #[must_use]
    pub fn of(pod: &Pod) -> Self {
        let spec = pod.spec.as_ref();
        let init = spec.and_then(|spec| spec.init_containers.as_ref());
        let regular = spec.map(|spec| &spec.containers);
        let containers = init.into_iter().chain(regular).flatten();
        Self {
            pod: first_allocation_of_pod(pod),
            containers: containers
                .map(|container| (container.name.clone(), first_allocation(pod, container)))
                .collect(),
        }
    }

    /// The pod with the resources that it was admitted with; `None` when its spec asks for the same.
    #[must_use]
    pub fn applied(&self, pod: &Pod) -> Option<Pod> {
        let spec = pod.spec.as_ref()?;
        let init = spec.init_containers.iter().flatten();
        let differs = |container: &Container| {
            let known = self.containers.get(&container.name);
            known.is_some_and(|known| *known != container.resources)
        };
        let has_changed = spec.resources != self.pod || init.chain(&spec.containers).any(differs);
        if !has_changed {
            return None;
        }
        let mut pod = pod.clone();
        let spec = pod.spec.get_or_insert_default();
        spec.resources.clone_from(&self.pod);
        let init = spec.init_containers.iter_mut().flatten();
        for container in init.chain(&mut spec.containers) {
            if let Some(known) = self.containers.get(&container.name) {
                container.resources.clone_from(known);
            }
        }
        Some(pod)
    }
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

fn reported_before(pod: &Pod) -> Option<&PodCondition> {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_deref());
    find_condition(conditions.unwrap_or_default(), RESIZE_PENDING)
        .filter(|before| before.reason.as_deref() == Some(INFEASIBLE))
}

/// Whether the pod's status already reports that the resize is infeasible.
#[must_use]
pub fn is_reported(pod: &Pod) -> bool {
    reported_before(pod).is_some_and(|before| before.observed_generation == pod.metadata.generation)
}

/// The condition of a resize that is not carried out. A condition that was reported before keeps its transition time.
#[must_use]
pub fn infeasible(pod: &Pod, now: Timestamp) -> PodCondition {
    let before = reported_before(pod);
    let now = jiff::Timestamp::from_nanosecond(i128::from(now.unix_nanos())).map(Time);
    PodCondition {
        type_: RESIZE_PENDING.to_owned(),
        status: "True".to_owned(),
        reason: Some(INFEASIBLE.to_owned()),
        message: Some(INFEASIBLE_MESSAGE.to_owned()),
        observed_generation: pod.metadata.generation,
        last_transition_time: match before {
            Some(before) => before.last_transition_time.clone(),
            None => now.ok(),
        },
        ..PodCondition::default()
    }
}
