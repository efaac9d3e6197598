//! When probes are run, and what they say then.

use std::sync::Arc;
use std::time::Duration;

use rubelet_model::observation::PodUid;
use rubelet_ports::{ProbeFiguresReader, ProbeKind, Prober};
use serde_json::json;

use crate::bed::{Bed, EPOCH, results, tcp};

#[tokio::test(start_paused = true)]
async fn a_pod_without_probes_is_nobody_s_business() {
    let mut bed = Bed::new(&json!([{"name": "c"}]));
    let reading = bed.runs("c", "a");
    assert_eq!(reading, rubelet_ports::ProbeReading::default());
    assert!(bed.probes.figures().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_container_is_ready_as_soon_as_it_can_be() {
    let mut bed = Bed::new(&json!([{"name": "c", "readinessProbe": tcp(1, &json!({}))}]));
    assert_eq!(results(&bed.runs("c", "a"), "a"), "-x-");
    assert!(bed.show().readiness.contains("c"));
    assert_eq!(bed.change().await, 0);
    assert_eq!(results(&bed.show(), "a"), "-+-");
    bed.at(35_000).await;
    assert_eq!(bed.asked(1), [0, 10_000, 20_000, 30_000]);
}

#[tokio::test(start_paused = true)]
async fn a_container_that_needs_a_moment_is_not_kept_waiting() {
    let mut bed = Bed::new(&json!([{"name": "c", "readinessProbe": tcp(1, &json!({}))}]));
    bed.port(1, false);
    bed.runs("c", "a");
    bed.at(600).await;
    bed.port(1, true);
    assert_eq!(bed.change().await, 700);
    assert_eq!(bed.asked(1), [0, 100, 300, 700]);
    assert_eq!(
        bed.events(),
        ["Warning Unhealthy c: Readiness probe failed: refused"],
        "tries before their time are silent"
    );
}

#[tokio::test(start_paused = true)]
async fn the_first_probe_comes_when_the_delay_has_passed() {
    let delayed = |port| tcp(port, &json!({"initialDelaySeconds": 3}));
    let mut bed = Bed::new(&json!([{
        "name": "c", "readinessProbe": delayed(1), "livenessProbe": delayed(2),
    }]));
    bed.at(1000).await;
    bed.runs("c", "a");
    assert_eq!(bed.change().await, 4000);
    bed.at(15_000).await;
    assert_eq!(bed.asked(1), [4000, 14_000]);
    assert_eq!(bed.asked(2), [4000, 14_000]);
}

#[tokio::test(start_paused = true)]
async fn startup_holds_the_others_back() {
    let mut bed = Bed::new(&json!([{
        "name": "c",
        "startupProbe": tcp(1, &json!({})),
        "readinessProbe": tcp(2, &json!({})),
        "livenessProbe": tcp(3, &json!({})),
    }]));
    bed.port(1, false);
    assert_eq!(results(&bed.runs("c", "a"), "a"), "?x+");
    bed.at(15_000).await;
    assert_eq!((bed.asked(2), bed.asked(3)), (vec![], vec![]));
    assert_eq!(results(&bed.show(), "a"), "?x+", "one failure of three");
    bed.port(1, true);
    assert_eq!(bed.change().await, 20_000);
    // Readiness is asked for at once.
    bed.at(20_001).await;
    assert_eq!(results(&bed.show(), "a"), "+++");
    assert_eq!(bed.asked(2), [20_000]);
    bed.at(60_000).await;
    assert_eq!(bed.asked(1).last(), Some(&20_000), "the startup probe is done");
    // Another instance begins anew.
    bed.port(1, false);
    assert_eq!(results(&bed.runs("c", "b"), "b"), "?x+");
    assert_eq!(results(&bed.show(), "a"), "---", "nothing is kept of the old one");
    assert_eq!(bed.change().await, 60_000 + 30_000, "three failures in a row");
    assert_eq!(results(&bed.show(), "b"), "xx+");
}

#[tokio::test(start_paused = true)]
async fn a_dead_container_is_left_alone_until_it_is_replaced() {
    let liveness = tcp(1, &json!({"failureThreshold": 2, "periodSeconds": 5}));
    let mut bed = Bed::new(
        &json!([{"name": "c", "livenessProbe": liveness}, {"name": "d", "livenessProbe": tcp(2, &json!({}))}]),
    );
    bed.port(1, false);
    bed.runs("d", "other");
    assert_eq!(results(&bed.runs("c", "a"), "a"), "--+");
    assert_eq!(bed.change().await, 10_000);
    let reading = bed.show();
    assert_eq!(
        (results(&reading, "a"), results(&reading, "other")),
        ("--x".into(), "--+".into())
    );
    bed.at(60_500).await;
    assert_eq!(bed.asked(1), [5000, 10_000]);
    assert_eq!(bed.asked(2).len(), 6, "the other container is probed on");
    bed.ended("c", "a");
    assert_eq!(results(&bed.runs("c", "b"), "b"), "--+");
    bed.at(66_000).await;
    assert_eq!(bed.asked(1).last(), Some(&65_500));
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_pod_stops_all_but_readiness() {
    let mut bed = Bed::new(&json!([{
        "name": "c",
        "readinessProbe": tcp(2, &json!({"failureThreshold": 1, "periodSeconds": 1})),
        "livenessProbe": tcp(3, &json!({"failureThreshold": 1, "periodSeconds": 1})),
    }]));
    bed.runs("c", "a");
    bed.change().await;
    bed.at(5500).await;
    bed.probes.end(&PodUid::from("u"));
    bed.port(2, false);
    bed.port(3, false);
    assert_eq!(bed.change().await, 6000);
    assert_eq!(results(&bed.show(), "a"), "-x+");
    bed.at(9500).await;
    assert_eq!(bed.asked(3).last(), Some(&5000));
    assert_eq!(bed.asked(2).last(), Some(&9000));
    bed.ended("c", "a");
    bed.probes.forget(&PodUid::from("u"));
    bed.at(20_000).await;
    assert_eq!(bed.asked(2).last(), Some(&9000));
    assert!(bed.probes.figures().is_empty());
}

#[tokio::test(start_paused = true)]
async fn containers_of_an_earlier_agent_keep_their_word() {
    let mut bed = Bed::new(&json!([{
        "name": "c",
        "startupProbe": tcp(1, &json!({})),
        "readinessProbe": tcp(2, &json!({})),
        "livenessProbe": tcp(3, &json!({})),
    }]));
    let status = json!({"containerStatuses": [{
        "name": "c", "image": "i", "imageID": "i", "ready": true, "restartCount": 0, "started": true,
        "containerID": "containerd://a",
    }]});
    bed.status = Some(serde_json::from_value(status).unwrap());
    let long_ago = EPOCH.minus(Duration::from_hours(1));
    assert_eq!(results(&bed.runs_since("c", "a", long_ago), "a"), "---");
    // Spread over the first period: the test's chance is seven seconds.
    assert_eq!(bed.change().await, 7000);
    assert_eq!(results(&bed.show(), "a"), "-++");
    assert_eq!(bed.asked(1), Vec::<u128>::new(), "it has started long ago");
}

#[tokio::test(start_paused = true)]
async fn a_young_container_that_was_told_as_ready_keeps_its_word() {
    let mut bed = Bed::new(&json!([{"name": "c", "readinessProbe": tcp(2, &json!({}))}]));
    let status = |id: &str| {
        let status = json!({"containerStatuses": [{
            "name": "c", "image": "i", "imageID": "i", "ready": true, "restartCount": 0, "started": true,
            "containerID": format!("containerd://{id}"),
        }]});
        Some(serde_json::from_value(status).unwrap())
    };
    let a_moment_ago = EPOCH.minus(Duration::from_secs(1));
    bed.status = status("a");
    assert_eq!(results(&bed.runs_since("c", "a", a_moment_ago), "a"), "---");
    // The word was about another container.
    assert_eq!(results(&bed.runs_since("c", "b", a_moment_ago), "b"), "-x-");
}

#[tokio::test(start_paused = true)]
async fn who_wants_to_know_now_is_answered() {
    let mut bed = Bed::new(&json!([{"name": "c", "readinessProbe": tcp(2, &json!({"periodSeconds": 60}))}]));
    let long_ago = EPOCH.minus(Duration::from_hours(1));
    bed.runs_since("c", "a", long_ago);
    bed.at(2000).await;
    bed.probes
        .probe_now(&PodUid::from("u"), &["c".to_owned(), "none".to_owned()]);
    assert_eq!(bed.change().await, 2000);
    bed.probes.probe_now(&PodUid::from("u"), &["c".to_owned()]);
    bed.at(70_000).await;
    assert_eq!(bed.asked(2), [2000, 62_000], "once is enough");
}

#[tokio::test(start_paused = true)]
async fn figures_count_what_was_done() {
    let mut bed = Bed::new(&json!([{"name": "c", "livenessProbe": tcp(1, &json!({"failureThreshold": 9}))}]));
    bed.runs("c", "a");
    bed.at(25_000).await;
    bed.port(1, false);
    bed.at(35_000).await;
    let figures = bed.probes.figures();
    assert_eq!(figures.len(), 1);
    let one = &figures[0];
    assert_eq!((one.successful, one.failed, one.within[0]), (2, 1, 2));
    assert_eq!(
        (
            one.kind,
            one.container.as_str(),
            one.pod.as_str(),
            one.namespace.as_str()
        ),
        (ProbeKind::Liveness, "c", "p", "n")
    );
}

#[tokio::test(start_paused = true)]
async fn a_changed_pod_is_probed_as_it_is_now() {
    let mut bed = Bed::new(&json!([{"name": "c", "readinessProbe": tcp(1, &json!({}))}]));
    bed.runs("c", "a");
    bed.change().await;
    let mut pod = bed.pod.as_ref().clone();
    pod.spec.as_mut().unwrap().containers[0].readiness_probe = None;
    bed.pod = Arc::new(pod);
    bed.at(5000).await;
    assert_eq!(results(&bed.show(), "a"), "---");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(bed.asked(1), [0]);
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_went_back_makes_no_container_old() {
    let startup = |port| tcp(port, &json!({"periodSeconds": 5}));
    let mut bed =
        Bed::new(&json!([{"name": "c", "startupProbe": startup(1), "readinessProbe": tcp(2, &json!({}))}]));
    bed.runs("c", "a");
    bed.at(1000).await;
    assert_eq!(results(&bed.show(), "a"), "++-");
    // By the clock it was there long before the agent; but the agent has seen its predecessor.
    let long_ago = EPOCH.minus(Duration::from_hours(1));
    assert_eq!(results(&bed.runs_since("c", "b", long_ago), "b"), "?x-");
    bed.at(20_000).await;
    assert_eq!(results(&bed.show(), "b"), "++-");
}

#[tokio::test(start_paused = true)]
async fn what_has_not_started_before_its_pod_ends_is_not_said_to_have() {
    let mut bed = Bed::new(
        &json!([{"name": "c", "startupProbe": tcp(1, &json!({})), "livenessProbe": tcp(2, &json!({}))}]),
    );
    bed.port(1, false);
    bed.runs("c", "a");
    bed.at(5000).await;
    bed.probes.end(&PodUid::from("u"));
    assert_eq!(results(&bed.show(), "a"), "?-+");
}
