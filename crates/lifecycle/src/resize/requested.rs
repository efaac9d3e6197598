//! What a change of a spec asks for, container by container, for the metrics.

use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};

use crate::allocation::numbers::Resource;
use crate::allocation::{ResourceNumbers, resizable_containers};

/// One number of one container that changes: the resource, `requests` or `limits`, and how.
pub type RequestedChange = (&'static str, &'static str, &'static str);

/// The numbers that differ between two definitions of a pod.
#[must_use]
pub fn requested_changes(old: &Pod, new: &Pod) -> Vec<RequestedChange> {
    let mut found = Vec::new();
    for container in resizable_containers(old) {
        let mut others = resizable_containers(new);
        let Some(other) = others.find(|other| other.name == container.name) else {
            continue;
        };
        let (old, new) = (own(container.resources.as_ref()), own(other.resources.as_ref()));
        for resource in [Resource::Memory, Resource::Cpu] {
            let ((old_request, old_limit), (request, limit)) = (old.part(resource), new.part(resource));
            for (list, old, new) in [("requests", old_request, request), ("limits", old_limit, limit)] {
                if let Some(operation) = operation(old, new) {
                    found.push((resource.as_str(), list, operation));
                }
            }
        }
    }
    found
}

fn own(resources: Option<&ResourceRequirements>) -> ResourceNumbers {
    resources.map_or_else(ResourceNumbers::default, |own| ResourceNumbers::of(None, own))
}

fn operation(old: i64, new: i64) -> Option<&'static str> {
    match (old, new) {
        (old, new) if old == new => None,
        (_, 0) => Some("remove"),
        (0, _) => Some("add"),
        (old, new) if new < old => Some("decrease"),
        (_, _) => Some("increase"),
    }
}
