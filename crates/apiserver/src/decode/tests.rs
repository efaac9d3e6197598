use std::collections::BTreeMap;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::*;

fn read<T: DeserializeOwned>(value: &Value) -> T {
    object(value.to_string().as_bytes()).unwrap_or_else(|error| panic!("{value}: {error}"))
}

#[test]
fn every_timestamp_that_go_writes_is_read() {
    let check = |written: Value, expected: &str| {
        let expected: Timestamp = expected.parse().unwrap();
        let pod: Pod = read(&json!({
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {"deletionTimestamp": written},
            "status": {
                "startTime": written,
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": written}],
                "containerStatuses": [{"name": "c", "state": {"running": {"startedAt": written}}}],
            },
        }));
        let status = pod.status.unwrap();
        let condition = &status.conditions.as_ref().unwrap()[0];
        let running = status.container_statuses.as_ref().unwrap()[0]
            .state
            .as_ref()
            .unwrap();
        let running = running.running.as_ref().unwrap();
        for time in [
            &pod.metadata.deletion_timestamp,
            &status.start_time,
            &condition.last_transition_time,
            &running.started_at,
        ] {
            assert_eq!(time.as_ref().map(|time| time.0), Some(expected), "{written}");
        }
        let service: Service = read(&json!({
            "status": {"conditions": [{"type": "a", "status": "True", "lastTransitionTime": written}]},
        }));
        let condition = &service.status.unwrap().conditions.unwrap()[0];
        assert_eq!(condition.last_transition_time.0, expected, "{written}");
        let lease: Lease = read(&json!({"spec": {"renewTime": written}}));
        assert_eq!(lease.spec.unwrap().renew_time.unwrap().0, expected, "{written}");
    };
    check(json!("2026-11-18T04:05:06Z"), "2026-11-18T04:05:06Z");
    check(
        json!("2026-11-18T04:05:06.123456Z"),
        "2026-11-18T04:05:06.123456Z",
    );
    check(json!("2026-11-18T06:05:06+02:00"), "2026-11-18T04:05:06Z");
    check(json!("0000-01-01T00:00:00Z"), FIRST_TIME);
    check(json!("0001-01-01T00:00:01Z"), "0001-01-01T00:00:01Z");
    check(json!("9999-12-30T21:59:59Z"), "9999-12-30T21:59:59Z");
    check(json!("9999-12-30T22:00:01Z"), LAST_TIME);
    check(json!("9999-12-31T23:59:59Z"), LAST_TIME);
    check(json!("9999-12-31T23:59:59.999999Z"), LAST_TIME);
    // 9999-12-31T23:59:59-12:00 and 0000-01-01T00:00:00+12:00, as the API server gives them back.
    check(json!("10000-01-01T11:59:59Z"), LAST_TIME);
    check(json!("-0001-12-31T12:00:00Z"), FIRST_TIME);
}

#[test]
fn a_timestamp_may_be_null() {
    let service: Service = read(&json!({
        "metadata": {"creationTimestamp": null, "labels": null, "ownerReferences": null},
        "status": {"conditions": [{"type": "a", "status": "True", "lastTransitionTime": null}]},
    }));
    assert_eq!(service.metadata.creation_timestamp, None);
    let condition = &service.status.unwrap().conditions.unwrap()[0];
    assert_eq!(condition.last_transition_time.0, ZERO_TIME.parse().unwrap());
}

#[test]
fn what_is_no_timestamp_is_refused() {
    for written in [
        json!(5),
        json!("yesterday"),
        json!({}),
        json!("999-12-31T23:59:59Z"),
    ] {
        let pod = json!({"status": {"startTime": written}});
        assert!(object::<Pod>(pod.to_string().as_bytes()).is_err(), "{written}");
    }
}

#[test]
fn texts_that_look_like_timestamps_stay() {
    let map: ConfigMap = read(&json!({"data": {"time": "9999-12-31T23:59:59Z"}}));
    assert_eq!(map.data.unwrap()["time"], "9999-12-31T23:59:59Z");
}

