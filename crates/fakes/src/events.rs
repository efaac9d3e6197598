//! Recorders that keep every event, for a test to show as it needs.

use std::mem::take;
use std::sync::{Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::Pod;
use rubelet_ports::{EventRecorder, NodeEvent, NodeEventRecorder, PodEvent};

/// An event with the UID of its pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    pub pod_uid: String,
    pub event: PodEvent,
}

impl Recorded {
    /// `reason: message`.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{}: {}", self.event.reason, self.event.message)
    }

    /// `type reason: message`.
    #[must_use]
    pub fn typed_text(&self) -> String {
        format!("{} {}", self.event.event_type.as_str(), self.text())
    }
}

/// Events about pods, in order.
#[derive(Debug, Default)]
pub struct PodEvents(Mutex<Vec<Recorded>>);

impl PodEvents {
    /// All events so far that were not taken.
    #[must_use]
    pub fn all(&self) -> Vec<Recorded> {
        lock(&self.0).clone()
    }

    /// The events since the last take.
    pub fn take(&self) -> Vec<Recorded> {
        take(&mut *lock(&self.0))
    }
}

impl EventRecorder for PodEvents {
    fn record(&self, pod: &Pod, event: PodEvent) {
        let pod_uid = pod.metadata.uid.clone().unwrap_or_default();
        lock(&self.0).push(Recorded { pod_uid, event });
    }
}

/// Events about the node, in order.
#[derive(Debug, Default)]
pub struct NodeEvents(Mutex<Vec<NodeEvent>>);

impl NodeEvents {
    /// All events so far that were not taken.
    #[must_use]
    pub fn all(&self) -> Vec<NodeEvent> {
        lock(&self.0).clone()
    }

    /// The events since the last take.
    pub fn take(&self) -> Vec<NodeEvent> {
        take(&mut *lock(&self.0))
    }
}

impl NodeEventRecorder for NodeEvents {
    fn record_node(&self, event: NodeEvent) {
        lock(&self.0).push(event);
    }
}

/// A test that panicked while it recorded has failed already.
fn lock<T>(list: &Mutex<T>) -> MutexGuard<'_, T> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}
