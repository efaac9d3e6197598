//! The active pods of this node, for garbage collection.
//!
//! Owns the call. A pod that is missing from the answer may lose its images or volumes.

use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;

use crate::NoAnswer;

#[async_trait]
pub trait PodsToRun: Send + Sync {
    /// Pods that a source wants or that have not ended on the node, in their newest definition; without those that are finished or
    /// rejected. `None` until every source has delivered and the runtime was listed: before that, what is not needed is not known.
    async fn pods_to_run(&self) -> Result<Option<Vec<Arc<Pod>>>, NoAnswer>;
}
