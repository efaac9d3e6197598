//! The values of pods' cgroups, their files, their names and the tiers above them.

use rubelet_model::cgroup::{PodCgroupPart, PodCgroupReading};
use rubelet_resources::cgroup_files::{file_values, read_files, reading_files};
use rubelet_resources::cgroup_name::{CgroupDriver, CgroupName, cgroup_parent, pod_cgroup_name};
use rubelet_resources::cpu::shares_of_weight;
use rubelet_resources::tiers::{TierShare, TierSums, plan_tiers};
use rubelet_resources::{CgroupVersion, MemoryReservation, PodCgroup, QosClass, Rules, pod_cgroup};
use serde_json::{Value, json};

use crate::pods::{containers, demand, facts, resources};

const MI: i64 = 1 << 20;

fn tiered() -> Rules {
    Rules {
        memory_reservation: MemoryReservation::Tiered,
        memory_throttling_factor: Some(0.5),
        pod_pids_limit: 100,
        ..Rules::default()
    }
}

#[track_caller]
fn check(spec: &Value, rules: &Rules, expected: &PodCgroup) {
    let found = pod_cgroup(&demand(spec), rules, &facts(CgroupVersion::V2), false);
    assert_eq!(&found, expected, "{spec}");
}

#[test]
fn pods_by_class() {
    let plain = Rules::default();
    let only = |one: Value| json!({"containers": containers(&[one])});
    let shares = |shares: u64| PodCgroup {
        cpu_shares: Some(shares),
        ..PodCgroup::default()
    };
    check(&only(json!({})), &plain, &shares(2));
    check(&only(resources(("250m", "-"), ("-", "-"))), &plain, &shares(256));
    let bounded = PodCgroup {
        cpu_quota_us: Some(50_000),
        cpu_period_us: Some(100_000),
        memory_bytes: Some(MI),
        ..shares(256)
    };
    check(&only(resources(("250m", "-"), ("500m", "1Mi"))), &plain, &bounded);
    let without_quota = Rules {
        cpu_cfs_quota: false,
        ..Rules::default()
    };
    let unlimited = PodCgroup {
        cpu_quota_us: Some(-1),
        ..bounded
    };
    check(
        &only(resources(("250m", "-"), ("500m", "1Mi"))),
        &without_quota,
        &unlimited,
    );
    let mut guaranteed = PodCgroup {
        cpu_quota_us: Some(100_000),
        cpu_period_us: Some(100_000),
        memory_bytes: Some(MI),
        pids: Some(100),
        ..shares(1024)
    };
    guaranteed.unified.insert("memory.min".to_owned(), MI.to_string());
    check(
        &only(resources(("1", "1Mi"), ("1", "1Mi"))),
        &tiered(),
        &guaranteed,
    );
}

#[test]
fn pod_level_limits_throttle() {
    let spec =
        json!({"containers": containers(&[json!({})]), "resources": resources(("-", "1Mi"), ("-", "3Mi"))});
    let mut expected = PodCgroup {
        cpu_shares: Some(2),
        memory_bytes: Some(3 * MI),
        pids: Some(100),
        ..PodCgroup::default()
    };
    expected.unified.insert("memory.low".to_owned(), MI.to_string());
    expected
        .unified
        .insert("memory.high".to_owned(), (2 * MI).to_string());
    check(&spec, &tiered(), &expected);
    let on_v1 = pod_cgroup(&demand(&spec), &tiered(), &facts(CgroupVersion::V1), false);
    assert!(on_v1.unified.is_empty());
}

#[test]
fn files_of_both_versions() {
    let cgroup = PodCgroup {
        memory_bytes: Some(MI),
        cpu_shares: Some(1024),
        cpu_quota_us: Some(-1),
        cpu_period_us: Some(100_000),
        pids: Some(7),
        cpus: None,
        huge_page_limits: [(2 * MI, 4 * MI)].into(),
        unified: [("memory.low".to_owned(), "5".to_owned())].into(),
    };
    let texts = |version| {
        let files = file_values(&cgroup, &facts(version));
        let required = files.into_iter().filter(|file| !file.is_optional);
        required
            .map(|file| format!("{}={}", file.file, file.value))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        texts(CgroupVersion::V2),
        [
            "memory.max=1048576",
            "cpu.weight=39",
            "cpu.max=max 100000",
            "pids.max=7",
            "hugetlb.2MB.max=4194304",
            "hugetlb.1GB.max=0",
            "memory.low=5"
        ]
    );
    assert_eq!(
        texts(CgroupVersion::V1),
        [
            "memory.limit_in_bytes=1048576",
            "cpu.shares=1024",
            "cpu.cfs_period_us=100000",
            "cpu.cfs_quota_us=-1",
            "pids.max=7",
            "hugetlb.2MB.limit_in_bytes=4194304",
            "hugetlb.1GB.limit_in_bytes=0"
        ]
    );
}

