//! What this crate makes of upstream's corpus: every line of `testbed/goldens/*.jsonl` is a question with upstream's answer.

use std::collections::BTreeMap;

use rubelet_config::flags::{self, Deprecation};
use rubelet_config::gates::{FeatureGates, Gate};
use rubelet_config::kubelet_configuration::{
    API_VERSION, DropIn, HostFacts, IgnoredPart, KIND, KubeletConfiguration, Warning, apply_defaults, decode,
    legacy_kubelet_configuration, merge_drop_ins, validate, validate_on_host,
};
use serde_json::{Value, json};

use crate::golden;

const SOURCE: &str = "golden";

/// Answers every question of a golden file and reports all answers that are not upstream's.
fn check(file: &str, answer: impl Fn(&Value) -> Option<Value>) {
    let mut asked = 0;
    let mut differences = Vec::new();
    for line in golden(file).lines() {
        let line: Value = serde_json::from_str(line).expect("a golden is JSON");
        let Some(ours) = answer(&line["input"]) else {
            continue;
        };
        asked += 1;
        if ours != line["output"] {
            differences.push(format!(
                "{}\n  {}",
                line["input"],
                describe_difference(&line["output"], &ours)
            ));
        }
    }
    assert!(asked >= 20, "only {asked} questions are in {file}");
    assert!(
        differences.is_empty(),
        "{file}: {} of {asked} answers differ:\n{}",
        differences.len(),
        differences.join("\n")
    );
}

/// The fields that differ, for objects too long to read.
fn describe_difference(upstream: &Value, ours: &Value) -> String {
    match (upstream, ours) {
        (Value::Object(left), Value::Object(right)) => {
            let names: std::collections::BTreeSet<&String> = left.keys().chain(right.keys()).collect();
            let lines = names
                .into_iter()
                .filter(|name| left.get(*name) != right.get(*name))
                .map(|name| {
                    let (left, right) = (
                        left.get(name).unwrap_or(&Value::Null),
                        right.get(name).unwrap_or(&Value::Null),
                    );
                    format!("{name}: {}", describe_difference(left, right))
                });
            lines.collect::<Vec<_>>().join("; ")
        }
        _ => format!("upstream {upstream}, ours {ours}"),
    }
}

/// The rows of a golden table, by name.
fn rows(file: &str) -> BTreeMap<String, Value> {
    let row = |line: &str| {
        let line: Value = serde_json::from_str(line).expect("a golden is JSON");
        (
            line["row"]["name"].as_str().expect("a row has a name").to_owned(),
            line["row"].clone(),
        )
    };
    golden(file).lines().map(row).collect()
}

fn assert_same_rows(upstream: &BTreeMap<String, Value>, ours: &BTreeMap<String, Value>) {
    let names: std::collections::BTreeSet<&String> = upstream.keys().chain(ours.keys()).collect();
    let differences: Vec<String> = names
        .into_iter()
        .filter(|name| upstream.get(*name) != ours.get(*name))
        .map(|name| {
            format!(
                "{name}: upstream {:?}, ours {:?}",
                upstream.get(name),
                ours.get(name)
            )
        })
        .collect();
    assert!(
        differences.is_empty(),
        "{} rows differ:\n{}",
        differences.len(),
        differences.join("\n")
    );
}

fn bytes(input: &Value) -> Vec<u8> {
    match input["text"].as_str() {
        Some(text) => text.as_bytes().to_vec(),
        None => input["config"].to_string().into_bytes(),
    }
}

fn gate_values(value: &Value) -> BTreeMap<String, bool> {
    let entries = value.as_object().into_iter().flatten();
    entries
        .filter_map(|(name, value)| Some((name.clone(), value.as_bool()?)))
        .collect()
}

/// The gates of the question over those of the object, as a command line's over a file's; `None` when they are refused.
fn gates_of(input: &Value, configuration: &KubeletConfiguration) -> Option<FeatureGates> {
    let mut values = gate_values(&input["gates"]);
    values.extend(configuration.feature_gates.clone());
    FeatureGates::from_values(&values).ok()
}

/// The object with defaults and the warnings of reading it; `None` when it is refused.
fn read(input: &Value) -> Option<(KubeletConfiguration, FeatureGates, Vec<Warning>)> {
    let decoded = decode(&bytes(input), SOURCE).ok()?;
    let mut configuration = decoded.configuration;
    let gates = gates_of(input, &configuration)?;
    apply_defaults(&mut configuration, &gates);
    Some((configuration, gates, decoded.warnings))
}

#[test]
fn validation() {
    check("config_validation.jsonl", |input| {
        let Some((configuration, gates, _)) = read(input) else {
            return Some(json!({"ok": false, "stage": "decode", "problems": 1}));
        };
        let mut problems = validate(&configuration, &gates);
        problems.extend(validate_on_host(
            &configuration,
            HostFacts {
                cgroup_v2: input["cgroupVersion"] != 1,
            },
        ));
        let mut answer = json!({"ok": problems.is_empty(), "problems": problems.len()});
        if !problems.is_empty() {
            answer["stage"] = "validate".into();
        }
        Some(answer)
    });
}

