//! What a pod uses that this node cannot honour yet.
//!
//! Owns the list of fields with the reason. A pod with an entry here is refused; nothing is silently left out.

use std::fmt;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use rubelet_resources::amounts::{CPU, EPHEMERAL_STORAGE, HUGE_PAGES_PREFIX, MEMORY};

use super::container::ephemeral_as_container;

/// One field and why it cannot be honoured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    pub field: String,
    pub reason: &'static str,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.reason)
    }
}

const VOLUMES: &str = "volumes are not supported yet";
const PROBES: &str = "probes are not supported yet";
const HOOKS: &str = "lifecycle hooks are not supported yet";
const STOP_SIGNALS: &str = "stop signals are not supported yet";
const API_OBJECTS: &str = "not supported without an API server";
const CLAIMS: &str = "resource claims are not supported yet";

/// Every used field that cannot be honoured, with its path; empty for a pod that can run.
pub fn unsupported(pod: &Pod) -> Vec<Unsupported> {
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    let mut found = Findings(Vec::new());
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
            container_fields(container, &format!("{list}[{index}]"), &mut found);
        }
    }
    found.0
}

struct Findings(Vec<Unsupported>);

impl Findings {
    fn when(&mut self, is_used: bool, field: impl Into<String>, reason: &'static str) {
        if is_used {
            self.0.push(Unsupported {
                field: field.into(),
                reason,
            });
        }
    }
}

fn has_entries<T>(list: &Option<Vec<T>>) -> bool {
    list.as_ref().is_some_and(|list| !list.is_empty())
}

fn pod_fields(spec: &PodSpec, found: &mut Findings) {
    for index in 0..spec.volumes.as_ref().map_or(0, Vec::len) {
        found.when(true, format!("spec.volumes[{index}]"), VOLUMES);
    }
    found.when(
        spec.host_users == Some(false),
        "spec.hostUsers",
        "user namespaces are not supported yet",
    );
    let has_class = spec
        .runtime_class_name
        .as_ref()
        .is_some_and(|name| !name.is_empty());
    found.when(has_class, "spec.runtimeClassName", API_OBJECTS);
    found.when(has_entries(&spec.resource_claims), "spec.resourceClaims", CLAIMS);
    found.when(
        has_entries(&spec.image_pull_secrets),
        "spec.imagePullSecrets",
        API_OBJECTS,
    );
    let other_os = spec.os.as_ref().is_some_and(|os| os.name != "linux");
    found.when(other_os, "spec.os.name", "this node runs Linux");
}

fn container_fields(container: &Container, path: &str, found: &mut Findings) {
    let field = |name: &str| format!("{path}.{name}");
    found.when(
        has_entries(&container.volume_mounts),
        field("volumeMounts"),
        VOLUMES,
    );
    found.when(
        has_entries(&container.volume_devices),
        field("volumeDevices"),
        VOLUMES,
    );
    found.when(container.liveness_probe.is_some(), field("livenessProbe"), PROBES);
    found.when(
        container.readiness_probe.is_some(),
        field("readinessProbe"),
        PROBES,
    );
    found.when(container.startup_probe.is_some(), field("startupProbe"), PROBES);
    if let Some(lifecycle) = &container.lifecycle {
        found.when(
            lifecycle.post_start.is_some(),
            field("lifecycle.postStart"),
            HOOKS,
        );
        found.when(lifecycle.pre_stop.is_some(), field("lifecycle.preStop"), HOOKS);
        let has_signal = lifecycle.stop_signal.is_some();
        found.when(has_signal, field("lifecycle.stopSignal"), STOP_SIGNALS);
    }
    for index in 0..container.env_from.as_ref().map_or(0, Vec::len) {
        found.when(true, field(&format!("envFrom[{index}]")), API_OBJECTS);
    }
    for (index, variable) in container.env.iter().flatten().enumerate() {
        // A value that is not empty wins over valueFrom.
        let from = match (&variable.value, &variable.value_from) {
            (Some(value), _) if !value.is_empty() => continue,
            (_, Some(from)) => from,
            (_, None) => continue,
        };
        let field = |name: &str| field(&format!("env[{index}].valueFrom.{name}"));
        found.when(
            from.config_map_key_ref.is_some(),
            field("configMapKeyRef"),
            API_OBJECTS,
        );
        found.when(from.secret_key_ref.is_some(), field("secretKeyRef"), API_OBJECTS);
        found.when(from.file_key_ref.is_some(), field("fileKeyRef"), VOLUMES);
    }
    if let Some(resources) = &container.resources {
        found.when(has_entries(&resources.claims), field("resources.claims"), CLAIMS);
        for name in resources.limits.iter().flatten().map(|(name, _)| name) {
            found.when(
                needs_device_plugin(name),
                field(&format!("resources.limits[{name}]")),
                "device plugins are not supported yet",
            );
        }
    }
}

/// Everything the kernel does not know is a device.
fn needs_device_plugin(resource: &str) -> bool {
    !matches!(resource, CPU | MEMORY | EPHEMERAL_STORAGE) && !resource.starts_with(HUGE_PAGES_PREFIX)
}
