//! Patches of a pod's status.

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use proptest::prelude::*;
use rubelet_lifecycle::status::StatusGates;
use rubelet_lifecycle::status_patch::{is_overwritten, is_urgent, status_patch, wanted_status};
use serde_json::{Value, json};

use crate::sample::{at, pod};
use crate::strategic_merge::apply_to_pod;

fn status(value: Value) -> PodStatus {
    serde_json::from_value(value).expect("a status")
}

/// The patch's part below `status`; null when there is none.
#[expect(clippy::needless_pass_by_value, reason = "a table is read better with values")]
#[track_caller]
fn check(api: Value, wanted: Value, expected: Value) {
    let patch = status_patch("u1", &status(api.clone()), &status(wanted.clone()));
    if let Some(patch) = &patch {
        assert_eq!(patch["metadata"], json!({"uid": "u1"}));
    }
    let shown = patch.map_or(Value::Null, |patch| patch["status"].clone());
    assert_eq!(shown, expected, "from {api} to {wanted}");
}

#[test]
fn only_what_differs_is_sent() {
    check(json!({}), json!({}), Value::Null);
    check(
        json!({"phase": "Running"}),
        json!({"phase": "Running"}),
        Value::Null,
    );
    check(
        json!({"phase": "Pending", "reason": "Evicted", "hostIP": "10.0.0.1"}),
        json!({"phase": "Running", "hostIP": "10.0.0.1"}),
        json!({"phase": "Running", "reason": null}),
    );
    check(
        json!({"allocatedResources": {"cpu": "1", "memory": "1Gi"}}),
        json!({"allocatedResources": {"cpu": "2"}}),
        json!({"allocatedResources": {"cpu": "2", "memory": null}}),
    );
    let started =
        |name: &str| json!({"name": name, "ready": true, "restartCount": 0, "image": "i", "imageID": ""});
    check(
        json!({"containerStatuses": [started("a"), started("b")]}),
        json!({"containerStatuses": [started("a")]}),
        json!({"containerStatuses": [started("a")]}),
    );
}

#[test]
fn two_ways_to_say_nothing_are_one() {
    let bare = json!({"name": "a", "ready": false, "restartCount": 0, "image": "", "imageID": ""});
    let mut wordy = bare.clone();
    wordy["lastState"] = json!({});
    wordy["state"] = json!({});
    wordy["containerID"] = json!("");
    wordy["volumeMounts"] = json!([]);
    check(
        json!({"containerStatuses": [wordy], "reason": "", "conditions": [], "observedGeneration": 0}),
        json!({"containerStatuses": [bare]}),
        Value::Null,
    );
    check(
        json!({"allocatedResources": {"cpu": "500m"}, "startTime": "2026-01-01T00:00:00Z"}),
        json!({"allocatedResources": {"cpu": "0.5"}, "startTime": "2026-01-01T00:00:00.7Z"}),
        Value::Null,
    );
    // Waiting for nothing is still waiting.
    let waits = |state: Value| json!({"containerStatuses": [{"name": "a", "ready": false, "restartCount": 0, "image": "", "imageID": "", "state": state}]});
    let patch = status_patch(
        "u",
        &status(waits(json!({"waiting": {}}))),
        &status(waits(json!({}))),
    );
    assert!(patch.is_some());
}

