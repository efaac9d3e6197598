//! What the agent counts, by what happens to pods.

use std::time::Duration;

use futures_util::FutureExt as _;
use prometheus::proto::{Metric, MetricType};
use rubelet_sim::dialer::PLAIN;
use serde_json::json;

use crate::bed::{Bed, PodText, SOON};
use crate::cluster::ApiPod;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The sum over all series that have these labels: values, and of histograms how much was observed.
fn count(bed: &Bed, name: &str, labels: &[(&str, &str)]) -> f64 {
    let families = bed.registry.gather();
    let Some(family) = families.iter().find(|family| family.name() == name) else {
        return 0.0;
    };
    let has = |metric: &Metric, (name, value): (&str, &str)| {
        let mut all = metric.get_label().iter();
        all.any(|label| label.name() == name && label.value() == value)
    };
    let matching = family
        .get_metric()
        .iter()
        .filter(|metric| labels.iter().all(|label| has(metric, *label)));
    let value = |metric: &Metric| match family.get_field_type() {
        MetricType::COUNTER => metric.get_counter().get_value(),
        MetricType::HISTOGRAM => metric.get_histogram().get_sample_count() as f64,
        _ => metric.get_gauge().get_value(),
    };
    matching.map(value).sum()
}

fn take_census(bed: &mut Bed) {
    bed.ask(|handle| async move { handle.take_census().await }.boxed())
        .expect("the agent counts");
}

#[test]
fn the_life_of_a_static_pod_is_counted() {
    let mut bed = Bed::started();
    let pod = PodText::new("web", &["term=100:7"]);
    bed.put_and_wait(&pod);
    for (name, labels, expected) in [
        ("kubelet_started_pods_total", &[][..], 1.0),
        ("kubelet_started_pods_errors_total", &[], 0.0),
        (
            "kubelet_started_containers_total",
            &[("container_type", "container")],
            1.0,
        ),
        ("kubelet_started_containers_total", &[], 1.0),
        ("kubelet_containers_per_pod_count", &[], 1.0),
        ("kubelet_pod_worker_start_duration_seconds", &[], 1.0),
        (
            "kubelet_pod_worker_duration_seconds",
            &[("operation_type", "create")],
            1.0,
        ),
        ("kubelet_pod_start_duration_seconds", &[], 1.0),
        ("kubelet_pod_start_sli_duration_seconds", &[], 0.0),
        (
            "kubelet_pod_level_resources_admission_total",
            &[("config_mode", ""), ("qos_class", "besteffort")],
            1.0,
        ),
    ] {
        assert_eq!(
            count(&bed, name, labels),
            expected,
            "{name} {labels:?}\n{}",
            bed.trace()
        );
    }
    assert!(count(&bed, "kubelet_pleg_relist_duration_seconds", &[]) >= 1.0);
    assert!(count(&bed, "kubelet_pleg_pod_relist_duration_seconds", &[]) >= 1.0);
    assert!(count(&bed, "kubelet_pleg_last_seen_seconds", &[]) > 0.0);
    take_census(&mut bed);
    let working = &[("lifecycle", "sync"), ("config", "desired"), ("static", "true")][..];
    for (name, labels, expected) in [
        ("kubelet_running_pods", &[][..], 1.0),
        (
            "kubelet_running_containers",
            &[("container_state", "running")],
            1.0,
        ),
        (
            "kubelet_running_containers",
            &[("container_state", "exited")],
            0.0,
        ),
        ("kubelet_desired_pods", &[("static", "true")], 1.0),
        ("kubelet_desired_pods", &[("static", "")], 0.0),
        ("kubelet_active_pods", &[("static", "true")], 1.0),
        ("kubelet_working_pods", working, 1.0),
        ("kubelet_working_pods", &[], 1.0),
    ] {
        assert_eq!(count(&bed, name, labels), expected, "{name} {labels:?}");
    }
    bed.remove(&pod);
    bed.wait("nobody shows it any more", seconds(30), |bed| {
        bed.pods().is_empty() && bed.explanations().is_empty()
    });
    take_census(&mut bed);
    let ended = [
        ("container_type", "container"),
        ("exit_code", "7"),
        ("reason", "Error"),
    ];
    for (name, labels, expected) in [
        ("kubelet_desired_pods", &[][..], 0.0),
        ("kubelet_active_pods", &[], 0.0),
        ("kubelet_working_pods", &[], 0.0),
        ("kubelet_running_pods", &[], 0.0),
        ("kubelet_terminated_containers_total", &ended, 1.0),
        (
            "kubelet_pod_worker_duration_seconds",
            &[("operation_type", "kill")],
            1.0,
        ),
        (
            "kubelet_pod_worker_duration_seconds",
            &[("operation_type", "terminated")],
            1.0,
        ),
    ] {
        assert_eq!(
            count(&bed, name, labels),
            expected,
            "{name} {labels:?}\n{}",
            bed.trace()
        );
    }
}

