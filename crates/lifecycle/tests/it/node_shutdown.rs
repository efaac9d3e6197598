//! The groups in which pods end when the node shuts down.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rubelet_config::gates::FeatureGates;
use rubelet_config::kubelet_configuration::{
    KubeletConfiguration, ShutdownGracePeriodByPodPriority, default_kubelet_configuration,
};
use rubelet_lifecycle::node_shutdown::{ShutdownPeriods, shutdown_status};
use serde_json::json;

fn gates(off: &[&str]) -> FeatureGates {
    let values = off.iter().map(|name| ((*name).to_owned(), false));
    FeatureGates::from_values(&values.collect()).expect("known gates")
}

fn configuration(total: &str, critical: &str, by_priority: &[(i32, i64)]) -> KubeletConfiguration {
    let mut configuration = default_kubelet_configuration(&FeatureGates::default());
    configuration.shutdown_grace_period = total.parse().expect("a duration");
    configuration.shutdown_grace_period_critical_pods = critical.parse().expect("a duration");
    let listed = by_priority
        .iter()
        .map(|(priority, seconds)| ShutdownGracePeriodByPodPriority {
            priority: *priority,
            shutdown_grace_period_seconds: *seconds,
        });
    configuration.shutdown_grace_period_by_pod_priority = listed.collect();
    configuration
}

fn periods(total: &str, critical: &str, by_priority: &[(i32, i64)], off: &[&str]) -> Option<ShutdownPeriods> {
    ShutdownPeriods::of(&configuration(total, critical, by_priority), &gates(off))
}

fn pod(name: &str, priority: Option<i32>, grace_seconds: Option<i64>) -> Arc<Pod> {
    let pod = json!({
        "metadata": {"name": name, "uid": name},
        "spec": {"containers": [], "priority": priority, "terminationGracePeriodSeconds": grace_seconds},
    });
    Arc::new(serde_json::from_value(pod).expect("a pod"))
}

#[test]
fn both_configurations_become_periods_by_priority() {
    let check = |total: &str, critical: &str, by_priority: &[(i32, i64)], expected: &[(i32, i64)]| {
        let periods = periods(total, critical, by_priority, &[]);
        let periods = periods.as_ref().map_or(&[][..], ShutdownPeriods::as_slice);
        let found: Vec<_> = periods.iter().map(|one| (one.priority, one.seconds)).collect();
        assert_eq!(found, expected, "{total} {critical} {by_priority:?}");
    };
    check("0s", "0s", &[], &[]);
    check("30s", "10s", &[], &[(0, 20), (2_000_000_000, 10)]);
    check("30s", "0s", &[], &[(0, 30), (2_000_000_000, 0)]);
    check("10s", "10s", &[], &[(0, 0), (2_000_000_000, 10)]);
    // Upstream drops parts of seconds of both.
    check("10500ms", "1900ms", &[], &[(0, 8), (2_000_000_000, 1)]);
    // Refused by validation; it would be nothing.
    check("10s", "20s", &[], &[]);
    check(
        "0s",
        "0s",
        &[(1000, 7), (-5, 2), (10, 3)],
        &[(-5, 2), (10, 3), (1000, 7)],
    );
}

#[test]
fn gates_decide_which_configuration_counts() {
    let by_priority: &[(i32, i64)] = &[(5, 9)];
    let all = [
        "GracefulNodeShutdown",
        "GracefulNodeShutdownBasedOnPodPriority",
        "WindowsGracefulNodeShutdown",
    ];
    assert_eq!(periods("30s", "10s", &[], &all), None);
    assert_eq!(periods("0s", "0s", by_priority, &all), None);
    let gate = ["GracefulNodeShutdownBasedOnPodPriority"];
    assert_eq!(periods("0s", "0s", by_priority, &gate), None);
    assert!(periods("30s", "10s", &[], &gate).is_some());
}

#[test]
fn the_whole_time_is_the_sum() {
    let total = |periods: Option<ShutdownPeriods>| periods.map(|periods| periods.total().as_secs());
    assert_eq!(total(periods("30s", "10s", &[], &[])), Some(30));
    assert_eq!(total(periods("0s", "0s", &[(1, 7), (2, 5)], &[])), Some(12));
}

#[test]
fn a_pod_is_in_the_highest_group_that_does_not_begin_above_it() {
    let periods = periods("0s", "0s", &[(10, 1), (100, 2), (1000, 3)], &[]).expect("periods");
    let check = |priority: Option<i32>, expected: i32| {
        let groups = periods.plan_groups(&[pod("a", priority, None)]);
        let full: Vec<_> = groups.iter().filter(|group| !group.pods.is_empty()).collect();
        let found: Vec<_> = full.iter().map(|group| group.priority).collect();
        assert_eq!(found, [expected], "{priority:?}");
    };
    check(None, 10);
    check(Some(-1), 10);
    check(Some(9), 10);
    check(Some(10), 10);
    check(Some(99), 10);
    check(Some(100), 100);
    check(Some(101), 100);
    check(Some(999), 100);
    check(Some(1000), 1000);
    check(Some(2_000_000_000), 1000);
}

#[test]
fn groups_are_in_order_with_their_periods_and_the_shorter_grace() {
    let periods = periods("30s", "10s", &[], &[]).expect("periods");
    let pods = [
        pod("critical", Some(2_000_001_000), Some(60)),
        pod("quick", None, Some(3)),
        pod("slow", Some(7), Some(600)),
        pod("unset", Some(7), None),
        // A pod that ends for a newer one of its UID.
        pod("slow", Some(7), Some(600)),
    ];
    let groups = periods.plan_groups(&pods);
    let found: Vec<_> = groups
        .iter()
        .map(|group| {
            let pods = group
                .pods
                .iter()
                .map(|pod| format!("{} {}", pod.uid, pod.grace_seconds));
            (group.priority, group.period, pods.collect::<Vec<_>>())
        })
        .collect();
    let expected = [
        (0, 20, vec!["quick 3", "slow 20", "unset 20"]),
        (2_000_000_000, 10, vec!["critical 10"]),
    ]
    .map(|(priority, seconds, pods)| {
        let pods: Vec<String> = pods.into_iter().map(ToOwned::to_owned).collect();
        (priority, Duration::from_secs(seconds), pods)
    });
    assert_eq!(found, expected);
}

#[test]
fn the_status_has_upstreams_words() {
    let status = shutdown_status();
    let message = "Pod was terminated in response to imminent node shutdown.";
    assert_eq!(status.reason, "Terminated");
    assert_eq!(status.message, message);
    assert_eq!(status.disruption.as_deref(), Some(message));
}
