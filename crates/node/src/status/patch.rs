//! The strategic merge patch from one Node to another, and whether it has more than heartbeat times.
//!
//! Owns the patch in the form that upstream sends. Only labels, annotations and status are compared: the rest belongs to others. Of the
//! lists in a Node's status two merge by `type`; addresses are replaced whole nevertheless, because a type may stand twice.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Map, Value, json};

const MERGE_KEY: &str = "type";
const MERGED_LISTS: [&str; 2] = ["conditions", "addresses"];

/// The patch of the `status` subresource that leads from `old` to `new`; labels and annotations may stand in it too.
pub fn status_patch(old: &Node, new: &Node) -> Result<Value, serde_json::Error> {
    let addresses = |node: &Node| node.status.as_ref().and_then(|status| status.addresses.clone());
    let (old_addresses, new_addresses) = (addresses(old), addresses(new));
    let replaces_addresses =
        old_addresses.as_ref().is_some_and(|all| !all.is_empty()) && old_addresses != new_addresses;
    let mut target = old.clone();
    target.metadata.labels.clone_from(&new.metadata.labels);
    target.metadata.annotations.clone_from(&new.metadata.annotations);
    target.status.clone_from(&new.status);
    if replaces_addresses && let Some(status) = &mut target.status {
        status.addresses = old_addresses;
    }
    let (old, target) = (
        without_empty(serde_json::to_value(old)?),
        without_empty(serde_json::to_value(&target)?),
    );
    let mut patch = match (&old, &target) {
        (Value::Object(old), Value::Object(target)) => map_difference(old, target),
        // A Node is an object.
        _ => Map::new(),
    };
    if replaces_addresses {
        let mut all = match serde_json::to_value(new_addresses.unwrap_or_default())? {
            Value::Array(all) => all,
            _ => Vec::new(),
        };
        all.push(json!({"$patch": "replace"}));
        let status = patch.entry("status").or_insert_with(|| json!({}));
        status["addresses"] = Value::Array(all);
    }
    Ok(Value::Object(patch))
}

/// What of the patch is more than times of heartbeats.
pub fn lasting_difference(old: &Node, new: &Node) -> Result<Value, serde_json::Error> {
    let mut unchanged = new.clone();
    let heartbeats: BTreeMap<&str, Option<&Time>> = conditions(old)
        .map(|condition| (condition.type_.as_str(), condition.last_heartbeat_time.as_ref()))
        .collect();
    let status = unchanged.status.as_mut();
    let status = status.and_then(|status| status.conditions.as_mut());
    for condition in status.into_iter().flatten() {
        if let Some(heartbeat) = heartbeats.get(condition.type_.as_str()) {
            condition.last_heartbeat_time = heartbeat.cloned();
        }
    }
    status_patch(old, &unchanged)
}

fn conditions(node: &Node) -> impl Iterator<Item = &NodeCondition> {
    let status = node.status.as_ref();
    status
        .and_then(|status| status.conditions.as_ref())
        .into_iter()
        .flatten()
}

/// An empty list or map is none: the API server does not give it back.
fn without_empty(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(key, value)| (key, without_empty(value)));
            Value::Object(fields.filter(|(_, value)| !is_empty(value)).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(without_empty).collect()),
        other => other,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn map_difference(old: &Map<String, Value>, new: &Map<String, Value>) -> Map<String, Value> {
    let mut patch = Map::new();
    for (key, value) in new {
        match (old.get(key), value) {
            (Some(before), _) if before == value => {}
            (Some(Value::Object(before)), Value::Object(after)) => {
                let inner = map_difference(before, after);
                if !inner.is_empty() {
                    patch.insert(key.clone(), Value::Object(inner));
                }
            }
            (Some(Value::Array(before)), Value::Array(after))
                if MERGED_LISTS.contains(&key.as_str()) && !before.is_empty() =>
            {
                list_difference(key, before, after, &mut patch);
            }
            (Some(_) | None, _) => {
                patch.insert(key.clone(), value.clone());
            }
        }
    }
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    patch
}

/// A list that merges by key: what differs, then what goes, and the order of all.
fn list_difference(key: &str, old: &[Value], new: &[Value], patch: &mut Map<String, Value>) {
    let find = |all: &[Value], wanted: &Value| {
        let wanted = &wanted[MERGE_KEY];
        all.iter().find(|one| &one[MERGE_KEY] == wanted).cloned()
    };
    let mut items: Vec<Value> = new
        .iter()
        .filter_map(|item| item_difference(find(old, item), item))
        .collect();
    let gone = old.iter().filter(|item| find(new, item).is_none());
    let mut gone: Vec<&Value> = gone.collect();
    gone.sort_by_key(|item| item[MERGE_KEY].as_str());
    items.extend(
        gone.into_iter()
            .map(|item| json!({"$patch": "delete", MERGE_KEY: item[MERGE_KEY]})),
    );
    let order = |all: &[Value]| -> Vec<Value> {
        all.iter()
            .map(|item| json!({MERGE_KEY: item[MERGE_KEY]}))
            .collect()
    };
    if !items.is_empty() || order(old) != order(new) {
        if !new.is_empty() {
            patch.insert(format!("$setElementOrder/{key}"), Value::Array(order(new)));
        }
        if !items.is_empty() {
            patch.insert(key.to_owned(), Value::Array(items));
        }
    }
}

