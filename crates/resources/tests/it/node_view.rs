//! Admission by the node as it is just now: labels, taints and devices of the Node object, and pressure.

use k8s_openapi::api::core::v1::Node;
use rubelet_model::Pressure;
use rubelet_resources::admission::{Judgement, NodeView};
use serde_json::{Value, json};

use super::admission::{judge_on, of_file, pod, refusal, spec, terms, with};

const NO_PRESSURE: Pressure = Pressure {
    memory: false,
    disk: false,
    pid: false,
};
const TAINTED: &str =
    "TaintToleration: Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate";
const AFFINITY: &str =
    "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";

fn node(value: Value) -> NodeView {
    let node: Node = serde_json::from_value(value).expect("a node");
    NodeView::of(Some(&node), NO_PRESSURE, false)
}

/// `reason: message`, or nothing for a pod that is let in.
fn check(view: &NodeView, newcomer: &Value, expected: &str) {
    let refusal = refusal(judge_on(&terms(), view, &[], newcomer));
    let text = refusal.map(|refusal| format!("{}: {}", refusal.reason, refusal.message));
    assert_eq!(text.unwrap_or_default(), expected, "{newcomer}");
}

#[test]
fn labels_of_the_node_object_win() {
    let wants = |labels: Value| spec(pod("p", &[]), "nodeSelector", labels);
    let known = node(json!({"metadata": {"labels": {"disk": "ssd"}}}));
    check(&known, &wants(json!({"disk": "ssd"})), "");
    check(&known, &wants(json!({"rank": "7"})), AFFINITY);
    check(&NodeView::default(), &wants(json!({"rank": "7"})), "");
    // Nobody can talk a node into another operating system.
    let mistaken = node(json!({"metadata": {"labels": {"kubernetes.io/os": "windows"}}}));
    check(&mistaken, &wants(json!({"kubernetes.io/os": "linux"})), "");
    check(&known, &wants(json!({"kubernetes.io/os": "linux"})), "");
}

#[test]
fn labels_alone_leave_a_doubt() {
    let wants = spec(pod("p", &[]), "nodeSelector", json!({"disk": "ssd"}));
    let view = NodeView::default();
    let is_doubtful = |pod: &Value| matches!(judge_on(&terms(), &view, &[], pod), Judgement::Mislabelled(_));
    assert!(is_doubtful(&wants));
    assert!(is_doubtful(&of_file(wants.clone())));
    assert!(!is_doubtful(&spec(wants.clone(), "nodeName", json!("elsewhere"))));
    let many = json!({"requests": {"cpu": "9"}});
    assert!(!is_doubtful(&with(wants, "/spec/containers/0/resources", many)));
}

#[test]
fn taints_keep_pods_away_that_do_not_tolerate_them() {
    let taint = |key: &str, value: &str, effect: &str| json!({"key": key, "value": value, "effect": effect});
    let tainted = |taints: Value| node(json!({"spec": {"taints": taints}}));
    let broken = tainted(json!([taint("broken", "yes", "NoExecute")]));
    let tolerating = |toleration: Value| spec(pod("p", &[]), "tolerations", json!([toleration]));
    check(&broken, &pod("p", &[]), TAINTED);
    check(&broken, &of_file(pod("p", &[])), "");
    for effect in ["NoSchedule", "PreferNoSchedule"] {
        check(
            &tainted(json!([taint("broken", "yes", effect)])),
            &pod("p", &[]),
            "",
        );
    }
    for good in [
        json!({"operator": "Exists"}),
        json!({"key": "broken", "operator": "Exists"}),
        json!({"key": "broken", "value": "yes"}),
        json!({"key": "broken", "operator": "Equal", "value": "yes", "effect": "NoExecute"}),
        json!({"key": "broken", "value": "yes", "tolerationSeconds": 5}),
    ] {
        check(&broken, &tolerating(good), "");
    }
    for bad in [
        json!({"key": "broken"}),
        json!({"key": "other", "operator": "Exists"}),
        json!({"key": "broken", "value": "no"}),
        json!({"key": "broken", "value": "yes", "effect": "NoSchedule"}),
        json!({"key": "broken", "operator": "In", "value": "yes"}),
    ] {
        check(&broken, &tolerating(bad), TAINTED);
    }
    let two = tainted(json!([taint("a", "", "NoExecute"), taint("b", "", "NoExecute")]));
    check(
        &two,
        &tolerating(json!({"key": "a", "operator": "Exists"})),
        TAINTED,
    );
}

