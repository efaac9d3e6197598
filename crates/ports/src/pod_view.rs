//! Read access to the node's pods from outside the agent: for the HTTP API and `rubelet why`.
//!
//! Owns the calls. The answers are copies: a caller cannot change a pod.

use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use rubelet_model::explanation::{NodeExplanation, PodExplanation};
use rubelet_model::observation::{PodObservation, PodUid};
use serde_json::Value;
use thiserror::Error;

use crate::RuntimeError;

/// The agent is shutting down or hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the agent does not answer")]
pub struct NoAnswer;

#[async_trait]
pub trait PodView: Send + Sync {
    /// The desired pods, each with the status that the node would report.
    async fn pods(&self) -> Result<Vec<Arc<Pod>>, NoAnswer>;

    /// What the runtime has, pod by pod, as fresh as the runtime is.
    async fn runtime_pods(&self) -> Result<Vec<Arc<PodObservation>>, RuntimeError>;

    /// What the runtime has of one pod now, without a look at any other; `None` when it has nothing of it.
    async fn runtime_pod(&self, uid: &PodUid) -> Result<Option<Arc<PodObservation>>, RuntimeError>;

    /// What each pod waits for, pods that are ending included.
    async fn explanations(&self) -> Result<Vec<PodExplanation>, NoAnswer>;

    /// What the node as a whole waits for, and manifests that cannot be used.
    async fn node_explanation(&self) -> Result<NodeExplanation, NoAnswer> {
        Ok(NodeExplanation::default())
    }

    /// The flight record of a pod, ready to be replayed; `None` when the pod is not known.
    async fn flight_record(&self, uid: &str) -> Result<Option<Value>, NoAnswer>;

    /// The newest events, oldest first.
    async fn events(&self) -> Result<Vec<Value>, NoAnswer>;

    /// The UID on this node of a pod that the API server knows by the given one: for a mirror that of the static pod it shows.
    fn uid_on_node(&self, uid: &str) -> PodUid {
        PodUid::from(uid)
    }

    /// Whether the sync loop still runs; the error names since when it does not.
    fn sync_loop_health(&self) -> Result<(), String>;
}
