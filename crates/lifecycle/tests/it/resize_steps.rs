//! The order of the writes of a resize.

use std::collections::BTreeMap;

use rubelet_lifecycle::allocation::Allocation;
use rubelet_lifecycle::allocation::numbers::Resource;
use rubelet_lifecycle::resize::steps::{MemoryDecrease, ResizeStep, steps};
use rubelet_lifecycle::resize::{PodResize, resize_needs};
use rubelet_model::cgroup::PodCgroupReading;
use rubelet_model::observation::ContainerId;
use rubelet_resources::PodCgroup;
use serde_json::{Value, json};

use crate::sample::pod;

const GI: i64 = 1 << 30;

/// The resize of a pod whose containers `a` and `b` run, from the first limits to the second ones.
fn resize(old: [Value; 2], new: [Value; 2]) -> PodResize {
    let of = |[a, b]: [Value; 2]| {
        pod(
            json!({"containers": [{"name": "a", "resources": {"limits": a}}, {"name": "b", "resources": {"limits": b}}]}),
        )
    };
    let needs = resize_needs(&of(new), Some(&Allocation::asked(&of(old))));
    let ids = [ContainerId::from("a"), ContainerId::from("b")];
    let kept = ids.iter().map(|id| (id, id.as_str()));
    PodResize::of(&needs, kept, false)
}

fn cgroup(memory: Option<i64>, quota: Option<i64>, shares: u64) -> PodCgroup {
    PodCgroup {
        memory_bytes: memory,
        cpu_quota_us: quota,
        cpu_shares: Some(shares),
        ..PodCgroup::default()
    }
}

fn has(memory: Option<i64>, quota: Option<i64>, shares: u64) -> PodCgroupReading {
    PodCgroupReading {
        memory_limit_bytes: memory,
        memory_usage_bytes: Some(0),
        cpu_quota_us: quota,
        cpu_shares: Some(shares),
        cpu_period_us: Some(100_000),
    }
}

fn names(resize: &PodResize, steps: &[ResizeStep]) -> Vec<String> {
    let name = |step: &ResizeStep| match step {
        ResizeStep::PodMemoryLimit => "pod memory".to_owned(),
        ResizeStep::PodCpuQuota => "pod quota".to_owned(),
        ResizeStep::PodCpuShares => "pod shares".to_owned(),
        ResizeStep::Container { resource, index } => {
            format!("{} {}", resize.updates(*resource)[*index].name, resource.as_str())
        }
        ResizeStep::PodDone(resource) => format!("pod has {}", resource.as_str()),
    };
    steps.iter().map(name).collect()
}

#[test]
fn memory_grows_from_the_pod_and_shrinks_to_it() {
    let memory = |a: &str, b: &str| [json!({"memory": a}), json!({"memory": b})];
    let check = |old, new, limit: i64, has_limit: Option<i64>, expected: &[&str]| {
        let resize = resize(old, new);
        let steps = steps(
            &resize,
            &cgroup(Some(limit), None, 2),
            Some(&has(has_limit, None, 2)),
        );
        assert_eq!(names(&resize, &steps), expected);
    };
    check(
        memory("1Gi", "1Gi"),
        memory("2Gi", "1Gi"),
        3 * GI,
        Some(2 * GI),
        &["pod memory", "a memory"],
    );
    check(
        memory("2Gi", "1Gi"),
        memory("1Gi", "1Gi"),
        2 * GI,
        Some(3 * GI),
        &["a memory", "pod memory"],
    );
    // What shrinks comes first, so that the sum never grows in between.
    check(
        memory("1Gi", "2Gi"),
        memory("2Gi", "1Gi"),
        3 * GI,
        Some(3 * GI),
        &["b memory", "a memory"],
    );
    // An earlier try ended after the pod's limit.
    check(
        memory("1Gi", "1Gi"),
        memory("2Gi", "1Gi"),
        3 * GI,
        Some(3 * GI),
        &["a memory"],
    );
    // A limit where there was none is a lower one.
    check(
        memory("1Gi", "0"),
        memory("1Gi", "1Gi"),
        2 * GI,
        None,
        &["b memory", "pod memory"],
    );
}

