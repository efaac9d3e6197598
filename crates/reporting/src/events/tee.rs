//! Fan-out of one event to several recorders.
//!
//! Owns the list of recorders, for pods and for the node. It changes no event.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use rubelet_ports::{EventRecorder, NodeEvent, NodeEventRecorder, PodEvent};

/// Passes each event of a pod to all of them.
pub struct Tee(pub Vec<Arc<dyn EventRecorder>>);

impl EventRecorder for Tee {
    fn record(&self, pod: &Pod, event: PodEvent) {
        for one in &self.0 {
            one.record(pod, event.clone());
        }
    }
}

/// Passes each event of the node to all of them.
pub struct NodeTee(pub Vec<Arc<dyn NodeEventRecorder>>);

impl NodeEventRecorder for NodeTee {
    fn record_node(&self, event: NodeEvent) {
        for one in &self.0 {
            one.record_node(event.clone());
        }
    }
}
