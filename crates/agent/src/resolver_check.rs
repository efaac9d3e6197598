//! Whether the node's resolver file leaves room for what pods need.
//!
//! Owns one look at the start, as upstream has it: what is too much there concerns all pods alike, so that it is the node's event.

use std::sync::Arc;

use rubelet_lifecycle::configuration::resolv_conf::WARNING_REASON;
use rubelet_ports::{EventType, NodeEvent};

use crate::job::{AgentContext, read_resolver_file};

pub(crate) async fn check_resolver_file(shared: Arc<AgentContext>) {
    let node = &shared.settings.node;
    let has_cluster_domain = !node.cluster_domain.is_empty();
    let file = node.resolver_file.as_deref().unwrap_or("".as_ref());
    let problem = match read_resolver_file(&shared).await {
        Ok(content) => content.and_then(|content| {
            let warning = content.warning(has_cluster_domain)?;
            Some(warning.message(&file.to_string_lossy()))
        }),
        Err(problem) => Some(problem),
    };
    if let Some(message) = problem {
        // Upstream names the node here and leaves its UID out.
        shared.ports.node_events.record_node(NodeEvent {
            event_type: EventType::Warning,
            reason: WARNING_REASON.into(),
            message,
            node_uid: None,
        });
    }
}
