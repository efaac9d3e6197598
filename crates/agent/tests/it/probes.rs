//! Probes: what follows from their results.

use std::time::Duration;

use serde_json::{Value, json};

use crate::bed::{Bed, IMAGE, PodText, SOON};

const APP: &str = "app.test";

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn probe() -> Value {
    json!({"tcpSocket": {"host": APP, "port": 80}, "periodSeconds": 1, "failureThreshold": 2})
}

fn restarts(bed: &mut Bed, name: &str) -> Vec<(String, i32)> {
    let statuses = bed.status(name).container_statuses.unwrap_or_default();
    statuses
        .into_iter()
        .map(|one| (one.name, one.restart_count))
        .collect()
}

#[test]
fn a_failed_liveness_probe_restarts_one_container() {
    let mut bed = Bed::started();
    let mut liveness = probe();
    liveness["terminationGracePeriodSeconds"] = json!(7);
    let mut pod = PodText::new("web", &[]).container("livenessProbe", liveness);
    let second = json!({"name": "second", "image": IMAGE});
    pod.spec["containers"]
        .as_array_mut()
        .expect("a list")
        .push(second);
    bed.put_and_wait(&pod);
    bed.pass(seconds(10));
    assert_eq!(bed.events("web", "Unhealthy"), []);
    bed.dialer.set_down(APP, true);
    bed.wait("it is killed", SOON, |bed| {
        !bed.line.sent_about("StopContainer", "web/main").is_empty()
    });
    bed.dialer.set_down(APP, false);
    let stop = &bed.line.sent_about("StopContainer", "web/main")[0];
    assert_eq!(stop.grace_seconds, 7, "the probe's own grace period");
    assert_eq!(
        bed.events("web", "Killing")[0].message,
        "Container main failed liveness probe, will be restarted"
    );
    let unhealthy = bed.events("web", "Unhealthy");
    assert_eq!(unhealthy.len(), 2);
    assert_eq!(
        unhealthy[0].message,
        "Liveness probe failed: connect: connection refused"
    );
    bed.wait("it runs again", SOON, |bed| bed.is_ready("web"));
    bed.pass(seconds(30));
    assert_eq!(
        restarts(&mut bed, "web"),
        [("main".to_owned(), 1), ("second".to_owned(), 0)]
    );
    assert!(bed.line.sent_about("StopContainer", "web/second").is_empty());
    assert!(bed.line.sent_about("StopPodSandbox", "web").is_empty());
}

/// The pod ends while one of its containers is stopped with a short grace period: it does not get more time by that.
#[test]
fn the_end_of_the_pod_does_not_lengthen_a_stop_under_way() {
    let mut bed = Bed::started();
    let mut liveness = probe();
    liveness["terminationGracePeriodSeconds"] = json!(7);
    let pod = PodText::new("web", &["term=ignore"])
        .container("livenessProbe", liveness)
        .spec("terminationGracePeriodSeconds", json!(300));
    bed.put_and_wait(&pod);
    bed.dialer.set_down(APP, true);
    bed.wait("it is killed", SOON, |bed| {
        !bed.line.sent_about("StopContainer", "web/main").is_empty()
    });
    bed.remove(&pod);
    bed.wait("it is gone", seconds(20), |bed| {
        !bed.line.sent_about("StopPodSandbox", "web").is_empty()
    });
    let stops = bed.line.sent_about("StopContainer", "web/main");
    let graces: Vec<i64> = stops.iter().map(|stop| stop.grace_seconds).collect();
    assert_eq!(graces, [7, 7]);
}

#[test]
fn readiness_comes_and_goes() {
    let mut bed = Bed::started();
    bed.dialer.set_down(APP, true);
    bed.put(&PodText::new("web", &[]).container("readinessProbe", probe()));
    bed.wait("it runs", SOON, |bed| bed.phase("web") == "Running");
    bed.pass(seconds(5));
    assert!(!bed.is_ready("web"));
    assert_eq!(bed.container("web").started, Some(true));
    for ready in [true, false, true] {
        bed.dialer.set_down(APP, !ready);
        bed.wait("it follows", SOON, |bed| bed.is_ready("web") == ready);
    }
    assert_eq!(restarts(&mut bed, "web"), [("main".to_owned(), 0)]);
}

