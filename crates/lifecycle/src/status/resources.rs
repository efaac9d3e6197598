//! Resources of a container as the API shows them.
//!
//! Owns the choice between what was allocated, what the runtime reports, and what was reported before. Sums over a pod belong
//! to the crate that owns resources.

use std::collections::BTreeMap;
use std::str::FromStr;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use rubelet_model::Quantity;
use rubelet_model::observation::{ContainerObservation, ContainerResources};
use rubelet_model::quantity::Format;
use rubelet_resources::amounts::{CPU, MEMORY};

use super::view::StateView;
use crate::allocation::{Allocation, ResourceNumbers};

pub(super) type Resources = BTreeMap<String, ApiQuantity>;

/// Below these the kernel's floor hides what was asked for; the allocated value is shown then.
pub(super) const LEAST_CPU_LIMIT_MILLIS: i64 = 10;
const LEAST_CPU_REQUEST_MILLIS: i64 = 2;

/// What the container really has: for a running one the runtime's report, for others the allocated values.
pub(super) fn actual_resources(
    container: &Container,
    status: &ContainerStatus,
    seen: &ContainerObservation,
    old: Option<&ContainerStatus>,
    actuated: Option<&Allocation>,
) -> ResourceRequirements {
    let mut actual = container.resources.clone().unwrap_or_default();
    if !seen.state.is_running() {
        return actual;
    }
    let recorded = actuated.and_then(|all| all.numbers(&container.name));
    let reported = seen.resources.or_else(|| recorded.map(as_reported));
    let reported = reported.unwrap_or_default();
    let same_run = old.filter(|old| old.running().is_some() && old.container_id == status.container_id);
    let before = same_run.and_then(|old| old.resources.as_ref());
    if let Some(limits) = &mut actual.limits {
        let before = before.and_then(|all| all.limits.as_ref());
        set_cpu(limits, reported.cpu_limit_millis, LEAST_CPU_LIMIT_MILLIS, before);
        match reported.memory_limit_bytes {
            Some(bytes) => set(limits, MEMORY, &Quantity::new(bytes, Format::BinarySi)),
            None => keep(limits, MEMORY, before),
        }
    }
    if let Some(requests) = &mut actual.requests {
        let before = before.and_then(|all| all.requests.as_ref());
        set_cpu(
            requests,
            reported.cpu_request_millis,
            LEAST_CPU_REQUEST_MILLIS,
            before,
        );
        // The runtime cannot report a memory request.
        let recorded = actuated.and_then(|all| all.containers.get(&container.name));
        let recorded = recorded.and_then(|own| own.requests.as_ref()?.get(MEMORY));
        match recorded.filter(|_| requests.contains_key(MEMORY)) {
            Some(request) => drop(requests.insert(MEMORY.to_owned(), request.clone())),
            None => keep(requests, MEMORY, before),
        }
    }
    actual
}

/// What a runtime that reports no resources would report of a container with these.
fn as_reported(numbers: ResourceNumbers) -> ContainerResources {
    let known = |number: i64| Some(number).filter(|number| *number > 0);
    ContainerResources {
        cpu_request_millis: known(numbers.cpu_request_millis),
        cpu_limit_millis: known(numbers.cpu_limit_millis),
        memory_limit_bytes: known(numbers.memory_limit_bytes),
    }
}

pub(super) fn set_cpu(
    resources: &mut Resources,
    reported_millis: Option<i64>,
    floor_millis: i64,
    before: Option<&Resources>,
) {
    let Some(millis) = reported_millis else {
        return keep(resources, CPU, before);
    };
    if millis > floor_millis || millis_of(resources, CPU) > floor_millis {
        set(resources, CPU, &Quantity::from_millis(millis, Format::DecimalSi));
    }
}

pub(super) fn millis_of(resources: &Resources, name: &str) -> i64 {
    let quantity = resources
        .get(name)
        .and_then(|value| Quantity::from_str(&value.0).ok());
    quantity.map_or(0, |quantity| quantity.milli_value())
}

pub(super) fn set(resources: &mut Resources, name: &str, value: &Quantity) {
    resources.insert(name.to_owned(), ApiQuantity(value.canonical()));
}

pub(super) fn keep(resources: &mut Resources, name: &str, before: Option<&Resources>) {
    if let Some(value) = before.and_then(|all| all.get(name)) {
        resources.insert(name.to_owned(), value.clone());
    }
}
