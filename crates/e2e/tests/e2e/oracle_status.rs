//! Generated pods: conditions, container statuses, phases, resources, and what may be said after what, alike.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rubelet_goldens::{STATUS_OPS, status_question};
use rubelet_lifecycle::status::pod_resources;
use rubelet_model::Quantity;
use rubelet_testbed::oracle::Oracle;
use serde_json::{Value, json};

use crate::oracle_configuration::plain_node;
use crate::oracle_ours::{Differences, Seeded, seeds};
use crate::oracle_resources::pod_value;

#[path = "../../../lifecycle/tests/it/status_oracle.rs"]
mod status_oracle;

const CASES: u64 = 2_000;

#[test]
fn statuses_are_derived_alike() -> Result<()> {
    let mut oracle = Oracle::start()?;
    let mut differences = Differences::default();
    for op in STATUS_OPS {
        let questions: Vec<_> = seeds(CASES).map(|seed| status_question(op, seed)).collect();
        let answers = oracle.ask_all(op, questions.clone())?;
        for ((seed, question), answer) in seeds(CASES).zip(&questions).zip(answers) {
            let upstream = status_oracle::comparable(op, answer?);
            let ours = status_oracle::our_answer(op, question);
            differences.compare(format!("{seed} of {op}"), question, &upstream, &ours);
        }
    }
    differences.assert_none();
    Ok(())
}

/// Amounts in one form of writing; lists without an entry are none.
fn comparable(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(name, value)| (name, comparable(value)));
            let is_empty = |value: &Value| value.is_null() || *value == json!({});
            Value::Object(fields.filter(|(_, value)| !is_empty(value)).collect())
        }
        Value::String(text) => match text.parse::<Quantity>() {
            Ok(amount) => json!(amount.canonical()),
            Err(_) => Value::String(text),
        },
        other => other,
    }
}

#[test]
fn pods_have_the_same_resources_as_a_whole() -> Result<()> {
    let mut oracle = Oracle::start()?;
    let mut node = plain_node();
    node.facts.cgroup = rubelet_resources::CgroupVersion::V2;
    let page_bytes = node.facts.page_size_bytes;
    let questions: Vec<Value> = seeds(CASES)
        .map(|seed| {
            let mut random = Seeded::new(seed);
            let mut pod = pod_value(&mut random);
            pod["status"] = json!({"phase": *random.one_of(&["Pending", "Running", "Succeeded"])});
            let limits = json!({"cpu": "70m", "memory": "7Mi"});
            let old = json!({"phase": *random.one_of(&["Pending", "Running"]), "resources": {"requests": limits, "limits": limits}});
            let old = if random.below(2) == 0 { json!({}) } else { old };
            json!({"pod": pod, "old": old, "pageBytes": page_bytes})
        })
        .collect();
    let answers = oracle.ask_all("status.resources", questions.clone())?;
    let mut differences = Differences::default();
    for ((seed, question), answer) in seeds(CASES).zip(&questions).zip(answers) {
        let pod: Pod = serde_json::from_value(question["pod"].clone()).context("read the pod")?;
        let old: PodStatus = serde_json::from_value(question["old"].clone()).context("read the status")?;
        let made = pod_resources(&pod, None, Some(&old), &node);
        let ours = json!({"resources": made.resources, "allocated": made.allocated});
        differences.compare(seed, question, &comparable(answer?), &comparable(ours));
    }
    differences.assert_none();
    Ok(())
}
