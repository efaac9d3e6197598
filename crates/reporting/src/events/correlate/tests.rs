//! Tests of the correlator: repeats become a count, similar events are combined, spam is filtered.

use super::*;
use k8s_openapi::api::core::v1::{EventSource, ObjectReference};

fn at(seconds: u64) -> Moment {
    Moment::from_start(Duration::from_secs(seconds))
}

fn event(pod: &str, reason: &str, message: &str) -> Event {
    let mut event = Event {
        involved_object: ObjectReference {
            kind: Some("Pod".to_owned()),
            name: Some(pod.to_owned()),
            uid: Some(format!("uid of {pod}")),
            ..ObjectReference::default()
        },
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        type_: Some("Normal".to_owned()),
        count: Some(1),
        source: Some(EventSource {
            component: Some("kubelet".to_owned()),
            host: Some("node".to_owned()),
        }),
        ..Event::default()
    };
    event.metadata.name = Some(format!("{pod}.{reason}.{message}"));
    event
}

/// How it goes out: its name, count and message, and whether as a patch.
fn shown(sent: Option<Correlated>) -> String {
    let Some(sent) = sent else {
        return "filtered".to_owned();
    };
    let how = if sent.patch.is_some() { "patch" } else { "create" };
    let event = sent.event;
    format!(
        "{how} {} x{} {}",
        text(&event.metadata.name),
        event.count.unwrap_or_default(),
        text(&event.message)
    )
}

#[test]
fn the_same_again_is_a_count() {
    let mut correlator = Correlator::new();
    let mut send = |event: Event| shown(correlator.correlate(event, at(0)));
    assert_eq!(send(event("p", "Pulled", "a")), "create p.Pulled.a x1 a");
    let mut again = event("p", "Pulled", "a");
    again.metadata.name = Some("another".to_owned());
    assert_eq!(send(again), "patch p.Pulled.a x2 a");
    assert_eq!(send(event("p", "Pulled", "b")), "create p.Pulled.b x1 b");
    assert_eq!(send(event("q", "Pulled", "a")), "create q.Pulled.a x1 a");
    let mut of_container = event("p", "Pulled", "a");
    of_container.involved_object.field_path = Some("spec.containers{c}".to_owned());
    assert_eq!(
        send(of_container),
        "create p.Pulled.a x1 a",
        "another container is another event"
    );
}

#[test]
fn the_patch_carries_what_changes() {
    let mut correlator = Correlator::new();
    correlator.correlate(event("p", "R", "m"), at(0)).unwrap();
    let mut again = event("p", "R", "m");
    again.last_timestamp = Some(Time("2026-01-01T00:00:09Z".parse().unwrap()));
    let patch = correlator.correlate(again, at(1)).unwrap().patch.unwrap();
    assert_eq!(
        patch,
        json!({"count": 2, "lastTimestamp": "2026-01-01T00:00:09Z", "message": "m"})
    );
}

#[test]
fn what_the_server_answered_counts() {
    let mut correlator = Correlator::new();
    let sent = correlator.correlate(event("p", "R", "m"), at(0)).unwrap();
    let mut answer = sent.event.clone();
    answer.count = Some(7);
    answer.metadata.name = Some("theirs".to_owned());
    correlator.delivered(&sent, &answer);
    assert_eq!(
        shown(correlator.correlate(event("p", "R", "m"), at(1))),
        "patch theirs x8 m"
    );
}

#[test]
fn many_messages_of_one_reason_are_combined() {
    let mut correlator = Correlator::new();
    let mut send = |number: u64, second| {
        shown(correlator.correlate(event("p", "Failed", &number.to_string()), at(second)))
    };
    for number in 1..10 {
        assert_eq!(
            send(number, number),
            format!("create p.Failed.{number} x1 {number}")
        );
    }
    assert_eq!(
        send(10, 10),
        "create p.Failed.10 x1 (combined from similar events): 10"
    );
    assert_eq!(
        send(11, 11),
        "patch p.Failed.10 x2 (combined from similar events): 11"
    );
    assert_eq!(
        send(3, 12),
        "patch p.Failed.3 x2 3",
        "what was told apart stays so"
    );
    assert_eq!(
        send(12, 612),
        "patch p.Failed.10 x3 (combined from similar events): 12",
        "not more than the interval ago"
    );
    assert_eq!(
        send(13, 1213),
        "create p.Failed.13 x1 13",
        "after a quiet time it begins anew"
    );
}

#[test]
fn an_object_that_never_stops_is_cut_off() {
    let mut correlator = Correlator::new();
    let mut send = |pod: &str, second: u64| correlator.correlate(event(pod, "R", "m"), at(second)).is_some();
    for _ in 0..25 {
        assert!(send("p", 0));
    }
    assert!(!send("p", 0));
    assert!(send("q", 0), "others are not");
    assert!(!send("p", 299));
    assert!(send("p", 300));
    assert!(!send("p", 301));
    for second in 0..25 {
        assert!(send("p", 100_000 + second));
    }
    assert!(!send("p", 100_026), "no more than the burst is saved up");
}

#[test]
fn memory_is_bounded() {
    let mut correlator = Correlator::new();
    for number in 0..6000 {
        correlator.correlate(event(&format!("p{number}"), "R", "m"), at(number));
    }
    assert_eq!(correlator.seen.len(), MAX_REMEMBERED);
    assert_eq!(correlator.similar.len(), MAX_REMEMBERED);
    assert_eq!(correlator.budgets.len(), MAX_REMEMBERED);
}
