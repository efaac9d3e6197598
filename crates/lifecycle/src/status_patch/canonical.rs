//! The canonical form of a status, in which equal meaning is equal JSON.
//!
//! Owns what the API leaves open: an empty text, list or zero is the same as none, and `0.5` is the same amount as `500m`. A
//! pointer to something empty (`resources: {}`) is not the same as none, and stays.

use std::collections::BTreeMap;
use std::str::FromStr;

use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStatus, PodCondition, PodStatus, PodVolumeHealth, ResourceRequirements,
    VolumeMountStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use rubelet_model::Quantity;

/// The status without claims, which are others' to write.
pub(super) fn canonical(status: &PodStatus) -> PodStatus {
    let mut status = PodStatus {
        resource_claim_statuses: None,
        extended_resource_claim_status: None,
        node_allocatable_resource_claim_statuses: None,
        ..status.clone()
    };
    zero(&mut status.observed_generation);
    for field in [
        &mut status.phase,
        &mut status.message,
        &mut status.reason,
        &mut status.nominated_node_name,
        &mut status.host_ip,
        &mut status.pod_ip,
        &mut status.qos_class,
        &mut status.resize,
    ] {
        text(field);
    }
    list(&mut status.conditions, condition);
    list(&mut status.host_ips, |_| {});
    list(&mut status.pod_ips, |_| {});
    list(&mut status.init_container_statuses, container);
    list(&mut status.container_statuses, container);
    list(&mut status.ephemeral_container_statuses, container);
    list(&mut status.volume_health, volume_health);
    amounts(&mut status.allocated_resources);
    status.resources.as_mut().into_iter().for_each(resources);
    status
}

fn condition(condition: &mut PodCondition) {
    zero(&mut condition.observed_generation);
    text(&mut condition.reason);
    text(&mut condition.message);
}

fn container(status: &mut ContainerStatus) {
    text(&mut status.container_id);
    for place in [&mut status.state, &mut status.last_state] {
        if let Some(state) = place {
            container_state(state);
        }
        if *place == Some(ContainerState::default()) {
            *place = None;
        }
    }
    amounts(&mut status.allocated_resources);
    status.resources.as_mut().into_iter().for_each(resources);
    list(&mut status.volume_mounts, mount);
    list(&mut status.allocated_resources_status, |one| {
        list(&mut one.resources, |health| text(&mut health.health));
    });
    if let Some(linux) = status.user.as_mut().and_then(|user| user.linux.as_mut()) {
        list(&mut linux.supplemental_groups, |_| {});
    }
}

fn container_state(state: &mut ContainerState) {
    if let Some(waiting) = &mut state.waiting {
        text(&mut waiting.reason);
        text(&mut waiting.message);
    }
    if let Some(end) = &mut state.terminated {
        text(&mut end.reason);
        text(&mut end.message);
        text(&mut end.container_id);
        if end.signal == Some(0) {
            end.signal = None;
        }
    }
}

fn mount(mount: &mut VolumeMountStatus) {
    if mount.read_only == Some(false) {
        mount.read_only = None;
    }
}

fn volume_health(health: &mut PodVolumeHealth) {
    list(&mut health.health_conditions, |condition| {
        text(&mut condition.message);
    });
}

fn resources(resources: &mut ResourceRequirements) {
    amounts(&mut resources.limits);
    amounts(&mut resources.requests);
    list(&mut resources.claims, |claim| text(&mut claim.request));
}

fn amounts(place: &mut Option<BTreeMap<String, ApiQuantity>>) {
    for amount in place.iter_mut().flat_map(BTreeMap::values_mut) {
        // A text that is no quantity stays as it is; neither the API server nor rubelet writes one.
        if let Ok(quantity) = Quantity::from_str(&amount.0) {
            amount.0 = quantity.canonical();
        }
    }
    if place.as_ref().is_some_and(BTreeMap::is_empty) {
        *place = None;
    }
}

fn text(place: &mut Option<String>) {
    if place.as_deref() == Some("") {
        *place = None;
    }
}

fn zero(place: &mut Option<i64>) {
    if *place == Some(0) {
        *place = None;
    }
}

fn list<T>(place: &mut Option<Vec<T>>, each: impl FnMut(&mut T)) {
    if place.as_ref().is_some_and(Vec::is_empty) {
        *place = None;
    }
    place.iter_mut().flatten().for_each(each);
}
