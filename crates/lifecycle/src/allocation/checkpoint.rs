//! The files `allocated_pods_state` and `actuated_pods_state`, in upstream's form.
//!
//! Owns the text, byte for byte, with its checksum, so that upstream's kubelet and this one can take over from each other in the middle
//! of a resize. It opens no file.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use rubelet_model::go_json;
use rubelet_model::observation::PodUid;
use serde::Deserialize;
use thiserror::Error;

use super::{Allocation, Amounts, quantity};

/// What was allocated to each pod.
pub const ALLOCATED_NAME: &str = "allocated_pods_state";
/// What the containers and the cgroup of each pod have.
pub const ACTUATED_NAME: &str = "actuated_pods_state";

const FNV_OFFSET: u32 = 0x811c_9dc5;
const FNV_PRIME: u32 = 0x0100_0193;
/// Upstream's checksum is that of a dump of the text, which begins with its type.
const DUMP_PREFIX: &str = "(string)";

/// Why a file is not one of these, or not whole.
#[derive(Debug, Error)]
pub enum BadCheckpoint {
    #[error("it is no JSON of the form that this version writes")]
    Form(#[source] serde_json::Error),
    #[error("its checksum is {found}, and its content has {expected}")]
    Checksum { found: u64, expected: u32 },
    #[error("its content is no JSON of the form that this version writes")]
    Data(#[source] serde_json::Error),
    #[error("{field} of pod {uid} is not a quantity: {text:?}")]
    Quantity {
        uid: String,
        field: String,
        text: String,
    },
}

#[derive(Deserialize)]
struct Envelope {
    data: String,
    checksum: u64,
}

#[derive(Default, Deserialize)]
struct Data {
    #[serde(default)]
    entries: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    #[serde(default)]
    container_resources: Option<BTreeMap<String, ResourceRequirements>>,
    #[serde(default)]
    pod_level_resources: Option<ResourceRequirements>,
    #[serde(default)]
    empty_dir_volume_limits: Option<BTreeMap<String, Option<ApiQuantity>>>,
}

/// One pod's entry in the text of a file.
#[must_use]
pub fn entry(uid: &PodUid, allocation: &Allocation) -> String {
    format!("{}:{}", go_json(uid.as_str()), entry_text(allocation))
}

/// The text of a file with these entries, which are in the order of the UIDs.
#[must_use]
pub fn write<'a>(entries: impl IntoIterator<Item = &'a str>) -> String {
    let mut entries = entries.into_iter().peekable();
    let mut data = String::new();
    if entries.peek().is_none() {
        data.push_str("{}");
    } else {
        data.push_str("{\"entries\":{");
        while let Some(entry) = entries.next() {
            data.push_str(entry);
            if entries.peek().is_some() {
                data.push(',');
            }
        }
        data.push_str("}}");
    }
    let checksum = checksum(&data);
    format!("{{\"data\":{},\"checksum\":{checksum}}}", go_json(&data))
}

/// The records of a file.
///
/// # Errors
/// When the text was not written whole by a kubelet of this version.
pub fn read(text: &[u8]) -> Result<BTreeMap<PodUid, Allocation>, BadCheckpoint> {
    let envelope: Envelope = serde_json::from_slice(text).map_err(BadCheckpoint::Form)?;
    let expected = checksum(&envelope.data);
    if envelope.checksum != u64::from(expected) {
        return Err(BadCheckpoint::Checksum {
            found: envelope.checksum,
            expected,
        });
    }
    let data: Data = serde_json::from_str(&envelope.data).map_err(BadCheckpoint::Data)?;
    let read = |(uid, entry): (String, Entry)| {
        check_quantities(&uid, &entry)?;
        let allocation = Allocation {
            pod: entry.pod_level_resources,
            containers: entry.container_resources.unwrap_or_default(),
            volumes: entry.empty_dir_volume_limits,
        };
        Ok((PodUid::new(uid), allocation))
    };
    data.entries.into_iter().map(read).collect()
}

fn check_quantities(uid: &str, entry: &Entry) -> Result<(), BadCheckpoint> {
    let containers = entry.container_resources.iter().flatten();
    let containers = containers.map(|(name, resources)| (format!("container {name}"), resources));
    let pod = entry
        .pod_level_resources
        .iter()
        .map(|own| ("the pod".to_owned(), own));
    for (whose, resources) in containers.chain(pod) {
        for (list, amounts) in [("requests", &resources.requests), ("limits", &resources.limits)] {
            let mut amounts = amounts.iter().flatten();
            if let Some((name, bad)) = amounts.find(|(_, amount)| quantity(amount).is_none()) {
                return Err(BadCheckpoint::Quantity {
                    uid: uid.to_owned(),
                    field: format!("{list}[{name}] of {whose}"),
                    text: bad.0.clone(),
                });
            }
        }
    }
    Ok(())
}

/// FNV-1a of 32 bits.
fn checksum(data: &str) -> u32 {
    let bytes = DUMP_PREFIX.bytes().chain(data.bytes());
    bytes.fold(FNV_OFFSET, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(FNV_PRIME)
    })
}

