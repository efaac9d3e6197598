//! Registration: creates the Node object, or takes over the one that exists.
//!
//! Owns the tries and the pauses between them. The object's content is computed in `status`.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use rubelet_ports::api::{ApiError, ApiErrorKind};
use serde_json::json;

use crate::heartbeat::Heartbeat;
use crate::settings::{NodePorts, NodeSettings};
use crate::status::{reconciled, status_patch};

/// Pauses between tries, doubling.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(100);
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(7);

/// The Node as the API server has it.
pub(crate) struct Registered {
    pub(crate) node: Node,
    /// There was none before.
    pub(crate) is_new: bool,
}

pub(crate) struct Registrar {
    ports: NodePorts,
    settings: Arc<NodeSettings>,
    heartbeat: Heartbeat,
}

impl Registrar {
    pub(crate) fn new(ports: &NodePorts, settings: &Arc<NodeSettings>) -> Self {
        Self {
            heartbeat: Heartbeat::new(ports, settings),
            ports: ports.clone(),
            settings: Arc::clone(settings),
        }
    }

    /// One try.
    pub(crate) async fn attempt(&self, initial: &Node) -> Result<Registered, ApiError> {
        let created = self.ports.node_writer.create_node(initial);
        let refusal = match self.heartbeat.call("create the Node", created).await {
            Ok(node) => {
                tracing::info!(node = self.settings.node_name, "The node is registered");
                return Ok(Registered { node, is_new: true });
            }
            Err(error) => error,
        };
        let may_exist = match refusal.kind {
            ApiErrorKind::AlreadyExists => true,
            // A cluster may forbid self-registration and create the Node objects itself.
            ApiErrorKind::Forbidden => !self.settings.registration.get_on_exists_only,
            _ => false,
        };
        if !may_exist {
            return Err(refusal);
        }
        let existing = self.ports.node_reader.node(&self.settings.node_name);
        match self.heartbeat.call("get the Node", existing).await {
            Ok(existing) => self
                .take_over(initial, existing)
                .await
                .map(|node| Registered { node, is_new: false }),
            Err(error) if error.kind == ApiErrorKind::NotFound => Err(refusal),
            Err(error) => Err(error),
        }
    }

    async fn take_over(&self, initial: &Node, existing: Node) -> Result<Node, ApiError> {
        self.warn_of_other_machine(&existing);
        let wanted = reconciled(
            initial,
            &existing,
            self.settings.registration.reset_extended_resources,
        );
        let patch = status_patch(&existing, &wanted).map_err(|error| malformed(&error))?;
        let node = self.settings.node_name.as_str();
        if patch == json!({}) {
            tracing::info!(node, "The node was registered before");
            return Ok(existing);
        }
        let call = self.ports.node_writer.patch_node_status(node, patch);
        let patched = self.heartbeat.call("patch the Node", call).await?;
        tracing::info!(
            node,
            "The node was registered before; its object is brought in line"
        );
        Ok(patched)
    }

    /// Two machines of one name take turns in claiming the object, which its status alone does not show.
    fn warn_of_other_machine(&self, existing: &Node) {
        let info = existing
            .status
            .as_ref()
            .and_then(|status| status.node_info.as_ref());
        let theirs = info.map(|info| info.machine_id.as_str()).unwrap_or_default();
        let own = self.settings.machine.machine_id.as_str();
        if !theirs.is_empty() && !own.is_empty() && theirs != own {
            tracing::warn!(
                node = self.settings.node_name,
                their_machine_id = theirs,
                own_machine_id = own,
                "The Node object was kept by another machine; if that one still runs, give one of them another name"
            );
        }
    }
}

/// Cannot happen: a Node is always printable.
pub(crate) fn malformed(error: &serde_json::Error) -> ApiError {
    ApiError::new("print the Node", ApiErrorKind::Malformed, error.to_string())
}
