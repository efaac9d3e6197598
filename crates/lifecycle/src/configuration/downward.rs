//! Fields of the pod and its resources as text, for environment variables.
//!
//! Owns `fieldRef` and `resourceFieldRef`. Volumes of the same kind belong to storage.

use std::fmt::Write as _;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{ObjectFieldSelector, Pod, ResourceFieldSelector};
use rubelet_model::Quantity;
use rubelet_model::address::parse_ip;
use rubelet_model::names::is_qualified_name;
use rubelet_resources::amounts::{Amounts, CPU, EPHEMERAL_STORAGE, HUGE_PAGES_PREFIX, MEMORY};
use rubelet_resources::demand::Requirements;
use rubelet_resources::{ContainerDemand, PodDemand, Rules};

#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum DownwardError {
    #[error("fields of API version {0:?} are unknown, only v1")]
    Version(String),
    #[error("fieldPath {0:?} is not supported")]
    Field(String),
    #[error("{0:?} is not a valid key")]
    Key(String),
    #[error("the node's address is not known yet")]
    NoHostAddress,
    #[error("the pod has no container {0:?}")]
    Container(String),
    #[error("resource {0:?} is not supported")]
    Resource(String),
    #[error("divisor {0:?} is not a quantity")]
    Divisor(String),
}

/// The pod's addresses in the node's order of families, one of each, in canonical text.
pub fn sorted_pod_ips(pod_ips: &[String], node_ips: &[IpAddr]) -> Vec<String> {
    let v6_first = node_ips.first().is_some_and(IpAddr::is_ipv6);
    let first_of = |is_v6: bool| {
        let mut parsed = pod_ips.iter().filter_map(|text| parse_ip(text));
        parsed.find(|address| address.is_ipv6() == is_v6)
    };
    [v6_first, !v6_first]
        .into_iter()
        .filter_map(first_of)
        .map(|address| address.to_string())
        .collect()
}

/// What field references may read besides the pod.
#[derive(Clone, Copy, Debug)]
pub struct Addresses<'a> {
    /// As the runtime reports them.
    pub pod_ips: &'a [String],
    /// `--node-ip`: which family comes first.
    pub node_ips: &'a [IpAddr],
    /// The node's, the primary one first.
    pub host_ips: &'a [IpAddr],
}

/// The value of a `fieldRef`.
pub fn field_value(
    selector: &ObjectFieldSelector,
    pod: &Pod,
    addresses: Addresses<'_>,
) -> Result<String, DownwardError> {
    if let Some(version) = selector
        .api_version
        .as_deref()
        .filter(|version| !matches!(*version, "" | "v1"))
    {
        return Err(DownwardError::Version(version.to_owned()));
    }
    let path = selector.field_path.as_str();
    let (metadata, spec) = (&pod.metadata, pod.spec.as_ref());
    let text = |value: Option<&String>| Ok(value.cloned().unwrap_or_default());
    if let Some((map, key)) = subscript(path) {
        return subscripted_value(pod, path, map, key);
    }
    match path {
        "metadata.name" => text(metadata.name.as_ref()),
        "metadata.namespace" => text(metadata.namespace.as_ref()),
        "metadata.uid" => text(metadata.uid.as_ref()),
        "metadata.labels" => Ok(format_map(metadata.labels.iter().flatten())),
        "metadata.annotations" => Ok(format_map(metadata.annotations.iter().flatten())),
        "spec.nodeName" | "spec.host" => text(spec.and_then(|spec| spec.node_name.as_ref())),
        "spec.serviceAccountName" => text(spec.and_then(|spec| spec.service_account_name.as_ref())),
        "status.hostIP" | "status.hostIPs" => host_addresses(path, addresses.host_ips),
        "status.podIP" => {
            let sorted = sorted_pod_ips(addresses.pod_ips, addresses.node_ips);
            text(sorted.first().or(addresses.pod_ips.first()))
        }
        "status.podIPs" => Ok(sorted_pod_ips(addresses.pod_ips, addresses.node_ips).join(",")),
        other => Err(DownwardError::Field(other.to_owned())),
    }
}

fn host_addresses(path: &str, host_ips: &[IpAddr]) -> Result<String, DownwardError> {
    let (first, _) = host_ips.split_first().ok_or(DownwardError::NoHostAddress)?;
    if path == "status.hostIP" {
        return Ok(first.to_string());
    }
    let all: Vec<String> = host_ips.iter().map(IpAddr::to_string).collect();
    Ok(all.join(","))
}

/// `metadata.labels['key']` in its two parts.
fn subscript(path: &str) -> Option<(&str, &str)> {
    let (map, key) = path.strip_suffix("']")?.split_once("['")?;
    (!map.is_empty()).then_some((map, key))
}