fn entry_text(allocation: &Allocation) -> String {
    let containers = allocation.containers.iter();
    let containers: Vec<String> = containers
        .map(|(name, resources)| format!("{}:{}", go_json(name), requirements_text(resources)))
        .collect();
    let pod = allocation.pod.as_ref();
    let pod = pod.map_or_else(|| "null".to_owned(), requirements_text);
    let volumes = allocation.volumes.as_ref();
    let volumes = volumes.map_or_else(|| "null".to_owned(), volumes_text);
    format!(
        "{{\"ContainerResources\":{{{}}},\"PodLevelResources\":{pod},\"EmptyDirVolumeLimits\":{volumes}}}",
        containers.join(",")
    )
}

fn volumes_text(volumes: &BTreeMap<String, Option<ApiQuantity>>) -> String {
    let one = |(name, limit): (&String, &Option<ApiQuantity>)| {
        let limit = limit.as_ref();
        let limit = limit.map_or_else(|| "null".to_owned(), |limit| go_json(&canonical(limit)));
        format!("{}:{limit}", go_json(name))
    };
    let all: Vec<String> = volumes.iter().map(one).collect();
    format!("{{{}}}", all.join(","))
}

/// Requirements as JSON, in upstream's order of fields: limits, requests, claims; empty ones are left out.
#[must_use]
pub fn requirements_text(resources: &ResourceRequirements) -> String {
    let mut parts = Vec::new();
    let mut amounts = |name: &str, list: &Option<Amounts>| {
        if let Some(list) = list.as_ref().filter(|list| !list.is_empty()) {
            let all = list.iter();
            let all = all.map(|(name, value)| format!("{}:{}", go_json(name), go_json(&canonical(value))));
            let all: Vec<String> = all.collect();
            parts.push(format!("\"{name}\":{{{}}}", all.join(",")));
        }
    };
    amounts("limits", &resources.limits);
    amounts("requests", &resources.requests);
    if let Some(claims) = resources.claims.as_ref().filter(|claims| !claims.is_empty()) {
        let all = claims.iter().map(|claim| {
            let request = claim.request.as_deref().filter(|request| !request.is_empty());
            let request = request.map(|request| format!(",\"request\":{}", go_json(request)));
            format!(
                "{{\"name\":{}{}}}",
                go_json(&claim.name),
                request.unwrap_or_default()
            )
        });
        let all: Vec<String> = all.collect();
        parts.push(format!("\"claims\":[{}]", all.join(",")));
    }
    format!("{{{}}}", parts.join(","))
}

fn canonical(value: &ApiQuantity) -> String {
    quantity(value).map_or_else(|| value.0.clone(), |value| value.canonical())
}
