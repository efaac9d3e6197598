//! Reads a request for an image, and the runtime's answer to it.

use rubelet_ports::{ImageReader, ImageRequest, PresentImage, RuntimeError};
use rubelet_wire::cri::v1;

use rubelet_model::image_reference::{ReferenceError, with_default_tag};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

impl PullPolicy {
    /// Validation refuses other values; upstream would pull.
    pub(crate) fn of(request: &ImageRequest) -> Self {
        match request.container.image_pull_policy.as_deref() {
            Some("IfNotPresent") => Self::IfNotPresent,
            Some("Never") => Self::Never,
            Some(_) | None => Self::Always,
        }
    }
}

pub(crate) fn image_of(request: &ImageRequest) -> &str {
    request.container.image.as_deref().unwrap_or_default()
}

pub(crate) fn image_spec(request: &ImageRequest) -> Result<v1::ImageSpec, ReferenceError> {
    Ok(v1::ImageSpec {
        image: with_default_tag(image_of(request))?,
        annotations: request.pod.metadata.annotations.clone().unwrap_or_default(),
        ..v1::ImageSpec::default()
    })
}

/// An image without an id counts as none.
pub(crate) fn present_image(image: v1::Image) -> Option<PresentImage> {
    if image.id.is_empty() {
        return None;
    }
    let image_ref = image.id.clone();
    let (uid, username) = user_of(image);
    Some(PresentImage {
        image_ref,
        uid,
        username,
    })
}

pub(crate) fn user_of(image: v1::Image) -> (Option<i64>, String) {
    match image.uid {
        Some(uid) => (Some(uid.value), String::new()),
        None => (None, image.username),
    }
}

/// What the runtime calls the image that this name means; `None` when it is not there. A name that is none stands for nothing.
pub(crate) async fn image_id(reader: &dyn ImageReader, name: &str) -> Result<Option<String>, RuntimeError> {
    let Ok(image) = with_default_tag(name) else {
        return Ok(None);
    };
    let spec = v1::ImageSpec {
        image,
        ..v1::ImageSpec::default()
    };
    let answer = reader.image_status(spec, false).await?;
    Ok(answer.image.map(|image| image.id).filter(|id| !id.is_empty()))
}
