//! Events of pods, kept on the node: the newest in memory, each new one in the log.
//!
//! Owns the newest events and how often a repeated one is logged. It never waits, and it does not decide what is worth an event.
//! Events go to the API server through the reporter's own sink; here they are kept for nodes without one and for `rubelet why`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff;
use rubelet_model::Timestamp;
use rubelet_model::message::bounded;
use rubelet_model::pod::{name_of, namespace_of, uid_text};
use rubelet_ports::{Clock, EventRecorder, EventType, Moment, PodEvent};
use serde_json::Value;

const MAX_EVENTS: usize = 1_000;
const COMPONENT: &str = "kubelet";
const FIRST_LOG_GAP: Duration = Duration::from_secs(60);
const MAX_LOG_GAP: Duration = Duration::from_secs(3600);

/// What makes two events the same one, seen twice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct EventKey {
    namespace: String,
    pod: String,
    uid: String,
    container: Option<String>,
    event_type: EventType,
    reason: Cow<'static, str>,
    message: String,
}

#[derive(Clone, Debug)]
struct Entry {
    key: Arc<EventKey>,
    name: String,
    resource_version: Option<String>,
    field_path: Option<String>,
    /// Of the newest occurrence.
    annotations: BTreeMap<String, String>,
    count: i32,
    first_at: Timestamp,
    last_at: Timestamp,
    logged_at: Moment,
    log_gap: Duration,
}

#[derive(Debug, Default)]
struct Memory {
    last_number: u64,
    /// The time in the newest event's name. Names have to differ, also when the clock stands still or goes back.
    last_name_nanos: i64,
    /// By the number of the latest occurrence, so that the first is the one to forget.
    entries: BTreeMap<u64, Entry>,
    numbers: BTreeMap<Arc<EventKey>, u64>,
}

impl Memory {
    fn insert(&mut self, entry: Entry) {
        self.last_number += 1;
        self.numbers.insert(Arc::clone(&entry.key), self.last_number);
        self.entries.insert(self.last_number, entry);
        if self.entries.len() > MAX_EVENTS
            && let Some((_, forgotten)) = self.entries.pop_first()
        {
            self.numbers.remove(&forgotten.key);
        }
    }

    fn take(&mut self, key: &EventKey) -> Option<Entry> {
        let number = self.numbers.remove(key)?;
        self.entries.remove(&number)
    }

    fn new_name(&mut self, pod: &str, now: Timestamp) -> String {
        self.last_name_nanos = now.unix_nanos().max(self.last_name_nanos.saturating_add(1));
        format!("{pod}.{:x}", self.last_name_nanos)
    }
}

/// The newest events of the node's pods.
pub struct EventLog {
    clock: Arc<dyn Clock>,
    host: String,
    /// Held for a few instructions, never across an await, so that recording does not block.
    memory: Mutex<Memory>,
}

impl EventLog {
    /// `host` is the node's name, the source of every event.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, host: impl Into<String>) -> Self {
        Self {
            clock,
            host: host.into(),
            memory: Mutex::default(),
        }
    }

    /// All events in the form of core/v1, the latest last.
    #[must_use]
    pub fn snapshot(&self) -> Vec<Value> {
        let entries: Vec<Entry> = self.memory().entries.values().cloned().collect();
        entries
            .into_iter()
            .filter_map(|entry| serde_json::to_value(api_event(entry, &self.host)).ok())
            .collect()
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        // A panic elsewhere cannot leave the memory half changed: nothing in here calls out.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes an event, and tells how often it was seen if that is to be logged.
    fn note(&self, key: &Arc<EventKey>, pod: &Pod, annotations: BTreeMap<String, String>) -> Option<i32> {
        let (now, moment) = (self.clock.now(), self.clock.moment());
        let mut memory = self.memory();
        let Some(mut entry) = memory.take(key) else {
            let name = memory.new_name(&key.pod, now);
            memory.insert(Entry {
                name,
                resource_version: pod.metadata.resource_version.clone(),
                field_path: key.container.as_deref().map(|name| field_path(pod, name)),
                key: Arc::clone(key),
                annotations,
                count: 1,
                first_at: now,
                last_at: now,
                logged_at: moment,
                log_gap: FIRST_LOG_GAP,
            });
            return Some(1);
        };
        entry.count = entry.count.saturating_add(1);
        entry.annotations = annotations;
        entry.last_at = now;
        let is_due = moment.since(entry.logged_at) >= entry.log_gap;
        if is_due {
            entry.logged_at = moment;
            entry.log_gap = (entry.log_gap * 2).min(MAX_LOG_GAP);
        }
        let count = entry.count;
        memory.insert(entry);
        is_due.then_some(count)
    }
}

