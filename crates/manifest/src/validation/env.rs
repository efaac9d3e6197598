//! Rules for environment variables and the fields of the pod that they and files can show.

use k8s_openapi::api::core::v1::{
    DownwardAPIVolumeFile, EnvFromSource, EnvVar, EnvVarSource, FileKeySelector, ObjectFieldSelector,
    ResourceFieldSelector,
};
use rubelet_model::names::{is_dns_subdomain, is_qualified_name};

use super::Options;
use super::names::{dns_label, is_config_key, is_env_name, is_name_prefix, is_relaxed_env_name};
use super::paths::{local, mode, no_backsteps, user};
use crate::fields::{quantity, text};
use crate::problem::{Findings, Path};

const ENV_FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
const FILE_FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.labels",
    "metadata.annotations",
    "metadata.uid",
];
const KNOWN_FIELDS: &[&str] = &[
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.serviceAccountName",
    "spec.schedulerName",
    "status.phase",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
    "spec.host",
];
const RESOURCES: &[&str] = &[
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
];
const BYTE_DIVISORS: &[&str] = &[
    "1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei",
];

fn name(out: &mut Findings, path: &Path, value: &str, options: &Options) {
    let fits = if options.relaxed_env {
        is_relaxed_env_name(value)
    } else {
        is_env_name(value)
    };
    out.invalid_unless(fits, path, "not a name of a variable");
}

pub(super) fn variables(out: &mut Findings, path: &Path, variables: &[EnvVar], options: &Options) {
    for (position, variable) in variables.iter().enumerate() {
        let path = path.index(position);
        if variable.name.is_empty() {
            out.required(&path.child("name"), "");
        } else {
            name(out, &path.child("name"), &variable.name, options);
        }
        if let Some(source) = &variable.value_from {
            value_from(
                out,
                &path.child("valueFrom"),
                source,
                !text(&variable.value).is_empty(),
            );
        }
    }
}

fn value_from(out: &mut Findings, path: &Path, source: &EnvVarSource, has_value: bool) {
    let mut sources = 0;
    if let Some(field) = &source.field_ref {
        sources += 1;
        field_ref(out, &path.child("fieldRef"), field, ENV_FIELDS);
    }
    if let Some(resource) = &source.resource_field_ref {
        sources += 1;
        resource_ref(out, &path.child("resourceFieldRef"), resource, false);
    }
    if let Some(key) = &source.config_map_key_ref {
        sources += 1;
        object_key(out, &path.child("configMapKeyRef"), &key.name, &key.key);
    }
    if let Some(key) = &source.secret_key_ref {
        sources += 1;
        object_key(out, &path.child("secretKeyRef"), &key.name, &key.key);
    }
    if let Some(key) = &source.file_key_ref {
        sources += 1;
        file_key(out, &path.child("fileKeyRef"), key);
    }
    out.invalid_unless(
        sources == 1 && !has_value,
        path,
        "exactly one source, and no value next to it",
    );
}

fn object_key(out: &mut Findings, path: &Path, name: &str, key: &str) {
    out.invalid_unless(
        is_dns_subdomain(name),
        &path.child("name"),
        "not a name of an object",
    );
    if key.is_empty() {
        out.required(&path.child("key"), "");
    } else {
        out.invalid_unless(is_config_key(key), &path.child("key"), "not a key");
    }
}

fn file_key(out: &mut Findings, path: &Path, key: &FileKeySelector) {
    if key.key.is_empty() {
        out.required(&path.child("key"), "");
    } else {
        out.invalid_unless(
            is_relaxed_env_name(&key.key),
            &path.child("key"),
            "not a name of a variable",
        );
    }
    if key.volume_name.is_empty() {
        out.required(&path.child("volumeName"), "");
    } else {
        dns_label(out, &path.child("volumeName"), &key.volume_name);
    }
    out.required_text(&path.child("path"), &key.path);
    no_backsteps(out, &path.child("path"), &key.path);
}