#[test]
fn lists_with_keys_are_merged() {
    let condition = |type_: &str, holds: &str| json!({"type": type_, "status": holds});
    let (ready, initialized) = (condition("Ready", "True"), condition("Initialized", "True"));
    check(
        json!({"conditions": [condition("Ready", "False"), initialized]}),
        json!({"conditions": [ready, initialized]}),
        json!({"conditions": [ready]}),
    );
    check(
        json!({"conditions": [initialized]}),
        json!({"conditions": [initialized, ready]}),
        json!({"conditions": [ready], "$setElementOrder/conditions": [{"type": "Initialized"}, {"type": "Ready"}]}),
    );
    check(
        json!({"conditions": [ready, initialized]}),
        json!({"conditions": [initialized]}),
        json!({"conditions": [{"$patch": "delete", "type": "Ready"}]}),
    );
    check(
        json!({"conditions": [ready, initialized]}),
        json!({"conditions": [initialized, ready]}),
        json!({"$setElementOrder/conditions": [{"type": "Initialized"}, {"type": "Ready"}]}),
    );
    check(
        json!({"conditions": [{"type": "Ready", "status": "False", "reason": "R", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}),
        json!({"conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:09Z"}]}),
        json!({"conditions": [{"type": "Ready", "reason": null, "lastTransitionTime": "2026-01-01T00:00:09Z"}]}),
    );
    check(
        json!({"podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}], "podIP": "10.0.0.1"}),
        json!({}),
        json!({"podIPs": [{"$patch": "delete", "ip": "10.0.0.1"}, {"$patch": "delete", "ip": "fd00::1"}], "podIP": null}),
    );
}

#[test]
fn claims_are_never_ours() {
    check(
        json!({"resourceClaimStatuses": [{"name": "a", "resourceClaimName": "b"}]}),
        json!({}),
        Value::Null,
    );
}

fn api_pod(status: Value) -> Pod {
    let mut pod = pod(json!({"containers": [{"name": "a"}]}));
    pod.status = serde_json::from_value(status).expect("a status");
    pod
}

fn wanted(api: Value, ours: Value) -> Value {
    json!(wanted_status(
        &api_pod(api),
        &status(ours),
        StatusGates::default(),
        at(50)
    ))
}

#[test]
fn what_others_said_stays() {
    let foreign = json!({"type": "example.com/gate", "status": "True"});
    let result = wanted(
        json!({"phase": "Running", "observedGeneration": 4, "qosClass": "Burstable", "conditions": [
            foreign, {"type": "Ready", "status": "False", "observedGeneration": 4}]}),
        json!({"phase": "Running", "conditions": [
            {"type": "example.com/gate", "status": "False"}, {"type": "Ready", "status": "True"}]}),
    );
    assert_eq!(
        result,
        json!({"phase": "Running", "observedGeneration": 4, "qosClass": "Burstable", "conditions": [
            foreign, {"type": "Ready", "status": "True", "observedGeneration": 4}]})
    );
}

#[test]
fn a_pod_that_ended_cannot_come_back() {
    let ended = json!({"phase": "Failed", "reason": "NodeLost", "message": "gone"});
    for ours in [
        json!({"phase": "Running"}),
        json!({"phase": "Succeeded", "reason": "x"}),
    ] {
        assert_eq!(wanted(ended.clone(), ours), ended);
    }
    let ours = json!({"phase": "Failed", "reason": "Evicted", "message": "m"});
    assert_eq!(wanted(ended, ours.clone()), ours);
}

#[test]
fn urgent_is_what_others_wait_for() {
    let ready =
        |holds: &str| status(json!({"phase": "Running", "conditions": [{"type": "Ready", "status": holds}]}));
    assert!(is_urgent(&ready("False"), &ready("True")));
    assert!(!is_urgent(&ready("True"), &ready("True")));
    assert!(is_urgent(
        &ready("True"),
        &status(json!({"phase": "Failed", "conditions": [{"type": "Ready", "status": "True"}]}))
    ));
    assert!(!is_urgent(
        &status(json!({})),
        &status(json!({"phase": "Pending"}))
    ));
}

#[test]
fn overwritten_is_what_the_node_says_and_no_more() {
    let ours = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
    let check = |api: Value, expected: bool| {
        assert_eq!(
            is_overwritten(
                &api_pod(api.clone()),
                &status(ours.clone()),
                StatusGates::default()
            ),
            expected,
            "{api}"
        );
    };
    check(ours.clone(), false);
    check(
        json!({"phase": "Pending", "conditions": ours["conditions"]}),
        true,
    );
    check(
        json!({"phase": "Running", "message": "", "conditions": [{"type": "x/y", "status": "True"}, {"type": "Ready", "status": "True"}]}),
        false,
    );
    check(json!({"phase": "Running"}), true);
}

const TYPES: [&str; 6] = [
    "Ready",
    "ContainersReady",
    "Initialized",
    "PodScheduled",
    "DisruptionTarget",
    "x/gate",
];

fn conditions() -> impl Strategy<Value = Value> {
    let one = (
        0..TYPES.len(),
        any::<bool>(),
        proptest::option::of(0_u8..3),
        proptest::option::of(0_u8..60),
    );
    proptest::collection::vec(one, 0..7).prop_map(|list| {
        let mut seen = std::collections::BTreeSet::new();
        let list = list.into_iter().filter(|(type_, ..)| seen.insert(*type_));
        let list = list.map(|(type_, holds, reason, second)| {
            let mut one = json!({"type": TYPES[type_], "status": if holds { "True" } else { "False" }});
            if let Some(reason) = reason {
                one["reason"] = format!("R{reason}").into();
            }
            if let Some(second) = second {
                one["lastTransitionTime"] = format!("2026-01-01T00:00:{second:02}Z").into();
            }
            one
        });
        Value::Array(list.collect())
    })
}

fn statuses() -> impl Strategy<Value = Value> {
    let containers = proptest::collection::vec((0_u8..3, any::<bool>(), 0_i32..3), 0..3).prop_map(|list| {
        let one = |(name, ready, count): (u8, bool, i32)| json!({"name": format!("c{name}"), "ready": ready, "restartCount": count, "image": "i", "imageID": "d"});
        Value::Array(list.into_iter().map(one).collect())
    });
    let addresses = proptest::sample::subsequence(vec!["10.0.0.1", "10.0.0.2", "fd00::1"], 0..3);
    (
        conditions(),
        containers,
        addresses,
        proptest::option::of(0_u8..3),
        proptest::collection::btree_map("cpu|memory", 1_u8..5, 0..3),
    )
        .prop_map(|(conditions, containers, addresses, reason, amounts)| {
            let mut status = json!({"phase": "Running"});
            let mut put = |name: &str, list: Value| {
                if list.as_array().is_some_and(|list| !list.is_empty()) {
                    status[name] = list;
                }
            };
            put("conditions", conditions);
            put("containerStatuses", containers);
            put("podIPs", addresses.iter().map(|ip| json!({"ip": ip})).collect());
            if let Some(reason) = reason {
                status["reason"] = format!("R{reason}").into();
            }
            if !amounts.is_empty() {
                let amounts = amounts
                    .into_iter()
                    .map(|(name, amount)| (name, Value::from(amount.to_string())));
                status["allocatedResources"] = Value::Object(amounts.collect());
            }
            status
        })
}

proptest! {
    #[test]
    fn a_patch_leads_where_it_should(api in statuses(), wanted in statuses()) {
        let patch = status_patch("u", &status(api.clone()), &status(wanted.clone()));
        let reached = match &patch {
            Some(patch) => apply_to_pod(&json!({"status": api}), patch)["status"].clone(),
            None => api.clone(),
        };
        prop_assert_eq!(json!(status(reached)), json!(status(wanted.clone())));
        prop_assert_eq!(patch.is_none(), status(api) == status(wanted));
    }

    #[test]
    fn what_somebody_added_meanwhile_stays(api in statuses(), wanted in statuses()) {
        let Some(patch) = status_patch("u", &status(api.clone()), &status(wanted)) else { return Ok(()) };
        let mut now = api;
        let added = json!({"type": "example.com/new", "status": "True"});
        match now["conditions"].as_array_mut() {
            Some(list) => list.insert(0, added.clone()),
            None => now["conditions"] = json!([added]),
        }
        let reached = apply_to_pod(&json!({"status": now}), &patch);
        prop_assert!(reached["status"]["conditions"].as_array().unwrap().contains(&added));
    }

    #[test]
    fn wanting_twice_asks_for_nothing(api in statuses(), ours in statuses()) {
        let first = wanted_status(&api_pod(api), &status(ours.clone()), StatusGates::default(), at(50));
        let again = wanted_status(&api_pod(json!(first)), &status(ours), StatusGates::default(), at(60));
        prop_assert_eq!(status_patch("u", &first, &again), None);
    }
}
