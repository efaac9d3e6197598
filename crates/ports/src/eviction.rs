//! What an eviction asks of the pods' agent and of the images: which pods there are, the end of one, and what the node can do without.
//!
//! Owns the shape of the edges. Who is evicted, and why, is decided by the caller.

use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use rubelet_model::observation::PodUid;
use thiserror::Error;

use crate::NoAnswer;

/// How a pod ends, and what its status shows then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEviction {
    pub reason: String,
    /// The text that users read.
    pub message: String,
    /// Message of the `DisruptionTarget` condition, where the pod has one.
    pub disruption: Option<String>,
    /// Shortens the pod's own grace period.
    pub grace_seconds: i64,
}

/// Why a pod is not known to have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EvictionFailure {
    #[error("the pod is gone already")]
    UnknownPod,
    #[error("timeout waiting to kill pod")]
    TimedOut,
    #[error("the agent is ending")]
    NoAnswer,
}

/// The pods of this node, for evictions.
#[async_trait]
pub trait PodEvictor: Send + Sync {
    /// The pods that run or may come to run, with their allocated resources, also before every source has delivered. A pod may be
    /// there twice; the later one counts.
    async fn pods(&self) -> Result<Vec<Arc<Pod>>, NoAnswer>;

    /// Ends a pod and waits until nothing of it runs any more, for a time that its grace period bounds. The end goes on after that.
    async fn evict(&self, uid: &PodUid, eviction: PodEviction) -> Result<(), EvictionFailure>;

    /// Whether anything of the pod runs or is left to clean up.
    async fn is_unfinished(&self, uid: &PodUid) -> bool;

    /// Removes the dead containers that the node can do without: all of pods that ended, and all but the newest of each name of
    /// others. The answer is how many containers and sandboxes there were.
    async fn remove_dead_containers(&self) -> Result<usize, String>;
}

/// What the removal of images has freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreedImages {
    pub images: usize,
    /// By the sizes that the runtime reports.
    pub bytes: u64,
}

/// The images of this node that no pod needs.
#[async_trait]
pub trait UnusedImages: Send + Sync {
    /// Removes them all, without regard to how full the disk is; those that are too young and pinned ones stay. An error says why
    /// not all of them could be removed.
    async fn remove_unused(&self) -> Result<FreedImages, String>;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails to compile when the ports can no longer be used as trait objects.
    #[test]
    fn the_ports_are_object_safe() {
        fn takes(_: Option<&dyn PodEvictor>, _: Option<&dyn UnusedImages>) {}
        takes(None, None);
    }
}
