//! The Node object that a node registers, and what changes on one that exists already.
//!
//! Owns labels, taints and annotations at registration. Of an existing Node only the fields that a kubelet owns are updated;
//! its taints are left alone, because an administrator may have removed them on purpose.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rubelet_resources::amounts::HUGE_PAGES_PREFIX;

use super::contents::OPERATING_SYSTEM;
use super::resources::is_extended;
use crate::settings::NodeSettings;

const HOSTNAME: &str = "kubernetes.io/hostname";
pub(super) const OS: &str = "kubernetes.io/os";
pub(super) const ARCH: &str = "kubernetes.io/arch";
const BETA_OS: &str = "beta.kubernetes.io/os";
const BETA_ARCH: &str = "beta.kubernetes.io/arch";
/// The labels that a restarted node brings in line, whatever they were.
const KEPT_LABELS: [&str; 12] = [
    HOSTNAME,
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    OS,
    ARCH,
    "node.kubernetes.io/windows-build",
    BETA_OS,
    BETA_ARCH,
];
const ATTACH_DETACH: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// The Node without a status.
pub(super) fn bare_node(settings: &NodeSettings) -> Node {
    let registration = &settings.registration;
    let architecture = settings.machine.architecture.as_str();
    let own = [
        (HOSTNAME, settings.addresses.hostname.as_str()),
        (OS, OPERATING_SYSTEM),
        (ARCH, architecture),
        (BETA_OS, OPERATING_SYSTEM),
        (BETA_ARCH, architecture),
    ];
    let own = own.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let labels = own.into_iter().chain(registration.labels.clone()).collect();
    let mut taints = registration.taints.clone();
    if settings.addresses.external_cloud_provider {
        taints.push(Taint {
            key: UNINITIALIZED.to_owned(),
            value: Some("true".to_owned()),
            effect: "NoSchedule".to_owned(),
            time_added: None,
        });
    }
    let annotations = registration
        .controller_attach_detach
        .then(|| [(ATTACH_DETACH.to_owned(), "true".to_owned())].into());
    Node {
        metadata: ObjectMeta {
            name: Some(settings.node_name.clone()),
            labels: Some(labels),
            annotations,
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            provider_id: Some(registration.provider_id.clone()).filter(|id| !id.is_empty()),
            taints: (!taints.is_empty()).then_some(taints),
            ..NodeSpec::default()
        }),
        status: None,
    }
}

/// The existing Node as it should be.
pub(crate) fn reconciled(initial: &Node, existing: &Node, reset_extended_resources: bool) -> Node {
    let mut node = existing.clone();
    reconcile_annotation(initial, &mut node);
    reconcile_labels(initial, &mut node);
    let wanted = initial.status.clone().unwrap_or_default();
    let status = node.status.get_or_insert_default();
    if status.capacity.is_none() {
        status.capacity.clone_from(&wanted.capacity);
    }
    if status.allocatable.is_none() {
        status.allocatable.clone_from(&wanted.allocatable);
    }
    if reset_extended_resources {
        reset_extended(status);
    }
    reconcile_huge_pages(&wanted, status);
    node
}

/// Changes a map that may be missing, and leaves it missing when there is nothing to put into it.
fn edit<V>(map: &mut Option<BTreeMap<String, V>>, change: impl FnOnce(&mut BTreeMap<String, V>)) {
    let was_there = map.is_some();
    let mut content = map.take().unwrap_or_default();
    change(&mut content);
    *map = (was_there || !content.is_empty()).then_some(content);
}

fn reconcile_annotation(initial: &Node, node: &mut Node) {
    let wanted = initial.metadata.annotations.as_ref();
    let wanted = wanted.and_then(|annotations| annotations.get(ATTACH_DETACH));
    edit(&mut node.metadata.annotations, |annotations| match wanted {
        Some(value) => drop(annotations.insert(ATTACH_DETACH.to_owned(), value.clone())),
        None => drop(annotations.remove(ATTACH_DETACH)),
    });
}

fn reconcile_labels(initial: &Node, node: &mut Node) {
    let wanted = initial.metadata.labels.as_ref();
    edit(&mut node.metadata.labels, |labels| {
        for key in KEPT_LABELS {
            match wanted.and_then(|labels| labels.get(key)).map(String::as_str) {
                Some("") => drop(labels.remove(key)),
                Some(value) => drop(labels.insert(key.to_owned(), value.to_owned())),
                None => {}
            }
        }
    });
}

