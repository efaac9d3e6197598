//! Changes of cgroups are measured, whatever becomes of them.

use std::sync::Arc;

use futures_util::FutureExt as _;
use prometheus::Registry;
use rubelet_cgroups::{CgroupMetrics, MeasuredWriter};
use rubelet_model::cgroup::{CgroupPlace, CgroupValues};
use rubelet_ports::CgroupWriter as _;
use rubelet_sim::executor::Executor;

use crate::edge::Edge;

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
