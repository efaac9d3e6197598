//! Events on their way to the API server.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Event, Pod};
use rubelet_model::message::MAX_MESSAGE_BYTES;
use rubelet_ports::api::{ApiError, ApiErrorKind, EventWriter};
use rubelet_ports::{Clock, EventRecorder, EventType, NodeEvent, NodeEventRecorder, PodEvent};
use rubelet_reporting::events::{ApiEvents, EventPorts, Tee};
use rubelet_sim::dice::SharedDice;
use rubelet_sim::executor::{Executor, Step};
use serde_json::{Value, json};

use crate::bed::{pod, static_pod};

#[derive(Default)]
struct Sink {
    events: BTreeMap<(String, String), Value>,
    calls: Vec<String>,
    answers: VecDeque<ApiErrorKind>,
    is_down: bool,
}

struct FakeEvents {
    clock: Executor,
    sink: Arc<Mutex<Sink>>,
}

impl FakeEvents {
    async fn call(
        &self,
        what: String,
        effect: impl FnOnce(&mut Sink) -> Result<Value, ApiErrorKind>,
    ) -> Result<Event, ApiError> {
        self.clock.sleep(Duration::from_millis(5)).await;
        let mut sink = self.sink.lock().unwrap();
        sink.calls.push(what.clone());
        let result = match sink.answers.pop_front() {
            Some(kind) => Err(kind),
            None if sink.is_down => Err(ApiErrorKind::Unreachable),
            None => effect(&mut sink),
        };
        let event = result.map_err(|kind| ApiError::new(what, kind, "as told"))?;
        Ok(serde_json::from_value(event).unwrap())
    }
}

#[async_trait]
impl EventWriter for FakeEvents {
    async fn create_event(&self, event: &Event) -> Result<Event, ApiError> {
        let event = json!(event);
        let text = |field: &str| event["metadata"][field].as_str().unwrap().to_owned();
        let key = (text("namespace"), text("name"));
        let what = format!("create {}", event["reason"].as_str().unwrap());
        self.call(what, |sink| {
            if sink.events.contains_key(&key) {
                return Err(ApiErrorKind::AlreadyExists);
            }
            sink.events.insert(key, event.clone());
            Ok(event)
        })
        .await
    }

    async fn patch_event(&self, namespace: &str, name: &str, patch: Value) -> Result<Event, ApiError> {
        let key = (namespace.to_owned(), name.to_owned());
        self.call("patch".to_owned(), |sink| {
            let event = sink.events.get_mut(&key).ok_or(ApiErrorKind::NotFound)?;
            for (field, value) in patch.as_object().unwrap() {
                event[field] = value.clone();
            }
            Ok(event.clone())
        })
        .await
    }
}

struct Bed {
    executor: Executor,
    sink: Arc<Mutex<Sink>>,
    events: ApiEvents,
}

impl Bed {
    fn new() -> Self {
        let executor = Executor::new(1);
        let sink = Arc::default();
        let ports = EventPorts {
            clock: Arc::new(executor.clone()),
            spawner: Arc::new(executor.life()),
            randomness: Arc::new(SharedDice::new(1, "events")),
            writer: Arc::new(FakeEvents {
                clock: executor.clone(),
                sink: Arc::clone(&sink),
            }),
        };
        Self {
            events: ApiEvents::start(ports, "node"),
            executor,
            sink,
        }
    }

    fn record(&self, pod: &Value, event: PodEvent) {
        let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
        self.events.record(&pod, event);
    }

    fn pass(&self, time: Duration) {
        let end = self.executor.elapsed() + time;
        while self.executor.elapsed() < end {
            if self.executor.step() == Step::Idle {
                self.executor.advance(end);
            }
        }
        assert_eq!(self.executor.take_panics(), Vec::<String>::new());
    }

    fn sink<T>(&self, look: impl FnOnce(&mut Sink) -> T) -> T {
        look(&mut self.sink.lock().unwrap())
    }

    fn calls(&self) -> Vec<String> {
        self.sink(|sink| std::mem::take(&mut sink.calls))
    }

