//! The container runtime's images.
//!
//! Owns the two halves of CRI's `ImageService`, under the same rules as [`crate::runtime`]. Pulling and removing write.

use async_trait::async_trait;
use rubelet_wire::cri::v1;

use crate::RuntimeError;

/// Calls that change nothing.
#[async_trait]
pub trait ImageReader: Send + Sync {
    async fn list_images(&self, filter: Option<v1::ImageFilter>) -> Result<Vec<v1::Image>, RuntimeError>;

    /// The answer's `image` is `None` when the runtime does not have it: that is no error.
    async fn image_status(
        &self,
        image: v1::ImageSpec,
        verbose: bool,
    ) -> Result<v1::ImageStatusResponse, RuntimeError>;

    /// Usage of the filesystems that hold images and writable layers.
    async fn image_fs_info(&self) -> Result<v1::ImageFsInfoResponse, RuntimeError>;
}

/// Calls that change the runtime's store.
#[async_trait]
pub trait ImageWriter: Send + Sync {
    /// Pulls an image and returns the reference under which containers are created from it. It takes as long as it takes:
    /// there is no deadline, but the call fails when the runtime stops answering. The credentials never show in an error.
    async fn pull_image(
        &self,
        image: v1::ImageSpec,
        auth: Option<v1::AuthConfig>,
        sandbox_config: Option<v1::PodSandboxConfig>,
    ) -> Result<String, RuntimeError>;

    /// Removes an image. Removing it twice is no error.
    async fn remove_image(&self, image: v1::ImageSpec) -> Result<(), RuntimeError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails to compile when a half can no longer be used as a trait object.
    #[test]
    fn the_halves_are_object_safe() {
        fn takes(_: Option<&dyn ImageReader>, _: Option<&dyn ImageWriter>) {}
        takes(None, None);
    }
}
