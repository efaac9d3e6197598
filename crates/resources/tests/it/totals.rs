//! Classes, totals and conversions.

use std::slice::from_ref;

use proptest::prelude::*;
use rubelet_resources::cpu::{
    MAX_SHARES, MIN_SHARES, is_same_after_weight, milli_cpu_of_quota, milli_cpu_of_shares,
    quota_of_milli_cpu, shares_of_milli_cpu, shares_of_weight, weight_of_shares,
};
use rubelet_resources::demand::Overhead;
use rubelet_resources::huge_pages::{page_size_bytes, page_size_name};
use rubelet_resources::oom::score_adjustment;
use rubelet_resources::{PodDemand, QosClass, Rules, qos_class};
use serde_json::{Value, json};

use crate::pods::{containers, demand, pod, resources};

#[test]
fn classes() {
    let check = |spec: Value, expected: QosClass| {
        assert_eq!(qos_class(&demand(&spec), &Rules::default()), expected, "{spec}");
    };
    let full = resources(("1", "1Gi"), ("1000m", "1Gi"));
    let none = json!({});
    let only = |all: &[Value]| json!({"containers": containers(all)});
    check(only(&[]), QosClass::BestEffort);
    check(only(from_ref(&none)), QosClass::BestEffort);
    check(only(&[resources(("0", "-"), ("-", "0"))]), QosClass::BestEffort);
    check(only(&[full.clone(), full.clone()]), QosClass::Guaranteed);
    check(only(&[full.clone(), none.clone()]), QosClass::Burstable);
    check(only(&[resources(("1", "-"), ("1", "-"))]), QosClass::Burstable);
    check(
        only(&[resources(("1", "1Gi"), ("2", "1Gi"))]),
        QosClass::Burstable,
    );
    check(
        json!({"containers": containers(from_ref(&full)), "initContainers": containers(from_ref(&none))}),
        QosClass::Burstable,
    );
    check(
        json!({"containers": containers(from_ref(&none)), "resources": full}),
        QosClass::Guaranteed,
    );
    check(
        json!({"containers": containers(from_ref(&full)), "resources": {}}),
        QosClass::Guaranteed,
    );
    let mut recorded = pod(&only(&[none]));
    recorded.status.get_or_insert_default().qos_class = Some("Guaranteed".to_owned());
    let recorded = PodDemand::read(&recorded).expect("a good pod");
    assert_eq!(qos_class(&recorded, &Rules::default()), QosClass::Guaranteed);
}

#[test]
fn totals() {
    let check = |spec: Value, request: (i64, i64), limit: (i64, i64)| {
        let demand = demand(&spec);
        let rules = Rules::default();
        let requests = demand.requests(&rules, Overhead::Included);
        let limits = demand.limits(&rules, Overhead::Included);
        assert_eq!(
            (requests.milli_value("cpu"), requests.value("memory")),
            request,
            "{spec}"
        );
        assert_eq!(
            (limits.milli_value("cpu"), limits.value("memory")),
            limit,
            "{spec}"
        );
    };
    let small = resources(("100m", "10"), ("200m", "-"));
    let large = resources(("1", "5"), ("-", "50"));
    check(
        json!({"containers": containers(&[small.clone(), large.clone()])}),
        (1100, 15),
        (200, 50),
    );
    check(
        json!({"containers": containers(from_ref(&small)), "initContainers": containers(from_ref(&large))}),
        (1000, 10),
        (200, 50),
    );
    let sidecar = json!({"name": "s", "restartPolicy": "Always", "resources": small});
    let init = json!({"name": "i", "resources": large});
    check(
        json!({"containers": containers(from_ref(&small)), "initContainers": [sidecar, init]}),
        (1100, 20),
        (400, 50),
    );
    check(
        json!({"containers": containers(from_ref(&small)), "overhead": {"cpu": "10m", "memory": "1"}}),
        (110, 11),
        (210, 0),
    );
    check(
        json!({"containers": containers(&[small]), "resources": resources(("3", "-"), ("-", "77"))}),
        (3000, 10),
        (200, 77),
    );
}

#[test]
fn bad_quantities_are_named() {
    let read = |spec: Value| PodDemand::read(&pod(&spec)).map_err(|error| error.field);
    let bad = resources(("1x", "-"), ("-", "-"));
    let spec = json!({"containers": containers(&[json!({}), bad.clone()])});
    assert_eq!(
        read(spec),
        Err("spec.containers[1].resources.requests[cpu]".to_owned())
    );
    assert_eq!(
        read(json!({"containers": [], "resources": bad})),
        Err("spec.resources.requests[cpu]".to_owned())
    );
    let overhead = read(json!({"containers": [], "overhead": {"memory": "?"}}));
    assert_eq!(overhead, Err("spec.overhead[memory]".to_owned()));
}

