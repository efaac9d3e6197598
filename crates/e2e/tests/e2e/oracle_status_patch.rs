//! Generated pairs of statuses: our patch leads an API server to the same place as upstream's, and is no longer.

use anyhow::Result;
use k8s_openapi::api::core::v1::PodStatus;
use rubelet_goldens::status_question;
use rubelet_lifecycle::status_patch::status_patch;
use rubelet_testbed::oracle::Oracle;
use serde_json::{Value, json};

use crate::oracle_ours::{Differences, Seeded, seeds};

const PAIRS: u64 = 5_000;
const MERGED_LISTS: [&str; 3] = ["conditions", "podIPs", "hostIPs"];

fn addresses(dice: &mut Seeded) -> Value {
    let mut all = vec!["10.0.0.1", "10.0.0.2", "fd00::1"];
    let count = dice.below(4);
    let one = |_| json!({"ip": all.remove(dice.below(all.len()))});
    (0..count).map(one).collect()
}

fn amounts(dice: &mut Seeded) -> Value {
    let mut amounts = json!({});
    for (name, choices) in [
        ("cpu", ["100m", "500m", "2"]),
        ("memory", ["1Gi", "64Mi", "100M"]),
    ] {
        if dice.below(3) > 0 {
            amounts[name] = (*dice.one_of(&choices)).into();
        }
    }
    amounts
}

/// What the common generator leaves out.
fn furnish(dice: &mut Seeded, status: &mut Value) {
    for list in ["podIPs", "hostIPs"] {
        status[list] = addresses(dice);
    }
    status["podIP"] = status["podIPs"][0]["ip"].as_str().unwrap_or_default().into();
    if dice.below(2) == 0 {
        status["startTime"] = format!("2026-01-01T00:00:{:02}Z", dice.below(60)).into();
    }
    if dice.below(2) == 0 {
        status["allocatedResources"] = amounts(dice);
    }
    match dice.below(3) {
        0 => status["resources"] = json!({}),
        1 => status["resources"] = json!({"limits": amounts(dice), "requests": amounts(dice)}),
        _ => {}
    }
    for container in status["containerStatuses"].as_array_mut().into_iter().flatten() {
        if dice.below(2) == 0 {
            container["resources"] = json!({"requests": amounts(dice)});
        }
        if dice.below(3) == 0 {
            container["volumeMounts"] =
                json!([{"name": "v", "mountPath": "/v", "readOnly": dice.below(2) == 0}]);
        }
        if dice.below(3) == 0 {
            container["user"] = json!({"linux": {"uid": 0, "gid": dice.below(2), "supplementalGroups": []}});
        }
    }
    for condition in status["conditions"].as_array_mut().into_iter().flatten() {
        if dice.below(2) == 0 {
            condition["observedGeneration"] = dice.below(3).into();
        }
    }
    if let Some(list) = status["conditions"].as_array_mut() {
        for place in (1..list.len()).rev().filter(|place| place % 2 == 0) {
            list.swap(place, dice.below(place));
        }
    }
}

fn pair(seed: u64) -> (Value, Value) {
    let mut dice = Seeded::new(seed);
    let mut question = status_question("status.settle", seed);
    let (mut old, mut new) = (question["old"].take(), question["new"].take());
    furnish(&mut dice, &mut old);
    furnish(&mut dice, &mut new);
    // Most changes of a real pod are small: some fields are different, the others the same.
    if dice.below(3) > 0 {
        let fields: Vec<String> = old
            .as_object()
            .into_iter()
            .flat_map(|all| all.keys().cloned())
            .collect();
        for field in fields {
            if dice.below(4) > 0 {
                new[&field] = old[&field].clone();
            }
        }
    }
    (old, new)
}

/// A list that vanishes is worth more words to us: `null` would take along what somebody has just added.
fn has_vanished_list(old: &Value, new: &Value) -> bool {
    let is_empty = |status: &Value, list: &str| status[list].as_array().is_none_or(Vec::is_empty);
    MERGED_LISTS
        .iter()
        .any(|list| !is_empty(old, list) && is_empty(new, list))
}

#[test]
fn patches_of_statuses_lead_where_upstreams_do() -> Result<()> {
    let mut oracle = Oracle::start()?;
    let mut differences = Differences::default();
    let mut questions = Vec::new();
    for seed in seeds(PAIRS) {
        let (old, new) = pair(seed);
        let (api, wanted): (PodStatus, PodStatus) = (
            serde_json::from_value(old.clone())?,
            serde_json::from_value(new.clone())?,
        );
        let patch = status_patch("u", &api, &wanted);
        questions.push(json!({"uid": "u", "old": old, "new": new, "patch": patch}));
    }
    let answers = oracle.ask_all("status.patch", questions.clone())?;
    let (mut our_bytes, mut their_bytes, mut unchanged) = (0, 0, 0);
    for ((seed, question), answer) in seeds(PAIRS).zip(&questions).zip(answers) {
        let answer = answer?;
        differences.compare(seed, question, &answer["wanted"], &answer["reached"]);
        let is_silent = question["patch"].is_null();
        if answer["unchanged"] == true {
            unchanged += 1;
            differences.compare(
                format!("{seed}, nothing to do"),
                question,
                &json!(true),
                &json!(is_silent),
            );
        } else if !has_vanished_list(&question["old"], &question["new"]) {
            let length = |patch: &Value| {
                if patch.is_null() {
                    0
                } else {
                    patch.to_string().len()
                }
            };
            let (ours, theirs) = (length(&question["patch"]), length(&answer["patch"]));
            our_bytes += ours;
            their_bytes += theirs;
            assert!(
                ours <= theirs,
                "seed {seed}: ours {} theirs {}",
                question["patch"],
                answer["patch"]
            );
        }
    }
    println!("{our_bytes} bytes of patches where upstream's have {their_bytes}; {unchanged} pairs alike");
    differences.assert_none();
    Ok(())
}