    /// All events that the API server has.
    fn stored(&self) -> Vec<Value> {
        self.sink(|sink| sink.events.values().cloned().collect())
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn an_event_of_a_container() {
    let bed = Bed::new();
    let mut web = pod("web");
    web["metadata"]["resourceVersion"] = "17".into();
    bed.record(
        &web,
        PodEvent::normal("Started", "Container started").of_container("main"),
    );
    bed.pass(SECOND);
    let mut event = bed.stored().pop().unwrap();
    let name = event["metadata"]["name"].take();
    let nanos = name.as_str().unwrap().strip_prefix("web.").unwrap();
    assert_eq!(i64::from_str_radix(nanos, 16).unwrap(), 1_767_225_600_000_000_000);
    assert_eq!(
        event,
        json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"name": null, "namespace": "default"},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "web", "uid": "uid-web",
                "resourceVersion": "17", "fieldPath": "spec.containers{main}"},
            "type": "Normal", "reason": "Started", "message": "Container started", "count": 1,
            "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z",
            "source": {"component": "kubelet", "host": "node"},
            "reportingComponent": "kubelet", "reportingInstance": "node",
        })
    );
}

#[test]
fn where_a_container_stands() {
    let check = |container: &str, expected: &str| {
        let bed = Bed::new();
        let mut web = pod("web");
        web["spec"]["initContainers"] = json!([{"name": "first"}]);
        web["spec"]["ephemeralContainers"] = json!([{"name": "debug"}]);
        bed.record(&web, PodEvent::normal("Pulled", "m").of_container(container));
        bed.pass(SECOND);
        assert_eq!(bed.stored()[0]["involvedObject"]["fieldPath"], expected);
    };
    check("main", "spec.containers{main}");
    check("first", "spec.initContainers{first}");
    check("debug", "spec.ephemeralContainers{debug}");
    check("none", "implicitly required container none");
}

#[test]
fn a_static_pod_is_named_by_its_own_uid() {
    let bed = Bed::new();
    bed.record(&static_pod("web", "h1"), PodEvent::warning("BackOff", "m"));
    bed.pass(SECOND);
    assert_eq!(bed.stored()[0]["involvedObject"]["uid"], "h1");
}

#[test]
fn events_of_the_node_are_in_the_default_namespace() {
    let bed = Bed::new();
    let event = |node_uid: Option<&str>| NodeEvent {
        event_type: EventType::Warning,
        reason: "Rebooted".into(),
        message: "m".to_owned(),
        node_uid: node_uid.map(ToOwned::to_owned),
    };
    bed.events.record_node(event(None));
    bed.events.record_node(event(Some("u")));
    bed.pass(SECOND);
    let stored = bed.stored();
    assert_eq!(stored.len(), 2, "they are of two objects");
    assert_eq!(stored[0]["metadata"]["namespace"], "default");
    assert_eq!(
        stored[0]["involvedObject"],
        json!({"apiVersion": "v1", "kind": "Node", "name": "node"})
    );
    assert_eq!(stored[1]["involvedObject"]["uid"], "u");
}

#[test]
fn the_same_again_is_counted_and_comes_back_when_forgotten() {
    let bed = Bed::new();
    for _ in 0..3 {
        bed.record(&pod("web"), PodEvent::warning("BackOff", "again"));
        bed.pass(SECOND * 5);
    }
    assert_eq!(bed.calls(), ["create BackOff", "patch", "patch"]);
    let stored = bed.stored();
    assert_eq!(stored.len(), 1);
    assert_eq!(stored[0]["count"], 3);
    assert_eq!(stored[0]["firstTimestamp"], "2026-01-01T00:00:00Z");
    assert_eq!(stored[0]["lastTimestamp"], "2026-01-01T00:00:10Z");
    bed.sink(|sink| sink.events.clear());
    bed.record(&pod("web"), PodEvent::warning("BackOff", "again"));
    bed.pass(SECOND);
    assert_eq!(bed.calls(), ["patch", "create BackOff"]);
    assert_eq!(bed.stored()[0]["count"], 4);
    assert_eq!(bed.events.figures().sent, 4);
}

