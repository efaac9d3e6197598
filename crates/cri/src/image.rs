//! The image port over CRI.
//!
//! Owns one method per call of `ImageService`. It must not let a pull credential out in an error.

use async_trait::async_trait;
use rubelet_ports::{ImageReader, ImageWriter, RuntimeError, RuntimeErrorKind};
use rubelet_wire::cri::v1;

use crate::answer;
use crate::call::Listing;
use crate::client::CriClient;
use crate::deadline::Patience;
use crate::method;

#[async_trait]
impl ImageReader for CriClient {
    async fn list_images(&self, filter: Option<v1::ImageFilter>) -> Result<Vec<v1::Image>, RuntimeError> {
        self.images
            .list(
                Listing {
                    method: &method::LIST_IMAGES,
                    request: v1::ListImagesRequest {
                        filter: filter.clone(),
                    },
                    items: |answer: v1::ListImagesResponse| answer.images,
                },
                Listing {
                    method: &method::STREAM_IMAGES,
                    request: v1::StreamImagesRequest { filter },
                    items: |answer: v1::StreamImagesResponse| answer.images,
                },
            )
            .await
    }

    async fn image_status(
        &self,
        image: v1::ImageSpec,
        verbose: bool,
    ) -> Result<v1::ImageStatusResponse, RuntimeError> {
        let request = v1::ImageStatusRequest {
            image: Some(image),
            verbose,
        };
        self.images
            .checked(&method::IMAGE_STATUS, request, answer::image_status)
            .await
    }

    async fn image_fs_info(&self) -> Result<v1::ImageFsInfoResponse, RuntimeError> {
        self.images
            .call(&method::IMAGE_FS_INFO, v1::ImageFsInfoRequest::default())
            .await
    }
}

#[async_trait]
impl ImageWriter for CriClient {
    async fn pull_image(
        &self,
        image: v1::ImageSpec,
        auth: Option<v1::AuthConfig>,
        sandbox_config: Option<v1::PodSandboxConfig>,
    ) -> Result<String, RuntimeError> {
        let method = &method::PULL_IMAGE;
        let secrets = auth.clone().unwrap_or_default();
        let request = v1::PullImageRequest {
            image: Some(image),
            auth,
            sandbox_config,
        };
        let pull = async {
            let answer: v1::PullImageResponse = self
                .images
                .exchange(method, request, Patience::WhileAlive)
                .await
                .map_err(|error| {
                    let v1::AuthConfig {
                        password,
                        auth,
                        identity_token,
                        registry_token,
                        ..
                    } = &secrets;
                    error.without(&[password, auth, identity_token, registry_token])
                })?;
            answer::text(&answer.image_ref, "image_ref").map_err(|message| {
                self.images
                    .error(method, RuntimeErrorKind::MalformedAnswer, &message)
            })?;
            Ok(answer.image_ref)
        };
        self.images.observe(method, pull).await
    }

    async fn remove_image(&self, image: v1::ImageSpec) -> Result<(), RuntimeError> {
        let request = v1::RemoveImageRequest { image: Some(image) };
        let v1::RemoveImageResponse {} = self.images.call(&method::REMOVE_IMAGE, request).await?;
        Ok(())
    }
}
