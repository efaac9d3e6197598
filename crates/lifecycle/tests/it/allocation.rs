//! A pod keeps the resources that it was let in with.

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rubelet_lifecycle::allocation::rebuilt;
use serde_json::{Value, json};

use crate::sample::pod;

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
    let allocation = rebuilt::allocated(&with("100m"));
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
    let allocation = rebuilt::allocated(&of("1Gi"));
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
        let kept = rebuilt::allocated(&pod).applied(&pod).unwrap_or(pod);
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
fn a_status_tells_of_limits_too() {
    let check = |asked: Value, shown: Value, expected: Value| {
        let mut pod = pod(
            json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": "1m"}, "limits": asked}}]}),
        );
        pod.status = Some(status(
            json!({"containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": true,
            "restartCount": 0, "allocatedResources": {"cpu": "1m"}, "resources": {"requests": {"cpu": "2m"}, "limits": shown}}]}),
        ));
        let kept = rebuilt::allocated(&pod).applied(&pod).unwrap_or(pod);
        let resources = kept.spec.unwrap().containers[0].resources.clone().unwrap();
        assert_eq!(json!(resources.limits), expected, "{asked} {shown}");
        assert_eq!(json!(resources.requests), json!({"cpu": "1m"}));
    };
    let same = |asked: Value, shown: Value| check(asked.clone(), shown, asked);
    check(json!({"cpu": "2"}), json!({"cpu": "1"}), json!({"cpu": "1"}));
    check(
        json!({"cpu": "1", "memory": "2Gi"}),
        json!({"cpu": "1", "memory": "1Gi"}),
        json!({"cpu": "1", "memory": "1Gi"}),
    );
    check(
        json!({"cpu": "1", "memory": "2Gi"}),
        json!({"cpu": "1"}),
        json!({"cpu": "1"}),
    );
    same(json!({"cpu": "2"}), json!({"cpu": "2000m"}));
    same(json!({"cpu": "2"}), Value::Null);
    // As the kernel rounds, and as the runtime shows a limit of the whole pod.
    same(json!({"cpu": "1m"}), json!({"cpu": "10m"}));
    same(json!({"memory": "100M"}), json!({"memory": "99999744"}));
    same(json!({"cpu": "1"}), json!({"cpu": "1", "memory": "1Gi"}));
}

#[test]
fn a_status_tells_of_the_pod_as_a_whole() {
    let of = |memory: &str| {
        pod(json!({"resources": {"requests": {"memory": memory}, "limits": {"memory": memory}}}))
    };
    let mut asks = of("2Gi");
    asks.status = Some(status(json!({"allocatedResources": {"memory": "1Gi"},
        "resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi"}}})));
    let kept = rebuilt::allocated(&asks)
        .applied(&asks)
        .expect("it asks for something else");
    assert_eq!(kept.spec, of("1Gi").spec);
}

/// Upstream's kubelet writes the totals of every pod, whether or not the pod asks for anything as a whole.
#[test]
fn totals_in_the_status_are_no_resize() {
    let check = |spec: Value, total: Value| {
        let mut pod = pod(spec);
        pod.status = Some(status(total));
        assert_eq!(rebuilt::allocated(&pod).applied(&pod), None, "{pod:?}");
    };
    let containers = json!([
        {"name": "a", "resources": {"requests": {"cpu": "100m", "memory": "32Mi"}, "limits": {"cpu": "200m"}}},
        {"name": "b", "resources": {"requests": {"cpu": "100m"}}},
    ]);
    let totals = json!({"allocatedResources": {"cpu": "200m", "memory": "32Mi"},
        "resources": {"requests": {"cpu": "200m", "memory": "32Mi"}, "limits": {"cpu": "200m"}}});
    check(json!({"containers": containers}), totals);
    // What the pod asks for as a whole is a part of the totals, with its overhead.
    let overhead = json!({"cpu": "50m", "memory": "1Mi"});
    check(
        json!({"containers": containers, "overhead": overhead, "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}}),
        json!({"allocatedResources": {"cpu": "1050m", "memory": "33Mi"},
            "resources": {"requests": {"cpu": "1050m", "memory": "33Mi"}, "limits": {"cpu": "2050m"}}}),
    );
    check(
        json!({"containers": containers, "resources": {"limits": {"hugepages-2Mi": "2Mi"}}}),
        json!({"allocatedResources": {"cpu": "200m", "memory": "32Mi"}, "resources": {"limits": {"hugepages-2Mi": "2Mi"}}}),
    );
}

#[test]
fn what_the_pod_as_a_whole_keeps_has_no_overhead() {
    let of = |cpu: &str| {
        pod(
            json!({"overhead": {"cpu": "50m"}, "resources": {"requests": {"cpu": cpu}, "limits": {"cpu": "2"}}}),
        )
    };
    let mut asks = of("1500m");
    asks.status = Some(status(
        json!({"allocatedResources": {"cpu": "1050m", "memory": "1Mi"},
        "resources": {"limits": {"cpu": "2050m"}}}),
    ));
    let kept = rebuilt::allocated(&asks)
        .applied(&asks)
        .expect("it asks for something else");
    assert_eq!(kept.spec, of("1").spec);
}
