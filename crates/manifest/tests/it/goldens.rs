//! Manifests against upstream's own answers, kept in `testbed/goldens`.

use std::collections::BTreeSet;

use rubelet_config::FeatureGates;
use rubelet_manifest::{api_reference, apply_defaults, decode, read_file, read_url, validate};
use serde_json::{Value, json};

/// Answers every question of a golden file and reports all answers that are not upstream's.
fn check(golden: &str, answer: impl Fn(&Value) -> Value) {
    let mut asked = 0;
    let mut differences = Vec::new();
    for line in golden.lines() {
        let line: Value = serde_json::from_str(line).expect("a golden is JSON");
        asked += 1;
        let (ours, upstream) = (pruned(answer(&line["input"])), pruned(line["output"].clone()));
        if ours != upstream {
            differences.push(format!(
                "{}\n  upstream {upstream}\n  ours     {ours}",
                line["input"]
            ));
        }
    }
    assert!(asked > 100, "only {asked} questions are in the golden");
    assert!(
        differences.is_empty(),
        "{} of {asked} answers differ:\n{}",
        differences.len(),
        differences.join("\n")
    );
}

/// Known difference: an empty value and an absent one are written alike by upstream, and kept apart by us.
fn pruned(value: Value) -> Value {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(entries) => entries.is_empty(),
    };
    match value {
        Value::Object(entries) => entries
            .into_iter()
            .map(|(name, value)| (name, pruned(value)))
            .filter(|(name, value)| !is_empty(value) && name != "apiVersion" && name != "kind")
            .collect(),
        Value::Array(items) => items.into_iter().map(pruned).collect(),
        other => other,
    }
}

#[test]
fn manifests_are_judged_as_upstream_judges_them() {
    let gates = FeatureGates::default();
    check(
        include_str!("../../../../testbed/goldens/pod_manifests.jsonl"),
        |input| {
            let Ok(mut manifest) = decode(input["text"].as_str().unwrap().as_bytes()) else {
                return json!({"decoded": false});
            };
            apply_defaults(&mut manifest.pod, &gates);
            let errors: BTreeSet<String> = validate(&manifest.pod, &gates)
                .into_iter()
                .map(|error| format!("{} {}", error.path, error.kind.reason()))
                .collect();
            let reference = api_reference(&manifest.pod).map_or("unknown", Option::unwrap_or_default);
            json!({"decoded": true, "errors": errors, "reference": reference})
        },
    );
}

#[test]
fn sources_make_the_pods_that_upstreams_make() {
    let gates = FeatureGates::default();
    check(
        include_str!("../../../../testbed/goldens/pod_sources.jsonl"),
        |input| {
            let text = |name: &str| input[name].as_str().unwrap_or_default();
            let bytes = text("text").as_bytes();
            let read = match input["file"].as_str() {
                Some(path) => read_file(bytes, path, text("node"), &gates),
                None => read_url(bytes, text("url"), text("node"), &gates),
            };
            let Ok(read) = read else {
                return json!({"ok": false});
            };
            let mut answer = json!({"ok": true, "pods": read.pods});
            for pod in answer["pods"].as_array_mut().into_iter().flatten() {
                let uid = pod["metadata"]["uid"].clone();
                assert_eq!(pod["metadata"]["annotations"]["kubernetes.io/config.hash"], uid);
                let is_made = uid
                    .as_str()
                    .is_some_and(|uid| uid.len() == 32 && uid.chars().all(|digit| digit.is_ascii_hexdigit()));
                // Made by a recipe of our own.
                if is_made {
                    pod["metadata"]["uid"] = json!("made");
                    pod["metadata"]["annotations"]["kubernetes.io/config.hash"] = json!("made");
                }
            }
            answer
        },
    );
}
