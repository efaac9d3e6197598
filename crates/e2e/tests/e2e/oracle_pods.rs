//! Generated and mutated pods: accepted or refused alike, for the same fields, and the same after defaults. What is accepted can
//! be made into containers, or is refused with a field and a reason.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use anyhow::Result;
use rubelet_config::FeatureGates;
use rubelet_goldens::generate::{manifest, mutated_manifest};
use rubelet_lifecycle::configuration::{ContainerInputs, container_config, unsupported};
use rubelet_manifest::{api_reference, apply_defaults, decode, validate};
use rubelet_testbed::oracle::Oracle;
use serde_json::{Value, json};

use crate::oracle_configuration::plain_node;
use crate::oracle_ours::{Differences, seeds};
use crate::yaml_text::yaml_text;

const CASES: u64 = 10_000;
const BATCH: usize = 10_000;

pub(crate) static GATES: LazyLock<FeatureGates> = LazyLock::new(FeatureGates::default);

/// The answer in the form of `upstream_answer`.
fn our_answer(text: &str) -> Value {
    let Ok(mut manifest) = decode(text.as_bytes()) else {
        return json!({"decoded": false});
    };
    apply_defaults(&mut manifest.pod, &GATES);
    let errors: BTreeSet<String> = validate(&manifest.pod, &GATES)
        .into_iter()
        .map(|error| format!("{} {}", error.path, error.kind.reason()))
        .collect();
    let reference = match api_reference(&manifest.pod) {
        Ok(found) => found.unwrap_or_default(),
        Err(_) => "unknown",
    };
    let mut pod = json!(manifest.pod);
    prune(&mut pod);
    json!({"decoded": true, "errors": errors, "reference": reference, "pod": pod})
}

fn upstream_answer(answer: &Value) -> Value {
    if answer["decoded"] != true {
        return json!({"decoded": false});
    }
    let errors: BTreeSet<String> = answer["errors"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|error| {
            let text = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
            format!("{} {}", text("field"), text("type"))
        })
        .collect();
    let mut pod = answer["pod"].clone();
    prune(&mut pod);
    let reference = answer["reference"].as_str().unwrap_or_default();
    json!({"decoded": true, "errors": errors, "reference": reference, "pod": pod})
}

/// Known difference: an empty value and an absent one are written alike by upstream, and kept apart by us. Both sides lose
/// empty texts, lists and objects, nulls, zeros and false; apiVersion and kind are not part of upstream's answer.
pub(crate) fn prune(value: &mut Value) {
    match value {
        Value::Object(entries) => {
            entries.values_mut().for_each(prune);
            entries.retain(|name, value| !is_empty(value) && name != "apiVersion" && name != "kind");
        }
        Value::Array(items) => items.iter_mut().for_each(prune),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(entries) => entries.is_empty(),
    }
}

fn compare(pods: &[(u64, String)]) -> Result<()> {
    let mut oracle = Oracle::start()?;
    let questions = pods.iter().map(|(_, text)| json!({"text": text})).collect();
    let answers = oracle.ask_all("pod.manifest", questions)?;
    let mut differences = Differences::default();
    let mut accepted = 0;
    for ((seed, text), answer) in pods.iter().zip(answers) {
        let upstream = upstream_answer(&answer?);
        let is_good = upstream["errors"].as_array().is_some_and(Vec::is_empty);
        accepted += usize::from(is_good);
        if is_good {
            can_run_or_says_why(text);
        }
        differences.compare(seed, &json!(text), &upstream, &our_answer(text));
    }
    differences.assert_none();
    assert!(
        accepted > pods.len() / 20 && accepted < pods.len() * 19 / 20,
        "{accepted} of {} are good, which proves little",
        pods.len()
    );
    Ok(())
}

/// What is not supported names a field of the pod; everything else has a configuration for the runtime, or a reason in words.
fn can_run_or_says_why(text: &str) {
    let Ok(mut manifest) = decode(text.as_bytes()) else {
        return;
    };
    apply_defaults(&mut manifest.pod, &GATES);
    let (pod, node) = (&manifest.pod, plain_node());
    let refusals = unsupported(pod, &node);
    for refusal in &refusals {
        let is_named = refusal.field.starts_with("spec") || refusal.field.starts_with("metadata");
        assert!(is_named && !refusal.reason.is_empty(), "{refusal}: {text}");
    }
    let Some(spec) = pod.spec.as_ref().filter(|_| refusals.is_empty()) else {
        return;
    };
    for container in spec.init_containers.iter().flatten().chain(&spec.containers) {
        match container_config(pod, container, &node, &ContainerInputs::default()) {
            Ok(config) => {
                let named = config.metadata.map(|metadata| metadata.name);
                assert_eq!(named.as_deref(), Some(container.name.as_str()), "{text}");
            }
            Err(error) => assert!(!error.to_string().is_empty(), "{text}"),
        }
    }
}

/// In batches, so that memory does not grow with the number of pods.
fn compare_many(pod_of: fn(u64) -> Value) -> Result<()> {
    let all: Vec<u64> = seeds(CASES).collect();
    for batch in all.chunks(BATCH) {
        let pods: Vec<_> = batch
            .iter()
            .map(|seed| (*seed, pod_of(*seed).to_string()))
            .collect();
        compare(&pods)?;
    }
    Ok(())
}

/// The same pods as people write them: block and flow style, quotes or none, comments, text blocks.
#[test]
fn pods_in_yaml_are_judged_alike() -> Result<()> {
    let text_of = |seed: u64| {
        let pod = if seed.is_multiple_of(2) {
            manifest(seed)
        } else {
            mutated_manifest(seed)
        };
        yaml_text(&pod, seed)
    };
    let pods: Vec<_> = seeds(CASES / 2).map(|seed| (seed, text_of(seed))).collect();
    compare(&pods)
}

#[test]
fn generated_pods_are_judged_alike() -> Result<()> {
    compare_many(manifest)
}

#[test]
fn mutated_pods_are_judged_alike() -> Result<()> {
    compare_many(mutated_manifest)
}
