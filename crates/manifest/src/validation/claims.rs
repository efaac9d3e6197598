//! Rules for the claim that an ephemeral volume makes.

use k8s_openapi::api::core::v1::{PersistentVolumeClaimSpec, PersistentVolumeClaimTemplate};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rubelet_model::names::{is_dns_label, is_dns_subdomain};

use super::metadata::{annotations, label_selector, labels};
use super::names::dns_subdomain;
use super::resources::amount;
use crate::fields::{list, quantity, text};
use crate::problem::{Findings, Path};

const ACCESS_MODES: &[&str] = &[
    "ReadOnlyMany",
    "ReadWriteMany",
    "ReadWriteOnce",
    "ReadWriteOncePod",
];

pub(super) fn template(out: &mut Findings, path: &Path, template: &PersistentVolumeClaimTemplate) {
    if let Some(meta) = &template.metadata {
        let path = path.child("metadata");
        annotations(out, &path.child("annotations"), &meta.annotations);
        labels(out, &path.child("labels"), &meta.labels);
        forbid_other_metadata(out, &path, meta);
    }
    spec(out, &path.child("spec"), &template.spec);
}

fn forbid_other_metadata(out: &mut Findings, path: &Path, meta: &ObjectMeta) {
    let set = |field: &Option<String>| !text(field).is_empty();
    for (name, is_set) in [
        ("name", set(&meta.name)),
        ("generateName", set(&meta.generate_name)),
        ("namespace", set(&meta.namespace)),
        ("selfLink", set(&meta.self_link)),
        ("uID", set(&meta.uid)),
        ("resourceVersion", set(&meta.resource_version)),
        ("generation", meta.generation.unwrap_or_default() != 0),
        ("creationTimestamp", meta.creation_timestamp.is_some()),
        ("deletionTimestamp", meta.deletion_timestamp.is_some()),
        (
            "deletionGracePeriodSeconds",
            meta.deletion_grace_period_seconds.is_some(),
        ),
        ("ownerReferences", meta.owner_references.is_some()),
        ("finalizers", meta.finalizers.is_some()),
        ("managedFields", meta.managed_fields.is_some()),
    ] {
        if is_set {
            out.forbidden(&path.child(name), "only labels and annotations");
        }
    }
}

fn spec(out: &mut Findings, path: &Path, spec: &PersistentVolumeClaimSpec) {
    let modes_path = path.child("accessModes");
    let modes = list(&spec.access_modes);
    if modes.is_empty() {
        out.required(&modes_path, "");
    }
    label_selector(out, &path.child("selector"), &spec.selector);
    for mode in modes {
        out.one_of(&modes_path, mode, ACCESS_MODES);
    }
    let has = |alone: bool| {
        let known = modes.iter().filter(|mode| ACCESS_MODES.contains(&mode.as_str()));
        known
            .into_iter()
            .any(|mode| (mode == "ReadWriteOncePod") == alone)
    };
    if has(true) && has(false) {
        out.forbidden(&modes_path, "ReadWriteOncePod stands alone");
    }
    let storage_path = path.child("resources").key("storage");
    let requests = spec
        .resources
        .as_ref()
        .and_then(|resources| resources.requests.as_ref());
    match requests
        .and_then(|requests| requests.get("storage"))
        .map(quantity)
    {
        None => out.required(&storage_path, ""),
        Some(size) if size.signum() <= 0 => out.invalid(&storage_path, "must be positive"),
        Some(size) => amount(out, &storage_path, "storage", &size),
    }
    let class = text(&spec.storage_class_name);
    if !class.is_empty() {
        dns_subdomain(out, &path.child("storageClassName"), class);
    }
    if let Some(mode) = &spec.volume_mode {
        out.one_of(&path.child("volumeMode"), mode, &["Block", "Filesystem"]);
    }
    data_sources(out, path, spec);
    let class = text(&spec.volume_attributes_class_name);
    if !class.is_empty() {
        dns_subdomain(out, &path.child("volumeAttributesClassName"), class);
    }
}

fn reference(out: &mut Findings, path: &Path, group: &str, kind: &str, name: &str) {
    out.required_text(&path.child("name"), name);
    out.required_text(&path.child("kind"), kind);
    if group.is_empty() {
        out.invalid_unless(kind == "PersistentVolumeClaim", path, "needs an apiGroup");
    } else {
        out.invalid_unless(is_dns_subdomain(group), &path.child("apiGroup"), "not a DNS name");
    }
}

fn data_sources(out: &mut Findings, path: &Path, spec: &PersistentVolumeClaimSpec) {
    if let Some(source) = &spec.data_source {
        reference(
            out,
            &path.child("dataSource"),
            text(&source.api_group),
            &source.kind,
            &source.name,
        );
    }
    let Some(general) = &spec.data_source_ref else {
        return;
    };
    let general_path = path.child("dataSourceRef");
    reference(
        out,
        &general_path,
        text(&general.api_group),
        &general.kind,
        &general.name,
    );
    let namespace = text(&general.namespace);
    if !namespace.is_empty() {
        out.invalid_unless(
            is_dns_label(namespace),
            &general_path.child("namespace"),
            "not a namespace's name",
        );
    }
    if let Some(source) = &spec.data_source {
        let same = source.api_group == general.api_group
            && source.kind == general.kind
            && source.name == general.name;
        out.invalid_unless(
            namespace.is_empty() && same,
            path,
            "dataSource must match dataSourceRef",
        );
    }
}