#[test]
fn image_patterns() {
    check("names.jsonl", |input| {
        if input["kind"] != "imagePattern" {
            return None;
        }
        let question = json!({"config": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "imagePullCredentialsVerificationPolicy": "NeverVerifyAllowlistedImages",
            "preloadedImagesVerificationAllowlist": [input["value"]],
        }});
        let (configuration, gates, _) = read(&question).expect("the pattern is text");
        Some(json!({"ok": validate(&configuration, &gates).is_empty()}))
    });
}

#[test]
fn decoding() {
    check("config_decoding.jsonl", |input| {
        let Some((configuration, _, warnings)) = read(input) else {
            return Some(json!({"ok": false, "strictProblems": 0}));
        };
        // Upstream says nothing about a second document; we do.
        let strict = warnings
            .iter()
            .filter(|warning| warning.defect != IgnoredPart::FurtherDocuments)
            .count();
        Some(json!({"ok": true, "strictProblems": strict, "config": configuration.to_configz()}))
    });
}

#[test]
fn defaults() {
    check("config_defaults.jsonl", |input| {
        if input["legacy"] == true {
            let gates = FeatureGates::from_values(&gate_values(&input["gates"]))
                .expect("the question's gates are valid");
            return Some(legacy_kubelet_configuration(&gates).to_configz());
        }
        Some(
            read(input)
                .expect("the question is a valid configuration")
                .0
                .to_configz(),
        )
    });
}

#[test]
fn merging() {
    let merge = |input: &Value| {
        let (base, _, _) = read(input)?;
        let drop_ins: Vec<DropIn> = input["dropins"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|text| {
                Some(DropIn {
                    source_name: SOURCE.to_owned(),
                    bytes: text.as_str()?.as_bytes().to_vec(),
                })
            })
            .collect();
        let mut merged = merge_drop_ins(&base, &drop_ins).ok()?.configuration;
        let gates = gates_of(input, &merged)?;
        apply_defaults(&mut merged, &gates);
        Some(merged.to_configz())
    };
    check("config_merging.jsonl", |input| {
        Some(match merge(input) {
            Some(config) => json!({"ok": true, "strictProblems": 0, "config": config}),
            None => json!({"ok": false, "strictProblems": 0}),
        })
    });
}

#[test]
fn gate_table() {
    let ours = Gate::all().iter().map(|info| {
        let mut needs: Vec<&str> = info.needs.iter().map(|gate| gate.info().name).collect();
        needs.sort_unstable();
        let row = json!({
            "name": info.name,
            "stage": info.stage.as_str(),
            "default": info.switch.default_value(),
            "locked": info.switch.is_locked(),
            "dependencies": needs,
        });
        (info.name.to_owned(), row)
    });
    assert_same_rows(&rows("gates.jsonl"), &ours.collect());
}

#[test]
fn gate_settings() {
    check("gate_settings.jsonl", |input| {
        let text = input["value"].as_str().expect("a question has a value");
        let argument = format!("--feature-gates={text}");
        let Some(gates) = gates_of_argument(&argument) else {
            return Some(json!({"ok": false}));
        };
        let changed: BTreeMap<&str, bool> = Gate::all()
            .iter()
            .map(|info| (info.name, gates.enabled(info.gate), info.switch.default_value()))
            .filter_map(|(name, now, default)| (now != default).then_some((name, now)))
            .collect();
        let mut answer = json!({"ok": true});
        if !changed.is_empty() {
            answer["changed"] = json!(changed);
        }
        Some(answer)
    });
}

fn gates_of_argument(argument: &str) -> Option<FeatureGates> {
    let line = flags::CommandLine::parse(&[argument]).ok()?;
    match line.value("feature-gates") {
        Some(flags::FlagValue::BoolMap(values)) => FeatureGates::from_values(values).ok(),
        other => panic!("{argument} was read as {other:?}"),
    }
}

/// Names, short forms, bare values and deprecations; types and defaults are checked by their effect.
#[test]
fn flag_table() {
    let upstream = rows("flags.jsonl").into_iter().map(|(name, row)| {
        let kept =
            json!({"short": row["shorthand"], "bare": row["bareValue"], "deprecated": row["deprecated"]});
        (name, kept)
    });
    let ours = flags::definitions()
        .iter()
        .filter(|definition| definition.name != "rubelet-config")
        .map(|definition| {
            let row = json!({
                "short": definition.shorthand,
                "bare": definition.kind.bare_value(),
                "deprecated": definition.deprecation != Deprecation::None,
            });
            (definition.name.to_owned(), row)
        });
    assert_same_rows(&upstream.collect(), &ours.collect());
}