/// What an item of such a list needs to become the new one.
fn item_difference(old: Option<Value>, new: &Value) -> Option<Value> {
    let (Some(Value::Object(before)), Value::Object(after)) = (old, new) else {
        return Some(new.clone());
    };
    let mut inner = map_difference(&before, after);
    if inner.is_empty() {
        return None;
    }
    inner.insert(MERGE_KEY.to_owned(), new[MERGE_KEY].clone());
    Some(Value::Object(inner))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(metadata: Value, status: Value) -> Node {
        let mut node = json!({"apiVersion": "v1", "kind": "Node", "spec": {"podCIDR": "10.0.0.0/24"}});
        node["metadata"] = metadata;
        node["status"] = status;
        serde_json::from_value(node).unwrap()
    }

    fn check(old: (Value, Value), new: (Value, Value), expected: &Value) {
        let old = node(old.0, old.1);
        let mut new = node(new.0, new.1);
        // The spec is never patched.
        new.spec.as_mut().unwrap().unschedulable = Some(true);
        let patch = status_patch(&old, &new).unwrap();
        assert_eq!(&patch, expected);
    }

    fn condition(type_: &str, status: &str, second: u32) -> Value {
        let at = format!("2026-01-01T00:00:{second:02}Z");
        json!({"type": type_, "status": status, "lastHeartbeatTime": at})
    }

    #[test]
    fn metadata_and_maps_are_compared_field_by_field() {
        check(
            (
                json!({"name": "n", "labels": {"a": "1", "b": "2"}}),
                json!({"capacity": {"cpu": "2", "gone/x": "1"}}),
            ),
            (
                json!({"name": "n", "labels": {"a": "3"}, "annotations": {"c": "d"}}),
                json!({"capacity": {"cpu": "4"}, "allocatable": {"cpu": "4"}}),
            ),
            &json!({
                "metadata": {"labels": {"a": "3", "b": null}, "annotations": {"c": "d"}},
                "status": {"capacity": {"cpu": "4", "gone/x": null}, "allocatable": {"cpu": "4"}},
            }),
        );
    }

    #[test]
    fn conditions_merge_by_type() {
        let name = || json!({"name": "n"});
        check(
            (
                name(),
                json!({"conditions": [condition("A", "True", 1), condition("B", "True", 1), condition("C", "True", 1)]}),
            ),
            (
                name(),
                json!({"conditions": [condition("A", "True", 1), condition("B", "False", 2), condition("D", "True", 2)]}),
            ),
            &json!({"status": {
                "$setElementOrder/conditions": [{"type": "A"}, {"type": "B"}, {"type": "D"}],
                "conditions": [
                    {"type": "B", "status": "False", "lastHeartbeatTime": "2026-01-01T00:00:02Z"},
                    {"type": "D", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:02Z"},
                    {"type": "C", "$patch": "delete"},
                ],
            }}),
        );
        check(
            (name(), json!({})),
            (name(), json!({"conditions": [condition("A", "True", 1)]})),
            &json!({"status": {"conditions": [condition("A", "True", 1)]}}),
        );
    }

    #[test]
    fn addresses_are_replaced_whole() {
        let name = || json!({"name": "n"});
        let ip = |ip: &str| json!({"type": "InternalIP", "address": ip});
        check(
            (name(), json!({"addresses": [ip("10.0.0.1")]})),
            (name(), json!({"addresses": [ip("10.0.0.1"), ip("::1")]})),
            &json!({"status": {"addresses": [ip("10.0.0.1"), ip("::1"), {"$patch": "replace"}]}}),
        );
        check(
            (name(), json!({})),
            (name(), json!({"addresses": [ip("10.0.0.1")]})),
            &json!({"status": {"addresses": [ip("10.0.0.1")]}}),
        );
        check(
            (name(), json!({"addresses": [ip("10.0.0.1")]})),
            (name(), json!({"addresses": [ip("10.0.0.1")]})),
            &json!({}),
        );
    }

    #[test]
    fn other_lists_are_replaced() {
        let name = || json!({"name": "n"});
        check(
            (
                name(),
                json!({"images": [{"names": ["a"], "sizeBytes": 1}], "declaredFeatures": ["X"]}),
            ),
            (name(), json!({"images": [{"names": ["b"], "sizeBytes": 2}]})),
            &json!({"status": {"images": [{"names": ["b"], "sizeBytes": 2}], "declaredFeatures": null}}),
        );
    }

    #[test]
    fn heartbeats_are_no_change() {
        let with = |conditions: Value| node(json!({"name": "n"}), json!({"conditions": conditions}));
        let old = with(json!([condition("A", "True", 1), condition("B", "True", 1)]));
        let has_changed = |new: &Node| lasting_difference(&old, new).unwrap() != json!({});
        let check = |conditions: Value, expected: bool| {
            assert_eq!(has_changed(&with(conditions)), expected);
        };
        check(
            json!([condition("A", "True", 9), condition("B", "True", 9)]),
            false,
        );
        check(
            json!([condition("A", "True", 9), condition("B", "False", 9)]),
            true,
        );
        check(json!([condition("A", "True", 9)]), true);
        let mut labelled = old.clone();
        labelled.metadata.labels = Some(BTreeMap::from([("a".to_owned(), "b".to_owned())]));
        assert!(has_changed(&labelled));
        labelled.metadata.labels = Some(BTreeMap::new());
        assert!(!has_changed(&labelled), "nothing is in it");
    }
}