impl EventRecorder for EventLog {
    fn record(&self, pod: &Pod, event: PodEvent) {
        let key = Arc::new(EventKey {
            namespace: namespace_of(pod).to_owned(),
            pod: name_of(pod).to_owned(),
            uid: uid_text(pod).to_owned(),
            container: event.container,
            event_type: event.event_type,
            reason: event.reason,
            message: bounded(event.message),
        });
        if let Some(count) = self.note(&key, pod, event.annotations) {
            log(&key, count);
        }
    }
}

fn log(key: &EventKey, count: i32) {
    let container = key.container.as_deref().unwrap_or_default();
    let (namespace, pod, uid) = (&key.namespace, &key.pod, &key.uid);
    let (reason, note) = (key.reason.as_ref(), &key.message);
    match key.event_type {
        EventType::Normal => {
            tracing::info!(namespace, pod, uid, container, reason, note, count, "pod event");
        }
        EventType::Warning => {
            tracing::warn!(namespace, pod, uid, container, reason, note, count, "pod event");
        }
    }
}

/// Where the container stands in the pod.
fn field_path(pod: &Pod, container: &str) -> String {
    let spec = pod.spec.as_ref();
    let is_init = spec
        .and_then(|spec| spec.init_containers.as_ref())
        .is_some_and(|list| list.iter().any(|one| one.name == container));
    let is_ephemeral = spec
        .and_then(|spec| spec.ephemeral_containers.as_ref())
        .is_some_and(|list| list.iter().any(|one| one.name == container));
    let list = match (is_init, is_ephemeral) {
        (true, _) => "initContainers",
        (false, true) => "ephemeralContainers",
        (false, false) => "containers",
    };
    format!("spec.{list}{{{container}}}")
}

fn api_time(at: Timestamp) -> Option<Time> {
    // Events have whole seconds.
    jiff::Timestamp::from_second(at.unix_seconds()).ok().map(Time)
}

fn api_event(entry: Entry, host: &str) -> Event {
    let key = Arc::unwrap_or_clone(entry.key);
    let namespace = if key.namespace.is_empty() {
        "default".to_owned()
    } else {
        key.namespace.clone()
    };
    Event {
        metadata: ObjectMeta {
            name: Some(entry.name),
            namespace: Some(namespace),
            annotations: Some(entry.annotations).filter(|annotations| !annotations.is_empty()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(key.namespace),
            name: Some(key.pod),
            uid: Some(key.uid),
            resource_version: entry.resource_version,
            field_path: entry.field_path,
        },
        type_: Some(key.event_type.as_str().to_owned()),
        reason: Some(key.reason.clone().into_owned()),
        message: Some(key.message),
        count: Some(entry.count),
        first_timestamp: api_time(entry.first_at),
        last_timestamp: api_time(entry.last_at),
        source: Some(EventSource {
            component: Some(COMPONENT.to_owned()),
            host: Some(host.to_owned()),
        }),
        reporting_component: Some(COMPONENT.to_owned()),
        reporting_instance: Some(host.to_owned()),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests;