#[test]
fn null_is_the_empty_value_inside_of_maps_and_lists() {
    let secret: Secret = read(&json!({"data": {"a": null, "b": ""}, "type": null, "immutable": null}));
    let data = secret.data.unwrap();
    assert!(data["a"].0.is_empty() && data["b"].0.is_empty());
    let pod: Pod =
        read(&json!({"spec": {"containers": null, "volumes": null}, "status": {"conditions": null}}));
    assert!(pod.spec.unwrap().containers.is_empty());
    let lists: BTreeMap<String, Vec<String>> = read(&json!({"a": null, "b": ["c"]}));
    assert_eq!(
        lists,
        BTreeMap::from([("a".to_owned(), vec![]), ("b".to_owned(), vec!["c".to_owned()])])
    );
    let maps: Vec<BTreeMap<String, String>> = read(&json!([null, {"a": "b"}]));
    assert!(maps.len() == 2 && maps[0].is_empty() && maps[1]["a"] == "b");
    let request: CertificateSigningRequest = read(&json!({"spec": {"extra": {"a": null}, "usages": null}}));
    assert!(request.spec.extra.unwrap()["a"].is_empty());
}

#[test]
fn managed_fields_are_skipped_whatever_they_are() {
    for fields in [
        json!([{"time": "9999-12-31T23:59:59Z", "fieldsV1": {"f:metadata": {}}}]),
        json!([{"time": 5}]),
        json!("x"),
        json!(null),
    ] {
        let pod: Pod = read(&json!({
            "metadata": {"name": "a", "managedFields": fields, "uid": "u"},
            "spec": {"containers": [{"name": "c"}]},
        }));
        assert_eq!(pod.metadata.managed_fields, None);
        assert_eq!(pod.metadata.name.as_deref(), Some("a"));
        assert_eq!(pod.metadata.uid.as_deref(), Some("u"));
        assert_eq!(pod.spec.unwrap().containers[0].name, "c");
    }
    // Only those of metadata: a key of that name elsewhere is content.
    let map: ConfigMap = read(&json!({"data": {"managedFields": "mine"}}));
    assert_eq!(map.data.unwrap()["managedFields"], "mine");
}

#[test]
fn metadata_is_read_as_far_as_it_can() {
    let text = json!({
        "metadata": {
            "name": "a",
            "namespace": "n",
            "uid": "u",
            "resourceVersion": "5",
            "deletionTimestamp": "2026-11-18T04:05:06Z",
            "deletionGracePeriodSeconds": 30,
            "labels": "none",
            "generation": 1.5,
            "managedFields": 7,
        },
        "spec": 5,
    });
    let expected = json!({
        "name": "a",
        "namespace": "n",
        "uid": "u",
        "resourceVersion": "5",
        "deletionTimestamp": "2026-11-18T04:05:06Z",
        "deletionGracePeriodSeconds": 30,
    });
    let metadata = metadata(text.to_string().as_bytes());
    assert_eq!(serde_json::to_value(&metadata).unwrap(), expected);
    assert_eq!(super::metadata(b"[1]"), ObjectMeta::default());
    assert_eq!(super::metadata(b"no JSON"), ObjectMeta::default());
}

#[test]
fn an_object_that_cannot_be_read_keeps_what_can_but_no_spec() {
    let check = |status: Value, spec: Value, expected_status: Value| {
        let text = json!({
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {"name": "a", "labels": 5},
            "spec": spec,
            "status": status,
        });
        let pod: Pod = without_spec(text.to_string().as_bytes()).unwrap();
        assert_eq!(pod.metadata.name.as_deref(), Some("a"));
        assert_eq!(pod.spec, None);
        assert_eq!(serde_json::to_value(&pod.status).unwrap(), expected_status);
    };
    check(json!({"phase": "Running"}), json!(5), json!({"phase": "Running"}));
    check(json!({"phase": 5}), json!({"containers": []}), Value::Null);
    assert!(without_spec::<Pod>(b"[1]").is_err());
}

#[test]
fn an_older_version_is_read_as_the_newest() {
    let text = json!({"apiVersion": "v0", "kind": "Pod", "metadata": {"name": "a"}}).to_string();
    assert!(object::<Pod>(text.as_bytes()).is_err());
    let pod: Pod = older_object(text.as_bytes(), "v1").unwrap();
    assert_eq!(pod.metadata.name.as_deref(), Some("a"));
}

#[test]
fn text_behind_an_object_is_an_error() {
    assert!(object::<Pod>(b"{} {}").is_err());
}
