use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, pending};
use k8s_openapi::api::core::v1::{Container, EphemeralContainer, PodSpec};
use proptest::prelude::*;
use rubelet_model::message::MAX_MESSAGE_BYTES;
use serde_json::json;

use super::*;

/// A clock that stands still until it is told.
#[derive(Default)]
struct StillClock {
    seconds: AtomicU64,
}

impl Clock for StillClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_unix_seconds(1_700_000_000)
            .plus(Duration::from_secs(self.seconds.load(Ordering::Relaxed)))
    }

    fn moment(&self) -> Moment {
        Moment::from_start(Duration::from_secs(self.seconds.load(Ordering::Relaxed)))
    }

    /// Nothing here sleeps, and whoever would never wakes.
    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        pending().boxed()
    }
}

fn log() -> (EventLog, Arc<StillClock>) {
    let clock = Arc::new(StillClock::default());
    let log = EventLog::new(Arc::clone(&clock) as Arc<dyn Clock>, "node-1");
    (log, clock)
}

fn pod(name: &str) -> Pod {
    let named = |name: &str| Container {
        name: name.to_owned(),
        ..Container::default()
    };
    let mut pod = Pod::default();
    pod.metadata.namespace = Some("ns".to_owned());
    pod.metadata.name = Some(name.to_owned());
    pod.metadata.uid = Some(format!("{name}-uid"));
    pod.spec = Some(PodSpec {
        containers: vec![named("main")],
        init_containers: Some(vec![named("setup")]),
        ephemeral_containers: Some(vec![EphemeralContainer {
            name: "debug".to_owned(),
            ..EphemeralContainer::default()
        }]),
        ..PodSpec::default()
    });
    pod
}

fn counts(log: &EventLog) -> Vec<(String, i64)> {
    log.snapshot()
        .iter()
        .map(|event| {
            (
                event["message"].as_str().unwrap_or_default().to_owned(),
                event["count"].as_i64().unwrap_or_default(),
            )
        })
        .collect()
}

#[test]
fn an_event_looks_like_kubernetes_own() {
    let (log, clock) = log();
    log.record(&pod("a"), PodEvent::warning("Failed", "no").of_container("main"));
    clock.seconds.store(90, Ordering::Relaxed);
    log.record(&pod("a"), PodEvent::warning("Failed", "no").of_container("main"));
    assert_eq!(
        log.snapshot(),
        [json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "a.17979cfe362a0000", "namespace": "ns"},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": "ns",
                "name": "a",
                "uid": "a-uid",
                "fieldPath": "spec.containers{main}",
            },
            "type": "Warning",
            "reason": "Failed",
            "message": "no",
            "count": 2,
            "firstTimestamp": "2023-11-14T22:13:20Z",
            "lastTimestamp": "2023-11-14T22:14:50Z",
            "source": {"component": "kubelet", "host": "node-1"},
            "reportingComponent": "kubelet",
            "reportingInstance": "node-1",
        })]
    );
}

#[test]
fn the_field_path_says_which_list() {
    let (log, _) = log();
    let check = |container: Option<&str>, expected: Option<&str>| {
        let event = PodEvent::normal("Started", format!("{container:?}"));
        let event = match container {
            Some(name) => event.of_container(name),
            None => event,
        };
        log.record(&pod("a"), event);
        let events = log.snapshot();
        let path = events
            .last()
            .and_then(|event| event["involvedObject"]["fieldPath"].as_str());
        assert_eq!(path, expected);
    };
    check(None, None);
    check(Some("main"), Some("spec.containers{main}"));
    check(Some("setup"), Some("spec.initContainers{setup}"));
    check(Some("debug"), Some("spec.ephemeralContainers{debug}"));
}

#[test]
fn equal_events_are_counted_and_others_are_apart() {
    let (log, _) = log();
    let event = || PodEvent::normal("Pulling", "x").of_container("main");
    log.record(&pod("a"), event());
    log.record(&pod("a"), PodEvent::normal("Pulling", "y").of_container("main"));
    log.record(&pod("a"), event());
    log.record(&pod("b"), event());
    log.record(&pod("a"), PodEvent::normal("Pulling", "x").of_container("setup"));
    log.record(&pod("a"), PodEvent::normal("Pulled", "x").of_container("main"));
    let seen =
        [("y", 1), ("x", 2), ("x", 1), ("x", 1), ("x", 1)].map(|(text, count)| (text.to_owned(), count));
    assert_eq!(counts(&log), seen);
}

#[test]
fn names_differ_though_the_clock_stands_still() {
    let (log, _) = log();
    for text in ["x", "y"] {
        log.record(&pod("a"), PodEvent::normal("Started", text));
    }
    let events = log.snapshot();
    assert_ne!(events[0]["metadata"]["name"], events[1]["metadata"]["name"]);
}

#[test]
fn only_the_newest_are_kept() {
    let (log, _) = log();
    let record = |number: usize| log.record(&pod("a"), PodEvent::normal("Started", number.to_string()));
    (0..MAX_EVENTS).for_each(record);
    // Seen again, it is not the oldest any more.
    record(0);
    record(MAX_EVENTS);
    let events = counts(&log);
    assert_eq!(events.len(), MAX_EVENTS);
    assert_eq!(events[0].0, "2");
    assert_eq!(events[MAX_EVENTS - 2], ("0".to_owned(), 2));
    assert_eq!(log.memory().numbers.len(), MAX_EVENTS);
}

#[test]
fn repeated_events_are_logged_with_growing_gaps() {
    let (log, clock) = log();
    let mut logged = Vec::new();
    for second in 0..20_000 {
        clock.seconds.store(second, Ordering::Relaxed);
        let key = Arc::new(EventKey {
            namespace: String::new(),
            pod: "a".to_owned(),
            uid: String::new(),
            container: None,
            event_type: EventType::Normal,
            reason: "BackOff".into(),
            message: String::new(),
        });
        if log.note(&key, &pod("a"), BTreeMap::new()).is_some() {
            logged.push(second);
        }
    }
    assert_eq!(
        logged,
        [0, 60, 180, 420, 900, 1860, 3780, 7380, 10_980, 14_580, 18_180]
    );
}

#[test]
fn long_messages_are_cut() {
    let (log, _) = log();
    log.record(
        &pod("a"),
        PodEvent::normal("Started", "é".repeat(MAX_MESSAGE_BYTES)),
    );
    let (message, _) = counts(&log).remove(0);
    assert!(message.len() <= MAX_MESSAGE_BYTES);
    assert!(message.ends_with("é…"));
}

proptest! {
    #[test]
    fn nothing_is_lost_while_there_is_room(events in proptest::collection::vec((0_u8..3, 0_u8..5), 0..200)) {
        let (log, _) = log();
        for (name, text) in &events {
            log.record(&pod(&name.to_string()), PodEvent::normal("Started", text.to_string()));
        }
        let total: i64 = counts(&log).iter().map(|(_, count)| count).sum();
        prop_assert_eq!(usize::try_from(total), Ok(events.len()));
        let memory = log.memory();
        prop_assert_eq!(memory.entries.len(), memory.numbers.len());
    }
}
