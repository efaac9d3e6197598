//! Fields of a pod that this node does not support yet.
//!
//! Owns the list of fields with the reason of each; no field is ignored silently. A pod from the API server stays Pending for a missing
//! volume plugin or resource driver, as upstream does while a driver is missing, because a controller would replace a failed pod without
//! end. It is rejected for everything else; a static pod is rejected for any field. References to API objects are supported for pods
//! from the API server only.

use std::fmt;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use rubelet_resources::admission::need::DEVICE_CLASS_PREFIX;

use super::container::ephemeral_as_container;
use super::node::NodeConfiguration;
use super::unsupported_volumes::unsupported_volumes;
use crate::status::is_api_pod;

/// One field and why it cannot be honoured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    pub field: String,
    pub reason: &'static str,
    /// The part of a node that would honour the field; nothing when only the kubelet itself could.
    pub provider: Option<Provider>,
}

/// A part of a node that is installed beside the kubelet, before or after a pod that needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    VolumePlugin,
    ResourceDriver,
    DevicePlugin,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.reason)
    }
}

const STOP_SIGNALS: &str = "stop signals need the feature gate ContainerStopSignals";
const API_OBJECTS: &str = "not supported without an API server";
const CLAIMS: &str = "resource claims are not supported yet";

/// Every used field that the pod has to be rejected for, with its path; empty for a pod that may be admitted.
pub fn unsupported(pod: &Pod, node: &NodeConfiguration) -> Vec<Unsupported> {
    let mut found = used_fields(pod, node);
    if is_api_pod(pod) {
        found.retain(|one| one.provider.is_none());
    }
    found
}

/// Every used field that a pod from the API server has to wait for, because this node has no provider for it.
pub fn unprovided(pod: &Pod, node: &NodeConfiguration) -> Vec<Unsupported> {
    if !is_api_pod(pod) {
        return Vec::new();
    }
    let mut found = used_fields(pod, node);
    found.retain(|one| one.provider.is_some());
    found
}

fn used_fields(pod: &Pod, node: &NodeConfiguration) -> Vec<Unsupported> {
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    let has_api = is_api_pod(pod);
    let mut found = Findings {
        list: Vec::new(),
        has_api,
    };
    found.list.extend(unsupported_volumes(pod, has_api));
    pod_fields(spec, &mut found);
    let lists = [
        (
            "spec.initContainers",
            spec.init_containers.clone().unwrap_or_default(),
        ),
        ("spec.containers", spec.containers.clone()),
        (
            "spec.ephemeralContainers",
            spec.ephemeral_containers
                .iter()
                .flatten()
                .map(ephemeral_as_container)
                .collect(),
        ),
    ];
    for (list, containers) in &lists {
        for (index, container) in containers.iter().enumerate() {
            let path = format!("{list}[{index}]");
            container_fields(container, &path, node, &mut found);
            claimed_resources(pod, container, &path, &mut found);
        }
    }
    found.list
}

struct Findings {
    list: Vec<Unsupported>,
    /// References to API objects can be followed.
    has_api: bool,
}

impl Findings {
    fn when(&mut self, is_used: bool, field: impl Into<String>, reason: &'static str) {
        if is_used {
            self.add(field, reason, None);
        }
    }

    /// For what a driver of the cluster's choice would honour.
    fn when_unprovided(
        &mut self,
        is_used: bool,
        field: impl Into<String>,
        reason: &'static str,
        provider: Provider,
    ) {
        if is_used {
            self.add(field, reason, Some(provider));
        }
    }

    fn when_claims(&mut self, is_used: bool, field: impl Into<String>) {
        self.when_unprovided(is_used, field, CLAIMS, Provider::ResourceDriver);
    }

    fn add(&mut self, field: impl Into<String>, reason: &'static str, provider: Option<Provider>) {
        self.list.push(Unsupported {
            field: field.into(),
            reason,
            provider,
        });
    }

    /// For what needs an API server and nothing else.
    fn when_no_api(&mut self, is_used: bool, field: impl Into<String>) {
        self.when(is_used && !self.has_api, field, API_OBJECTS);
    }
}

fn has_entries<T>(list: &Option<Vec<T>>) -> bool {
    list.as_ref().is_some_and(|list| !list.is_empty())
}

fn pod_fields(spec: &PodSpec, found: &mut Findings) {
    let has_class = spec
        .runtime_class_name
        .as_ref()
        .is_some_and(|name| !name.is_empty());
    found.when_no_api(has_class, "spec.runtimeClassName");
    found.when_claims(has_entries(&spec.resource_claims), "spec.resourceClaims");
    // Those of pods from the API server are not used yet either, but most such pods have some and do not need them.
    found.when_no_api(has_entries(&spec.image_pull_secrets), "spec.imagePullSecrets");
}

fn container_fields(container: &Container, path: &str, node: &NodeConfiguration, found: &mut Findings) {
    let field = |name: &str| format!("{path}.{name}");
    found.when_unprovided(
        has_entries(&container.volume_devices),
        field("volumeDevices"),
        "block devices are not supported yet",
        Provider::VolumePlugin,
    );
    if let Some(lifecycle) = &container.lifecycle {
        let has_signal = lifecycle.stop_signal.is_some() && !node.has_stop_signals;
        found.when(has_signal, field("lifecycle.stopSignal"), STOP_SIGNALS);
    }
    for index in 0..container.env_from.as_ref().map_or(0, Vec::len) {
        found.when_no_api(true, field(&format!("envFrom[{index}]")));
    }
    for (index, variable) in container.env.iter().flatten().enumerate() {
        // A value that is not empty wins over valueFrom.
        let from = match (&variable.value, &variable.value_from) {
            (Some(value), _) if !value.is_empty() => continue,
            (_, Some(from)) => from,
            (_, None) => continue,
        };
        let field = |name: &str| field(&format!("env[{index}].valueFrom.{name}"));
        found.when_no_api(from.config_map_key_ref.is_some(), field("configMapKeyRef"));
        found.when_no_api(from.secret_key_ref.is_some(), field("secretKeyRef"));
    }
    if let Some(resources) = &container.resources {
        found.when_claims(has_entries(&resources.claims), field("resources.claims"));
    }
}

/// Extended resources that a resource claim provides. Admission counts the other extended resources, where the Node has them.
fn claimed_resources(pod: &Pod, container: &Container, path: &str, found: &mut Findings) {
    let status = pod.status.as_ref();
    let claims = status.and_then(|status| status.extended_resource_claim_status.as_ref());
    let is_claimed = |name: &String| {
        let mut mappings = claims.into_iter().flat_map(|claims| &claims.request_mappings);
        mappings.any(|one| one.container_name == container.name && one.resource_name == *name)
    };
    let limits = container.resources.iter().filter_map(|all| all.limits.as_ref());
    for name in limits.flatten().map(|(name, _)| name) {
        let needs_claim = name.starts_with(DEVICE_CLASS_PREFIX) || is_claimed(name);
        found.when_claims(needs_claim, format!("{path}.resources.limits[{name}]"));
    }
}
