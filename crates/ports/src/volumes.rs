//! The volumes of pods, as the agent needs them: there before a container starts, gone after the last one ended.
//!
//! Owns the three calls. Kinds of volumes, retries and events are behind it.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Container, Pod};
use rubelet_model::Timestamp;
use rubelet_model::observation::PodUid;
use rubelet_wire::cri::v1;
use thiserror::Error;

/// Why volumes are not as they should be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct VolumeFailure {
    pub message: String,
    /// When another try makes sense; `None` when only a change of the pod helps, or the usual retry is good enough.
    pub retry_at: Option<Timestamp>,
}

/// A container that is about to be created. Its variables may be secret, so that it is never printed.
#[derive(Clone)]
pub struct MountRequest {
    pub pod: Arc<Pod>,
    /// Ephemeral containers come as containers.
    pub container: Container,
    /// Its variables, for `subPathExpr`.
    pub environment: BTreeMap<String, String>,
    /// The images of its image volumes, by volume.
    pub images: BTreeMap<String, v1::ImageSpec>,
    /// Whether the runtime can make a mount read-only with everything below it.
    pub supports_recursive_read_only: bool,
}

#[async_trait]
pub trait PodVolumes: Send + Sync {
    /// Sets up every volume that the pod's containers use, and brings the files of those that follow the pod up to date. It
    /// costs nothing when all is well already. Failures are recorded as events, and tried again only after a backoff. Work that
    /// was begun goes on when the future is dropped.
    async fn set_up(&self, pod: Arc<Pod>) -> Result<(), VolumeFailure>;

    /// The mounts of a container; sub paths are bound on the way. The pod's volumes have to be set up.
    async fn mounts(&self, request: MountRequest) -> Result<Vec<v1::Mount>, VolumeFailure>;

    /// Takes down whatever the node has of the pod's volumes, also of a pod that is not known any more. Nothing of the pod may
    /// run. It succeeds only when nothing is left.
    async fn tear_down(&self, uid: &PodUid) -> Result<(), VolumeFailure>;
}