#[test]
fn names() {
    let parent = |class, driver| cgroup_parent("/", true, driver, class, "a-b").expect("a good uid");
    assert_eq!(
        parent(QosClass::Guaranteed, CgroupDriver::Cgroupfs),
        "/kubepods/poda-b"
    );
    assert_eq!(
        parent(QosClass::BestEffort, CgroupDriver::Cgroupfs),
        "/kubepods/besteffort/poda-b"
    );
    assert_eq!(
        parent(QosClass::Burstable, CgroupDriver::Systemd),
        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poda_b.slice"
    );
    let off = cgroup_parent("/", false, CgroupDriver::Systemd, QosClass::Burstable, "a");
    assert_eq!(off.as_deref(), Ok(""));
    assert!(pod_cgroup_name("/", QosClass::Guaranteed, "a_b").is_err());
    assert_eq!(CgroupName::default().path(CgroupDriver::Systemd), "/");
    assert_eq!(
        CgroupName::from_cgroupfs("/x/y").path(CgroupDriver::Systemd),
        "/x.slice/x-y.slice"
    );
}

#[test]
fn tiers_sum_up_their_pods() {
    let burstable = demand(&json!({"containers": containers(&[resources(("500m", "1Mi"), ("-", "-"))])}));
    let guaranteed = demand(&json!({"containers": containers(&[resources(("1", "2Mi"), ("1", "2Mi"))])}));
    let mut sums = TierSums::default();
    for pod in [&burstable, &guaranteed, &burstable] {
        sums.add(TierShare::of(pod, &tiered()));
    }
    let tiers = plan_tiers(&sums, &tiered(), &facts(CgroupVersion::V2));
    assert_eq!(
        (tiers.burstable.cpu_shares, tiers.best_effort.cpu_shares),
        (Some(1024), Some(2))
    );
    let text = |bytes: i64| Some(bytes.to_string());
    assert_eq!(tiers.kubepods.unified.get("memory.min").cloned(), text(4 * MI));
    assert_eq!(tiers.burstable.unified.get("memory.low").cloned(), text(2 * MI));
    let off = plan_tiers(&sums, &Rules::default(), &facts(CgroupVersion::V2));
    assert_eq!(off.kubepods.unified.get("memory.min").cloned(), text(0));
    assert_eq!(off.burstable.huge_page_limits.get(&(2 * MI)), Some(&(1 << 62)));
    assert!(
        plan_tiers(&sums, &tiered(), &facts(CgroupVersion::V1))
            .kubepods
            .unified
            .is_empty()
    );
}

/// What is written is what is read back, as far as the kernel keeps it.
#[test]
fn values_are_read_back() {
    let check = |version: CgroupVersion, texts: &[Option<&str>], expected: PodCgroupReading| {
        let texts: Vec<Option<String>> = texts.iter().map(|text| text.map(str::to_owned)).collect();
        assert_eq!(texts.len(), reading_files(version).len());
        assert_eq!(read_files(&texts, version), expected);
    };
    let limited = PodCgroupReading {
        memory_limit_bytes: Some(MI),
        memory_usage_bytes: Some(4096),
        cpu_shares: Some(512),
        cpu_quota_us: Some(20_000),
        cpu_period_us: Some(100_000),
    };
    let v1 = ["1048576\n", "4096\n", "512\n", "20000\n", "100000\n"];
    check(CgroupVersion::V1, &v1.map(Some), limited);
    let v2 = ["1048576\n", "4096\n", "20\n", "20000 100000\n"];
    let weighted = PodCgroupReading {
        cpu_shares: Some(shares_of_weight(20)),
        ..limited
    };
    check(CgroupVersion::V2, &v2.map(Some), weighted);
    let unlimited = PodCgroupReading {
        memory_limit_bytes: None,
        cpu_quota_us: None,
        ..limited
    };
    let v1 = ["9223372036854771712", "4096", "512", "-1", "100000"];
    check(CgroupVersion::V1, &v1.map(Some), unlimited);
    let v2 = ["max", "4096", "20", "max 100000"];
    let weighted = PodCgroupReading {
        cpu_shares: Some(shares_of_weight(20)),
        ..unlimited
    };
    check(CgroupVersion::V2, &v2.map(Some), weighted);
    check(CgroupVersion::V2, &[None; 4], PodCgroupReading::default());
}

#[test]
fn a_part_is_only_that() {
    let whole = PodCgroup {
        memory_bytes: Some(MI),
        cpu_shares: Some(512),
        cpu_quota_us: Some(20_000),
        cpu_period_us: Some(100_000),
        pids: Some(10),
        ..PodCgroup::default()
    };
    let files = |part| -> Vec<String> {
        let values = file_values(&whole.part(part), &facts(CgroupVersion::V1));
        let values = values.into_iter().filter(|value| value.controller != "hugetlb");
        values
            .map(|value| format!("{}={}", value.file, value.value))
            .collect()
    };
    assert_eq!(
        files(PodCgroupPart::MemoryLimit),
        ["memory.limit_in_bytes=1048576"]
    );
    assert_eq!(
        files(PodCgroupPart::CpuQuota),
        ["cpu.cfs_period_us=100000", "cpu.cfs_quota_us=20000"]
    );
    assert_eq!(files(PodCgroupPart::CpuShares), ["cpu.shares=512"]);
}
