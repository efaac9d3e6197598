//! Pods come and go.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::FutureExt;
use k8s_openapi::api::core::v1::Pod;
use rubelet_model::cgroup::PodCgroupPart;
use rubelet_model::observation::PodUid;
use rubelet_ports::PodCgroups;
use rubelet_resources::cgroup_name::CgroupDriver;
use serde_json::{Value, json};

use crate::edge::Bench;

pub(crate) fn pod(uid: &str, resources: &Value) -> Arc<Pod> {
    let value = json!({
        "metadata": { "name": uid, "uid": uid },
        "spec": { "containers": [{ "name": "main", "resources": resources }] },
    });
    Arc::new(serde_json::from_value(value).unwrap())
}

fn burstable(uid: &str, cpu: &str) -> Arc<Pod> {
    pod(uid, &json!({ "requests": { "cpu": cpu } }))
}

fn weight(bench: &Bench) -> Option<String> {
    bench.edge.value("/kubepods/burstable", "cpu.weight")
}

#[test]
fn the_tier_follows_its_pods() {
    let bench = Bench::new(|_| {});
    bench.start();
    bench.cgroups.hold(&burstable("a", "1"));
    bench.pass(0);
    assert_eq!(weight(&bench).as_deref(), Some("39"), "1024 shares");
    let second = burstable("b", "1");
    bench.cgroups.hold(&second);
    bench.cgroups.hold(&second);
    bench.pass(0);
    assert_eq!(
        weight(&bench).as_deref(),
        Some("79"),
        "2048 shares, however often it is said"
    );
    bench.cgroups.release(&PodUid::from("a"));
    bench.pass(0);
    assert_eq!(weight(&bench).as_deref(), Some("39"));
}

#[test]
fn a_pod_that_changes_counts_with_its_newest_requests() {
    let bench = Bench::new(|_| {});
    bench.start();
    bench.cgroups.hold(&burstable("a", "1"));
    bench.cgroups.hold(&burstable("a", "2"));
    bench.pass(0);
    assert_eq!(weight(&bench).as_deref(), Some("79"), "2048 shares");
    for _ in 0..2 {
        bench.cgroups.release(&PodUid::from("a"));
        bench.pass(0);
        assert_eq!(
            weight(&bench).as_deref(),
            Some("1"),
            "none, released once or twice"
        );
    }
    bench.cgroups.hold(&burstable("a", "1"));
    bench.pass(0);
    assert_eq!(weight(&bench).as_deref(), Some("39"), "it counts again");
}

#[test]
fn the_cgroup_of_a_pod_that_runs_is_found_without_its_neighbours() {
    let bench = Bench::new(|_| {});
    let pod = burstable("a", "1");
    bench.cgroups.create(&pod).now_or_never().unwrap().unwrap();
    let container = "/kubepods/burstable/poda/container".to_owned();
    bench.edge.state().cgroups.insert(container, BTreeMap::new());
    bench.edge.state().lists.clear();
    assert!(bench.cgroups.exists(&pod).now_or_never().unwrap().unwrap());
    assert_eq!(bench.edge.state().lists, ["/kubepods/burstable/poda"]);
}

#[test]
fn nothing_is_written_again_until_a_minute_has_passed() {
    let bench = Bench::new(|_| {});
    bench.start();
    bench.cgroups.hold(&pod("a", &json!({})));
    bench.edge.state().updates.clear();
    bench.pass(50);
    assert!(
        bench.edge.state().updates.is_empty(),
        "a pod without requests changes no tier"
    );
    bench.pass(20);
    assert_eq!(
        bench.edge.state().updates,
        ["/kubepods", "/kubepods/burstable", "/kubepods/besteffort"]
    );
}

#[test]
fn a_pods_cgroup_is_made_found_and_removed() {
    for (driver, expected) in [
        (CgroupDriver::Cgroupfs, "/kubepods/burstable/poda-b"),
        (
            CgroupDriver::Systemd,
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poda_b.slice",
        ),
    ] {
        let bench = Bench::new(|settings| settings.driver = driver);
        let pod = burstable("a-b", "500m");
        let exists = || bench.cgroups.exists(&pod).now_or_never().unwrap().unwrap();
        assert!(!exists(), "{driver:?}");
        bench.cgroups.hold(&pod);
        bench.cgroups.create(&pod).now_or_never().unwrap().unwrap();
        assert!(exists(), "{driver:?}");
        assert_eq!(
            bench.edge.value(expected, "cpu.weight").as_deref(),
            Some("20"),
            "{driver:?}"
        );
        let found = bench.cgroups.pods().now_or_never().unwrap().unwrap();
        let uid = PodUid::from("a-b");
        assert_eq!(found, [uid.clone()].into(), "{driver:?}");
        bench.cgroups.release(&uid);
        bench.cgroups.remove(&uid).now_or_never().unwrap().unwrap();
        assert_eq!(bench.edge.state().removals, [expected], "its class was known");
        assert!(bench.cgroups.pods().now_or_never().unwrap().unwrap().is_empty());
    }
}

#[test]
fn a_pod_of_unknown_class_is_searched_in_every_tier() {
    let bench = Bench::new(|_| {});
    bench
        .cgroups
        .remove(&PodUid::from("x"))
        .now_or_never()
        .unwrap()
        .unwrap();
    assert_eq!(
        bench.edge.state().removals,
        [
            "/kubepods/podx",
            "/kubepods/burstable/podx",
            "/kubepods/besteffort/podx"
        ]
    );
}

#[test]
fn what_cannot_be_is_refused() {
    let bench = Bench::new(|_| {});
    let check = |pod: Arc<Pod>| {
        bench
            .cgroups
            .create(&pod)
            .now_or_never()
            .unwrap()
            .unwrap_err()
            .to_string()
    };
    assert!(check(burstable("a_b", "1")).contains("cannot be part of a cgroup's name"));
    assert!(check(burstable("a", "much")).contains("not a quantity"));
    assert!(bench.edge.state().cgroups.is_empty());
}

/// A pod that is resized: one part at a time, and nothing else of the cgroup changes.
#[test]
fn parts_of_a_cgroup_change_while_the_pod_runs() {
    let bench = Bench::new(|_| {});
    let of = |cpu: &str, memory: &str| {
        let all = json!({ "cpu": cpu, "memory": memory });
        pod("a", &json!({ "requests": all, "limits": all }))
    };
    let run = |call: futures_util::future::BoxFuture<'_, Result<(), rubelet_ports::CgroupError>>| {
        call.now_or_never().unwrap().unwrap();
    };
    run(bench.cgroups.create(&of("1", "64Mi")));
    let value = |file: &str| bench.edge.value("/kubepods/poda", file).unwrap();
    assert_eq!(value("memory.max"), (64 << 20).to_string());
    let larger = of("2", "128Mi");
    run(bench.cgroups.update(&larger, PodCgroupPart::MemoryLimit));
    assert_eq!(value("memory.max"), (128 << 20).to_string());
    assert_eq!(value("cpu.max"), "100000 100000");
    run(bench.cgroups.update(&larger, PodCgroupPart::CpuQuota));
    assert_eq!(value("cpu.max"), "200000 100000");
    let read = bench
        .cgroups
        .read(&larger)
        .now_or_never()
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(read.memory_limit_bytes, Some(128 << 20));
    assert_eq!(
        (read.cpu_quota_us, read.cpu_period_us),
        (Some(200_000), Some(100_000))
    );
}
