//! Statuses on their way, when something goes wrong.

use std::time::Duration;

use rubelet_ports::PodReporter as _;
use rubelet_ports::api::ApiErrorKind;
use serde_json::Value;

use crate::api::Faults;
use crate::bed::{Bed, pod, restarts, running};

const SECOND: Duration = Duration::from_secs(1);

fn with_pods(seed: u64, count: usize) -> (Bed, Vec<Value>) {
    let bed = Bed::new(seed);
    let pods: Vec<Value> = (0..count).map(|number| pod(&format!("p{number}"))).collect();
    for pod in &pods {
        bed.api.user_creates(pod);
    }
    bed.pass(SECOND * 10);
    (bed, pods)
}

#[test]
fn after_an_outage_the_newest_states_are_there() {
    let (bed, pods) = with_pods(7, 50);
    let down = Faults {
        is_down: true,
        ..Faults::default()
    };
    bed.api.with(|state| state.faults = down);
    for count in 0..60 {
        for pod in &pods {
            bed.report(pod, &running(count));
        }
        bed.pass(SECOND);
    }
    assert_eq!(bed.reporter.known_pods(), 50, "one entry per pod");
    let tries = bed.api.calls().len();
    assert!(tries < 50, "{tries} calls to a server that is away");
    bed.api.with(|state| state.faults = Faults::default());
    let took = bed.until("all delivered", |bed| {
        bed.api
            .with(|state| state.pods.values().all(|pod| restarts(pod) == Some(59)))
    });
    assert!(took < SECOND, "the watch tells that the server is back: {took:?}");
    assert_eq!(bed.api.calls().len(), 50, "what is over is not sent");
}

#[test]
fn a_server_that_asks_for_quiet_gets_it() {
    let (bed, pods) = with_pods(7, 20);
    let busy = ApiErrorKind::Busy {
        retry_after: Some(SECOND * 7),
    };
    bed.api.with(|state| state.answers.extend([busy; 10]));
    for pod in &pods {
        bed.report(pod, &running(0));
    }
    bed.pass(SECOND * 6);
    assert_eq!(bed.api.calls().len(), 10, "those that were under way");
    bed.until("all delivered", |bed| bed.reporter.undelivered() == 0);
}

#[test]
fn one_pod_that_is_refused_holds_up_nobody() {
    let (bed, pods) = with_pods(7, 1);
    bed.api
        .with(|state| state.answers.extend([ApiErrorKind::Invalid; 100]));
    bed.report(&pods[0], &running(0));
    bed.pass(SECOND * 60);
    let tries = bed.api.calls().len();
    assert!((3..10).contains(&tries), "{tries}");
    // Something else to say is tried at once.
    bed.api.with(|state| state.answers.clear());
    bed.report(&pods[0], &running(1));
    let took = bed.until("delivered", |bed| restarts(&bed.api.pod("p0")) == Some(1));
    assert!(took < SECOND, "{took:?}");
}

#[test]
fn a_pod_that_is_not_found_is_looked_at_again_while_the_watch_has_it() {
    let (bed, pods) = with_pods(7, 1);
    bed.api
        .with(|state| state.answers.extend([ApiErrorKind::NotFound; 2]));
    bed.report(&pods[0], &running(0));
    bed.pass(SECOND * 9);
    assert_eq!(bed.api.calls(), ["patch p0"]);
    bed.pass(SECOND * 10);
    assert_eq!(bed.api.calls(), ["patch p0"]);
    bed.until("delivered", |bed| restarts(&bed.api.pod("p0")) == Some(0));
    assert_eq!(bed.api.calls(), ["patch p0"]);
}

#[test]
fn a_pod_that_is_gone_is_not_asked_for_again() {
    let (bed, pods) = with_pods(7, 1);
    bed.api
        .with(|state| state.answers.push_back(ApiErrorKind::NotFound));
    bed.report(&pods[0], &running(0));
    bed.pass(SECOND);
    bed.api.user_removes("p0");
    bed.pass(SECOND * 60);
    assert_eq!(bed.api.calls(), ["patch p0"]);
}

#[test]
fn a_conflict_is_tried_again() {
    let (bed, pods) = with_pods(7, 1);
    bed.api
        .with(|state| state.answers.extend([ApiErrorKind::Conflict; 2]));
    bed.report(&pods[0], &running(0));
    let took = bed.until("delivered", |bed| restarts(&bed.api.pod("p0")) == Some(0));
    assert!(took < SECOND * 2, "{took:?}");
    assert_eq!(bed.api.calls().len(), 3);
}

#[test]
fn a_call_that_hangs_is_given_up() {
    let (bed, pods) = with_pods(7, 1);
    bed.api.with(|state| state.latency = SECOND * 3600);
    bed.report(&pods[0], &running(0));
    bed.pass(SECOND * 5);
    bed.api.with(|state| state.latency = Duration::from_millis(20));
    let took = bed.until("delivered", |bed| restarts(&bed.api.pod("p0")) == Some(0));
    assert!(took < SECOND * 7, "{took:?}");
}

#[test]
fn whatever_fails_the_last_state_arrives() {
    for seed in 0..40 {
        let (bed, pods) = with_pods(seed, 12);
        let faults = Faults {
            failures: 20,
            lost_answers: 20,
            is_down: false,
        };
        bed.api.with(|state| state.faults = faults);
        for count in 0..8 {
            for pod in &pods {
                bed.report(pod, &running(count));
            }
            if count == 3 {
                bed.api.with(|state| state.faults.is_down = true);
                bed.pass(SECOND * 30);
                bed.api.with(|state| state.faults = faults);
            }
            bed.pass(Duration::from_millis(300));
        }
        bed.until("all delivered", |bed| {
            bed.api
                .with(|state| state.pods.values().all(|pod| restarts(pod) == Some(7)))
        });
        bed.api.with(|state| state.faults = Faults::default());
        bed.until("all known", |bed| bed.reporter.undelivered() == 0);
    }
}
