//! One event, several listeners.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use rubelet_ports::{EventRecorder, NodeEvent, NodeEventRecorder, PodEvent};

/// Tells all of them of each event of a pod.
pub struct Tee(pub Vec<Arc<dyn EventRecorder>>);

impl EventRecorder for Tee {
    fn record(&self, pod: &Pod, event: PodEvent) {
        for one in &self.0 {
            one.record(pod, event.clone());
        }
    }
}

/// Tells all of them of each event of the node.
pub struct NodeTee(pub Vec<Arc<dyn NodeEventRecorder>>);

impl NodeEventRecorder for NodeTee {
    fn record_node(&self, event: NodeEvent) {
        for one in &self.0 {
            one.record_node(event.clone());
        }
    }
}
