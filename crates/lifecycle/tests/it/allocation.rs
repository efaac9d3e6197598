//! A pod keeps the resources that it was let in with.

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rubelet_lifecycle::allocation::{Allocation, infeasible};
use serde_json::{Value, json};

use crate::sample::{at, pod};

fn with(cpu: &str) -> Pod {
    pod(
        json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}, "limits": {"cpu": "2"}}}]}),
    )
}

fn status(value: Value) -> PodStatus {
    serde_json::from_value(value).expect("a status")
}

fn cpu(pod: &Pod) -> String {
    let container = &pod.spec.as_ref().unwrap().containers[0];
    let resources = container.resources.as_ref().unwrap();
    resources.requests.as_ref().unwrap()["cpu"].0.clone()
}

#[test]
fn what_was_asked_for_first_counts() {
    let allocation = Allocation::of(&with("100m"));
    assert_eq!(allocation.applied(&with("100m")), None);
    let kept = allocation
        .applied(&with("200m"))
        .expect("it asks for something else");
    assert_eq!(cpu(&kept), "100m");
    assert_eq!(allocation.applied(&kept), None);
}

#[test]
fn the_pod_as_a_whole_keeps_its_own() {
    let of = |memory: &str| pod(json!({"resources": {"limits": {"memory": memory}}}));
    let allocation = Allocation::of(&of("1Gi"));
    let kept = allocation
        .applied(&of("2Gi"))
        .expect("it asks for something else");
    assert_eq!(kept, of("1Gi"));
}

#[test]
fn a_status_tells_what_was_refused_before() {
    let check = |asked: &str, said: Value, expected: &str| {
        let mut pod = with(asked);
        pod.status = Some(status(json!({"containerStatuses": [said]})));
        let kept = Allocation::of(&pod).applied(&pod).unwrap_or(pod);
        assert_eq!(cpu(&kept), expected, "{asked} {said}");
    };
    let said = |allocated: &str| {
        json!({"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0, "allocatedResources": {"cpu": allocated},
            "resources": {"requests": {"cpu": allocated}, "limits": {"cpu": "2"}}})
    };
    check("200m", said("100m"), "100m");
    check("200m", said("0.2"), "200m");
    check("200m", said("200m"), "200m");
    let silent = json!({"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0});
    check("200m", silent, "200m");
}

#[test]
fn a_refusal_keeps_its_time() {
    let mut asks = with("200m");
    asks.metadata.generation = Some(3);
    let first = infeasible(&asks, at(100));
    assert_eq!(
        (first.status.as_str(), first.reason.as_deref()),
        ("True", Some("Infeasible"))
    );
    assert_eq!(first.observed_generation, Some(3));
    asks.status = Some(PodStatus {
        conditions: Some(vec![first.clone()]),
        ..PodStatus::default()
    });
    assert_eq!(infeasible(&asks, at(200)), first);
}
