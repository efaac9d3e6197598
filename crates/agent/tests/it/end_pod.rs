//! Pods that are ended on request: eviction and node shutdown.

use std::time::Duration;

use futures_util::FutureExt as _;
use rubelet_agent::{EndPod, EndPodError, EndReason};
use rubelet_lifecycle::status::Eviction;
use rubelet_model::observation::PodUid;
use tokio::sync::oneshot::Receiver;

use crate::bed::{Bed, PodText, SOON};
use crate::line::Fault;

type Answer = Receiver<Result<(), EndPodError>>;

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

fn eviction() -> EndReason {
    EndReason::Eviction(Eviction {
        reason: "Evicted".to_owned(),
        message: "The node was low on resource: memory.".to_owned(),
        disruption: Some("The node was low on resource: memory.".to_owned()),
    })
}

fn shutdown() -> EndReason {
    EndReason::Shutdown(Eviction {
        reason: "Terminated".to_owned(),
        message: "Pod was terminated in response to imminent node shutdown.".to_owned(),
        disruption: None,
    })
}

fn uid_of(bed: &mut Bed, name: &str) -> PodUid {
    PodUid::from(bed.explain(name).uid.to_string().as_str())
}

fn end(bed: &mut Bed, uid: &PodUid, reason: EndReason, grace_seconds: Option<i64>) -> Answer {
    let (uid, request) = (
        uid.clone(),
        EndPod {
            reason,
            grace_seconds,
        },
    );
    bed.begin(|handle| async move { handle.end_pod(&uid, request).await }.boxed())
}

fn wait_for_answer(bed: &mut Bed, answer: &mut Answer, limit: Duration) -> Result<(), EndPodError> {
    bed.until("the answer", limit, |_| answer.now_or_never())
        .expect("the agent runs")
}

/// A running pod whose container needs this long to end.
fn with_running(name: &str, term_millis: u64, grace_seconds: i64) -> Bed {
    let mut bed = Bed::started();
    let pod = PodText::new(name, &[&format!("term={term_millis}:0")])
        .spec("terminationGracePeriodSeconds", serde_json::json!(grace_seconds));
    bed.put_and_wait(&pod);
    bed
}

#[test]
fn an_eviction_is_answered_when_the_last_container_has_stopped() {
    let mut bed = with_running("web", 5000, 30);
    let uid = uid_of(&mut bed, "web");
    let began = bed.elapsed();
    let mut answer = end(&mut bed, &uid, eviction(), None);
    bed.wait("the stop is under way", SOON, |bed| {
        !bed.line.sent_about("StopContainer", "web/main").is_empty()
    });
    assert!((&mut answer).now_or_never().is_none(), "answered too early");
    assert_eq!(wait_for_answer(&mut bed, &mut answer, seconds(30)), Ok(()));
    assert!(bed.elapsed() - began >= seconds(5), "{:?}", bed.elapsed() - began);
    let status = bed.status("web");
    assert_eq!(
        (status.phase.as_deref(), status.reason.as_deref()),
        (Some("Failed"), Some("Evicted"))
    );
    assert_eq!(
        status.message.as_deref(),
        Some("The node was low on resource: memory.")
    );
    assert!(bed.events("web", "ExceededGracePeriod").is_empty());
    // It does not come back, and a later request is answered at once.
    bed.pass(seconds(60));
    assert_eq!(bed.line.sent_about("StartContainer", "web/main").len(), 1);
    let mut again = end(&mut bed, &uid, eviction(), Some(1));
    assert_eq!(wait_for_answer(&mut bed, &mut again, seconds(1)), Ok(()));
}

#[test]
fn a_pod_that_does_not_end_is_answered_with_a_timeout() {
    let mut bed = with_running("web", 1000, 20);
    let uid = uid_of(&mut bed, "web");
    bed.line
        .fault("StopContainer", "web/main", Fault::Hang, usize::MAX);
    let began = bed.elapsed();
    let mut answer = end(&mut bed, &uid, eviction(), None);
    let outcome = wait_for_answer(&mut bed, &mut answer, seconds(60));
    assert_eq!(outcome, Err(EndPodError::TimedOut));
    // One and a half grace periods.
    let waited = bed.elapsed() - began;
    assert!(waited >= seconds(30) && waited < seconds(31), "{waited:?}");
    bed.wait("the event", SOON, |bed| {
        bed.events("web", "ExceededGracePeriod").len() == 1
    });
}

#[test]
fn an_unknown_pod_is_not_ended() {
    let mut bed = Bed::started();
    let mut answer = end(&mut bed, &PodUid::from("no-such-pod"), eviction(), None);
    let outcome = wait_for_answer(&mut bed, &mut answer, seconds(1));
    assert_eq!(outcome, Err(EndPodError::UnknownPod));
}

#[test]
fn a_second_request_shortens_the_grace_period_of_the_first() {
    let mut bed = with_running("web", 100_000, 200);
    let uid = uid_of(&mut bed, "web");
    let mut first = end(&mut bed, &uid, shutdown(), None);
    bed.pass(seconds(5));
    assert!((&mut first).now_or_never().is_none(), "answered too early");
    let began = bed.elapsed();
    let mut second = end(&mut bed, &uid, shutdown(), Some(2));
    assert_eq!(wait_for_answer(&mut bed, &mut second, seconds(10)), Ok(()));
    assert_eq!(wait_for_answer(&mut bed, &mut first, seconds(1)), Ok(()));
    assert!(bed.elapsed() - began < seconds(10), "{:?}", bed.elapsed() - began);
    let status = bed.status("web");
    assert_eq!(
        (status.phase.as_deref(), status.reason.as_deref()),
        (Some("Failed"), Some("Terminated"))
    );
}

#[test]
fn a_pod_that_has_not_started_is_rejected() {
    let mut bed = Bed::new();
    bed.settings.admission.allocatable.resources.milli_cpu = 1000;
    bed.start();
    let asking = |name: &str, milli: i64, priority: i64| {
        let requests = serde_json::json!({"requests": {"cpu": format!("{milli}m")}});
        PodText::new(name, &["term=8000:0"])
            .container("resources", requests)
            .spec("priority", serde_json::json!(priority))
    };
    bed.put_and_wait(&asking("lesser", 900, 1));
    bed.put(&asking("greater", 900, 2));
    bed.wait("it waits for the other's end", SOON, |bed| {
        bed.waits_for("greater").starts_with("the end of pods")
    });
    let uid = uid_of(&mut bed, "greater");
    let mut answer = end(&mut bed, &uid, eviction(), None);
    assert_eq!(wait_for_answer(&mut bed, &mut answer, seconds(1)), Ok(()));
    let status = bed.status("greater");
    assert_eq!(
        (status.phase.as_deref(), status.reason.as_deref()),
        (Some("Failed"), Some("Evicted"))
    );
    assert!(bed.line.sent_about("RunPodSandbox", "greater").is_empty());
}