#[test]
fn oom_scores() {
    let check = |spec: Value, name: &str, expected: i64| {
        let demand = demand(&spec);
        let container = demand.container(name).expect("the container exists");
        assert_eq!(
            score_adjustment(&demand, container, &Rules::default(), 1000),
            expected,
            "{spec}"
        );
    };
    let burstable = |memory: &str| resources(("-", memory), ("-", "-"));
    check(json!({"containers": containers(&[json!({})])}), "c0", 1000);
    check(
        json!({"containers": containers(&[resources(("1", "1"), ("1", "1"))])}),
        "c0",
        -997,
    );
    check(json!({"containers": containers(&[burstable("100")])}), "c0", 900);
    check(
        json!({"containers": containers(&[burstable("100"), json!({})])}),
        "c1",
        999,
    );
    check(json!({"containers": containers(&[burstable("5000")])}), "c0", 3);
    let sidecar = json!([{"name": "s", "restartPolicy": "Always"}]);
    check(
        json!({"containers": containers(&[burstable("100"), burstable("300")]), "initContainers": sidecar}),
        "s",
        900,
    );
    let pod_level = json!({"requests": {"memory": "500"}});
    check(
        json!({"containers": containers(&[burstable("100"), json!({})]), "resources": pod_level}),
        "c1",
        800,
    );
    let critical = json!({"containers": containers(&[json!({})]), "priority": 2_000_001_000, "priorityClassName": "system-node-critical"});
    check(critical, "c0", -997);
}

#[test]
fn huge_page_names() {
    for (bytes, name) in [
        (2 << 20, Some("2MB")),
        (1 << 30, Some("1GB")),
        (64 << 10, Some("64KB")),
        (512, Some("512B")),
        (1025, None),
    ] {
        assert_eq!(page_size_name(bytes).as_deref(), name, "{bytes}");
    }
    assert_eq!(page_size_bytes("hugepages-2Mi"), Some(2 << 20));
    assert_eq!(page_size_bytes("hugepages-"), None);
    assert_eq!(page_size_bytes("memory"), None);
}

#[test]
fn conversions() {
    for (milli, shares) in [
        (0, 2),
        (1, 2),
        (2, 2),
        (3, 3),
        (1000, 1024),
        (256_000, 262_144),
        (1_000_000, 262_144),
        (-5, 2),
    ] {
        assert_eq!(shares_of_milli_cpu(milli), shares, "{milli}");
    }
    for (milli, period, quota) in [
        (0, 100_000, 0),
        (1, 100_000, 1000),
        (250, 100_000, 25_000),
        (1500, 5000, 7500),
    ] {
        assert_eq!(quota_of_milli_cpu(milli, period), quota, "{milli}");
    }
    for (shares, weight) in [(2, 1), (1024, 39), (262_144, 10_000)] {
        assert_eq!(weight_of_shares(shares), weight, "{shares}");
    }
    assert_eq!(
        (milli_cpu_of_quota(-1, 100_000), milli_cpu_of_quota(5, 0)),
        (0, 0)
    );
}

proptest! {
    #[test]
    fn shares_and_weights_stay_in_the_kernels_bounds(milli in any::<i64>()) {
        let shares = shares_of_milli_cpu(milli);
        prop_assert!((MIN_SHARES..=MAX_SHARES).contains(&shares));
        let weight = weight_of_shares(shares);
        prop_assert!((1..=10_000).contains(&weight));
        prop_assert!(is_same_after_weight(shares, shares_of_weight(weight)));
    }

    #[test]
    fn whole_milli_cpus_survive_the_way_through_shares(milli in 2_i64..256_000) {
        let back = milli_cpu_of_shares(i64::try_from(shares_of_milli_cpu(milli)).expect("small"));
        prop_assert!(back == milli || back + 1 == milli || milli < 3, "{} became {}", milli, back);
    }

    #[test]
    fn oom_scores_keep_the_order_of_classes(memory in 0_i64..1 << 50, capacity in 1_i64..1 << 45) {
        let spec = json!({"containers": containers(&[resources(("1", &memory.to_string()), ("2", "-"))])});
        let demand = demand(&spec);
        let score = score_adjustment(&demand, &demand.containers[0], &Rules::default(), capacity);
        prop_assert!((3..=999).contains(&score), "{}", score);
    }
}
