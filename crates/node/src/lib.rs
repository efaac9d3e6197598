//! The node itself, beside its pods: its Node object, and the packet filter chains that other programs rely on.
//!
//! Owns the helper chains of the packet filter, the Node object (registration, status, lease, pod CIDRs) and
//! the events about it. It must not know the program that changes the filter, nor the client of the API server: they come
//! through ports.
//!
//! ```text
//! runtime, pressure, volumes ──► NodeObject ── create, patch ──► API server
//!                                  ▲  │                          │
//!                                  │  └──► handle: the Node      │
//!                                  └───────── changes ───────────┘
//! lease task ── get, create, replace, every quarter of its duration ──► API server
//! ```

mod facts;
mod heartbeat;
mod host_ips;
mod lease;
mod metrics;
mod node_object;
mod own_node;
pub mod packet_filter;
mod pod_network;
mod registration;
pub mod settings;
pub mod status;

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt as _;
use k8s_openapi::api::core::v1::Node;
use tokio::sync::watch;

pub use host_ips::{HostIpsPorts, NodeHostIps};
pub use metrics::{Beginnings, NodeMetrics};
pub use settings::{
    AddressSettings, DeclaredFeatureGates, MachineFacts, NodeInputs, NodePorts, NodeSettings,
    RegistrationSettings, ReportingSettings,
};

use crate::lease::LeaseTask;
use crate::node_object::NodeObject;
use crate::own_node::OwnNode;

/// The Node object, for the other components of this node.
#[derive(Clone, Debug)]
pub struct NodeHandle {
    object: watch::Receiver<Option<Arc<Node>>>,
    defect: watch::Receiver<Option<String>>,
}

impl NodeHandle {
    /// The Node as the API server has it; `None` until it is known, and while it is deleted.
    #[must_use]
    pub fn object(&self) -> watch::Receiver<Option<Arc<Node>>> {
        self.object.clone()
    }

    /// Ends when the Node is first known.
    pub fn known(&self) -> impl Future<Output = Arc<Node>> + Send + 'static {
        first(self.object.clone())
    }

    /// Ends with a task's panic message when a defect stops the node.
    pub fn failed(&self) -> impl Future<Output = String> + Send + 'static {
        first(self.defect.clone())
    }
}

/// The first value there is. A watch whose sender is gone has none any more.
async fn first<T: Clone>(mut values: watch::Receiver<Option<T>>) -> T {
    let found = values.wait_for(Option::is_some).await;
    let found = found.ok().and_then(|value| value.clone());
    match found {
        Some(value) => value,
        None => std::future::pending().await,
    }
}

/// Registers the node and keeps its object and its lease, for as long as the program runs.
#[must_use]
pub fn start(ports: NodePorts, settings: NodeSettings, inputs: NodeInputs) -> NodeHandle {
    let (own_node, object) = OwnNode::new();
    let (defects, defect) = watch::channel(None);
    let defects = Arc::new(defects);
    let settings = Arc::new(settings);
    let lease = LeaseTask::new(ports.clone(), &settings, object.clone());
    let spawner = Arc::clone(&ports.spawner);
    let node_object = NodeObject::new(ports, settings, inputs, own_node);
    spawner.spawn(
        "node",
        guarded("node", node_object.run(), Arc::clone(&defects)).boxed(),
    );
    spawner.spawn("node lease", guarded("node lease", lease.run(), defects).boxed());
    NodeHandle { object, defect }
}

/// The program cannot go on without these tasks: a panic is reported.
async fn guarded(
    name: &'static str,
    task: impl Future<Output = ()> + Send,
    defects: Arc<watch::Sender<Option<String>>>,
) {
    if let Err(payload) = AssertUnwindSafe(task).catch_unwind().await {
        defects.send_replace(Some(format!(
            "{name} panicked: {}",
            panic_message(payload.as_ref())
        )));
    }
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}
