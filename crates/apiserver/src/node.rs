//! Calls about the node's own objects: Node, Lease and events.

use async_trait::async_trait;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node};
use kube_core::params::{GetParams, Patch, PatchParams, PostParams};
use rubelet_ports::api::{ApiError, Changes, EventWriter, LeaseKeeper, NodeReader, NodeWriter};
use serde_json::Value;

use crate::ApiServer;
use crate::call::{body, collection, request, segment};
use crate::follow::{Followed, follow};

const LEASE_NAMESPACE: &str = "kube-node-lease";

#[async_trait]
impl NodeReader for ApiServer {
    fn follow_node(&self, name: &str) -> Changes<Node> {
        let followed = Followed {
            paths: vec![collection::<Node>(None)],
            field_selector: Some(format!("metadata.name={name}")),
            what: format!("node {name}"),
            ..Followed::default()
        };
        follow(&self.core, followed)
    }

    async fn node(&self, name: &str) -> Result<Node, ApiError> {
        let request = request::<Node>(None).get(&segment(name), &GetParams::default());
        let operation = format!("get node {name}");
        self.core.call(&self.core.heartbeats, operation, request).await
    }
}

#[async_trait]
impl NodeWriter for ApiServer {
    async fn create_node(&self, node: &Node) -> Result<Node, ApiError> {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let request = body(node).and_then(|body| request::<Node>(None).create(&PostParams::default(), body));
        let operation = format!("create node {name}");
        self.core.call(&self.core.heartbeats, operation, request).await
    }

    async fn patch_node(&self, name: &str, patch: Value) -> Result<Node, ApiError> {
        let patch = Patch::Strategic(patch);
        let request = request::<Node>(None).patch(&segment(name), &PatchParams::default(), &patch);
        let operation = format!("patch node {name}");
        self.core.call(&self.core.heartbeats, operation, request).await
    }

    async fn patch_node_status(&self, name: &str, patch: Value) -> Result<Node, ApiError> {
        let patch = Patch::Strategic(patch);
        let params = PatchParams::default();
        let request = request::<Node>(None).patch_subresource("status", &segment(name), &params, &patch);
        let operation = format!("patch status of node {name}");
        self.core.call(&self.core.heartbeats, operation, request).await
    }

    fn reconnect(&self) {
        self.core.heartbeats.channel.reconnect();
    }
}

#[async_trait]
impl LeaseKeeper for ApiServer {
    async fn lease(&self, name: &str) -> Result<Lease, ApiError> {
        let request = request::<Lease>(Some(LEASE_NAMESPACE)).get(&segment(name), &GetParams::default());
        let operation = format!("get lease {name}");
        self.core.call(&self.core.heartbeats, operation, request).await
    }

    async fn create_lease(&self, lease: &Lease) -> Result<Lease, ApiError> {
        let name = lease.metadata.name.as_deref().unwrap_or_default();
        let leases = request::<Lease>(Some(LEASE_NAMESPACE));
        let request = body(lease).and_then(|body| leases.create(&PostParams::default(), body));
        let operation = format!("create lease {name}");
        self.core.call(&self.core.heartbeats, operation, request).await
    }

    async fn replace_lease(&self, lease: &Lease) -> Result<Lease, ApiError> {
        let name = lease.metadata.name.as_deref().unwrap_or_default();
        let leases = request::<Lease>(Some(LEASE_NAMESPACE));
        let request =
            body(lease).and_then(|body| leases.replace(&segment(name), &PostParams::default(), body));
        let operation = format!("replace lease {name}");
        self.core.call(&self.core.heartbeats, operation, request).await
    }
}

#[async_trait]
impl EventWriter for ApiServer {
    async fn create_event(&self, event: &Event) -> Result<Event, ApiError> {
        let name = event.metadata.name.as_deref().unwrap_or_default();
        let namespace = event.metadata.namespace.as_deref().unwrap_or("default");
        let events = request::<Event>(Some(namespace));
        let request = body(event).and_then(|body| events.create(&PostParams::default(), body));
        let operation = format!("create event {namespace}/{name}");
        self.core.call(&self.core.events, operation, request).await
    }

    async fn patch_event(&self, namespace: &str, name: &str, patch: Value) -> Result<Event, ApiError> {
        let patch = Patch::Strategic(patch);
        let events = request::<Event>(Some(namespace));
        let request = events.patch(&segment(name), &PatchParams::default(), &patch);
        let operation = format!("patch event {namespace}/{name}");
        self.core.call(&self.core.events, operation, request).await
    }
}
