//! The files of allocated and actuated resources are upstream's, byte for byte.

use std::collections::BTreeMap;

use rubelet_lifecycle::allocation::Allocation;
use rubelet_lifecycle::allocation::checkpoint::{entry, read};
use rubelet_lifecycle::allocation::{checkpoint, rebuilt};
use rubelet_model::observation::{ContainerResources, PodUid};
use serde_json::json;

use crate::sample::{container, in_sandbox, pod, running};

/// From upstream's own test of the file.
const UPSTREAM: &str = r#"{"data":"{\"entries\":{\"pod1\":{\"ContainerResources\":{\"container1\":{\"requests\":{\"cpu\":\"1Ki\",\"memory\":\"1Ki\"}}}}}}","checksum":1178570812}"#;

fn write(records: &BTreeMap<PodUid, Allocation>) -> String {
    let entries: Vec<String> = records.iter().map(|(uid, one)| entry(uid, one)).collect();
    checkpoint::write(entries.iter().map(String::as_str))
}

fn records(spec: serde_json::Value) -> BTreeMap<PodUid, Allocation> {
    BTreeMap::from([(PodUid::from("uid"), Allocation::asked(&pod(spec)))])
}

#[test]
fn a_file_of_upstream_is_read() {
    let read = read(UPSTREAM.as_bytes()).expect("upstream's own file");
    let numbers = read[&PodUid::from("pod1")].numbers("container1").unwrap();
    assert_eq!(
        (numbers.cpu_request_millis, numbers.memory_request_bytes),
        (1_024_000, 1024)
    );
}

#[test]
fn a_file_has_upstreams_form() {
    let check = |records: &BTreeMap<PodUid, Allocation>, data: &str| {
        let text = write(records);
        let outer: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(outer["data"], data);
        assert!(text.starts_with("{\"data\":\"{") && text.ends_with('}'), "{text}");
        let again = read(text.as_bytes()).expect("it reads what it writes");
        assert_eq!(write(&again), text);
    };
    check(&BTreeMap::new(), "{}");
    check(
        &records(json!({
            "initContainers": [{"name": "a", "resources": {"claims": [{"name": "gpu", "request": "r"}]}}],
            "containers": [{"name": "b", "resources": {"requests": {"memory": "0.5Gi", "cpu": "1000m"}, "limits": {"cpu": "2"}}}],
        })),
        r#"{"entries":{"uid":{"ContainerResources":{"a":{"claims":[{"name":"gpu","request":"r"}]},"b":{"limits":{"cpu":"2"},"requests":{"cpu":"1","memory":"512Mi"}}},"PodLevelResources":null,"EmptyDirVolumeLimits":null}}}"#,
    );
    check(
        &records(json!({"resources": {"limits": {"memory": "1Gi"}}, "containers": [{"name": "c"}]})),
        r#"{"entries":{"uid":{"ContainerResources":{"c":{}},"PodLevelResources":{"limits":{"memory":"1Gi"}},"EmptyDirVolumeLimits":null}}}"#,
    );
}

#[test]
fn limits_of_volumes_are_kept() {
    let mut records = records(json!({"containers": [{"name": "c"}]}));
    let one = records.get_mut(&PodUid::from("uid")).unwrap();
    let limit = serde_json::from_value(json!("64Mi")).unwrap();
    one.volumes = Some(BTreeMap::from([
        ("v".to_owned(), Some(limit)),
        ("w".to_owned(), None),
    ]));
    let text = write(&records);
    assert!(
        text.contains(r#"\"EmptyDirVolumeLimits\":{\"v\":\"64Mi\",\"w\":null}"#),
        "{text}"
    );
    assert_eq!(read(text.as_bytes()).unwrap(), records);
}

#[test]
fn a_file_that_is_not_whole_is_refused() {
    let check = |text: &str, problem: &str| {
        let error = read(text.as_bytes()).expect_err(text).to_string();
        assert!(error.contains(problem), "{error}");
    };
    check("", "no JSON");
    check(&UPSTREAM[..UPSTREAM.len() / 2], "no JSON");
    check(&UPSTREAM.replace("1178570812", "1"), "checksum is 1");
    // A file of another version has no data at all.
    check(r#"{"allocationEntries":{},"checksum":4}"#, "no JSON");
    let bad = records(json!({"containers": [{"name": "c", "resources": {"limits": {"cpu": "much"}}}]}));
    check(
        &write(&bad),
        "limits[cpu] of container c of pod uid is not a quantity: \"much\"",
    );
}

#[test]
fn what_containers_have_is_read_from_the_runtime() {
    let spec = json!({"containers": [{"name": "c", "resources":
        {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "200m", "memory": "128Mi"}}}]});
    let pod = pod(spec);
    let check = |shown: ContainerResources, expected: (i64, i64, i64)| {
        let mut seen = container("c", "c", running());
        seen.resources = Some(shown);
        let found = rebuilt::actuated(&pod, None, &in_sandbox(vec![seen]), 100_000);
        let numbers = found.numbers("c").unwrap();
        let got = (
            numbers.cpu_request_millis,
            numbers.cpu_limit_millis,
            numbers.memory_limit_bytes,
        );
        assert_eq!(got, expected, "{shown:?}");
        assert_eq!(numbers.memory_request_bytes, 64 << 20, "no runtime shows it");
    };
    let shown = |cpu, limit, memory| ContainerResources {
        cpu_request_millis: cpu,
        cpu_limit_millis: limit,
        memory_limit_bytes: memory,
    };
    let asked = (100, 200, 128 << 20);
    check(shown(None, None, None), asked);
    // Shares are coarser than requests, and memory is in pages.
    check(shown(Some(100), Some(200), Some((128 << 20) - 4096)), asked);
    check(shown(Some(50), Some(100), Some(64 << 20)), (50, 100, 64 << 20));
}