fn subscripted_value(pod: &Pod, path: &str, map: &str, key: &str) -> Result<String, DownwardError> {
    let (entries, is_key) = match map {
        // Annotations may have keys in upper case.
        "metadata.annotations" => (&pod.metadata.annotations, is_qualified_name(&key.to_lowercase())),
        "metadata.labels" => (&pod.metadata.labels, is_qualified_name(key)),
        _ => return Err(DownwardError::Field(path.to_owned())),
    };
    if !is_key {
        return Err(DownwardError::Key(key.to_owned()));
    }
    let value = entries.as_ref().and_then(|entries| entries.get(key));
    Ok(value.cloned().unwrap_or_default())
}

/// One `key="value"` per line.
fn format_map<'m>(entries: impl Iterator<Item = (&'m String, &'m String)>) -> String {
    let lines: Vec<String> = entries
        .map(|(key, value)| format!("{key}={}", quoted(value)))
        .collect();
    lines.join("\n")
}

/// The text as Go quotes it.
pub fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            letter if is_printable(letter) => out.push(letter),
            letter => {
                let number = u32::from(letter);
                // Writing into a text cannot fail.
                let _ = match number {
                    0..0x80 => write!(out, "\\x{number:02x}"),
                    0x80..0x1_0000 => write!(out, "\\u{number:04x}"),
                    _ => write!(out, "\\U{number:08x}"),
                };
            }
        }
    }
    out.push('"');
    out
}

fn is_printable(letter: char) -> bool {
    if letter.is_ascii() {
        return matches!(letter, ' '..='~');
    }
    // Behind another letter, the standard library escapes exactly what cannot be printed.
    let mut bytes = [b'a', 0, 0, 0, 0];
    let length = 1 + letter.encode_utf8(&mut bytes[1..]).len();
    let text = str::from_utf8(&bytes[..length]).unwrap_or_default();
    text.escape_debug().eq(text.chars())
}

/// The value of a `resourceFieldRef`; limits that are not set are the pod's, else what the node can give.
pub fn resource_value(
    selector: &ResourceFieldSelector,
    demand: &PodDemand,
    container: &ContainerDemand,
    rules: &Rules,
    allocatable: &Amounts,
) -> Result<String, DownwardError> {
    let named = selector.container_name.as_deref().filter(|name| !name.is_empty());
    let defaults = default_limits(demand, rules, allocatable);
    let resources = match named {
        None => with_limits(&container.resources, &defaults),
        Some(name) => {
            let by_name = |list: &[ContainerDemand]| list.iter().find(|one| one.name == name).cloned();
            // Upstream fills in limits of regular containers only.
            if let Some(found) = by_name(&demand.containers) {
                with_limits(&found.resources, &defaults)
            } else if let Some(found) = by_name(&demand.init_containers) {
                found.resources
            } else {
                return Err(DownwardError::Container(name.to_owned()));
            }
        }
    };
    let divisor = match selector.divisor.as_ref().map(|quantity| quantity.0.as_str()) {
        None | Some("") => Quantity::default(),
        Some(text) => text
            .parse()
            .map_err(|_| DownwardError::Divisor(text.to_owned()))?,
    };
    let unknown = || DownwardError::Resource(selector.resource.clone());
    let (list, name) = selector.resource.split_once('.').ok_or_else(unknown)?;
    let amount = match list {
        "limits" => resources.limits.quantity(name),
        "requests" => resources.requests.quantity(name),
        _ => return Err(unknown()),
    };
    let one = if divisor.is_zero() { 1 } else { divisor.value() };
    let milli_one = if divisor.is_zero() {
        1000
    } else {
        divisor.milli_value()
    };
    let (amount, divisor) = match name {
        CPU => (amount.milli_value(), milli_one),
        MEMORY | EPHEMERAL_STORAGE => (amount.value(), one),
        name if name.starts_with(HUGE_PAGES_PREFIX) => (amount.value(), one),
        _ => return Err(unknown()),
    };
    Ok(((amount as f64 / divisor as f64).ceil() as i64).to_string())
}

fn default_limits(demand: &PodDemand, rules: &Rules, allocatable: &Amounts) -> Amounts {
    let mut defaults = allocatable.clone();
    if let Some(pod_level) = demand.effective_pod_level(rules) {
        for name in [CPU, MEMORY] {
            if !pod_level.limits.is_zero(name) && defaults.get(name).is_some() {
                defaults.set(name, pod_level.limits.quantity(name));
            }
        }
    }
    defaults
}

fn with_limits(resources: &Requirements, defaults: &Amounts) -> Requirements {
    let mut resources = resources.clone();
    for name in [CPU, MEMORY, EPHEMERAL_STORAGE] {
        if resources.limits.is_zero(name)
            && let Some(default) = defaults.get(name)
        {
            resources.limits.set(name, default.clone());
        }
    }
    resources
}