#[test]
fn an_outage_keeps_the_order_and_ends() {
    let bed = Bed::new();
    bed.sink(|sink| sink.is_down = true);
    for number in 0..3 {
        bed.record(&pod("web"), PodEvent::normal(format!("R{number}"), "m"));
    }
    bed.pass(SECOND * 60);
    let tries = bed.calls();
    assert!((5..=8).contains(&tries.len()), "{tries:?}");
    assert!(
        tries.iter().all(|call| call == "create R0"),
        "all wait behind the first"
    );
    bed.sink(|sink| sink.is_down = false);
    bed.pass(SECOND * 15);
    assert_eq!(bed.calls(), ["create R0", "create R1", "create R2"]);
    // Longer than all tries of an event take.
    bed.sink(|sink| sink.is_down = true);
    bed.record(&pod("web"), PodEvent::normal("R3", "m"));
    bed.pass(SECOND * 150);
    assert_eq!(bed.calls().len(), 12);
    assert_eq!(bed.events.figures().failed, 1);
}

#[test]
fn what_is_refused_is_not_tried_again() {
    for kind in [
        ApiErrorKind::Forbidden,
        ApiErrorKind::Invalid,
        ApiErrorKind::NotFound,
        ApiErrorKind::AlreadyExists,
    ] {
        let bed = Bed::new();
        bed.sink(|sink| sink.answers.push_back(kind));
        bed.record(&pod("web"), PodEvent::normal("R", "m"));
        bed.record(&pod("web"), PodEvent::normal("S", "m"));
        bed.pass(SECOND * 30);
        assert_eq!(bed.calls(), ["create R", "create S"], "{kind:?}");
        assert_eq!(bed.events.figures().failed, 1);
    }
}

#[test]
fn too_many_are_dropped_and_counted() {
    let bed = Bed::new();
    bed.sink(|sink| sink.is_down = true);
    for number in 0..1_200 {
        bed.record(&pod(&format!("p{number}")), PodEvent::normal("R", "m"));
    }
    assert_eq!(bed.events.figures().dropped, 200);
    bed.sink(|sink| sink.is_down = false);
    bed.pass(SECOND * 60);
    assert_eq!(bed.events.figures().sent, 1_000);
    for _ in 0..40 {
        bed.record(&pod("p0"), PodEvent::normal("R", "m"));
    }
    bed.pass(SECOND * 10);
    let figures = bed.events.figures();
    assert_eq!(
        (figures.sent, figures.filtered),
        (1_024, 16),
        "an object has 25 at once"
    );
}

#[test]
fn names_differ_and_are_names() {
    let bed = Bed::new();
    let long = "x".repeat(245);
    for number in 0..5 {
        bed.record(&pod("web"), PodEvent::normal("R", number.to_string()));
        bed.record(&pod(&long), PodEvent::normal("R", number.to_string()));
    }
    bed.pass(SECOND);
    let stored = bed.stored();
    assert_eq!(stored.len(), 10);
    let names = stored
        .iter()
        .map(|event| event["metadata"]["name"].as_str().unwrap());
    for name in names.filter(|name| !name.starts_with("web.")) {
        let parts: Vec<usize> = name.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12], "{name}");
    }
}

#[test]
fn long_messages_are_cut_between_characters() {
    let bed = Bed::new();
    bed.record(&pod("web"), PodEvent::normal("R", "é".repeat(10_000)));
    bed.pass(SECOND);
    let stored = bed.stored();
    let message = stored[0]["message"].as_str().unwrap();
    assert!(message.len() <= MAX_MESSAGE_BYTES && message.ends_with("é…"));
}

#[test]
fn a_tee_tells_everybody() {
    let (one, other) = (Bed::new(), Bed::new());
    let tee = Tee(vec![Arc::new(one.events.clone()), Arc::new(other.events.clone())]);
    let web: Pod = serde_json::from_value(pod("web")).unwrap();
    tee.record(&web, PodEvent::normal("R", "m"));
    for bed in [one, other] {
        bed.pass(SECOND);
        assert_eq!(bed.stored().len(), 1);
    }
}