fn field_ref(out: &mut Findings, path: &Path, field: &ObjectFieldSelector, allowed: &[&str]) {
    let version = text(&field.api_version);
    if version.is_empty() {
        return out.required(&path.child("apiVersion"), "");
    }
    if field.field_path.is_empty() {
        return out.required(&path.child("fieldPath"), "");
    }
    let subscript = field
        .field_path
        .strip_suffix("']")
        .and_then(|start| start.split_once("['"))
        .filter(|(start, _)| !start.is_empty());
    let known = match subscript {
        Some((start, _)) => ["metadata.annotations", "metadata.labels"].contains(&start),
        None => KNOWN_FIELDS.contains(&field.field_path.as_str()),
    };
    if version != "v1" || !known {
        return out.invalid(&path.child("fieldPath"), "not a field of a v1 pod");
    }
    match subscript {
        Some(("metadata.annotations", key)) => {
            out.invalid_unless(
                is_qualified_name(&key.to_lowercase()),
                path,
                "not an annotation's key",
            );
        }
        Some((_, key)) => out.invalid_unless(is_qualified_name(key), path, "not a label's key"),
        None => {
            let name = if field.field_path == "spec.host" {
                "spec.nodeName"
            } else {
                &field.field_path
            };
            out.one_of(&path.child("fieldPath"), name, allowed);
        }
    }
}

fn resource_ref(out: &mut Findings, path: &Path, field: &ResourceFieldSelector, in_volume: bool) {
    let resource = field.resource.as_str();
    let is_pages = resource.starts_with("requests.hugepages-") || resource.starts_with("limits.hugepages-");
    if in_volume && text(&field.container_name).is_empty() {
        out.required(&path.child("containerName"), "");
    } else if resource.is_empty() {
        out.required(&path.child("resource"), "");
    } else if !is_pages {
        out.one_of(&path.child("resource"), resource, RESOURCES);
    }
    let Some(divisor) = field
        .divisor
        .as_ref()
        .map(quantity)
        .filter(|divisor| !divisor.is_zero())
    else {
        return;
    };
    let divisor = divisor.canonical();
    let fits = match resource {
        "limits.cpu" | "requests.cpu" => ["1m", "1"].contains(&divisor.as_str()),
        _ if is_pages || RESOURCES.contains(&resource) => BYTE_DIVISORS.contains(&divisor.as_str()),
        _ => true,
    };
    out.invalid_unless(fits, &path.child("divisor"), "not a unit of this resource");
}

pub(super) fn from_sources(out: &mut Findings, path: &Path, sources: &[EnvFromSource], options: &Options) {
    for (position, source) in sources.iter().enumerate() {
        let item = path.index(position);
        let prefix = text(&source.prefix);
        if !prefix.is_empty() {
            name(out, &item.child("prefix"), prefix, options);
        }
        let named = [
            (
                "configMapRef",
                source.config_map_ref.as_ref().map(|map| &map.name),
            ),
            ("secretRef", source.secret_ref.as_ref().map(|secret| &secret.name)),
        ];
        let mut sources = 0;
        for (field, name) in named {
            let Some(name) = name else { continue };
            sources += 1;
            let path = item.child(field).child("name");
            if name.is_empty() {
                out.required(&path, "");
            } else {
                out.invalid_unless(is_name_prefix(name), &path, "not a name of an object");
            }
        }
        out.invalid_unless(sources == 1, path, "exactly one source each");
    }
}

pub(super) fn downward_file(out: &mut Findings, path: &Path, file: &DownwardAPIVolumeFile) {
    out.required_text(&path.child("path"), &file.path);
    local(out, &path.child("path"), &file.path);
    match (&file.field_ref, &file.resource_field_ref) {
        (Some(field), resource) => {
            field_ref(out, &path.child("fieldRef"), field, FILE_FIELDS);
            out.invalid_unless(
                resource.is_none(),
                path,
                "fieldRef and resourceFieldRef exclude each other",
            );
        }
        (None, Some(resource)) => resource_ref(out, &path.child("resourceFieldRef"), resource, true),
        (None, None) => out.required(path, "needs fieldRef or resourceFieldRef"),
    }
    mode(out, &path.child("mode"), file.mode);
    user(out, &path.child("user"), file.user);
}
