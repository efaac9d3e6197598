//! The node as it is while pods come: its Node object, what it runs short of, and whether it shuts down.
//!
//! Owns how admission sees the node. Which tasks follow the Node object, watch for pressure and follow shutdowns is not known here.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use rubelet_model::Pressure;
use rubelet_ports::HostIps;
use rubelet_ports::api::NodeReader;
use rubelet_resources::admission::NodeView;
use tokio::sync::watch;

/// What is known at any moment, and whom to ask for more.
#[derive(Clone)]
pub struct NodeNow {
    /// The Node object as it was seen last; nothing without an API server, or before it was seen.
    pub object: watch::Receiver<Option<Arc<Node>>>,
    /// Nothing until the first look.
    pub pressure: watch::Receiver<Option<Pressure>>,
    /// Whether the machine shuts down.
    pub shutting_down: watch::Receiver<bool>,
    /// For a second look, when nothing but its labels speaks against a pod.
    pub reader: Option<Arc<dyn NodeReader>>,
    /// The node's addresses, as pods see them (`status.hostIPs`).
    pub host_ips: Arc<dyn HostIps>,
}

impl NodeNow {
    /// A node without an API server.
    #[must_use]
    pub fn standalone() -> Self {
        Self {
            object: watch::channel(None).1,
            pressure: watch::channel(None).1,
            shutting_down: watch::channel(false).1,
            reader: None,
            host_ips: Arc::new(Vec::new()),
        }
    }

    /// Of the Node object, once it was seen.
    pub(crate) fn uid(&self) -> Option<String> {
        self.object.borrow().as_ref()?.metadata.uid.clone()
    }

    /// How admission sees the node, by this object if one is given and by the last one seen otherwise.
    pub(crate) fn view(&self, fresh: Option<&Node>) -> NodeView {
        let pressure = self.pressure.borrow().unwrap_or_default();
        let is_shutting_down = *self.shutting_down.borrow();
        match fresh {
            Some(node) => NodeView::of(Some(node), pressure, is_shutting_down),
            None => NodeView::of(self.object.borrow().as_deref(), pressure, is_shutting_down),
        }
    }
}
