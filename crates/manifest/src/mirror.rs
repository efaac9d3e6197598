//! Whether a mirror pod shows the static pod of a manifest.
//!
//! Owns which differences the API server itself makes. A mirror is the static pod as a kubelet sent it, then defaulted and
//! admitted: the priority admission plugin and the RuntimeClass one fill fields in, others add tolerations, users add labels and
//! annotations. Everything else has to be equal, also what only the mirror has: it may have been taken out of the manifest since.

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use rubelet_model::pod::CONFIG_ANNOTATION_PREFIX;
use serde_json::{Map, Value};

/// Fields of the spec that admission sets where the manifest does not.
const ADMITTED: [&str; 3] = ["priority", "preemptionPolicy", "overhead"];
const TOLERATIONS: &str = "tolerations";

/// The first field of the static pod that differs in the mirror, such as `spec.containers[0].args`; nothing when both are
/// equal. The static pod has its defaults and the fields of its source.
#[must_use]
pub fn mirror_difference(static_pod: &Pod, mirror: &Pod) -> Option<String> {
    let lists = [
        ("labels", &static_pod.metadata.labels, &mirror.metadata.labels),
        (
            "annotations",
            &static_pod.metadata.annotations,
            &mirror.metadata.annotations,
        ),
    ];
    for (list, wanted, shown) in lists {
        let wanted = wanted.iter().flatten();
        // Each kubelet writes its own annotations anew.
        let mut own = wanted.filter(|(key, _)| !key.starts_with(CONFIG_ANNOTATION_PREFIX));
        let other = own.find(|(key, value)| shown.as_ref().and_then(|all| all.get(*key)) != Some(value));
        if let Some((key, _)) = other {
            return Some(format!("metadata.{list}[{key}]"));
        }
    }
    let (mut wanted, mut shown) = (fields(static_pod.spec.as_ref()), fields(mirror.spec.as_ref()));
    for field in ADMITTED {
        if !wanted.contains_key(field) {
            shown.remove(field);
        }
    }
    let tolerated = shown.remove(TOLERATIONS);
    if !is_among(&wanted.remove(TOLERATIONS), &tolerated) {
        return Some(format!("spec.{TOLERATIONS}"));
    }
    difference("spec", &Value::Object(wanted), &Value::Object(shown))
}

fn fields(spec: Option<&PodSpec>) -> Map<String, Value> {
    // A spec has no maps whose keys are no text, so that it always becomes JSON.
    let value = spec.and_then(|spec| serde_json::to_value(spec).ok());
    match value.map(without_empty) {
        Some(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

/// An empty list or object counts as a missing one.
fn without_empty(value: Value) -> Value {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    };
    match value {
        Value::Array(items) => Value::Array(items.into_iter().map(without_empty).collect()),
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(key, value)| (key, without_empty(value)));
            Value::Object(fields.filter(|(_, value)| !is_empty(value)).collect())
        }
        other => other,
    }
}

fn is_among(wanted: &Option<Value>, shown: &Option<Value>) -> bool {
    let items = |value: &Option<Value>| match value {
        Some(Value::Array(items)) => items.clone(),
        _ => Vec::new(),
    };
    let shown = items(shown);
    items(wanted).iter().all(|item| shown.contains(item))
}

