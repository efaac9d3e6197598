//! The `involvedObject` of an event.
//!
//! Owns the references to pods, containers and the node. It must not decide what is recorded.

use k8s_openapi::api::core::v1::{ObjectReference, Pod};

/// A static pod is named by its own UID, which is what readers of its mirror look for.
pub(super) fn pod_reference(pod: &Pod, container: Option<&str>) -> ObjectReference {
    let metadata = &pod.metadata;
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: metadata.namespace.clone(),
        name: metadata.name.clone(),
        uid: metadata.uid.clone(),
        resource_version: metadata.resource_version.clone(),
        field_path: container.map(|name| field_path(pod, name)),
    }
}

pub(super) fn node_reference(name: &str, uid: Option<String>) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(name.to_owned()),
        uid,
        ..ObjectReference::default()
    }
}

/// Where the container stands in the pod.
fn field_path(pod: &Pod, container: &str) -> String {
    let Some(spec) = &pod.spec else {
        return outside(container);
    };
    let init = spec.init_containers.as_deref().unwrap_or_default();
    let ephemeral = spec.ephemeral_containers.as_deref().unwrap_or_default();
    let list = if spec.containers.iter().any(|one| one.name == container) {
        "containers"
    } else if init.iter().any(|one| one.name == container) {
        "initContainers"
    } else if ephemeral.iter().any(|one| one.name == container) {
        "ephemeralContainers"
    } else {
        return outside(container);
    };
    format!("spec.{list}{{{container}}}")
}

/// Upstream's field path of a container that the pod does not name.
fn outside(container: &str) -> String {
    format!("implicitly required container {container}")
}
