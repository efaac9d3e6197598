//! Rules for metadata: names, labels, annotations, owners, finalizers.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PodSpec, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    LabelSelector, ManagedFieldsEntry, ObjectMeta, OwnerReference,
};
use rubelet_model::names::{is_dns_label, is_dns_subdomain, is_label_value, is_qualified_name};
use rubelet_model::pod::{APP_ARMOR_ANNOTATION_PREFIX, MIRROR_ANNOTATION};

use super::names::{is_name_prefix, qualified_name};
use super::security::annotation_profile;
use super::{Options, container_names, scheduling};
use crate::fields::{flag, list, text};
use crate::problem::{Findings, Path};

const TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/tolerations";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
pub(super) const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
pub(super) const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
const MAX_ANNOTATION_BYTES: usize = 256 << 10;
const MAX_MANAGER_BYTES: usize = 128;
const MAX_SUBRESOURCE_BYTES: usize = 256;

pub(super) fn object_meta(out: &mut Findings, path: &Path, meta: &ObjectMeta) {
    let generate = text(&meta.generate_name);
    if !generate.is_empty() {
        out.invalid_unless(
            is_name_prefix(generate),
            &path.child("generateName"),
            "not a DNS name",
        );
    }
    let name = text(&meta.name);
    if name.is_empty() {
        out.required(&path.child("name"), "");
    } else {
        out.invalid_unless(is_dns_subdomain(name), &path.child("name"), "not a DNS name");
    }
    let namespace = text(&meta.namespace);
    if namespace.is_empty() {
        out.required(&path.child("namespace"), "");
    } else {
        out.invalid_unless(
            is_dns_label(namespace),
            &path.child("namespace"),
            "not a DNS label",
        );
    }
    let generation = meta.generation.unwrap_or_default();
    out.invalid_unless(generation >= 0, &path.child("generation"), "must not be negative");
    labels(out, &path.child("labels"), &meta.labels);
    annotations(out, &path.child("annotations"), &meta.annotations);
    owners(out, &path.child("ownerReferences"), list(&meta.owner_references));
    finalizers(out, &path.child("finalizers"), list(&meta.finalizers));
    let fields = path.child("managedFields");
    for (position, entry) in list(&meta.managed_fields).iter().enumerate() {
        managed_fields(out, &fields.index(position), entry);
    }
}

pub(super) fn labels(out: &mut Findings, path: &Path, labels: &Option<BTreeMap<String, String>>) {
    for (key, value) in labels.iter().flatten() {
        qualified_name(out, path, key);
        out.invalid_unless(is_label_value(value), path, "not a label value");
    }
}

pub(super) fn annotations(out: &mut Findings, path: &Path, annotations: &Option<BTreeMap<String, String>>) {
    let mut bytes = 0;
    for (key, value) in annotations.iter().flatten() {
        qualified_name(out, path, &key.to_lowercase());
        bytes += key.len() + value.len();
    }
    if bytes > MAX_ANNOTATION_BYTES {
        out.too_long(path, MAX_ANNOTATION_BYTES);
    }
}

fn owners(out: &mut Findings, path: &Path, owners: &[OwnerReference]) {
    let mut controllers = 0;
    for (position, owner) in owners.iter().enumerate() {
        let path = path.index(position);
        let slashes = owner.api_version.matches('/').count();
        if owner.api_version.is_empty() {
            out.required(&path.child("apiVersion"), "");
        } else if slashes > 1 || owner.api_version.ends_with('/') {
            out.invalid(
                &path.child("apiVersion"),
                "must be a version or a group and a version",
            );
        }
        out.required_text(&path.child("kind"), &owner.kind);
        out.required_text(&path.child("name"), &owner.name);
        out.required_text(&path.child("uid"), &owner.uid);
        if owner.api_version == "v1" && owner.kind == "Event" {
            out.invalid(&path, "an event cannot own anything");
        }
        if flag(owner.controller) {
            controllers += 1;
        }
    }
    out.invalid_unless(controllers < 2, path, "only one owner can be the controller");
}

fn finalizers(out: &mut Findings, path: &Path, names: &[String]) {
    for (position, name) in names.iter().enumerate() {
        qualified_name(out, path, name);
        let standard = ["kubernetes", "orphan", "foregroundDeletion"].contains(&name.as_str());
        if !name.contains('/') && !standard {
            out.invalid(
                &path.index(position),
                "neither a standard name nor one with a domain",
            );
        }
    }
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    if has("orphan") && has("foregroundDeletion") {
        out.invalid(path, "orphan and foregroundDeletion exclude each other");
    }
}

