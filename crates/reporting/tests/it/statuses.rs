//! Statuses on their way, when all goes well.

use std::time::Duration;

use rubelet_ports::PodReporter as _;
use serde_json::{Value, json};

use crate::api::ApiState;
use crate::bed::{Bed, pod, restarts, running, status};

const SECOND: Duration = Duration::from_secs(1);

fn with_pods(count: usize) -> (Bed, Vec<Value>) {
    let bed = Bed::new(7);
    let pods: Vec<Value> = (0..count).map(|number| pod(&format!("p{number}"))).collect();
    for pod in &pods {
        bed.api.user_creates(pod);
    }
    bed.pass(SECOND * 10);
    (bed, pods)
}

#[test]
fn a_status_is_one_patch_and_no_more() {
    let (bed, pods) = with_pods(1);
    bed.report(&pods[0], &running(0));
    bed.until("delivered", |bed| {
        bed.api.pod("p0")["status"]["phase"] == "Running"
    });
    bed.pass(SECOND * 30);
    assert_eq!(bed.api.calls(), ["patch p0"]);
    let shown = bed.api.pod("p0")["status"].clone();
    assert_eq!(shown, running(0));
    // Reported again, or listed again, it is nothing new.
    bed.report(&pods[0], &running(0));
    bed.api.with(|state| state.is_watch_broken = true);
    bed.pass(SECOND * 30);
    assert_eq!(bed.api.calls(), Vec::<String>::new());
    let figures = bed.reporter.figures();
    assert_eq!((figures.statuses_sent, figures.status_failures), (1, 0));
    assert_eq!(figures.delays.iter().sum::<u64>(), 1);
    assert_eq!(bed.reporter.undelivered(), 0);
}

#[test]
fn of_many_states_the_newest_counts_and_in_order() {
    let (bed, pods) = with_pods(1);
    for count in 0..50 {
        bed.report(&pods[0], &running(count));
        bed.pass(Duration::from_millis(1));
    }
    bed.until("delivered", |bed| restarts(&bed.api.pod("p0")) == Some(49));
    bed.pass(SECOND);
    assert!(bed.api.calls().len() <= 5, "states that are over are not sent");
    assert_eq!(restarts(&bed.api.pod("p0")), Some(49));
}

#[test]
fn two_hundred_pods_at_twenty_milliseconds() {
    let (bed, pods) = with_pods(200);
    for pod in &pods {
        bed.report(pod, &running(0));
    }
    let took = bed.until("all delivered", |bed| {
        bed.api
            .with(|state| state.pods.values().all(|pod| pod["status"]["phase"] == "Running"))
    });
    assert_eq!(bed.api.calls().len(), 200);
    assert_eq!(bed.api.with(|state| state.most_at_once), 10);
    println!("200 statuses at a round trip of 20 ms: {} ms", took.as_millis());
    assert!(took < SECOND * 2, "virtual time: {took:?}");
}

#[test]
fn readiness_and_ends_go_first() {
    let (bed, pods) = with_pods(40);
    for pod in &pods {
        bed.report(pod, &running(0));
    }
    bed.until("all delivered", |bed| bed.reporter.undelivered() == 0);
    bed.api.calls();
    for pod in &pods[..30] {
        bed.report(pod, &running(1));
    }
    bed.report(&pods[35], &status("Running", 0, false));
    bed.report(&pods[36], &status("Succeeded", 0, false));
    bed.until("all delivered", |bed| bed.reporter.undelivered() == 0);
    let calls = bed.api.calls();
    assert_eq!(calls.len(), 32);
    for urgent in ["patch p35", "patch p36"] {
        let place = calls.iter().position(|call| call == urgent).unwrap();
        assert!(place < 10, "{urgent} was call {place}");
    }
}

