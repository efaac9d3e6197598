//! Flight records of a run can be made again, and a forged one is noticed.

use rubelet_sim::replay::replay;
use rubelet_sim::{Run, run_seed};

fn records() -> Vec<String> {
    let run = Run {
        wants_records: true,
        ..Run::default()
    };
    let mut seeds = 0..20;
    seeds
        .find_map(|seed| Some(run_seed(seed, run).records).filter(|records| !records.is_empty()))
        .expect("a run with pods")
}

#[test]
fn records_replay_without_a_difference() {
    let mut decisions = 0;
    for record in records() {
        let replayed = replay(&record).expect("a record");
        assert_eq!(replayed.differences, [] as [String; 0]);
        decisions += replayed.decisions;
    }
    assert!(decisions > 0);
}

#[test]
fn a_changed_decision_is_a_difference() {
    let forged = records().into_iter().find_map(|record| {
        let mut value: serde_json::Value = serde_json::from_str(&record).expect("JSON");
        let entries = value["entries"].as_array_mut().expect("entries");
        let plan = entries.iter_mut().find(|entry| entry["kind"] == "plan")?;
        plan["actions"] = serde_json::json!(["Nothing"]);
        Some(value.to_string())
    });
    let replayed = replay(&forged.expect("a record with a plan")).expect("a record");
    assert_eq!(replayed.differences.len(), 1);
}

#[test]
fn what_is_no_record_is_refused() {
    let check = |text: &str, expected: &str| {
        let error = replay(text).expect_err("refused").to_string();
        assert!(error.contains(expected), "{error}");
    };
    check("{", "no flight record");
    let gates = r#"{"containerRestartRules": true, "restartAllContainers": true}"#;
    let dump = format!(r#"{{"version": 99, "gates": {gates}, "pod": {{}}, "entries": []}}"#);
    check(&dump, "version 99");
}
