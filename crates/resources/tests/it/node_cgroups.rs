//! What is reserved, what is left, and what systemd is told.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rubelet_model::cgroup::PropertyValue;
use rubelet_resources::cgroup_name::{
    CgroupDriver, CgroupName, node_allocatable, pod_cgroup_name, pod_uid_of,
};
use rubelet_resources::node_cgroup::{Enforced, Enforcement, Reservation, kubepods, reserved};
use rubelet_resources::slice::cgroup_values;
use rubelet_resources::{CgroupVersion, PodCgroup, QosClass, Rules};

use crate::pods::facts;

const MI: i64 = 1 << 20;

fn list(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = entries
        .iter()
        .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
    owned.collect()
}

#[test]
fn reservations_are_read_and_taken_off() {
    let kube = list(&[("memory", "1Mi"), ("cpu", "100m")]);
    let read = |entries: &[(&str, &str)]| Reservation::read(&list(entries), &kube);
    let reservation = read(&[("memory", "2Mi"), ("pid", "10")]).expect("a good reservation");
    let capacity = [
        ("cpu", "2"),
        ("memory", "4Mi"),
        ("pid", "5"),
        ("hugepages-2Mi", "4Mi"),
    ];
    let capacity = capacity
        .iter()
        .map(|(name, text)| ((*name).to_owned(), text.parse().expect("a quantity")))
        .collect();
    let left = reservation.allocatable(&capacity);
    assert_eq!((left.value("memory"), left.milli_value("cpu")), (MI, 1900));
    assert_eq!(left.value("pid"), 0, "never below zero");
    let cgroup = kubepods(&capacity, &reservation, Enforcement::read(&["pods".to_owned()]));
    assert_eq!((cgroup.memory_bytes, cgroup.cpu_shares), (Some(MI), Some(1945)));
    assert_eq!(cgroup.huge_page_limits, [(2 * MI, 4 * MI)].into());
    let whole = kubepods(&capacity, &reservation, Enforcement::read(&["none".to_owned()]));
    assert_eq!((whole.memory_bytes, whole.pids), (Some(4 * MI), Some(5)));
    for (entry, problem) in [
        (
            ("memory", "much"),
            "systemReserved: \"much\" is no quantity of memory",
        ),
        (
            ("memory", "-1"),
            "systemReserved: the quantity of memory is below zero",
        ),
        (
            ("gpu", "1"),
            "systemReserved: cannot reserve \"gpu\"; only cpu, memory, ephemeral-storage and pid",
        ),
    ] {
        let error = read(&[entry]).expect_err("a bad reservation");
        assert_eq!(error.to_string(), problem);
    }
}

#[test]
fn reserved_cgroups_get_their_part() {
    let amounts = Reservation::read(&list(&[("cpu", "1"), ("memory", "8Mi")]), &BTreeMap::new());
    let amounts = amounts.expect("a good reservation").system;
    let all = reserved(
        &amounts,
        Enforced::All,
        &Rules::default(),
        &facts(CgroupVersion::V2),
    );
    assert_eq!((all.memory_bytes, all.cpu_shares), (Some(8 * MI), Some(1024)));
    assert_eq!(all.unified.get("memory.min"), Some(&(8 * MI).to_string()));
    let part = reserved(
        &amounts,
        Enforced::Compressible,
        &Rules::default(),
        &facts(CgroupVersion::V2),
    );
    let only_shares = PodCgroup {
        cpu_shares: Some(1024),
        ..PodCgroup::default()
    };
    assert_eq!(part, only_shares);
    let words = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        Enforcement::read(&words)
    };
    let read = words(&["pods", "kube-reserved-compressible", "system-reserved"]);
    assert!(read.pods);
    assert_eq!(
        (read.kube, read.system),
        (Some(Enforced::Compressible), Some(Enforced::All))
    );
}