#[test]
fn what_others_write_stays() {
    let bed = Bed::new(3);
    let gate = json!({"type": "example.com/gate", "status": "True"});
    let mut first = pod("p0");
    first["status"]["conditions"] = json!([gate, {"type": "PodScheduled", "status": "True"}]);
    bed.api.user_creates(&first);
    bed.pass(SECOND);
    bed.report(&first, &running(0));
    bed.until("delivered", |bed| restarts(&bed.api.pod("p0")) == Some(0));
    // Another client adds a condition between the last pod that was read and the next patch.
    let other = json!({"type": "example.com/other", "status": "False"});
    bed.report(&first, &running(1));
    bed.api.user_changes("p0", |pod| {
        pod["status"]["conditions"]
            .as_array_mut()
            .unwrap()
            .push(other.clone());
    });
    bed.until("delivered", |bed| restarts(&bed.api.pod("p0")) == Some(1));
    bed.pass(SECOND * 10);
    let conditions = bed.api.pod("p0")["status"]["conditions"].clone();
    let conditions = conditions.as_array().unwrap();
    assert!(
        conditions.contains(&gate) && conditions.contains(&other),
        "{conditions:?}"
    );
    assert_eq!(conditions.len(), 4);
}

#[test]
fn what_somebody_overwrites_is_said_again() {
    let (bed, pods) = with_pods(1);
    bed.report(&pods[0], &running(0));
    bed.until("delivered", |bed| bed.reporter.undelivered() == 0);
    bed.api
        .user_changes("p0", |pod| pod["status"]["phase"] = "Pending".into());
    let took = bed.until("said again", |bed| {
        bed.api.pod("p0")["status"]["phase"] == "Running"
    });
    assert!(took < SECOND, "{took:?}");
    bed.until("answered", |bed| bed.reporter.figures().statuses_reconciled == 1);
    // Times of conditions are no reason.
    bed.api.calls();
    bed.api.user_changes("p0", |pod| {
        pod["status"]["conditions"][1]["lastProbeTime"] = "2026-01-01T00:00:09Z".into();
    });
    bed.pass(SECOND * 30);
    assert_eq!(bed.api.calls(), Vec::<String>::new());
}

#[test]
fn what_is_overwritten_just_before_a_patch_is_sent_again() {
    let (bed, pods) = with_pods(1);
    bed.report(&pods[0], &running(0));
    bed.until("delivered", |bed| bed.reporter.undelivered() == 0);
    // The patch is made from the pod before this change, and its answer is newer than what the watch brings.
    bed.report(&pods[0], &running(1));
    bed.api
        .user_changes("p0", |pod| pod["status"]["phase"] = "Pending".into());
    bed.until("sent again", |bed| {
        let pod = bed.api.pod("p0");
        restarts(&pod) == Some(1) && pod["status"]["phase"] == "Running"
    });
    bed.api.calls();
    bed.pass(SECOND * 30);
    assert_eq!(bed.api.calls(), Vec::<String>::new());
}

#[test]
fn somebody_who_never_stops_is_no_reason_to_hurry() {
    let (bed, pods) = with_pods(1);
    bed.report(&pods[0], &running(0));
    bed.until("delivered", |bed| bed.reporter.undelivered() == 0);
    bed.api.calls();
    for _ in 0..600 {
        bed.api
            .user_changes("p0", |pod| pod["status"]["phase"] = "Pending".into());
        bed.pass(Duration::from_millis(100));
    }
    let calls = bed.api.calls().len();
    assert!((5..=12).contains(&calls), "{calls} patches in a minute");
    bed.until("we have the last word", |bed| {
        bed.api.pod("p0")["status"]["phase"] == "Running"
    });
}

#[test]
fn a_deleted_pod_goes_when_it_has_ended_and_not_before() {
    let (bed, pods) = with_pods(1);
    bed.report(&pods[0], &running(0));
    bed.until("delivered", |bed| bed.reporter.undelivered() == 0);
    bed.api.user_deletes("p0");
    bed.pass(SECOND * 20);
    assert_eq!(bed.api.calls(), ["patch p0"], "it still runs");
    // It has ended, but something of it is left on the node.
    bed.report(&pods[0], &status("Failed", 0, false));
    bed.pass(SECOND * 20);
    assert_eq!(bed.api.calls(), ["patch p0"]);
    bed.report_as(&pods[0], &status("Failed", 0, false), true);
    bed.until("gone", |bed| bed.api.pod("p0").is_null());
    bed.pass(SECOND * 20);
    assert_eq!(bed.api.calls(), ["delete p0"]);
    assert_eq!(bed.reporter.figures().pods_deleted, 1);
    bed.forget("uid-p0");
    bed.pass(SECOND);
    assert_eq!(bed.reporter.known_pods(), 0);
}