#[test]
fn numbers_are_compared_where_the_gate_is_on() {
    let view = node(json!({"spec": {"taints": [{"key": "age", "value": "10", "effect": "NoExecute"}]}}));
    let check = |operator: &str, value: &str, is_on: bool, expected: bool| {
        let mut terms = terms();
        terms.features.toleration_comparison = is_on;
        let toleration = json!([{"key": "age", "operator": operator, "value": value}]);
        let pod = spec(pod("p", &[]), "tolerations", toleration);
        let is_let_in = refusal(judge_on(&terms, &view, &[], &pod)).is_none();
        assert_eq!(is_let_in, expected, "{operator} {value}");
    };
    check("Gt", "9", false, false);
    check("Gt", "9", true, true);
    check("Gt", "10", true, false);
    check("Lt", "11", true, true);
    check("Lt", "10", true, false);
    check("Lt", "011", true, false);
    check("Lt", "+11", true, false);
    check("Gt", "-0", true, false);
}

#[test]
fn a_node_that_shuts_down_admits_no_pod() {
    let view = NodeView::of(None, NO_PRESSURE, true);
    let refused = "NodeShutdown: Pod was rejected as the node is shutting down.";
    check(&view, &pod("p", &[]), refused);
    check(&view, &of_file(pod("p", &[])), refused);
    let critical = spec(pod("p", &[]), "priority", json!(2_000_000_000));
    check(&view, &critical, refused);
    // Every other reason comes first, as for upstream.
    let many = json!({"requests": {"cpu": "9"}});
    let greedy = with(pod("p", &[]), "/spec/containers/0/resources", many);
    let short = refusal(judge_on(&terms(), &view, &[], &greedy)).expect("a refusal");
    assert_eq!(short.reason, "OutOfcpu");
    assert!(refusal(judge_on(&terms(), &view, &[], &pod("p", &[]))).is_some_and(|one| one.is_for_now));
}

#[test]
fn pressure_lets_few_in() {
    let best_effort = || pod("p", &[]);
    let burstable = || pod("p", &[("cpu", "1m")]);
    let tolerating = |key: &str| {
        let toleration = json!([{"key": key, "operator": "Exists"}]);
        spec(best_effort(), "tolerations", toleration)
    };
    let under = |pressure: Pressure| NodeView::of(None, pressure, false);
    let memory = under(Pressure {
        memory: true,
        ..NO_PRESSURE
    });
    let evicted = "Evicted: The node had condition: [MemoryPressure]. ";
    check(&memory, &best_effort(), evicted);
    check(&memory, &burstable(), "");
    check(&memory, &tolerating("node.kubernetes.io/memory-pressure"), "");
    check(&memory, &tolerating("node.kubernetes.io/disk-pressure"), evicted);
    check(&memory, &of_file(best_effort()), "");
    check(
        &memory,
        &spec(best_effort(), "priority", json!(2_000_000_000)),
        "",
    );
    let recorded = with(burstable(), "/status", json!({"qosClass": "BestEffort"}));
    check(&memory, &recorded, evicted);
    let disk = under(Pressure {
        disk: true,
        ..NO_PRESSURE
    });
    let evicted = "Evicted: The node had condition: [DiskPressure]. ";
    check(&disk, &burstable(), evicted);
    check(&disk, &tolerating("node.kubernetes.io/disk-pressure"), evicted);
    check(&disk, &of_file(burstable()), "");
    let both = under(Pressure {
        memory: true,
        pid: true,
        ..NO_PRESSURE
    });
    check(
        &both,
        &burstable(),
        "Evicted: The node had condition: [MemoryPressure PIDPressure]. ",
    );
    // It is asked first of all.
    let everything = spec(best_effort(), "os", json!({"name": "windows"}));
    check(&disk, &everything, evicted);
}

#[test]
fn devices_of_the_node_object_count() {
    let allocatable = json!({"example.com/device": "3", "cpu": "100", "memory": "1Ti", "pods": "500"});
    let view = node(json!({"status": {"allocatable": allocatable}}));
    check(&view, &pod("p", &[("example.com/device", "3")]), "");
    check(
        &view,
        &pod("p", &[("example.com/device", "4")]),
        "OutOfexample.com/device: Node didn't have enough resource: example.com/device, requested: 4, used: 0, capacity: 3",
    );
    // A claim stands for it.
    let mappings =
        json!([{"containerName": "main", "resourceName": "example.com/device", "requestName": "r"}]);
    let claims = json!({"resourceClaimName": "c", "requestMappings": mappings});
    let claimed = with(
        pod("p", &[("example.com/device", "4")]),
        "/status",
        json!({"extendedResourceClaimStatus": claims}),
    );
    check(&view, &claimed, "");
    // Of what the node has itself, it knows best.
    check(
        &view,
        &pod("p", &[("cpu", "2")]),
        "OutOfcpu: Node didn't have enough resource: cpu, requested: 2000, used: 0, capacity: 1000",
    );
}
