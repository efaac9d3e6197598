//! Events about pods and about the node.
//!
//! Owns the shape of an event as Kubernetes has it. Recording never waits and never fails; nothing secret may be in a message.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventType {
    Normal,
    Warning,
}

impl EventType {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEvent {
    pub event_type: EventType,
    /// Upstream's reason, e.g. `Started`.
    pub reason: Cow<'static, str>,
    pub message: String,
    /// The container that it is about.
    pub container: Option<String>,
    /// For programs that read events.
    pub annotations: BTreeMap<String, String>,
}

impl PodEvent {
    #[must_use]
    pub fn normal(reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self {
            event_type: EventType::Normal,
            reason: reason.into(),
            message: message.into(),
            container: None,
            annotations: BTreeMap::new(),
        }
    }

    #[must_use]
    pub fn warning(reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self {
            event_type: EventType::Warning,
            ..Self::normal(reason, message)
        }
    }

    #[must_use]
    pub fn of_container(self, name: impl Into<String>) -> Self {
        Self {
            container: Some(name.into()),
            ..self
        }
    }

    #[must_use]
    pub fn annotated(self, annotations: BTreeMap<String, String>) -> Self {
        Self { annotations, ..self }
    }
}

pub trait EventRecorder: Send + Sync {
    fn record(&self, pod: &Pod, event: PodEvent);
}

/// Records events about the node.
pub trait NodeEventRecorder: Send + Sync {
    fn record_node(&self, event: NodeEvent);
}

/// Drops events about the node.
#[derive(Clone, Copy, Debug)]
pub struct NoNodeEvents;

impl NodeEventRecorder for NoNodeEvents {
    fn record_node(&self, _: NodeEvent) {}
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEvent {
    pub event_type: EventType,
    pub reason: Cow<'static, str>,
    pub message: String,
    /// Of the Node object, once it is known; without it the event names the node only.
    pub node_uid: Option<String>,
}
