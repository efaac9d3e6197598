//! Provides the image of a container before the container is created.
//!
//! Owns the calls. Policies, backoff and credentials are behind it.

use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Container, Pod};
use rubelet_model::Timestamp;
use rubelet_wire::cri::v1;
use thiserror::Error;

/// An image that one container needs.
#[derive(Clone, Debug)]
pub struct ImageRequest {
    pub pod: Arc<Pod>,
    /// Ephemeral containers come as containers.
    pub container: Container,
    /// The sandbox that the pull request carries.
    pub sandbox_config: Option<v1::PodSandboxConfig>,
}

/// An image that the runtime has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresentImage {
    /// The reference under which containers are created from it.
    pub image_ref: String,
    /// The numeric user that the image runs as, if it names one.
    pub uid: Option<i64>,
    /// The user that the image names in letters; empty when it names none or a number.
    pub username: String,
}

/// Why the image is not there.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{reason}: {message}")]
pub struct ImageFailure {
    /// The waiting reason, such as `ImagePullBackOff`.
    pub reason: &'static str,
    pub message: String,
    /// When another try makes sense; `None` when only a change of the pod helps, or the usual retry is good enough.
    pub retry_at: Option<Timestamp>,
}

#[async_trait]
pub trait ImageProvider: Send + Sync {
    /// Looks for the image, pulls it where the pull policy asks for it, and records the events.
    async fn ensure(&self, request: ImageRequest) -> Result<PresentImage, ImageFailure>;

    /// The image as it is on the node, without pulling and without events: `None` when it has to be pulled or cannot be had.
    async fn present(&self, request: &ImageRequest) -> Option<PresentImage>;

    /// Records the event of an image that [`Self::present`] found and that is used now.
    fn record_present(&self, request: &ImageRequest);

    /// The progress of the pull that the pod waits for: its time, and its bytes where the runtime reports them. `None` without a pull.
    fn progress(&self, _uid: &rubelet_model::observation::PodUid, _image: &str) -> Option<String> {
        None
    }

    /// Forgets the backoff of a pod that is gone.
    fn forget_pod(&self, uid: &rubelet_model::observation::PodUid);
}
