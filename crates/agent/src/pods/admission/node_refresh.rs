//! Reads the Node object again before a pod is rejected for the node's labels alone.
//!
//! Owns which pods the next read is for. A client that binds a pod because of a label that was just set may be ahead of the Node
//! object that was seen here. One call serves every pod that asked before it began. No pod waits for longer than the call's limit,
//! and when it fails, the object that was seen last decides.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use rubelet_model::observation::PodUid;
use rubelet_ports::api::NodeReader;
use rubelet_ports::within;
use tokio::sync::mpsc;

use super::super::AgentContext;
use crate::supervisor::Supervisor;

const READ_LIMIT: Duration = Duration::from_secs(10);

/// The answer of one read.
pub(in super::super) struct Refreshed {
    /// The pods that it is for.
    pods: BTreeSet<PodUid>,
    /// The Node object as it is now; `None` when it cannot be read.
    pub(in super::super) node: Option<Arc<Node>>,
}

pub(super) struct NodeRefresh {
    context: Arc<AgentContext>,
    supervisor: Supervisor,
    sender: mpsc::Sender<Refreshed>,
    /// The pods that the next read is for.
    next: BTreeSet<PodUid>,
    is_reading: bool,
}

impl NodeRefresh {
    pub(super) fn new(
        context: &Arc<AgentContext>,
        supervisor: &Supervisor,
    ) -> (Self, mpsc::Receiver<Refreshed>) {
        // There is one call at most.
        let (sender, receiver) = mpsc::channel(1);
        let refresh = Self {
            context: Arc::clone(context),
            supervisor: supervisor.clone(),
            sender,
            next: BTreeSet::new(),
            is_reading: false,
        };
        (refresh, receiver)
    }

    pub(super) fn len(&self) -> usize {
        self.next.len()
    }

    /// Asks for a read. The answer is whether the Node object can be read at all.
    pub(super) fn ask(&mut self, uid: &PodUid) -> bool {
        if self.context.ports.node.reader.is_none() {
            return false;
        }
        self.next.insert(uid.clone());
        self.begin();
        true
    }

    /// The pods that an answered read was for. Pods that asked again since then get the next one, which begins here.
    pub(super) fn take_answered(&mut self, refreshed: &Refreshed) -> Vec<PodUid> {
        self.is_reading = false;
        let answered = refreshed.pods.difference(&self.next).cloned().collect();
        self.begin();
        answered
    }

    fn begin(&mut self) {
        let Some(reader) = self.context.ports.node.reader.clone() else {
            return;
        };
        if self.is_reading || self.next.is_empty() {
            return;
        }
        self.is_reading = true;
        let pods = std::mem::take(&mut self.next);
        let (context, sender) = (Arc::clone(&self.context), self.sender.clone());
        self.supervisor.spawn("node refresh", async move {
            let node = read(&context, reader.as_ref()).await;
            // The receiver is gone only when the agent ends.
            let _ = sender.send(Refreshed { pods, node }).await;
        });
    }
}

async fn read(context: &AgentContext, reader: &dyn NodeReader) -> Option<Arc<Node>> {
    let clock = context.ports.clock.as_ref();
    let problem = match within(clock, READ_LIMIT, reader.node(&context.settings.node_name)).await {
        Ok(Ok(node)) => return Some(Arc::new(node)),
        Ok(Err(error)) => error.to_string(),
        Err(elapsed) => elapsed.to_string(),
    };
    tracing::warn!(
        error = problem,
        "The Node cannot be looked at again; its labels count as last seen"
    );
    None
}
