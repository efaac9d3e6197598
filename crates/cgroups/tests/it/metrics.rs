//! Changes of cgroups are measured, whatever becomes of them; memory that is kept for pods is shown.

use std::sync::Arc;

use futures_util::FutureExt as _;
use prometheus::Registry;
use rubelet_cgroups::{CgroupMetrics, MeasuredWriter};
use rubelet_model::cgroup::{CgroupPlace, CgroupValues};
use rubelet_model::observation::PodUid;
use rubelet_ports::{CgroupWriter as _, PodCgroups as _};
use rubelet_resources::rules::MemoryReservation;
use rubelet_sim::executor::Executor;
use serde_json::json;

use crate::edge::{Bench, Edge};
use crate::pods::pod;

#[test]
fn every_kind_of_change_is_measured() {
    let registry = Registry::new();
    let edge = Edge::default();
    edge.state().failing.insert("/a".to_owned(), 1);
    let writer = MeasuredWriter {
        writer: Arc::new(edge),
        clock: Arc::new(Executor::new(1)),
        metrics: CgroupMetrics::register(&registry).unwrap(),
    };
    let values = || CgroupValues {
        path: "/a".to_owned(),
        files: Vec::new(),
        unit: None,
    };
    let place = CgroupPlace {
        path: "/a".to_owned(),
        unit: None,
    };
    let all = async {
        writer.create(values()).await.unwrap();
        writer.update(values()).await.unwrap_err();
        writer.update(values()).await.unwrap();
        writer.remove(place).await.unwrap();
    };
    all.now_or_never().unwrap();
    let families = registry.gather();
    assert_eq!(families[0].name(), "kubelet_cgroup_manager_duration_seconds");
    let series = families[0].get_metric().iter();
    let counts: Vec<(&str, u64)> = series
        .map(|one| (one.get_label()[0].value(), one.get_histogram().get_sample_count()))
        .collect();
    assert_eq!(counts, [("create", 1), ("destroy", 1), ("update", 2)]);
}

/// The gauges of `memory.min` and `memory.low`.
fn kept(bench: &Bench) -> (f64, f64) {
    let families = bench.registry.gather();
    let value = |name: &str| {
        let family = families.iter().find(|family| family.name() == name).unwrap();
        family.get_metric()[0].get_gauge().get_value()
    };
    (
        value("kubelet_memory_qos_node_memory_min_bytes"),
        value("kubelet_memory_qos_node_memory_low_bytes"),
    )
}

#[test]
fn memory_that_is_kept_for_pods_is_shown() {
    let list = |memory: &str| json!({ "cpu": "1", "memory": memory });
    for (policy, expected) in [
        (MemoryReservation::Tiered, (32.0, 16.0)),
        (MemoryReservation::None, (0.0, 0.0)),
    ] {
        let bench = Bench::new(|settings| settings.rules.memory_reservation = policy);
        bench.start();
        let guaranteed = json!({ "requests": list("32"), "limits": list("32") });
        bench.cgroups.hold(&pod("a", &guaranteed));
        bench.cgroups.hold(&pod("b", &json!({ "requests": list("16") })));
        bench.pass(0);
        assert_eq!(kept(&bench), expected);
        for uid in ["a", "b"] {
            bench.cgroups.release(&PodUid::from(uid));
        }
        bench.pass(0);
        assert_eq!(kept(&bench), (0.0, 0.0));
    }
}
