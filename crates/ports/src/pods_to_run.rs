//! The pods of this node that run or may come to run, for whoever takes away what nobody needs.
//!
//! Owns the question. It is for garbage: an answer that leaves a pod out costs that pod something.

use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;

use crate::NoAnswer;

#[async_trait]
pub trait PodsToRun: Send + Sync {
    /// Pods that a source wants or that have not ended on the node, in their newest definition; without those that are over or will
    /// never be let in. `None` until every source has delivered and the runtime was looked at: nobody can tell before what is not needed.
    async fn pods_to_run(&self) -> Result<Option<Vec<Arc<Pod>>>, NoAnswer>;
}
