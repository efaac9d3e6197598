//! What the runtime is told about containers and sandboxes.

use std::collections::BTreeMap;

use rubelet_resources::container::{container_resources, overhead_resources, sandbox_resources};
use rubelet_resources::swap::SwapBehavior;
use rubelet_resources::{CgroupVersion, MemoryReservation, Rules};
use rubelet_wire::cri::v1::LinuxContainerResources;
use serde_json::{Value, json};

use crate::pods::{containers, demand, facts, resources};

const GI: i64 = 1 << 30;

fn first(spec: &Value, rules: &Rules, version: CgroupVersion) -> LinuxContainerResources {
    let demand = demand(spec);
    container_resources(&demand, &demand.containers[0], rules, &facts(version), false)
}

fn unified(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    entries
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

#[test]
fn limits_stand_in_for_requests() {
    let check = |one: Value, pod_level: Value, expected: (i64, i64, i64)| {
        let spec = json!({"containers": containers(&[one]), "resources": pod_level});
        let found = first(&spec, &Rules::default(), CgroupVersion::V2);
        assert_eq!(
            (found.cpu_shares, found.cpu_quota, found.memory_limit_in_bytes),
            expected,
            "{spec}"
        );
        assert_eq!(found.cpu_period, 100_000);
    };
    check(json!({}), json!({}), (2, 0, 0));
    check(
        resources(("-", "-"), ("500m", "1Gi")),
        json!({}),
        (512, 50_000, GI),
    );
    check(resources(("0", "-"), ("500m", "-")), json!({}), (2, 50_000, 0));
    check(
        json!({}),
        resources(("1", "-"), ("2", "2Gi")),
        (2048, 200_000, 2 * GI),
    );
    check(
        resources(("-", "-"), ("1", "1Gi")),
        resources(("1", "-"), ("2", "2Gi")),
        (1024, 100_000, GI),
    );
}

#[test]
fn unified_values() {
    let check = |one: Value, rules: &Rules, expected: &[(&str, &str)]| {
        let spec = json!({"containers": containers(&[one])});
        assert_eq!(
            first(&spec, rules, CgroupVersion::V2).unified,
            unified(expected),
            "{spec}"
        );
    };
    let swap = ("memory.swap.max", "0");
    let group = ("memory.oom.group", "1");
    let (no_min, no_low) = (("memory.min", "0"), ("memory.low", "0"));
    check(json!({}), &Rules::default(), &[swap, group, no_min, no_low]);
    let off = Rules {
        memory_qos: false,
        single_process_oom_kill: Some(true),
        ..Rules::default()
    };
    check(json!({}), &off, &[swap, ("memory.high", "max")]);
    let tiered = Rules {
        memory_reservation: MemoryReservation::Tiered,
        memory_throttling_factor: Some(0.5),
        swap: SwapBehavior::LimitedSwap,
        ..Rules::default()
    };
    // A tenth of the machine's memory gives a tenth of its swap.
    let request = resources(("-", "1Gi"), ("-", "3Gi"));
    let share = ("memory.swap.max", "107374182");
    check(
        request,
        &tiered,
        &[
            share,
            group,
            ("memory.low", "1073741824"),
            ("memory.high", "2147483648"),
        ],
    );
    let fixed = resources(("1", "1Gi"), ("1", "1Gi"));
    check(fixed, &tiered, &[swap, group, ("memory.min", "1073741824")]);
    // Without a limit the node's allocatable memory is the upper end.
    check(
        json!({}),
        &tiered,
        &[swap, group, no_min, no_low, ("memory.high", "4294967296")],
    );
}

#[test]
fn cgroup_v1_has_no_unified_values() {
    let spec = json!({"containers": containers(&[resources(("-", "1Gi"), ("-", "3Gi"))])});
    let found = first(&spec, &Rules::default(), CgroupVersion::V1);
    assert!(found.unified.is_empty());
    assert_eq!(found.memory_swap_limit_in_bytes, 3 * GI);
}

#[test]
fn critical_pods_do_not_swap() {
    let rules = Rules {
        swap: SwapBehavior::LimitedSwap,
        ..Rules::default()
    };
    let one = resources(("-", "1Gi"), ("-", "3Gi"));
    let spec = json!({"containers": containers(&[one]), "priority": 2_000_000_000});
    let found = first(&spec, &rules, CgroupVersion::V2);
    assert_eq!(
        found.unified.get("memory.swap.max").map(String::as_str),
        Some("0")
    );
}

#[test]
fn huge_pages_default_to_none() {
    let check = |container: Value, pod_level: Value, expected: [u64; 2]| {
        let spec = json!({"containers": [{"name": "c", "resources": {"limits": container}}], "resources": {"limits": pod_level}});
        let found = first(&spec, &Rules::default(), CgroupVersion::V2).hugepage_limits;
        assert_eq!([found[0].limit, found[1].limit], expected, "{spec}");
        assert_eq!(
            [found[0].page_size.as_str(), found[1].page_size.as_str()],
            ["2MB", "1GB"]
        );
    };
    check(json!({}), json!({}), [0, 0]);
    check(
        json!({"hugepages-2Mi": "4Mi"}),
        json!({"hugepages-2Mi": "8Mi", "hugepages-1Gi": "1Gi"}),
        [4 << 20, 1 << 30],
    );
}

#[test]
fn exclusive_cpus_have_no_quota() {
    let demand = demand(&json!({"containers": containers(&[resources(("1", "1Gi"), ("1", "1Gi"))])}));
    let (rules, facts) = (Rules::default(), facts(CgroupVersion::V2));
    let container = container_resources(&demand, &demand.containers[0], &rules, &facts, true);
    assert_eq!(
        (
            container.cpu_quota,
            sandbox_resources(&demand, &rules, &facts, true).cpu_quota
        ),
        (-1, -1)
    );
}

#[test]
fn sandboxes_count_without_overhead() {
    let spec = json!({"containers": containers(&[resources(("1", "-"), ("2", "1Gi"))]), "overhead": {"cpu": "250m", "memory": "64Mi"}});
    let (demand, rules, facts) = (demand(&spec), Rules::default(), facts(CgroupVersion::V1));
    let sandbox = sandbox_resources(&demand, &rules, &facts, false);
    assert_eq!(
        (
            sandbox.cpu_shares,
            sandbox.cpu_quota,
            sandbox.memory_limit_in_bytes
        ),
        (1024, 200_000, GI)
    );
    let overhead = overhead_resources(&demand, &rules, &facts);
    assert_eq!(
        (
            overhead.cpu_shares,
            overhead.cpu_quota,
            overhead.memory_limit_in_bytes
        ),
        (256, 25_000, 64 << 20)
    );
    let bare = crate::pods::demand(&json!({"containers": containers(&[json!({})])}));
    assert_eq!(
        overhead_resources(&bare, &rules, &facts),
        LinuxContainerResources::default()
    );
}