/// A job that waits for a container's grace period must not hide that another one lost its readiness.
#[test]
fn readiness_is_shown_while_the_pod_s_job_is_busy() {
    const OTHER: &str = "other.test";
    let mut bed = Bed::started();
    let mut pod = PodText::new("web", &[])
        .container("readinessProbe", probe())
        .spec("terminationGracePeriodSeconds", json!(60));
    let mut liveness = probe();
    liveness["tcpSocket"]["host"] = json!(OTHER);
    let second =
        json!({"name": "second", "image": IMAGE, "args": ["term=50000:0"], "livenessProbe": liveness});
    pod.spec["containers"]
        .as_array_mut()
        .expect("a list")
        .push(second);
    bed.put_and_wait(&pod);
    bed.dialer.set_down(OTHER, true);
    bed.wait("the second one is killed", SOON, |bed| {
        !bed.line.sent_about("StopContainer", "web/second").is_empty()
    });
    for ready in [false, true, false] {
        bed.dialer.set_down(APP, !ready);
        bed.wait("it follows", SOON, |bed| bed.container("web").ready == ready);
        assert_eq!(bed.is_ready("web"), ready);
    }
    assert!(bed.waits_for("web").contains("stop"), "{}", bed.waits_for("web"));
    assert_eq!(bed.line.sent_about("StartContainer", "web/second").len(), 1);
}

#[test]
fn a_container_has_started_when_its_probe_says_so() {
    let mut bed = Bed::started();
    bed.dialer.set_down(APP, true);
    let startup = json!({"tcpSocket": {"host": APP, "port": 80}, "periodSeconds": 1, "failureThreshold": 30});
    let pod = PodText::new("web", &[])
        .container("startupProbe", startup)
        .container("livenessProbe", probe());
    bed.put(&pod);
    bed.wait("it runs", SOON, |bed| bed.phase("web") == "Running");
    bed.pass(seconds(10));
    let container = bed.container("web");
    assert_eq!((container.started, container.ready), (Some(false), false));
    bed.dialer.set_down(APP, false);
    bed.wait("it has started", SOON, |bed| bed.is_ready("web"));
    assert_eq!(bed.container("web").started, Some(true));
    assert_eq!(restarts(&mut bed, "web"), [("main".to_owned(), 0)]);
}

#[test]
fn a_container_that_never_starts_is_restarted() {
    let mut bed = Bed::started();
    bed.dialer.set_down(APP, true);
    bed.put(&PodText::new("web", &[]).container("startupProbe", probe()));
    bed.wait("it is killed", SOON, |bed| {
        !bed.line.sent_about("StopContainer", "web/main").is_empty()
    });
    assert_eq!(
        bed.events("web", "Killing")[0].message,
        "Container main failed startup probe, will be restarted"
    );
    bed.dialer.set_down(APP, false);
    bed.wait("it is tried again", seconds(60), |bed| bed.is_ready("web"));
}

#[test]
fn what_comes_after_a_sidecar_waits_for_its_startup_probe() {
    let mut bed = Bed::started();
    bed.dialer.set_down(APP, true);
    let startup = json!({"tcpSocket": {"host": APP, "port": 80}, "periodSeconds": 1, "failureThreshold": 60});
    let sidecar =
        json!([{"name": "side", "image": IMAGE, "restartPolicy": "Always", "startupProbe": startup}]);
    bed.put(&PodText::new("web", &[]).spec("initContainers", sidecar));
    bed.wait("the sidecar runs", SOON, |bed| {
        !bed.line.sent_about("StartContainer", "web/side").is_empty()
    });
    bed.pass(seconds(10));
    assert!(bed.line.sent_about("CreateContainer", "web/main").is_empty());
    bed.dialer.set_down(APP, false);
    bed.wait("all run", SOON, |bed| bed.is_ready("web"));
}

#[test]
fn a_pod_that_ends_is_not_judged_any_more() {
    let mut bed = Bed::started();
    let pod = PodText::new("web", &["term=20000:0"])
        .container("livenessProbe", probe())
        .spec("terminationGracePeriodSeconds", json!(30));
    bed.put_and_wait(&pod);
    bed.pass(seconds(3));
    bed.remove(&pod);
    bed.wait("it is told to stop", SOON, |bed| {
        !bed.line.sent_about("StopContainer", "web/main").is_empty()
    });
    bed.dialer.set_down(APP, true);
    bed.wait("it is gone", seconds(60), |bed| {
        !bed.line.sent_about("StopPodSandbox", "web").is_empty()
    });
    assert_eq!(bed.events("web", "Unhealthy"), []);
    assert_eq!(bed.line.sent_about("StopContainer", "web/main").len(), 1);
}

/// Whoever judged it before is gone; the container is neither restarted nor left unready for long.
#[test]
fn a_new_agent_probes_what_it_finds() {
    let mut bed = Bed::started();
    let pod = PodText::new("web", &[])
        .container("startupProbe", probe())
        .container("readinessProbe", probe())
        .container("livenessProbe", probe());
    bed.put_and_wait(&pod);
    bed.pass(seconds(60));
    bed.kill();
    bed.start();
    bed.wait("it is ready again", SOON, |bed| bed.is_ready("web"));
    bed.pass(seconds(30));
    assert!(bed.line.sent_about("StopContainer", "web/main").is_empty());
    assert_eq!(restarts(&mut bed, "web"), [("main".to_owned(), 0)]);
    bed.dialer.set_down(APP, true);
    bed.wait("it is judged", SOON, |bed| {
        !bed.line.sent_about("StopContainer", "web/main").is_empty()
    });
}
