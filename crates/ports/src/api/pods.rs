//! Pods of this node.

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::{ApiError, Changes};

/// Calls that change nothing.
#[async_trait]
pub trait PodReader: Send + Sync {
    /// The pods that are bound to the node, of all namespaces. A pod that cannot be decoded, and never could, comes
    /// without `spec`.
    fn follow_pods(&self, node_name: &str) -> Changes<Pod>;

    async fn pod(&self, namespace: &str, name: &str) -> Result<Pod, ApiError>;
}

/// Calls that change a pod.
#[async_trait]
pub trait PodWriter: Send + Sync {
    /// A strategic merge patch of the `status` subresource; the body carries `metadata.uid` as its precondition. The answer is the
    /// pod as it is now.
    async fn patch_pod_status(&self, namespace: &str, name: &str, patch: Value) -> Result<Pod, ApiError>;

    async fn create_pod(&self, pod: &Pod) -> Result<Pod, ApiError>;

    /// Deletes the pod with this UID, and no other of its name.
    async fn delete_pod(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        grace_seconds: i64,
    ) -> Result<(), ApiError>;
}
