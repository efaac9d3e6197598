//! Resources of the pod as a whole, as upstream's kubelet shows them.

use k8s_openapi::api::core::v1::{PodStatus, ResourceRequirements};
use rubelet_lifecycle::configuration::NodeConfiguration;
use rubelet_lifecycle::status::pod_resources;
use rubelet_resources::CgroupVersion;
use serde_json::{Value, json};

use crate::configuration::node;
use crate::sample::pod;

/// `status` is what the API server shows of the pod; the answer is `resources` and `allocatedResources`.
fn shown(spec: &Value, status: &Value, node: &NodeConfiguration) -> (Value, Value) {
    let mut pod = pod(spec.clone());
    pod.status = Some(serde_json::from_value::<PodStatus>(status.clone()).expect("a status"));
    let made = pod_resources(&pod, None, None, node);
    (json!(made.resources), json!(made.allocated))
}

#[track_caller]
fn check(spec: &Value, phase: &str, resources: Value, allocated: Value) {
    let found = shown(spec, &json!({"phase": phase}), &node());
    assert_eq!(found, (resources, allocated), "{phase} {spec}");
}

fn burstable() -> Value {
    json!({"containers": [
        {"name": "a", "resources": {"requests": {"cpu": "100m", "memory": "32Mi"}, "limits": {"cpu": "100m", "memory": "32Mi"}}},
        {"name": "b"},
    ]})
}

#[test]
fn before_it_runs_a_pod_has_its_totals() {
    let requests = json!({"cpu": "100m", "memory": "32Mi"});
    let totals = json!({"requests": requests, "limits": requests});
    for phase in ["Pending", "Succeeded"] {
        check(&burstable(), phase, totals.clone(), requests.clone());
    }
    check(
        &json!({"containers": [{"name": "a"}]}),
        "Pending",
        json!({}),
        Value::Null,
    );
    let spec = json!({
        "containers": [{"name": "a", "resources": {"requests": {"cpu": "100m", "example.com/x": "1"}}}],
        "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}, "overhead": {"cpu": "50m", "memory": "1Mi"},
    });
    let requests = json!({"cpu": "1050m", "memory": "1Mi", "example.com/x": "1"});
    check(
        &spec,
        "Pending",
        json!({"requests": requests, "limits": {"cpu": "2050m"}}),
        requests,
    );
}

#[test]
fn a_pod_that_runs_has_what_its_cgroup_has() {
    // 100m are 102 shares, which the weight 4 gives back as 80.
    let requests = json!({"cpu": "100m", "memory": "32Mi"});
    check(
        &burstable(),
        "Running",
        json!({"requests": {"cpu": "79m", "memory": "32Mi"}}),
        requests,
    );
    check(
        &json!({"containers": [{"name": "a"}]}),
        "Running",
        json!({}),
        Value::Null,
    );
    let limits = json!({"cpu": "500m", "memory": "100M"});
    let spec = json!({"containers": [{"name": "a", "resources": {"requests": limits, "limits": limits}}]});
    // Whole pages of memory.
    check(
        &spec,
        "Running",
        json!({"requests": {"cpu": "489m", "memory": "100M"}, "limits": {"cpu": "500m", "memory": "97656Ki"}}),
        limits,
    );
}

#[test]
fn version_1_of_cgroups_loses_nothing_and_always_has_a_limit_of_memory() {
    let mut node = node();
    node.facts.cgroup = CgroupVersion::V1;
    let (resources, _) = shown(&burstable(), &json!({"phase": "Running"}), &node);
    let limits = json!({"memory": "9007199254740988Ki"});
    assert_eq!(
        resources,
        json!({"requests": {"cpu": "100m", "memory": "32Mi"}, "limits": limits})
    );
    let best_effort = json!({"containers": [{"name": "a"}]});
    let (resources, _) = shown(&best_effort, &json!({"phase": "Running"}), &node);
    assert_eq!(resources, json!({"limits": limits}));
}

#[test]
fn what_the_pod_itself_asks_for_stays_as_it_is_written() {
    let spec = json!({
        "containers": [{"name": "a"}],
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "200m", "memory": "64Mi"}},
    });
    check(
        &spec,
        "Running",
        json!({"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "200m", "memory": "64Mi"}}),
        json!({"cpu": "100m", "memory": "64Mi"}),
    );
}

#[test]
fn what_the_cgroup_does_not_say_stays() {
    let before = json!({"requests": {"cpu": "79m"}, "limits": {"cpu": "100m", "memory": "32Mi"}});
    let status = json!({"phase": "Running", "resources": before});
    let (resources, _) = shown(&burstable(), &status, &node());
    let limits = json!({"cpu": "100m", "memory": "32Mi"});
    assert_eq!(
        resources,
        json!({"requests": {"cpu": "79m", "memory": "32Mi"}, "limits": limits})
    );
    let bare = NodeConfiguration {
        cgroups_per_qos: false,
        ..node()
    };
    let guaranteed =
        json!({"containers": [{"name": "a", "resources": {"requests": limits, "limits": limits}}]});
    let (resources, _) = shown(&guaranteed, &json!({"phase": "Running"}), &bare);
    let expected = ResourceRequirements {
        requests: serde_json::from_value(json!({"memory": "32Mi"})).expect("a list"),
        ..ResourceRequirements::default()
    };
    assert_eq!(resources, json!(expected));
}
