//! What this crate makes of upstream's corpus: every line of `testbed/goldens` is a question with upstream's own answer.

use std::fmt::Display;
use std::str::FromStr;

use rubelet_model::address::parse_ip;
use rubelet_model::names::{is_dns_label, is_dns_subdomain, is_label_value, is_qualified_name};
use rubelet_model::quantity::Format;
use rubelet_model::{CpuSet, GoDuration, Quantity};
use serde_json::{Value, json};

/// Answers every question of a golden file and reports all answers that are not upstream's.
fn check(golden: &str, answer: impl Fn(&Value) -> Option<Value>) {
    let mut asked = 0;
    let mut differences = Vec::new();
    for line in golden.lines() {
        let line: Value = serde_json::from_str(line).expect("a golden is JSON");
        let Some(ours) = answer(&line["input"]) else {
            continue;
        };
        asked += 1;
        if ours != line["output"] {
            differences.push(format!(
                "{}\n  upstream {}\n  ours     {ours}",
                line["input"], line["output"]
            ));
        }
    }
    assert!(asked > 20, "only {asked} questions are in the golden");
    assert!(
        differences.is_empty(),
        "{} of {asked} answers differ:\n{}",
        differences.len(),
        differences.join("\n")
    );
}

fn text(input: &Value, name: &str) -> String {
    input[name].as_str().expect("a question has this text").to_owned()
}

fn describe(quantity: &Quantity) -> Value {
    let format = match quantity.format() {
        Format::DecimalExponent => "DecimalExponent",
        Format::BinarySi => "BinarySI",
        Format::DecimalSi => "DecimalSI",
    };
    json!({
        "ok": true,
        "canonical": quantity.to_string(),
        "format": format,
        "value": quantity.value(),
        "milli": quantity.milli_value(),
        "sign": quantity.signum(),
    })
}

fn quantity_answer(input: &Value) -> Value {
    let refused = json!({"ok": false, "value": 0, "milli": 0, "sign": 0});
    let Ok(mut a) = Quantity::from_str(&text(input, "a")) else {
        return refused;
    };
    if input["do"] == "parse" {
        return describe(&a);
    }
    let Ok(b) = Quantity::from_str(&text(input, "b")) else {
        return refused;
    };
    match input["do"].as_str() {
        Some("add") => a.add(&b),
        Some("sub") => a.sub(&b),
        Some("cmp") => {
            let mut answer = describe(&a);
            answer["cmp"] = json!(a.cmp(&b) as i32);
            return answer;
        }
        other => panic!("a question that this test does not know: {other:?}"),
    }
    describe(&a)
}

fn parsed<T: Display>(result: &Result<T, impl Sized>, more: impl Fn(&T, &mut Value)) -> Value {
    let mut answer = json!({"ok": result.is_ok(), "canonical": ""});
    if let Ok(value) = result {
        answer["canonical"] = json!(value.to_string());
        more(value, &mut answer);
    }
    answer
}

#[test]
fn quantities() {
    check(
        include_str!("../../../../testbed/goldens/quantities.jsonl"),
        |input| Some(quantity_answer(input)),
    );
}

#[test]
fn cpu_sets() {
    check(
        include_str!("../../../../testbed/goldens/cpusets.jsonl"),
        |input| {
            Some(parsed(&CpuSet::from_str(&text(input, "text")), |set, answer| {
                if !set.is_empty() {
                    answer["cpus"] = set.iter().collect::<Vec<_>>().into();
                }
            }))
        },
    );
}

#[test]
fn durations() {
    check(
        include_str!("../../../../testbed/goldens/durations.jsonl"),
        |input| {
            Some(parsed(
                &GoDuration::from_str(&text(input, "text")),
                |duration, answer| {
                    if !duration.is_zero() {
                        answer["nanos"] = duration.as_nanos().into();
                    }
                },
            ))
        },
    );
}

#[test]
fn names() {
    check(include_str!("../../../../testbed/goldens/names.jsonl"), |input| {
        let name = text(input, "value");
        let ok = match input["kind"].as_str() {
            Some("qualifiedName") => is_qualified_name(&name),
            Some("labelValue") => is_label_value(&name),
            Some("dns1123Label") => is_dns_label(&name),
            Some("dns1123Subdomain") => is_dns_subdomain(&name),
            Some("ip") => parse_ip(&name).is_some(),
            // A rule of the configuration; its crate checks it.
            Some("imagePattern") => return None,
            other => panic!("a question that this test does not know: {other:?}"),
        };
        Some(json!({"ok": ok}))
    });
}