/// The path of the first difference.
fn difference(path: &str, wanted: &Value, shown: &Value) -> Option<String> {
    match (wanted, shown) {
        (Value::Object(wanted), Value::Object(shown)) => {
            let keys = wanted
                .keys()
                .chain(shown.keys().filter(|key| !wanted.contains_key(*key)));
            keys.map(|key| (format!("{path}.{key}"), wanted.get(key), shown.get(key)))
                .find_map(|(path, wanted, shown)| match (wanted, shown) {
                    (Some(wanted), Some(shown)) => difference(&path, wanted, shown),
                    (Some(_), None) | (None, Some(_)) => Some(path),
                    (None, None) => None,
                })
        }
        (Value::Array(wanted), Value::Array(shown)) if wanted.len() == shown.len() => {
            let pairs = wanted.iter().zip(shown).enumerate();
            pairs
                .map(|(place, (wanted, shown))| (format!("{path}[{place}]"), wanted, shown))
                .find_map(|(path, wanted, shown)| difference(&path, wanted, shown))
        }
        _ => (wanted != shown).then(|| path.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use rubelet_config::FeatureGates;
    use serde_json::json;

    use super::*;
    use crate::static_pod::read_file;

    fn manifest() -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "etcd", "labels": {"tier": "control-plane"}, "annotations": {"who": "kubeadm"}},
            "spec": {
                "hostNetwork": true, "priority": 2_000_001_000, "priorityClassName": "system-node-critical",
                "containers": [{
                    "name": "etcd", "image": "etcd:3", "command": ["etcd", "--a"],
                    "resources": {"requests": {"cpu": "1000m"}},
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                }],
                "volumes": [{"name": "data", "hostPath": {"path": "/data", "type": "DirectoryOrCreate"}}, {"name": "tmp", "emptyDir": {}}],
            },
        })
    }

    fn read(manifest: &Value) -> Pod {
        let read = read_file(
            manifest.to_string().as_bytes(),
            "/m/etcd.yaml",
            "node",
            &FeatureGates::default(),
        );
        read.expect("a good manifest").pods.remove(0)
    }

    /// What the API server makes of the mirror that another kubelet sent.
    fn admitted(manifest: &Value) -> Value {
        let mut mirror = serde_json::to_value(read(manifest)).expect("a pod is JSON");
        mirror["metadata"]["annotations"]["kubernetes.io/config.hash"] = json!("other");
        mirror["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!("other");
        mirror["metadata"]["labels"]["added"] = json!("later");
        mirror["spec"]["preemptionPolicy"] = json!("PreemptLowerPriority");
        mirror
    }

    #[test]
    fn only_what_the_api_server_adds_is_no_difference() {
        let check = |edit: fn(&mut Value), change: fn(&mut Value), expected: Option<&str>| {
            let mut mirror = admitted(&manifest());
            change(&mut mirror);
            let mirror: Pod = serde_json::from_value(mirror).expect("a pod");
            let mut edited = manifest();
            edit(&mut edited);
            let found = mirror_difference(&read(&edited), &mirror);
            assert_eq!(found.as_deref(), expected, "{edited} and {mirror:?}");
        };
        let same = |_: &mut Value| {};
        check(same, same, None);
        // Admission.
        check(
            same,
            |mirror| mirror["spec"]["overhead"] = json!({"cpu": "1m"}),
            None,
        );
        check(
            same,
            |mirror| {
                let tolerations = mirror["spec"]["tolerations"].as_array_mut().expect("a list");
                tolerations.insert(0, json!({"key": "added", "operator": "Exists"}));
            },
            None,
        );
        check(
            same,
            |mirror| mirror["spec"]["tolerations"] = json!([]),
            Some("spec.tolerations"),
        );
        check(
            same,
            |mirror| mirror["spec"]["priority"] = json!(1),
            Some("spec.priority"),
        );
        // Spelling.
        check(
            |pod| pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("1"),
            same,
            None,
        );
        check(|pod| pod["spec"]["dnsPolicy"] = json!("ClusterFirst"), same, None);
        // A webhook, or a user with an editor.
        check(
            same,
            |mirror| mirror["spec"]["containers"][0]["image"] = json!("mirror.local/etcd:3"),
            Some("spec.containers[0].image"),
        );
        // Edits of the manifest, also of what only the mirror still has.
        check(
            |pod| pod["spec"]["containers"][0]["command"] = json!(["etcd", "--b"]),
            same,
            Some("spec.containers[0].command[1]"),
        );
        check(
            |pod| pod["spec"]["containers"][0]["command"] = json!(["etcd"]),
            same,
            Some("spec.containers[0].command"),
        );
        check(
            |pod| pod["spec"]["containers"][0]["volumeMounts"] = json!([]),
            same,
            Some("spec.containers[0].volumeMounts"),
        );
        check(
            |pod| pod["spec"]["hostNetwork"] = json!(false),
            same,
            Some("spec.hostNetwork"),
        );
        check(
            |pod| pod["spec"]["initContainers"] = json!([{"name": "i", "image": "i"}]),
            same,
            Some("spec.initContainers"),
        );
        check(
            |pod| pod["metadata"]["labels"]["tier"] = json!("none"),
            same,
            Some("metadata.labels[tier]"),
        );
        check(
            |pod| pod["metadata"]["annotations"]["new"] = json!("x"),
            same,
            Some("metadata.annotations[new]"),
        );
    }
}
