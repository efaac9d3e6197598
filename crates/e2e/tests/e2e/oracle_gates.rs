//! Feature gates: the table is upstream's, and any setting of them is refused or resolved alike.

use std::collections::BTreeMap;

use anyhow::Result;
use rubelet_config::gates::Gate;
use rubelet_testbed::oracle::Oracle;
use serde_json::{Value, json};

use crate::oracle_ours::{Differences, Seeded, our_gates, seeds};

const SETTINGS: u64 = 1_000;

#[test]
fn the_gate_table_is_upstreams() -> Result<()> {
    let upstream = Oracle::start()?.ask("gates", Value::Null)?;
    let ours: Vec<Value> = Gate::all()
        .iter()
        .map(|info| {
            let mut needs: Vec<&str> = info.needs.iter().map(|gate| gate.info().name).collect();
            needs.sort_unstable();
            json!({
                "name": info.name,
                "stage": info.stage.as_str(),
                "default": info.switch.default_value(),
                "locked": info.switch.is_locked(),
                "dependencies": needs,
            })
        })
        .collect();
    let by_name = |rows: &[Value]| -> BTreeMap<String, Value> {
        rows.iter()
            .map(|row| (row["name"].as_str().unwrap_or_default().to_owned(), row.clone()))
            .collect()
    };
    let mut differences = Differences::default();
    let rows = upstream.as_array().map_or(&[][..], Vec::as_slice);
    assert!(rows.len() > 200, "upstream told of {} gates only", rows.len());
    differences.compare(
        "none",
        &json!("the table"),
        &json!(by_name(rows)),
        &json!(by_name(&ours)),
    );
    differences.assert_none();
    Ok(())
}

#[test]
fn gate_settings_are_resolved_alike() -> Result<()> {
    let settings: Vec<BTreeMap<String, bool>> = seeds(SETTINGS).map(setting).collect();
    let questions = settings.iter().map(|values| {
        let pairs: Vec<String> = values
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        json!({"value": pairs.join(",")})
    });
    let answers = Oracle::start()?.ask_all("gates.set", questions.collect())?;
    let mut differences = Differences::default();
    let mut accepted = 0;
    for ((seed, values), answer) in seeds(SETTINGS).zip(&settings).zip(answers) {
        let answer = answer?;
        let upstream = if answer["ok"] == true {
            accepted += 1;
            json!({"ok": true, "changed": answer.get("changed").cloned().unwrap_or(json!({}))})
        } else {
            json!({"ok": false})
        };
        differences.compare(seed, &json!(values), &upstream, &our_gates(values));
    }
    differences.assert_none();
    assert!(
        accepted > settings.len() / 20,
        "only {accepted} of {} are good",
        settings.len()
    );
    Ok(())
}

fn setting(seed: u64) -> BTreeMap<String, bool> {
    let mut random = Seeded::new(seed);
    let mut values = BTreeMap::new();
    for _ in 0..random.below(4) {
        let info = random.one_of(Gate::all());
        // Mostly a change that may stand; a locked gate is turned now and then.
        let value = if info.switch.is_locked() && random.below(4) > 0 {
            info.switch.default_value()
        } else {
            random.below(2) == 0
        };
        values.insert(info.name.to_owned(), value);
    }
    match random.below(20) {
        0 => values.insert("AllAlpha".to_owned(), random.below(2) == 0),
        1 => values.insert("AllBeta".to_owned(), random.below(2) == 0),
        2 => values.insert("NoSuchGate".to_owned(), true),
        _ => None,
    };
    values
}
