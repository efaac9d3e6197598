//! Events of pods and of the node, for the API server.
//!
//! Owns the form of events, the queue in front of the one task that sends them, and what is counted. Recording never waits: what
//! does not fit into the queue is dropped and counted. What is worth an event is decided elsewhere.
//!
//! ```text
//! record ──► queue of 1000 ──► Correlator (similar ones, repeats, spam) ──► create or patch, tried up to 12 times
//! ```

mod correlate;
mod deliver;
mod fingerprint;
mod lru;
mod reference;
mod tee;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff;
use rubelet_model::Timestamp;
use rubelet_model::message::bounded;
use rubelet_model::names::is_dns_subdomain;
use rubelet_ports::api::EventWriter;
use rubelet_ports::{
    Clock, EventRecorder, EventType, NodeEvent, NodeEventRecorder, PodEvent, Randomness, Spawner,
};
use tokio::sync::mpsc;

pub use tee::{NodeTee, Tee};

use crate::figures::count;
use reference::{node_reference, pod_reference};

/// As upstream: more events than this wait only while the API server is away.
const MAX_QUEUED: usize = 1_000;
const COMPONENT: &str = "kubelet";
const DEFAULT_NAMESPACE: &str = "default";

/// The edges.
#[derive(Clone)]
pub struct EventPorts {
    pub clock: Arc<dyn Clock>,
    pub spawner: Arc<dyn Spawner>,
    pub randomness: Arc<dyn Randomness>,
    pub writer: Arc<dyn EventWriter>,
}

/// What happened to events since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventFigures {
    /// Those that the API server took, repeats included.
    pub sent: u64,
    /// The queue was full.
    pub dropped: u64,
    /// Too many of one object.
    pub filtered: u64,
    /// The API server did not take them.
    pub failed: u64,
}

#[derive(Debug, Default)]
pub(crate) struct EventCounters {
    sent: AtomicU64,
    dropped: AtomicU64,
    filtered: AtomicU64,
    failed: AtomicU64,
}

pub(crate) struct EventShared {
    ports: EventPorts,
    host: String,
    counters: EventCounters,
    /// The time in the newest event's name. Names have to differ, also when the clock stands still or goes back.
    last_name_nanos: AtomicI64,
}

/// Sends events to the API server. Handles are cheap to copy.
#[derive(Clone)]
pub struct ApiEvents {
    shared: Arc<EventShared>,
    queue: mpsc::Sender<Event>,
}

impl ApiEvents {
    /// Starts the one task that sends. `host` is the node's name, the source of every event.
    #[must_use]
    pub fn start(ports: EventPorts, host: impl Into<String>) -> Self {
        let (queue, events) = mpsc::channel(MAX_QUEUED);
        let spawner = Arc::clone(&ports.spawner);
        let shared = Arc::new(EventShared {
            ports,
            host: host.into(),
            counters: EventCounters::default(),
            last_name_nanos: AtomicI64::default(),
        });
        spawner.spawn("events", Box::pin(Arc::clone(&shared).deliver_all(events)));
        Self { shared, queue }
    }

    #[must_use]
    pub fn figures(&self) -> EventFigures {
        let counters = &self.shared.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        EventFigures {
            sent: read(&counters.sent),
            dropped: read(&counters.dropped),
            filtered: read(&counters.filtered),
            failed: read(&counters.failed),
        }
    }

    fn send(
        &self,
        object: ObjectReference,
        event_type: EventType,
        (reason, message): (Cow<'static, str>, String),
        annotations: BTreeMap<String, String>,
    ) {
        let mut event = self.shared.event(object, event_type, reason, message);
        event.metadata.annotations = Some(annotations).filter(|annotations| !annotations.is_empty());
        if self.queue.try_send(event).is_err() {
            count(&self.shared.counters.dropped);
            let dropped = self.shared.counters.dropped.load(Ordering::Relaxed);
            if dropped.is_power_of_two() {
                tracing::warn!(dropped, "Events are dropped: too many wait for the API server");
            }
        }
    }
}

impl EventRecorder for ApiEvents {
    fn record(&self, pod: &Pod, event: PodEvent) {
        let object = pod_reference(pod, event.container.as_deref());
        let text = (event.reason, event.message);
        self.send(object, event.event_type, text, event.annotations);
    }
}

impl NodeEventRecorder for ApiEvents {
    fn record_node(&self, event: NodeEvent) {
        let object = node_reference(&self.shared.host, event.node_uid);
        let text = (event.reason, event.message);
        self.send(object, event.event_type, text, BTreeMap::new());
    }
}

impl EventShared {
    fn event(
        &self,
        object: ObjectReference,
        event_type: EventType,
        reason: Cow<'static, str>,
        message: String,
    ) -> Event {
        let now = self.ports.clock.now();
        let at = api_time(now);
        Event {
            metadata: ObjectMeta {
                name: Some(self.new_name(&object, now)),
                namespace: Some(namespace_of(&object)),
                ..ObjectMeta::default()
            },
            involved_object: object,
            type_: Some(event_type.as_str().to_owned()),
            reason: Some(reason.into_owned()),
            message: Some(bounded(message)),
            count: Some(1),
            first_timestamp: at.clone(),
            last_timestamp: at,
            source: Some(EventSource {
                component: Some(COMPONENT.to_owned()),
                host: Some(self.host.clone()),
            }),
            reporting_component: Some(COMPONENT.to_owned()),
            reporting_instance: Some(self.host.clone()),
            ..Event::default()
        }
    }

    /// `<object>.<time in hex>`, or a random UUID where that would be no name.
    fn new_name(&self, object: &ObjectReference, now: Timestamp) -> String {
        let now = now.unix_nanos();
        let later = |last: i64| Some(now.max(last.saturating_add(1)));
        let last = self
            .last_name_nanos
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, later)
            .unwrap_or_default();
        let nanos = now.max(last.saturating_add(1));
        let name = format!("{}.{nanos:x}", object.name.as_deref().unwrap_or_default());
        if is_dns_subdomain(&name) {
            return name;
        }
        let (high, low) = (self.ports.randomness.number(), self.ports.randomness.number());
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xfff,
            0x8000 | ((low >> 48) & 0x3fff),
            low & 0xffff_ffff_ffff
        )
    }
}

fn namespace_of(object: &ObjectReference) -> String {
    let namespace = object.namespace.clone().filter(|namespace| !namespace.is_empty());
    namespace.unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned())
}

/// Events have whole seconds.
fn api_time(at: Timestamp) -> Option<Time> {
    jiff::Timestamp::from_second(at.unix_seconds()).ok().map(Time)
}
