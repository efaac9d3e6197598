//! Images: those that are there, those that can be pulled, and those that cannot.
//!
//! A tag whose name begins with `missing` does not exist in the registry; one that begins with `flaky` comes at the third
//! try. All others can be pulled.

use async_trait::async_trait;
use rubelet_ports::{ImageReader, ImageWriter, RuntimeError, RuntimeErrorKind};
use rubelet_wire::cri::v1;

use super::state::{Failure, SimImage};
use super::{Call, SimRuntime};

const FLAKY_FAILURES: u32 = 2;

fn described(image: &SimImage) -> v1::Image {
    v1::Image {
        id: image.id.clone(),
        repo_tags: vec![image.tag.clone()],
        repo_digests: vec![image.digest()],
        size: 1_000_000,
        uid: None,
        username: String::new(),
        spec: Some(v1::ImageSpec {
            image: image.tag.clone(),
            ..v1::ImageSpec::default()
        }),
        pinned: false,
    }
}

/// The last part of the repository's name.
fn short_name(tag: &str) -> &str {
    tag.rsplit('/').next().unwrap_or(tag)
}

/// Whether this image never comes.
#[must_use]
pub(crate) fn is_missing(tag: &str) -> bool {
    short_name(tag).starts_with("missing")
}

#[async_trait]
impl ImageReader for SimRuntime {
    async fn list_images(&self, filter: Option<v1::ImageFilter>) -> Result<Vec<v1::Image>, RuntimeError> {
        let wanted = filter.and_then(|filter| filter.image).map(|image| image.image);
        self.call(Call::reading("ListImages", ""), move |work| {
            Box::pin(async move {
                let state = work.runtime.lock();
                let images = state.images.values();
                Ok(images
                    .filter(|image| wanted.as_ref().is_none_or(|wanted| *wanted == image.tag))
                    .map(described)
                    .collect())
            })
        })
        .await
    }

    async fn image_status(
        &self,
        image: v1::ImageSpec,
        _verbose: bool,
    ) -> Result<v1::ImageStatusResponse, RuntimeError> {
        self.call(Call::reading("ImageStatus", image.image.clone()), move |work| {
            Box::pin(async move {
                let state = work.runtime.lock();
                Ok(v1::ImageStatusResponse {
                    image: state.find_image(&image.image).map(described),
                    ..v1::ImageStatusResponse::default()
                })
            })
        })
        .await
    }

    async fn image_fs_info(&self) -> Result<v1::ImageFsInfoResponse, RuntimeError> {
        self.call(Call::reading("ImageFsInfo", ""), |_| {
            Box::pin(async { Ok(v1::ImageFsInfoResponse::default()) })
        })
        .await
    }
}

#[async_trait]
impl ImageWriter for SimRuntime {
    async fn pull_image(
        &self,
        image: v1::ImageSpec,
        _auth: Option<v1::AuthConfig>,
        _sandbox_config: Option<v1::PodSandboxConfig>,
    ) -> Result<String, RuntimeError> {
        // The deadline stands for the adapter's limit without progress.
        let call = Call::reading("PullImage", image.image.clone());
        let pull_fails = self.faults().pull_fails;
        self.call(call, move |work| {
            Box::pin(async move {
                work.pause(20, 1500).await;
                work.goes_on()?;
                let runtime = &work.runtime;
                let fails = runtime.inner.dice.with(|dice| dice.per_myriad(pull_fails));
                let mut state = runtime.lock();
                let tries = state.pulls.entry(image.image.clone()).or_default();
                *tries += 1;
                let name = short_name(&image.image);
                if is_missing(&image.image) {
                    return Err(Failure::new(
                        RuntimeErrorKind::NotFound,
                        format!("failed to resolve image: {}: not found", image.image),
                    ));
                }
                if fails || (name.starts_with("flaky") && *tries <= FLAKY_FAILURES) {
                    return Err(Failure::unknown("failed to copy: connection reset by peer"));
                }
                let pulled = SimImage::new(&image.image);
                let id = pulled.id.clone();
                state.images.insert(image.image.clone(), pulled);
                Ok(id)
            })
        })
        .await
    }

    async fn remove_image(&self, image: v1::ImageSpec) -> Result<(), RuntimeError> {
        self.call(Call::reading("RemoveImage", image.image.clone()), move |work| {
            Box::pin(async move {
                work.runtime
                    .lock()
                    .images
                    .retain(|_, known| known.tag != image.image && known.id != image.image);
                Ok(())
            })
        })
        .await
    }
}
