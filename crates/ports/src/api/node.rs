//! The node's own objects: the Node, its lease, its events.

use async_trait::async_trait;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node};
use serde_json::Value;

use super::{ApiError, Changes};

/// Calls that change nothing.
#[async_trait]
pub trait NodeReader: Send + Sync {
    /// The one node of this name: the set is empty or has one element.
    fn follow_node(&self, name: &str) -> Changes<Node>;

    async fn node(&self, name: &str) -> Result<Node, ApiError>;
}

/// Calls that change the Node. They count as heartbeats and wait for no rate limit.
#[async_trait]
pub trait NodeWriter: Send + Sync {
    async fn create_node(&self, node: &Node) -> Result<Node, ApiError>;

    /// A strategic merge patch of everything but the status.
    async fn patch_node(&self, name: &str, patch: Value) -> Result<Node, ApiError>;

    /// A strategic merge patch of the `status` subresource.
    async fn patch_node_status(&self, name: &str, patch: Value) -> Result<Node, ApiError>;

    /// Gives up the connection of the heartbeats, so that the next one makes a new one.
    fn reconnect(&self);
}

/// Leases of namespace `kube-node-lease`; heartbeats too.
#[async_trait]
pub trait LeaseKeeper: Send + Sync {
    async fn lease(&self, name: &str) -> Result<Lease, ApiError>;
    async fn create_lease(&self, lease: &Lease) -> Result<Lease, ApiError>;
    /// Replaces it; its resource version is the precondition.
    async fn replace_lease(&self, lease: &Lease) -> Result<Lease, ApiError>;
}

/// Events, on a connection of their own.
#[async_trait]
pub trait EventWriter: Send + Sync {
    async fn create_event(&self, event: &Event) -> Result<Event, ApiError>;
    /// A strategic merge patch of an event that was created before.
    async fn patch_event(&self, namespace: &str, name: &str, patch: Value) -> Result<Event, ApiError>;
}
