//! What others write into a pod's status stays theirs.

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rubelet_lifecycle::status::{StatusGates, reported_status};
use serde_json::{Value, json};

use crate::sample::{at, pod};

fn status(value: Value) -> PodStatus {
    serde_json::from_value(value).expect("a status")
}

fn with(api: Value) -> Pod {
    Pod {
        status: Some(status(api)),
        ..pod(json!({}))
    }
}

/// What is reported when the API server has `api`, `shown` was sent last, and `ours` is the newest.
#[track_caller]
fn check(api: Value, shown: Value, ours: Value, may_run: bool, expected: &Value) {
    let found = reported_status(
        &with(api),
        &status(shown),
        &status(ours),
        may_run,
        StatusGates::default(),
        at(10),
    );
    assert_eq!(serde_json::to_value(found).unwrap(), *expected);
}

fn said(phase: &str, conditions: &Value) -> Value {
    json!({"phase": phase, "conditions": conditions})
}

#[test]
fn conditions_of_others_are_the_newest() {
    let foreign = json!({"type": "example.com/a", "status": "True"});
    let old = json!({"type": "example.com/a", "status": "False"});
    let ready = json!({"type": "Ready", "status": "True"});
    check(
        said("Running", &json!([foreign, {"type": "Ready", "status": "False"}])),
        said("Running", &json!([old, {"type": "Ready", "status": "False"}])),
        said("Running", &json!([old, ready])),
        true,
        &said("Running", &json!([foreign, ready])),
    );
    // What they took away is gone.
    check(
        said("Running", &json!([])),
        said("Running", &json!([old, ready])),
        said("Running", &json!([ready])),
        true,
        &said("Running", &json!([ready])),
    );
}

#[test]
fn fields_of_others_stay() {
    let claims = json!([{"name": "c", "resourceClaimName": "x"}]);
    check(
        json!({"phase": "Pending", "nominatedNodeName": "n", "qosClass": "Burstable", "resourceClaimStatuses": claims}),
        json!({"phase": "Pending"}),
        json!({"phase": "Running", "qosClass": "BestEffort"}),
        true,
        &json!({"phase": "Running", "nominatedNodeName": "n", "qosClass": "Burstable", "resourceClaimStatuses": claims}),
    );
}

#[test]
fn an_end_waits_for_the_last_container_and_an_end_by_others_stays() {
    check(
        json!({"phase": "Running"}),
        json!({"phase": "Running"}),
        json!({"phase": "Failed", "reason": "Evicted"}),
        true,
        &json!({"phase": "Running"}),
    );
    check(
        json!({"phase": "Running"}),
        json!({"phase": "Running"}),
        json!({"phase": "Failed", "reason": "Evicted"}),
        false,
        &json!({"phase": "Failed", "reason": "Evicted"}),
    );
    check(
        json!({"phase": "Failed", "reason": "NodeLost"}),
        json!({"phase": "Running"}),
        json!({"phase": "Failed", "reason": "NodeLost"}),
        true,
        &json!({"phase": "Failed", "reason": "NodeLost"}),
    );
}

#[test]
fn a_disruption_that_was_said_is_not_lost_before_it_arrives() {
    let disruption = json!({"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"});
    check(
        said("Running", &json!([])),
        said("Failed", &json!([disruption])),
        said("Failed", &json!([disruption])),
        false,
        &said("Failed", &json!([disruption])),
    );
}