#[test]
fn the_start_of_a_pod_of_the_cluster_is_measured_once() {
    let mut bed = Bed::in_cluster();
    bed.create_and_wait(&ApiPod::new("web", &[]));
    let name = "kubelet_pod_start_sli_duration_seconds";
    bed.wait("its start is measured", SOON, |bed| count(bed, name, &[]) > 0.0);
    bed.pass(seconds(30));
    assert_eq!(count(&bed, name, &[]), 1.0);
    assert_eq!(count(&bed, "kubelet_pod_start_total_duration_seconds", &[]), 1.0);
    assert_eq!(count(&bed, "kubelet_pod_start_duration_seconds", &[]), 1.0);
    // In the agent's next life it runs already.
    bed.kill();
    bed.start();
    bed.wait("it is known again", SOON, |bed| !bed.pods().is_empty());
    bed.pass(seconds(30));
    assert_eq!(count(&bed, name, &[]), 0.0);
    assert_eq!(count(&bed, "kubelet_pod_start_duration_seconds", &[]), 0.0);
    assert_eq!(count(&bed, "kubelet_started_containers_total", &[]), 0.0);
    take_census(&mut bed);
    assert_eq!(count(&bed, "kubelet_desired_pods", &[("static", "")]), 1.0);
}

#[test]
fn failed_starts_are_counted_by_what_went_wrong() {
    let mut bed = Bed::started();
    bed.put(&PodText::new("lost", &[]).container("image", json!("registry.test/missing:1")));
    let failed = [("container_type", "container"), ("code", "ErrImagePull")];
    bed.wait("its pull fails", seconds(20), |bed| {
        count(bed, "kubelet_started_containers_errors_total", &failed) > 0.0
    });
    assert_eq!(count(&bed, "kubelet_started_pods_errors_total", &[]), 0.0);
}

#[test]
fn who_is_refused_and_who_makes_room_is_counted() {
    let mut bed = Bed::new();
    bed.settings.admission.allocatable.resources.milli_cpu = 1000;
    bed.start();
    let asking = |name: &str, milli: i64, priority: i32| {
        PodText::new(name, &["term=100:0"])
            .container("resources", json!({"requests": {"cpu": format!("{milli}m")}}))
            .spec("priority", json!(priority))
    };
    bed.put_and_wait(&asking("lesser", 700, 1));
    bed.put(&asking("equal", 700, 1));
    let rejections = "kubelet_admission_rejections_total";
    bed.wait("it is refused", SOON, |bed| count(bed, rejections, &[]) > 0.0);
    bed.pass(seconds(20));
    // It is judged again and again, and told once.
    assert_eq!(
        count(&bed, rejections, &[("reason", "UnexpectedAdmissionError")]),
        1.0
    );
    bed.put_and_wait(&asking("greater", 500, 2));
    let preemptions = "kubelet_preemptions";
    assert_eq!(count(&bed, preemptions, &[("preemption_signal", "cpu")]), 1.0);
    let levels = [("config_mode", "container_level"), ("qos_class", "burstable")];
    assert_eq!(
        count(&bed, "kubelet_pod_level_resources_admission_total", &levels),
        2.0
    );
}

#[test]
fn hooks_that_went_another_way_are_counted() {
    let mut bed = Bed::started();
    let get = json!({"httpGet": {"host": PLAIN, "port": 8443, "scheme": "HTTPS"}});
    bed.put_and_wait(&PodText::new("plain", &[]).container("lifecycle", json!({"postStart": get})));
    assert_eq!(
        count(&bed, "kubelet_lifecycle_handler_http_fallbacks_total", &[]),
        1.0
    );
}

#[test]
fn a_sleep_that_is_cut_short_is_counted() {
    let mut bed = Bed::in_cluster();
    let pod = ApiPod::new("sleeper", &["term=100:0"])
        .spec("terminationGracePeriodSeconds", json!(60))
        .container("lifecycle", json!({"preStop": {"sleep": {"seconds": 50}}}));
    bed.create_and_wait(&pod);
    bed.api().delete(&pod.uid, None);
    bed.pass(seconds(5));
    let cut_short = "kubelet_sleep_action_terminated_early_total";
    assert_eq!(count(&bed, cut_short, &[]), 0.0);
    bed.api().delete(&pod.uid, Some(2));
    bed.wait_gone(&pod.uid, seconds(30));
    assert!(count(&bed, cut_short, &[]) > 0.0);
}

#[test]
fn what_nobody_wants_is_counted_as_an_orphan() {
    let mut bed = Bed::started();
    let pod = PodText::new("stray", &["term=100:0"]);
    bed.put_and_wait(&pod);
    bed.kill();
    bed.remove(&pod);
    bed.start();
    bed.wait("it is found", seconds(20), |bed| {
        count(bed, "kubelet_orphaned_runtime_pods_total", &[]) > 0.0
    });
    bed.pass(seconds(20));
    assert_eq!(count(&bed, "kubelet_orphaned_runtime_pods_total", &[]), 1.0);
}
