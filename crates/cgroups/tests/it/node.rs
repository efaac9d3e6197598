//! The node's level.

use futures_util::FutureExt;
use rubelet_cgroups::CgroupSettings;
use rubelet_resources::amounts::Amounts;
use rubelet_resources::node_cgroup::{Enforced, Enforcement, Reservation};

use crate::edge::Bench;

fn amounts(list: &[(&str, &str)]) -> Amounts {
    list.iter()
        .map(|(name, text)| ((*name).to_owned(), text.parse().unwrap()))
        .collect()
}

fn reserve(settings: &mut CgroupSettings) {
    settings.capacity = amounts(&[("cpu", "4"), ("memory", "1Gi"), ("pid", "5000")]);
    settings.reservation = Reservation {
        system: amounts(&[("cpu", "500m"), ("memory", "256Mi")]),
        kube: amounts(&[("cpu", "500m"), ("pid", "1000")]),
    };
    settings.cpus = "0-3".to_owned();
    settings.enforcement.pods = true;
}

#[test]
fn pods_get_what_is_not_reserved() {
    let bench = Bench::new(reserve);
    bench.cgroups.set_up().now_or_never().unwrap().unwrap();
    let check = |file: &str, value: &str| {
        assert_eq!(
            bench.edge.value("/kubepods", file).as_deref(),
            Some(value),
            "{file}"
        );
    };
    check("memory.max", &(768_u64 << 20).to_string());
    check("cpu.weight", "118");
    check("pids.max", "4000");
    check("cpuset.cpus", "0-3");
    check("memory.min", "0");
    assert_eq!(
        bench.edge.value("/kubepods/besteffort", "cpu.weight").as_deref(),
        Some("1")
    );
    assert!(
        bench.edge.value("/kubepods/burstable", "cpu.weight").is_none(),
        "pods may run there"
    );
    let unenforced = Bench::new(|settings| {
        reserve(settings);
        settings.enforcement = Enforcement::default();
    });
    unenforced.cgroups.set_up().now_or_never().unwrap().unwrap();
    assert_eq!(
        unenforced.edge.value("/kubepods", "pids.max").as_deref(),
        Some("5000")
    );
}

#[test]
fn limits_that_are_not_taken_are_tried_every_minute() {
    let bench = Bench::new(reserve);
    bench.cgroups.set_up().now_or_never().unwrap().unwrap();
    bench.edge.state().cgroups.get_mut("/kubepods").unwrap().clear();
    bench.edge.state().failing.insert("/kubepods".to_owned(), 3);
    bench.start();
    bench.pass(59);
    assert!(bench.edge.value("/kubepods", "memory.max").is_none());
    let failure =
        "Warning FailedNodeAllocatableEnforcement Failed to update Node Allocatable Limits [\"kubepods\"]: ";
    let told = bench.edge.state().events.clone();
    assert!(told.len() == 1 && told[0].starts_with(failure), "{told:?}");
    bench.pass(120);
    let told = bench.edge.state().events.clone();
    let (last, before) = told.split_last().unwrap();
    assert_eq!(
        last,
        "Normal NodeAllocatableEnforced Updated Node Allocatable limit across pods"
    );
    assert!(before.iter().all(|event| event.starts_with(failure)), "{told:?}");
    assert_eq!(
        bench.edge.value("/kubepods", "memory.max").as_deref(),
        Some((768_u64 << 20).to_string().as_str())
    );
}

#[test]
fn a_reserved_cgroup_has_to_exist() {
    let reserved = |settings: &mut CgroupSettings| {
        reserve(settings);
        settings.enforcement.system = Some(Enforced::All);
        settings.enforcement.kube = Some(Enforced::Compressible);
        settings.system_reserved_cgroup = "/system".to_owned();
        settings.kube_reserved_cgroup = "/kube".to_owned();
    };
    let bench = Bench::new(reserved);
    let error = bench.cgroups.set_up().now_or_never().unwrap().unwrap_err();
    assert!(error.to_string().contains("systemReservedCgroup"), "{error}");
    let told = std::mem::take(&mut bench.edge.state().events);
    let failure = "Warning FailedNodeAllocatableEnforcement Failed to enforce System Reserved Cgroup Limits on \"/system\": ";
    assert!(told.len() == 1 && told[0].starts_with(failure), "{told:?}");
    for path in ["/system", "/kube"] {
        bench.edge.state().cgroups.insert(path.to_owned(), [].into());
    }
    bench.cgroups.set_up().now_or_never().unwrap().unwrap();
    assert_eq!(
        bench.edge.state().events,
        [
            "Normal NodeAllocatableEnforced Updated limits on system reserved cgroup /system",
            "Normal NodeAllocatableEnforced Updated limits on kube reserved cgroup /kube",
        ]
    );
    assert_eq!(
        bench.edge.value("/system", "memory.max").as_deref(),
        Some((256_u64 << 20).to_string().as_str())
    );
    assert_eq!(bench.edge.value("/kube", "cpu.weight").as_deref(), Some("20"));
    assert!(
        bench.edge.value("/kube", "pids.max").is_none(),
        "only what is compressible"
    );
}

#[test]
fn the_root_has_to_exist() {
    let bench = Bench::new(|settings| settings.cgroup_root = "/missing".to_owned());
    let error = bench.cgroups.set_up().now_or_never().unwrap().unwrap_err();
    assert_eq!(
        error.to_string(),
        "cgroupRoot \"/missing\" is not a cgroup that pods can be placed below"
    );
}