/// `name=value`, numbers without a limit as `max`.
fn properties(cgroup: &PodCgroup, version: CgroupVersion) -> Vec<String> {
    let name = node_allocatable("/");
    let values = cgroup_values(&name, cgroup, CgroupDriver::Systemd, &facts(version));
    let unit = values.unit.expect("systemd has a unit for it");
    assert_eq!(
        (unit.name.as_str(), unit.parent.as_str()),
        ("kubepods.slice", "-.slice")
    );
    let text = |value: &PropertyValue| match value {
        PropertyValue::Number(u64::MAX) => "max".to_owned(),
        PropertyValue::Number(number) => number.to_string(),
        PropertyValue::Bits(bits) => format!("{bits:?}"),
    };
    let properties = unit.properties.iter();
    properties
        .map(|one| format!("{}={}", one.name, text(&one.value)))
        .collect()
}

#[test]
fn slices_have_systemds_words() {
    let mut cgroup = PodCgroup {
        memory_bytes: Some(MI),
        cpu_shares: Some(1024),
        cpu_quota_us: Some(12_345),
        cpu_period_us: Some(100_000),
        pids: Some(0),
        cpus: Some("0-1,9".to_owned()),
        ..PodCgroup::default()
    };
    cgroup.unified.insert("memory.high".to_owned(), "max".to_owned());
    cgroup.unified.insert("memory.low".to_owned(), "7".to_owned());
    let quota = ["CPUQuotaPeriodUSec=100000", "CPUQuotaPerSecUSec=130000"];
    let ends = ["TasksMax=1", "AllowedCPUs=[3, 2]"];
    let v2 = ["MemoryMax=1048576", "CPUWeight=39"];
    assert_eq!(
        properties(&cgroup, CgroupVersion::V2),
        [&v2[..], &quota, &ends, &["MemoryHigh=max", "MemoryLow=7"]].concat()
    );
    let v1 = ["MemoryLimit=1048576", "CPUShares=1024"];
    assert_eq!(
        properties(&cgroup, CgroupVersion::V1),
        [&v1[..], &quota, &ends].concat()
    );
    cgroup.cpu_quota_us = Some(-1);
    assert!(properties(&cgroup, CgroupVersion::V2).contains(&"CPUQuotaPerSecUSec=max".to_owned()));
    assert!(properties(&PodCgroup::default(), CgroupVersion::V2).is_empty());
}

#[test]
fn files_get_the_quota_that_systemd_rounds_to() {
    let cgroup = PodCgroup {
        cpu_quota_us: Some(12_345),
        cpu_period_us: Some(100_000),
        ..PodCgroup::default()
    };
    let quota = |driver| {
        let values = cgroup_values(&node_allocatable("/"), &cgroup, driver, &facts(CgroupVersion::V2));
        let file = values.files.into_iter().find(|file| file.file == "cpu.max");
        file.map(|file| file.value)
    };
    assert_eq!(quota(CgroupDriver::Cgroupfs).as_deref(), Some("12345 100000"));
    assert_eq!(quota(CgroupDriver::Systemd).as_deref(), Some("13000 100000"));
}

#[test]
fn names_are_read_back() {
    let name = |text: &str, driver| CgroupName::from_driver(text, driver).path(driver);
    assert_eq!(name("/system", CgroupDriver::Cgroupfs), "/system");
    assert_eq!(name("/system.slice", CgroupDriver::Systemd), "/system.slice");
    assert_eq!(name("a-b.slice", CgroupDriver::Systemd), "/a.slice/a-b.slice");
    assert_eq!(pod_uid_of("burstable", CgroupDriver::Cgroupfs), None);
    assert_eq!(
        pod_uid_of("kubepods-burstable.slice", CgroupDriver::Systemd),
        None
    );
    assert_eq!(pod_uid_of("cri-containerd-x.scope", CgroupDriver::Systemd), None);
    assert_eq!(pod_uid_of("pod", CgroupDriver::Cgroupfs), None);
}

proptest! {
    #[test]
    fn pods_are_found_by_the_names_of_their_cgroups(uid in "[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?") {
        for driver in [CgroupDriver::Cgroupfs, CgroupDriver::Systemd] {
            for class in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
                let path = pod_cgroup_name("/root", class, &uid).expect("a good uid").path(driver);
                let last = path.rsplit('/').next().expect("a last part");
                prop_assert_eq!(pod_uid_of(last, driver), Some(uid.clone()));
            }
        }
    }
}
