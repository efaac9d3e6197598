//! The API's defaults, applied before validation. Order matters where one default is made from another.
//!
//! Owns defaults only: nothing is refused here, and what a pod's source adds is `static_pod`'s.

mod containers;
mod volumes;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodIP, PodSpec, PodStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use rubelet_config::{FeatureGates, Gate};
use rubelet_model::quantity::MILLI;

use crate::fields::{fill, flag, list, quantity, text};
use crate::validation::resources::{aggregate, is_hugepages, is_native, is_pod_level};

const DEFAULT_GRACE_PERIOD_SECONDS: i64 = 30;

type ResourceList = Option<BTreeMap<String, ApiQuantity>>;

/// Fills in what the pod leaves open.
pub fn apply_defaults(pod: &mut Pod, gates: &FeatureGates) {
    let spec = pod.spec.get_or_insert_default();
    default_before_spec(spec, gates);
    default_spec(spec);
    for volume in spec.volumes.iter_mut().flatten() {
        volumes::default_volume(volume, gates);
    }
    let init = spec.init_containers.iter_mut().flatten();
    for container in init.chain(&mut spec.containers) {
        containers::default_container(container);
    }
    for container in spec.ephemeral_containers.iter_mut().flatten() {
        containers::default_ephemeral(container);
    }
    round_resources(&mut spec.overhead);
    round_requirements(&mut spec.resources);
    if let Some(status) = &mut pod.status {
        default_status(status);
    }
}

/// The pod's own defaults come first: requests are copied before anything is rounded.
fn default_before_spec(spec: &mut PodSpec, gates: &FeatureGates) {
    if spec
        .termination_grace_period_seconds
        .is_some_and(|seconds| seconds < 0)
    {
        spec.termination_grace_period_seconds = Some(1);
    }
    for container in spec
        .containers
        .iter_mut()
        .chain(spec.init_containers.iter_mut().flatten())
    {
        if let Some(resources) = &mut container.resources {
            copy_limits_to_requests(resources);
        }
    }
    if gates.enabled(Gate::PodLevelResources) && !gates.enabled(Gate::PodLevelResourcesFixDefaulting) {
        default_pod_level_limits(spec);
        default_pod_level_requests(spec);
    }
    spec.enable_service_links.get_or_insert(true);
    if flag(spec.host_network) {
        let init = spec.init_containers.iter_mut().flatten();
        for container in spec.containers.iter_mut().chain(init) {
            open_ports_on_host(container);
        }
    }
    if gates.enabled(Gate::H2CContainerProbe) {
        let init = spec.init_containers.iter_mut().flatten();
        for container in spec.containers.iter_mut().chain(init) {
            containers::default_http_protocol(containers::handlers(container));
        }
        for container in spec.ephemeral_containers.iter_mut().flatten() {
            containers::default_http_protocol(containers::ephemeral_handlers(container));
        }
    }
}

fn copy_limits_to_requests(resources: &mut ResourceRequirements) {
    let Some(limits) = &resources.limits else { return };
    let requests = resources.requests.get_or_insert_default();
    for (name, limit) in limits {
        requests.entry(name.clone()).or_insert_with(|| limit.clone());
    }
}

/// Huge pages that containers are limited to are the pod's limit too.
fn default_pod_level_limits(spec: &mut PodSpec) {
    let totals = aggregate(spec, |resources| &resources.limits);
    let Some(resources) = &mut spec.resources else {
        return;
    };
    let given = |field: &ResourceList| field.as_ref().is_some_and(|list| !list.is_empty());
    if !given(&resources.limits) && !given(&resources.requests) {
        return;
    }
    for (name, total) in totals.into_iter().filter(|(name, _)| is_hugepages(name)) {
        let requested = resources
            .requests
            .as_ref()
            .is_some_and(|requests| requests.contains_key(&name));
        if !requested {
            resources
                .limits
                .get_or_insert_default()
                .entry(name)
                .or_insert_with(|| ApiQuantity(total.to_string()));
        }
    }
}

fn default_pod_level_requests(spec: &mut PodSpec) {
    let totals = aggregate(spec, |resources| &resources.requests);
    let Some(resources) = &mut spec.resources else {
        return;
    };
    let Some(limits) = resources.limits.as_ref().filter(|limits| !limits.is_empty()) else {
        return;
    };
    let mut requests = resources.requests.clone().unwrap_or_default();
    for (name, total) in totals {
        if is_pod_level(&name) && is_native(&name) && !is_hugepages(&name) {
            requests
                .entry(name)
                .or_insert_with(|| ApiQuantity(total.to_string()));
        }
    }
    for (name, limit) in limits.iter().filter(|(name, _)| is_pod_level(name)) {
        requests.entry(name.clone()).or_insert_with(|| limit.clone());
    }
    if !requests.is_empty() {
        resources.requests = Some(requests);
    }
}

fn open_ports_on_host(container: &mut Container) {
    for port in container.ports.iter_mut().flatten() {
        if port.host_port.unwrap_or_default() == 0 {
            port.host_port = Some(port.container_port);
        }
    }
}

fn default_spec(spec: &mut PodSpec) {
    if text(&spec.service_account_name).is_empty() {
        spec.service_account_name.clone_from(&spec.service_account);
    }
    spec.service_account.clone_from(&spec.service_account_name);
    fill(&mut spec.dns_policy, "ClusterFirst");
    fill(&mut spec.restart_policy, "Always");
    spec.security_context.get_or_insert_default();
    spec.termination_grace_period_seconds
        .get_or_insert(DEFAULT_GRACE_PERIOD_SECONDS);
    fill(&mut spec.scheduler_name, "default-scheduler");
}

/// Amounts are whole thousandths; smaller parts are rounded up.
fn round_resources(field: &mut ResourceList) {
    for amount in field.iter_mut().flat_map(BTreeMap::values_mut) {
        let mut rounded = quantity(amount);
        rounded.round_up(MILLI);
        *amount = ApiQuantity(rounded.canonical());
    }
}

fn round_requirements(field: &mut Option<ResourceRequirements>) {
    if let Some(resources) = field {
        round_resources(&mut resources.limits);
        round_resources(&mut resources.requests);
    }
}

/// The list of addresses and its first one agree.
fn default_status(status: &mut PodStatus) {
    let first = list(&status.pod_ips).first().map(|address| address.ip.clone());
    match (text(&status.pod_ip), first) {
        ("", Some(first)) => status.pod_ip = Some(first),
        ("", None) => {}
        (address, Some(first)) if first == address => {}
        (address, _) => {
            status.pod_ips = Some(vec![PodIP {
                ip: address.to_owned(),
            }]);
        }
    }
    let containers = [
        &mut status.init_container_statuses,
        &mut status.container_statuses,
        &mut status.ephemeral_container_statuses,
    ];
    for container in containers.into_iter().flatten().flatten() {
        round_resources(&mut container.allocated_resources);
        round_requirements(&mut container.resources);
    }
    round_resources(&mut status.allocated_resources);
    round_requirements(&mut status.resources);
}
