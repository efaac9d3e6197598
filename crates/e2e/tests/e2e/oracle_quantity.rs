//! Generated quantities, cpu sets and durations: read, printed and added alike.

use std::str::FromStr;

use anyhow::Result;
use rubelet_model::quantity::Format;
use rubelet_model::{CpuSet, GoDuration, Quantity};
use rubelet_testbed::oracle::Oracle;
use serde_json::{Value, json};

use crate::oracle_ours::{Differences, Seeded, seeds};

const CASES: u64 = 20_000;
const SUFFIXES: &[&str] = &[
    "", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e3", "E-3", "e",
    "K", "x", " ",
];

fn digits(random: &mut Seeded, most: usize) -> String {
    (0..random.below(most + 1))
        .map(|_| char::from(b'0' + u8::try_from(random.below(10)).unwrap_or(0)))
        .collect()
}

fn quantity_text(random: &mut Seeded) -> String {
    let sign = *random.one_of(&["", "", "", "-", "+"]);
    let whole = digits(random, 20);
    let fraction = if random.below(3) == 0 {
        format!(".{}", digits(random, 12))
    } else {
        String::new()
    };
    format!("{sign}{whole}{fraction}{}", random.one_of(SUFFIXES))
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
        "value": fits(quantity, 1.0).then(|| quantity.value()),
        "milli": fits(quantity, 1000.0).then(|| quantity.milli_value()),
        "sign": quantity.signum(),
    })
}

/// Whether upstream's 64-bit view means anything; beyond, it depends on how the processor converts a float that does not fit.
fn fits(quantity: &Quantity, scale: f64) -> bool {
    quantity.to_f64_approximate().abs() * scale < 9.2e18
}

fn our_quantity(input: &Value) -> Value {
    let refused = json!({"ok": false, "value": 0, "milli": 0, "sign": 0});
    let read = |name: &str| Quantity::from_str(input[name].as_str().unwrap_or_default());
    let Ok(mut a) = read("a") else { return refused };
    if input["do"] == "parse" {
        return describe(&a);
    }
    let Ok(b) = read("b") else { return refused };
    match input["do"].as_str() {
        Some("add") => a.add(&b),
        Some("sub") => a.sub(&b),
        _ => {
            let mut answer = describe(&a);
            answer["cmp"] = json!(a.cmp(&b) as i32);
            return answer;
        }
    }
    describe(&a)
}

/// Upstream's answer without the wording of its refusal.
fn silent(mut answer: Value) -> Value {
    if let Value::Object(fields) = &mut answer {
        fields.remove("error");
    }
    answer
}

fn compare(op: &str, input: impl Fn(&mut Seeded) -> Value, ours: impl Fn(&Value) -> Value) -> Result<()> {
    let inputs: Vec<Value> = seeds(CASES).map(|seed| input(&mut Seeded::new(seed))).collect();
    let answers = Oracle::start()?.ask_all(op, inputs.clone())?;
    let mut differences = Differences::default();
    let mut accepted = 0;
    for ((seed, input), answer) in seeds(CASES).zip(&inputs).zip(answers) {
        let mut upstream = silent(answer?);
        let ours = ours(input);
        accepted += usize::from(upstream["ok"] == true);
        for meaningless in ["value", "milli"]
            .into_iter()
            .filter(|name| ours.get(name) == Some(&Value::Null))
        {
            upstream[meaningless] = Value::Null;
        }
        differences.compare(seed, input, &upstream, &ours);
    }
    differences.assert_none();
    assert!(
        accepted > inputs.len() / 10,
        "only {accepted} of {} are good",
        inputs.len()
    );
    Ok(())
}

#[test]
fn quantities_are_read_and_computed_alike() -> Result<()> {
    let input = |random: &mut Seeded| {
        let operation = *random.one_of(&["parse", "add", "sub", "cmp"]);
        json!({"do": operation, "a": quantity_text(random), "b": quantity_text(random)})
    };
    compare("quantity", input, our_quantity)
}

#[test]
fn durations_are_read_alike() -> Result<()> {
    let input = |random: &mut Seeded| {
        let mut text = (*random.one_of(&["", "", "-", "+"])).to_owned();
        for _ in 0..random.below(4) {
            text.push_str(&digits(random, 9));
            if random.below(3) == 0 {
                text.push('.');
                text.push_str(&digits(random, 10));
            }
            let unit = *random.one_of(&["h", "m", "s", "ms", "us", "µs", "ns", "", "d"]);
            text.push_str(unit);
        }
        json!({"text": text})
    };
    compare("duration", input, |input| {
        let mut answer = json!({"ok": false, "canonical": ""});
        if let Ok(duration) = GoDuration::from_str(input["text"].as_str().unwrap_or_default()) {
            answer = json!({"ok": true, "canonical": duration.to_string()});
            if !duration.is_zero() {
                answer["nanos"] = json!(duration.as_nanos());
            }
        }
        answer
    })
}

#[test]
fn cpu_sets_are_read_alike() -> Result<()> {
    let input = |random: &mut Seeded| {
        let mut parts = Vec::new();
        for _ in 0..random.below(6) {
            let first = random.below(130);
            parts.push(match random.below(8) {
                0..3 => first.to_string(),
                3..6 => format!("{first}-{}", first + random.below(9)),
                6 => format!("{first}-{}", random.below(130)),
                _ => (*random.one_of(&["", "-", "a", "1-", "-1", " 1", "1-2-3", "+1"])).to_owned(),
            });
        }
        json!({"text": parts.join(",")})
    };
    compare("cpuset", input, |input| {
        let mut answer = json!({"ok": false, "canonical": ""});
        if let Ok(set) = CpuSet::from_str(input["text"].as_str().unwrap_or_default()) {
            answer = json!({"ok": true, "canonical": set.to_string()});
            if !set.is_empty() {
                answer["cpus"] = json!(set.iter().collect::<Vec<_>>());
            }
        }
        answer
    })
}
