//! What the status shows of a resize, and when that is an event.

use rubelet_lifecycle::resize::conditions::{DEFERRED, ERROR, INFEASIBLE};
use rubelet_lifecycle::resize::{ResizeConditions, message};
use serde_json::json;
use std::time::Duration;

use crate::sample::{at, pod};

fn shown(conditions: &ResizeConditions) -> Vec<(String, Option<String>, Option<i64>)> {
    let all = conditions.list().into_iter();
    all.map(|one| (one.type_, one.reason, one.observed_generation))
        .collect()
}

fn one(type_: &str, reason: Option<&str>, generation: i64) -> (String, Option<String>, Option<i64>) {
    (type_.to_owned(), reason.map(str::to_owned), Some(generation))
}

#[test]
fn a_new_reason_or_generation_is_an_event() {
    let mut conditions = ResizeConditions::default();
    let mut check = |reason, message, generation, second, is_event| {
        let is_new = conditions.set_pending(reason, message, Some(generation), at(second));
        assert_eq!(is_new, is_event, "{reason} {generation}");
        conditions.list()[0].clone()
    };
    let first = check(DEFERRED, "no room", 2, 10, true);
    assert_eq!(first.last_transition_time.unwrap().0.as_second(), 10);
    let again = check(DEFERRED, "no room", 2, 20, false);
    assert_eq!(again.last_probe_time, first.last_probe_time, "nothing changed");
    let other = check(DEFERRED, "less room", 2, 30, false);
    assert_eq!(other.last_transition_time.unwrap().0.as_second(), 10);
    assert_eq!(other.last_probe_time.unwrap().0.as_second(), 30);
    check(DEFERRED, "less room", 3, 40, true);
    let last = check(INFEASIBLE, "never", 3, 50, true);
    assert_eq!(last.last_transition_time.unwrap().0.as_second(), 50);
    assert_eq!(conditions.clear_pending(at(60)), None, "it was not deferred");
}

#[test]
fn a_resize_keeps_the_generation_that_began() {
    let mut conditions = ResizeConditions::default();
    conditions.set_pending(DEFERRED, "no room", Some(2), at(1));
    assert_eq!(conditions.clear_pending(at(4)), Some(Duration::from_secs(3)));
    conditions.begin(Some(2), at(4));
    conditions.set_in_progress(Some(3), at(5));
    assert_eq!(shown(&conditions), [one("PodResizeInProgress", None, 2)]);
    assert!(conditions.fail("no", Some(3), at(6)));
    assert!(!conditions.fail("no", Some(3), at(7)));
    assert!(conditions.fail("still no", Some(3), at(8)));
    conditions.set_in_progress(Some(3), at(9));
    assert_eq!(shown(&conditions), [one("PodResizeInProgress", Some(ERROR), 2)]);
    conditions.begin(Some(4), at(10));
    assert_eq!(shown(&conditions), [one("PodResizeInProgress", None, 4)]);
    assert_eq!(conditions.complete(), Some(Some(4)));
    assert_eq!(conditions.complete(), None);
    assert!(conditions.is_empty());
}

#[test]
fn conditions_are_read_from_the_api() {
    let mut first = ResizeConditions::default();
    first.set_pending(INFEASIBLE, "never", Some(2), at(1));
    first.begin(Some(1), at(1));
    let mut pod = pod(json!({}));
    pod.status.get_or_insert_default().conditions = Some(first.list());
    let mut read = ResizeConditions::of(&pod, at(9));
    assert_eq!(shown(&read), shown(&first));
    assert!(
        !read.set_pending(INFEASIBLE, "never", Some(2), at(9)),
        "it was an event before"
    );
}

#[test]
fn events_are_upstreams() {
    let mut pod = pod(json!({
        "initContainers": [{"name": "i"}],
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "100m"}, "limits": {"memory": "1Gi"}}}],
    }));
    pod.metadata.generation = Some(3);
    let resources = r#""initContainers":[{"name":"i","resources":{}}],"containers":[{"name":"c","resources":{"limits":{"memory":"1Gi"},"requests":{"cpu":"100m"}}}]"#;
    assert_eq!(
        message::started(&pod, Some(3)),
        format!(r#"Pod resize started: {{{resources},"generation":3}}"#)
    );
    assert_eq!(
        message::pending(&pod, DEFERRED, "a \"quoted\" <reason>"),
        format!(
            "Pod resize Deferred: {{{resources},\"generation\":3,\"error\":\"a \\\"quoted\\\" \\u003creason\\u003e\"}}"
        )
    );
    assert_eq!(
        message::failed(&pod, None, "no"),
        format!(r#"Pod resize error: {{{resources},"generation":0,"error":"no"}}"#)
    );
}
