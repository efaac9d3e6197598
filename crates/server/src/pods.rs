//! `/pods` and `/runningpods/`: lists of pods as upstream's encoder writes them.
//!
//! Owns the shape of the JSON: items carry no kind of their own, and some empty fields are always there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use k8s_openapi::api::core::v1::Pod;
use rubelet_model::observation::{ContainerState, PodObservation, SandboxState};
use serde_json::{Map, Value, json};

const HEAD: &[u8] = br#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":"#;
const TAIL: &[u8] = b"}\n";

/// A list of encoded pods; null, not empty, where there are none.
fn encode<'a>(items: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut list = HEAD.to_vec();
    let mut separator = b'[';
    for item in items {
        list.push(separator);
        list.extend_from_slice(item);
        separator = b',';
    }
    list.extend_from_slice(if separator == b'[' { b"null" } else { b"]" });
    list.extend_from_slice(TAIL);
    list
}

fn bytes(item: &Value) -> Bytes {
    // Writing plain JSON values into memory cannot fail.
    serde_json::to_vec(item).unwrap_or_default().into()
}

/// The desired pods with their statuses. Pods that are the very same as at the last request are not encoded again: clients
/// that wait for a pod poll often, and pods change rarely.
#[derive(Default)]
pub(crate) struct DesiredPods {
    // Held while a list is put together, never across an await.
    encoded: Mutex<Vec<(Arc<Pod>, Bytes)>>,
}

impl DesiredPods {
    pub(crate) fn encode(&self, pods: &[Arc<Pod>]) -> Vec<u8> {
        let mut known = self.encoded.lock().unwrap_or_else(PoisonError::into_inner);
        let before: BTreeMap<*const Pod, Bytes> = known
            .iter()
            .map(|(pod, item)| (Arc::as_ptr(pod), item.clone()))
            .collect();
        // The pods of the last list are still held, so an address stands for one pod.
        let now: Vec<(Arc<Pod>, Bytes)> = pods
            .iter()
            .map(|pod| {
                let item = before.get(&Arc::as_ptr(pod)).cloned();
                (Arc::clone(pod), item.unwrap_or_else(|| bytes(&desired_item(pod))))
            })
            .collect();
        let list = encode(now.iter().map(|(_, item)| item.as_ref()));
        *known = now;
        list
    }
}

fn desired_item(pod: &Pod) -> Value {
    let part = |part: serde_json::Result<Value>| match part {
        Ok(Value::Null) | Err(_) => json!({}),
        Ok(value) => value,
    };
    let mut item = json!({
        "metadata": part(serde_json::to_value(&pod.metadata)),
        "spec": part(serde_json::to_value(&pod.spec)),
        "status": part(serde_json::to_value(&pod.status)),
    });
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for container in objects(&mut item, "spec", list) {
            container.entry("resources").or_insert_with(|| json!({}));
        }
    }
    for condition in objects(&mut item, "status", "conditions") {
        for time in ["lastProbeTime", "lastTransitionTime"] {
            condition.entry(time).or_insert(Value::Null);
        }
    }
    for list in [
        "containerStatuses",
        "initContainerStatuses",
        "ephemeralContainerStatuses",
    ] {
        for status in objects(&mut item, "status", list) {
            for state in ["state", "lastState"] {
                let state = status.entry(state).or_insert_with(|| json!({}));
                complete_state(state);
            }
        }
    }
    item
}

/// Times are written even when they are not known.
fn complete_state(state: &mut Value) {
    for (kind, times) in [
        ("running", &["startedAt"][..]),
        ("terminated", &["startedAt", "finishedAt"]),
    ] {
        if let Some(state) = state.get_mut(kind).and_then(Value::as_object_mut) {
            for time in times {
                state.entry(*time).or_insert(Value::Null);
            }
        }
    }
}

/// The objects of a list in a part of a pod.
fn objects<'a>(
    item: &'a mut Value,
    part: &str,
    list: &str,
) -> impl Iterator<Item = &'a mut Map<String, Value>> {
    item.get_mut(part)
        .and_then(|part| part.get_mut(list))
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
}

/// What runs, as far as the runtime knows: names and images only. A pod without a ready sandbox and a running container is
/// left out.
pub(crate) fn running(pods: &[Arc<PodObservation>]) -> Vec<u8> {
    let items: Vec<Bytes> = pods
        .iter()
        .filter_map(|pod| running_item(pod))
        .map(|item| bytes(&item))
        .collect();
    encode(items.iter().map(AsRef::as_ref))
}

fn running_item(pod: &PodObservation) -> Option<Value> {
    let containers: Vec<Value> = pod
        .containers
        .iter()
        .filter(|container| matches!(container.state, ContainerState::Running { .. }))
        .map(|container| {
            let image = Some(&container.image_id)
                .filter(|id| !id.is_empty())
                .unwrap_or(&container.image);
            json!({ "name": container.name, "image": image, "resources": {} })
        })
        .collect();
    let has_sandbox = pod
        .sandboxes
        .iter()
        .any(|sandbox| sandbox.state == SandboxState::Ready);
    if containers.is_empty() && !has_sandbox {
        return None;
    }
    // A missing list is null, not empty, in upstream's encoding.
    let containers = if containers.is_empty() {
        Value::Null
    } else {
        Value::Array(containers)
    };
    Some(json!({
        "metadata": { "name": pod.name, "namespace": pod.namespace, "uid": pod.uid },
        "spec": { "containers": containers },
        "status": {},
    }))
}
