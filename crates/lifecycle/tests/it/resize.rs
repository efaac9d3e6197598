//! Which resizes are carried out, and what has to be done for them.

use k8s_openapi::api::core::v1::Pod;
use rubelet_lifecycle::allocation::Allocation;
use rubelet_lifecycle::resize::requested::requested_changes;
use rubelet_lifecycle::resize::{
    PendingResize, ResizeTerms, in_order, infeasible, is_in_progress, resize_needs,
};
use rubelet_model::observation::PodUid;
use rubelet_resources::Rules;
use rubelet_resources::swap::SwapBehavior;
use serde_json::{Value, json};

use crate::sample::{at, container, exited, in_sandbox, node_facts, pod, running};

fn with(resources: &Value) -> Pod {
    pod(json!({"containers": [{"name": "c", "resources": resources}]}))
}

#[test]
fn resizes_are_judged_in_upstreams_order() {
    let one = |uid: &str, is_increasing, priority, is_guaranteed, since: Option<i64>| PendingResize {
        uid: PodUid::from(uid),
        is_increasing,
        priority,
        is_guaranteed,
        since: since.map(at),
    };
    let order = in_order(vec![
        one("new", true, 0, false, None),
        one("young", true, 0, false, Some(20)),
        one("old", true, 0, false, Some(10)),
        one("guaranteed", true, 0, true, None),
        one("important", true, 5, false, None),
        one("shrinking", false, -5, false, None),
    ]);
    let names: Vec<&str> = order.iter().map(PodUid::as_str).collect();
    assert_eq!(
        names,
        ["shrinking", "important", "guaranteed", "old", "young", "new"]
    );
}

#[test]
fn what_can_never_be_done_is_infeasible() {
    let guaranteed = |cpu: &str, memory: &str| {
        with(&json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}}))
    };
    let check = |old: &Pod, new: &Pod, terms: ResizeTerms, rules: &Rules, expected: Option<&str>| {
        let found = infeasible(new, &Allocation::asked(old), terms, rules, &node_facts());
        assert_eq!(found.map(|one| one.detail), expected, "{new:?}");
    };
    let (plain, rules) = (ResizeTerms::default(), Rules::default());
    let cpus = ResizeTerms {
        has_static_cpus: true,
        ..plain
    };
    let memory = ResizeTerms {
        has_static_memory: true,
        ..plain
    };
    let (old, more_cpu, more_memory) = (
        guaranteed("1", "1Gi"),
        guaranteed("2", "1Gi"),
        guaranteed("1", "2Gi"),
    );
    check(&old, &more_cpu, plain, &rules, None);
    let refused = Some("guaranteed_pod_cpu_manager_static_policy");
    check(&old, &more_cpu, cpus, &rules, refused);
    check(&old, &more_memory, cpus, &rules, None);
    check(&old, &more_cpu, memory, &rules, None);
    let refused = Some("guaranteed_pod_memory_manager_static_policy");
    check(&old, &more_memory, memory, &rules, refused);
    let burstable = |cpu: &str| with(&json!({"requests": {"cpu": cpu}}));
    check(&burstable("1"), &burstable("2"), cpus, &rules, None);

    let own = |cpu: &str| pod(json!({"resources": {"limits": {"cpu": cpu}}, "containers": [{"name": "c"}]}));
    let off = ResizeTerms {
        pod_level: false,
        ..plain
    };
    check(&own("1"), &own("2"), plain, &rules, None);
    check(&own("1"), &own("2"), off, &rules, Some("plr_feature_gate_off"));

    let swapping = Rules {
        swap: SwapBehavior::LimitedSwap,
        ..Rules::default()
    };
    let asks = |memory: &str, policy: &str| {
        pod(
            json!({"containers": [{"name": "c", "resources": {"requests": {"memory": memory}, "limits": {"memory": "4Gi"}},
            "resizePolicy": [{"resourceName": "memory", "restartPolicy": policy}]}]}),
        )
    };
    let (no, yes) = ("NotRequired", "RestartContainer");
    check(&asks("1Gi", no), &asks("2Gi", no), plain, &rules, None);
    check(
        &asks("1Gi", no),
        &asks("2Gi", no),
        plain,
        &swapping,
        Some("swap_limitation"),
    );
    check(&asks("1Gi", yes), &asks("2Gi", yes), plain, &swapping, None);
}