#[test]
fn a_pod_that_ended_by_itself_stays_until_somebody_deletes_it() {
    let (bed, pods) = with_pods(1);
    bed.report_as(&pods[0], &status("Succeeded", 0, false), true);
    bed.pass(SECOND * 20);
    assert_eq!(bed.api.calls(), ["patch p0"]);
    bed.api.user_deletes("p0");
    bed.until("gone", |bed| bed.api.pod("p0").is_null());
    assert_eq!(bed.api.calls(), ["delete p0"]);
}

#[test]
fn an_end_goes_out_before_the_deletion() {
    let (bed, pods) = with_pods(1);
    bed.api.user_deletes("p0");
    bed.pass(SECOND);
    bed.report_as(&pods[0], &status("Failed", 3, false), true);
    bed.until("gone", |bed| bed.api.pod("p0").is_null());
    assert_eq!(bed.api.calls(), ["patch p0", "delete p0"]);
}

#[test]
fn nothing_is_said_of_a_pod_whose_definition_is_not_known() {
    let bed = Bed::new(7);
    let mut undecodable = pod("p0");
    undecodable.as_object_mut().unwrap().remove("spec");
    bed.api.user_creates(&undecodable);
    bed.api.user_deletes("p0");
    bed.pass(SECOND);
    undecodable["spec"] = json!({"containers": []});
    bed.report(&undecodable, &status("Pending", 0, false));
    bed.pass(SECOND * 20);
    assert_eq!(bed.api.calls(), Vec::<String>::new());
    bed.report_as(&undecodable, &status("Failed", 0, false), true);
    bed.until("gone", |bed| bed.api.pod("p0").is_null());
    assert_eq!(bed.api.calls(), ["delete p0"]);
}

#[test]
fn another_pod_of_the_same_name_is_left_alone() {
    let (bed, pods) = with_pods(1);
    bed.report(&pods[0], &running(0));
    bed.until("delivered", |bed| bed.reporter.undelivered() == 0);
    bed.api.user_removes("p0");
    let mut successor = pod("p0");
    successor["metadata"]["uid"] = "another".into();
    bed.api.user_creates(&successor);
    // The node still works on the end of the old one.
    bed.report_as(&pods[0], &status("Failed", 0, false), true);
    bed.pass(SECOND * 60);
    assert_eq!(bed.api.pod("p0")["status"], successor["status"]);
    bed.report(&successor, &running(5));
    bed.until("delivered", |bed| restarts(&bed.api.pod("p0")) == Some(5));
}

#[test]
fn a_watch_that_lags_causes_no_second_patch() {
    let (bed, pods) = with_pods(1);
    let old = bed.api.with(ApiState::relist);
    bed.report(&pods[0], &running(0));
    bed.until("delivered", |bed| bed.reporter.undelivered() == 0);
    bed.api.calls();
    bed.reporter.api_pods(&old);
    bed.pass(SECOND * 10);
    assert_eq!(bed.api.calls(), Vec::<String>::new());
    bed.report(&pods[0], &running(1));
    bed.until("delivered", |bed| restarts(&bed.api.pod("p0")) == Some(1));
}

#[test]
fn a_terminal_phase_of_somebody_else_stays() {
    let (bed, pods) = with_pods(1);
    bed.report(&pods[0], &running(0));
    bed.until("delivered", |bed| bed.reporter.undelivered() == 0);
    bed.api.user_changes("p0", |pod| {
        pod["status"]["phase"] = "Failed".into();
        pod["status"]["reason"] = "NodeLost".into();
    });
    bed.pass(SECOND * 5);
    bed.report(&pods[0], &running(1));
    bed.until("delivered", |bed| restarts(&bed.api.pod("p0")) == Some(1));
    let shown = bed.api.pod("p0")["status"].clone();
    assert_eq!(
        (shown["phase"].as_str(), shown["reason"].as_str()),
        (Some("Failed"), Some("NodeLost"))
    );
}