fn managed_fields(out: &mut Findings, path: &Path, entry: &ManagedFieldsEntry) {
    out.required_one_of(
        &path.child("operation"),
        text(&entry.operation),
        &["Apply", "Update"],
    );
    let kind = text(&entry.fields_type);
    out.invalid_unless(
        kind.is_empty() || kind == "FieldsV1",
        &path.child("fieldsType"),
        "must be FieldsV1",
    );
    let manager = text(&entry.manager);
    if manager.len() > MAX_MANAGER_BYTES {
        out.too_long(&path.child("manager"), MAX_MANAGER_BYTES);
    }
    out.invalid_unless(
        !manager.chars().any(char::is_control),
        &path.child("manager"),
        "has unprintable letters",
    );
    if text(&entry.subresource).len() > MAX_SUBRESOURCE_BYTES {
        out.too_long(&path.child("subresource"), MAX_SUBRESOURCE_BYTES);
    }
}

/// Annotations that mean something for a pod.
pub(super) fn pod_annotations(
    out: &mut Findings,
    path: &Path,
    meta: &ObjectMeta,
    spec: &PodSpec,
    options: &Options,
) {
    let Some(annotations) = &meta.annotations else {
        return;
    };
    if annotations.contains_key(MIRROR_ANNOTATION) && text(&spec.node_name).is_empty() {
        out.invalid(&path.key(MIRROR_ANNOTATION), "needs spec.nodeName");
    }
    if let Some(value) = annotations.get(TOLERATIONS).filter(|value| !value.is_empty()) {
        match serde_json::from_str::<Option<Vec<Toleration>>>(value) {
            Ok(tolerations) => {
                let path = path.child(TOLERATIONS);
                scheduling::tolerations(out, &path, tolerations.as_deref().unwrap_or_default(), options);
            }
            Err(_) => out.invalid(path, "the tolerations are no JSON list"),
        }
    }
    if let Some(cost) = annotations.get(DELETION_COST)
        && options.deletion_cost
    {
        let first_fits = cost == "0" || cost.starts_with(['-', '1', '2', '3', '4', '5', '6', '7', '8', '9']);
        let fits = first_fits && cost.parse::<i32>().is_ok();
        out.invalid_unless(fits, &path.key(DELETION_COST), "must be a 32-bit number");
    }
    for (key, profile) in annotations {
        if key == SECCOMP_POD || key.starts_with(SECCOMP_CONTAINER) {
            annotation_profile(out, &path.child(key), profile);
        }
        if let Some(name) = key.strip_prefix(APP_ARMOR_ANNOTATION_PREFIX) {
            if !container_names(spec).any(|known| known == name) {
                out.invalid(&path.key(key), "there is no such container");
            }
            let fits = ["", "runtime/default", "unconfined"].contains(&profile.as_str())
                || profile.starts_with("localhost/");
            out.invalid_unless(fits, &path.key(key), "not an AppArmor profile");
        }
    }
}

/// Checks the operator of a selector, and that it has as many values as it needs.
pub(super) fn selector_operator(out: &mut Findings, path: &Path, operator: &str, values: usize) {
    match operator {
        "In" | "NotIn" => {
            if values == 0 {
                out.required(&path.child("values"), "");
            }
        }
        "Exists" | "DoesNotExist" => {
            if values > 0 {
                out.forbidden(&path.child("values"), "this operator has no values");
            }
        }
        _ => out.invalid(&path.child("operator"), "not a selector operator"),
    }
}

pub(super) fn label_selector(out: &mut Findings, path: &Path, selector: &Option<LabelSelector>) {
    let Some(selector) = selector else { return };
    labels(out, &path.child("matchLabels"), &selector.match_labels);
    for (position, expression) in list(&selector.match_expressions).iter().enumerate() {
        let path = path.child("matchExpressions").index(position);
        let values = list(&expression.values);
        selector_operator(out, &path, &expression.operator, values.len());
        qualified_name(out, &path.child("key"), &expression.key);
        for (position, value) in values.iter().enumerate() {
            out.invalid_unless(
                is_label_value(value),
                &path.child("values").index(position),
                "not a label value",
            );
        }
    }
}

/// Annotations that a pod certificate carries: lower-cased names with a domain.
pub(super) fn user_annotations(out: &mut Findings, path: &Path, annotations: &BTreeMap<String, String>) {
    let mut bytes = 0;
    for (key, value) in annotations {
        let key = key.to_lowercase();
        bytes += key.len() + value.len();
        if key.is_empty() {
            out.required(path, "");
        } else {
            out.invalid_unless(
                is_qualified_name(&key) && key.contains('/'),
                path,
                "needs a domain and a name",
            );
        }
    }
    if bytes > MAX_ANNOTATION_BYTES {
        out.too_long(path, MAX_ANNOTATION_BYTES);
    }
}