fn reset_extended(status: &mut NodeStatus) {
    let nothing = || ApiQuantity("0".to_owned());
    let mut names = Vec::new();
    edit(&mut status.capacity, |capacity| {
        for (name, whole) in capacity.iter_mut().filter(|(name, _)| is_extended(name)) {
            *whole = nothing();
            names.push(name.clone());
        }
    });
    edit(&mut status.allocatable, |allocatable| {
        allocatable.extend(names.into_iter().map(|name| (name, nothing())));
    });
}

/// Page sizes come and go with the kernel's command line: what this boot does not have leaves the Node.
fn reconcile_huge_pages(wanted: &NodeStatus, status: &mut NodeStatus) {
    let lists = [
        (&wanted.capacity, &mut status.capacity),
        (&wanted.allocatable, &mut status.allocatable),
    ];
    for (wanted, list) in lists {
        let pages = wanted.iter().flatten();
        let pages = pages.filter(|(name, _)| name.starts_with(HUGE_PAGES_PREFIX));
        edit(list, |list| {
            list.retain(|name, _| !name.starts_with(HUGE_PAGES_PREFIX));
            list.extend(pages.map(|(name, quantity)| (name.clone(), quantity.clone())));
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::patch::status_patch;
    use super::*;

    fn node(value: Value) -> Node {
        serde_json::from_value(value).unwrap()
    }

    fn check(existing: Value, reset: bool, expected: &Value) {
        let initial = node(json!({
            "metadata": {
                "name": "n",
                "labels": {HOSTNAME: "n", OS: "linux", "node.kubernetes.io/instance-type": "", "own": "new"},
                "annotations": {ATTACH_DETACH: "true"},
            },
            "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]},
            "status": {
                "capacity": {"cpu": "2", "hugepages-2Mi": "4Mi"},
                "allocatable": {"cpu": "1", "hugepages-2Mi": "2Mi"},
            },
        }));
        let existing = node(existing);
        let wanted = reconciled(&initial, &existing, reset);
        assert_eq!(&status_patch(&existing, &wanted).unwrap(), expected);
    }

    #[test]
    fn an_existing_node_is_brought_in_line() {
        let status = json!({
            "capacity": {"cpu": "9", "hugepages-2Mi": "4Mi", "example.com/gpu": "2"},
            "allocatable": {"cpu": "9", "hugepages-2Mi": "2Mi", "example.com/gpu": "2"},
        });
        let labels = json!({HOSTNAME: "n", OS: "linux", "own": "old", "theirs": "x"});
        let metadata = json!({"name": "n", "labels": labels, "annotations": {ATTACH_DETACH: "true"}});
        check(json!({"metadata": metadata, "status": status}), false, &json!({}));
        check(
            json!({"metadata": metadata, "status": status}),
            true,
            &json!({"status": {"capacity": {"example.com/gpu": "0"}, "allocatable": {"example.com/gpu": "0"}}}),
        );
        check(
            json!({"metadata": {"name": "n", "labels": {HOSTNAME: "old", "node.kubernetes.io/instance-type": "big"}}}),
            false,
            &json!({
                "metadata": {
                    "annotations": {ATTACH_DETACH: "true"},
                    "labels": {HOSTNAME: "n", OS: "linux", "node.kubernetes.io/instance-type": null},
                },
                "status": {
                    "capacity": {"cpu": "2", "hugepages-2Mi": "4Mi"},
                    "allocatable": {"cpu": "1", "hugepages-2Mi": "2Mi"},
                },
            }),
        );
        let pages = json!({
            "capacity": {"hugepages-1Gi": "1Gi", "hugepages-2Mi": "8Mi"},
            "allocatable": {"hugepages-1Gi": "1Gi", "hugepages-2Mi": "8Mi"},
        });
        check(
            json!({"metadata": metadata, "status": pages}),
            true,
            &json!({"status": {
                "capacity": {"hugepages-1Gi": null, "hugepages-2Mi": "4Mi"},
                "allocatable": {"hugepages-1Gi": null, "hugepages-2Mi": "2Mi"},
            }}),
        );
    }

    #[test]
    fn the_annotation_goes_when_it_is_not_wanted() {
        let initial = node(json!({"metadata": {"name": "n"}}));
        let existing =
            node(json!({"metadata": {"name": "n", "annotations": {ATTACH_DETACH: "true", "a": "b"}}}));
        let patch = status_patch(&existing, &reconciled(&initial, &existing, false)).unwrap();
        assert_eq!(patch["metadata"], json!({"annotations": {ATTACH_DETACH: null}}));
    }
}