#[test]
fn cpu_limits_grow_before_requests_and_shrink_after_them() {
    let cpu = |a: &str| [json!({"cpu": a}), json!({"cpu": "1"})];
    let check = |old, new, desired: PodCgroup, has: PodCgroupReading, expected: &[&str]| {
        let resize = resize(old, new);
        let steps = steps(&resize, &desired, Some(&has));
        assert_eq!(names(&resize, &steps), expected);
    };
    let (low, high) = ((Some(200_000), 1024), (Some(300_000), 2048));
    check(
        cpu("1"),
        cpu("2"),
        cgroup(None, high.0, high.1),
        has(None, low.0, low.1),
        &["pod quota", "pod shares", "a cpu"],
    );
    check(
        cpu("2"),
        cpu("1"),
        cgroup(None, low.0, low.1),
        has(None, high.0, high.1),
        &["a cpu", "pod shares", "pod quota"],
    );
    // A limit that is gone stays in the pod's cgroup; shares that a weight gives back differently are no change.
    check(
        cpu("2"),
        cpu("1"),
        cgroup(None, None, 1024),
        has(None, low.0, 998),
        &["a cpu"],
    );
}

#[test]
fn without_cgroups_of_pods_only_containers_are_updated() {
    let resize = resize([json!({"cpu": "1"}), json!({})], [json!({"cpu": "2"}), json!({})]);
    let steps = steps(&resize, &cgroup(None, Some(1), 2), None);
    assert_eq!(names(&resize, &steps), ["a cpu"]);
}

#[test]
fn resources_of_the_pod_itself_are_recorded_last() {
    let resize = PodResize {
        pod: true,
        ..PodResize::default()
    };
    let steps = steps(
        &resize,
        &cgroup(Some(GI), Some(1), 4),
        Some(&has(Some(2 * GI), Some(2), 4)),
    );
    assert_eq!(
        names(&resize, &steps),
        ["pod memory", "pod has memory", "pod quota", "pod has cpu"]
    );
    assert_eq!(steps[1], ResizeStep::PodDone(Resource::Memory));
}

#[test]
fn no_memory_limit_goes_below_what_is_used() {
    let memory = |a: &str| [json!({"memory": a}), json!({"memory": "1Gi"})];
    let smaller = resize(memory("2Gi"), memory("1Gi"));
    let (desired, has) = (cgroup(Some(2 * GI), None, 2), has(Some(3 * GI), None, 2));
    let decrease = MemoryDecrease::of(&smaller, &desired, Some(&has));
    let check = |pod: Option<u64>, a: Option<u64>, expected: Option<&str>| {
        let usage: BTreeMap<usize, u64> = a.map(|used| (0, used)).into_iter().collect();
        assert_eq!(decrease.problem(&smaller, pod, &usage).as_deref(), expected);
    };
    check(Some(5), Some(5), None);
    check(
        Some(2 << 30),
        Some(5),
        Some(
            "cannot decrease memory limits: attempting to set pod memory limit (2147483648) below current usage (2147483648)",
        ),
    );
    check(
        Some(2 << 30),
        Some(1 << 30),
        Some(
            "cannot decrease memory limits: [attempting to set pod memory limit (2147483648) below current usage (2147483648), \
             attempting to set container \"a\" memory limit (1073741824) below current usage (1073741824)]",
        ),
    );
    check(
        None,
        Some(5),
        Some("cannot decrease memory limits: missing pod memory usage"),
    );
    check(
        Some(5),
        None,
        Some("cannot decrease memory limits: missing container \"a\" memory usage"),
    );
    let larger = resize(memory("1Gi"), memory("2Gi"));
    assert!(MemoryDecrease::of(&larger, &cgroup(Some(4 * GI), None, 2), Some(&has)).is_empty());
}