#[test]
fn needs_are_what_differs() {
    let spec = |cpu: &str, memory: &str| {
        pod(json!({
            "initContainers": [{"name": "i", "resources": {"requests": {"cpu": cpu}}},
                {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": cpu}}}],
            "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}, "limits": {"memory": memory}},
                "resizePolicy": [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]}],
        }))
    };
    let old = Allocation::asked(&spec("100m", "1Gi"));
    assert_eq!(resize_needs(&spec("1", "1Gi"), None), Default::default());
    assert_eq!(
        resize_needs(&spec("0.1", "1024Mi"), Some(&old)),
        Default::default()
    );
    let cpu = resize_needs(&spec("200m", "1Gi"), Some(&old));
    assert_eq!(cpu.differing.keys().collect::<Vec<_>>(), ["c", "i", "s"]);
    assert!(cpu.restarts.is_empty() && !cpu.pod);
    let memory = resize_needs(&spec("100m", "2Gi"), Some(&old));
    assert_eq!(memory.restarts.iter().collect::<Vec<_>>(), ["c"]);
}

#[test]
fn a_resize_is_in_progress_while_what_runs_differs() {
    let spec = |cpu: &str| {
        pod(json!({
            "initContainers": [{"name": "i", "resources": {"requests": {"cpu": cpu}}}],
            "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}],
        }))
    };
    let old = Allocation::asked(&spec("100m"));
    let check = |cpu: &str, containers, expected| {
        let seen = in_sandbox(containers);
        assert_eq!(
            is_in_progress(&spec(cpu), Some(&old), &seen),
            expected,
            "{cpu} {seen:?}"
        );
    };
    check("100m", vec![container("c", "c", running())], false);
    check("200m", vec![container("c", "c", running())], true);
    check("200m", vec![container("c", "c", exited(1))], false);
    check("200m", vec![container("i", "i", running())], false);
    check("200m", vec![], false);
    let own = |cpu: &str| pod(json!({"resources": {"limits": {"cpu": cpu}}, "containers": [{"name": "c"}]}));
    let known = Allocation::asked(&own("1"));
    assert!(is_in_progress(&own("2"), Some(&known), &in_sandbox(vec![])));
    assert!(!is_in_progress(&own("1"), Some(&known), &in_sandbox(vec![])));
}

/// The pod's limit is that of a container without its own.
#[test]
fn a_limit_of_the_pod_is_its_containers() {
    let own = |cpu: &str| pod(json!({"resources": {"limits": {"cpu": cpu}}, "containers": [{"name": "c"}]}));
    let needs = resize_needs(&own("2"), Some(&Allocation::asked(&own("1"))));
    assert!(needs.pod);
    assert_eq!(needs.differing["c"].current.cpu_limit_millis, 1000);
    assert_eq!(needs.differing["c"].desired.cpu_limit_millis, 2000);
}

#[test]
fn changes_are_counted_by_number() {
    let check = |old: &Value, new: &Value, expected: &[(&str, &str, &str)]| {
        assert_eq!(requested_changes(&with(old), &with(new)), expected);
    };
    let asks = json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2"}});
    check(&asks, &asks, &[]);
    check(
        &asks,
        &json!({"requests": {"cpu": "500m", "memory": "2Gi"}, "limits": {"memory": "4Gi"}}),
        &[
            ("memory", "requests", "increase"),
            ("memory", "limits", "add"),
            ("cpu", "requests", "decrease"),
            ("cpu", "limits", "remove"),
        ],
    );
}
