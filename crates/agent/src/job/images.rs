//! Images of containers and of image volumes.
//!
//! Owns when an image is looked for and pulled on a container's way. Policies, credentials and backoff are behind the port.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use k8s_openapi::api::core::v1::{Container, Pod};
use rubelet_lifecycle::configuration::container::ephemeral_as_container;
use rubelet_lifecycle::plan::{Plan, StartContainer};
use rubelet_lifecycle::pod_state::Retry;
use rubelet_model::observation::ContainerKind;
use rubelet_ports::{ImageRequest, PresentImage};
use rubelet_wire::cri::v1::{ImageSpec, PodSandboxConfig};

use super::IN_FLIGHT_LOOK;
use super::container_start::{StartError, failure};
use super::context::JobContext;
use super::volumes::Volumes;
use crate::startup::StartupTimes;

/// Images that need no pull, by container.
pub(super) type PresentImages = BTreeMap<String, Option<PresentImage>>;

/// The images of a container's image volumes, by volume.
pub(super) type VolumeImages = BTreeMap<String, ImageSpec>;

/// The container that a plan starts.
pub(super) fn container_of(pod: &Pod, start: &StartContainer) -> Option<Container> {
    let spec = pod.spec.as_ref()?;
    match start.kind {
        ContainerKind::Init | ContainerKind::Sidecar => {
            spec.init_containers.as_ref()?.get(start.index).cloned()
        }
        ContainerKind::Regular => spec.containers.get(start.index).cloned(),
        ContainerKind::Ephemeral => spec
            .ephemeral_containers
            .as_ref()?
            .get(start.index)
            .map(ephemeral_as_container),
    }
}

/// Looks which images of the plan are present. Nothing is pulled.
pub(super) fn present_images(context: &JobContext, plan: &Plan) -> BoxFuture<'static, PresentImages> {
    let provider = Arc::clone(&context.ports().images);
    let containers = plan
        .starts()
        .filter_map(|start| container_of(&context.pod, start));
    let requests: Vec<ImageRequest> = containers.map(|one| request(context, &one)).collect();
    async move {
        let looks = requests.into_iter().map(|request| {
            let provider = Arc::clone(&provider);
            async move { (request.container.name.clone(), provider.present(&request).await) }
        });
        join_all(looks).await.into_iter().collect()
    }
    .boxed()
}

/// A request for an image that is present.
pub(super) fn request(context: &JobContext, container: &Container) -> ImageRequest {
    ImageRequest {
        pod: Arc::clone(&context.pod),
        container: container.clone(),
        sandbox_config: None,
    }
}

/// Pulls the container's image. The files of the pod's volumes stay up to date meanwhile.
pub(super) async fn pull(
    context: &JobContext,
    container: &Container,
    sandbox_config: PodSandboxConfig,
    volumes: &Volumes,
    times: &StartupTimes,
) -> Result<PresentImage, StartError> {
    let request = ImageRequest {
        sandbox_config: Some(sandbox_config),
        ..request(context, container)
    };
    let image = container.image.clone().unwrap_or_default();
    let what = format!("image {image} for container {}", container.name);
    let clock = &context.ports().clock;
    let begun = clock.moment();
    let progress = {
        let (provider, uid) = (Arc::clone(&context.ports().images), context.uid.clone());
        Box::new(move || provider.progress(&uid, &image))
    };
    let ensuring = volumes.refreshed_during(context.ports().images.ensure(request));
    let ensuring = context.or_cancelled(ensuring);
    let pulled = context.waits.named_with_progress(what, progress, ensuring).await;
    times.pulled(clock.moment().since(begun));
    pulled.map_err(StartError::Job)?.map_err(|problem| {
        // A failed pull shows first, and the backoff of the next try a moment later, as upstream does.
        let retry = match problem.reason {
            "ErrImagePull" => Retry::At(context.now().plus(IN_FLIGHT_LOOK)),
            _ => problem.retry_at.map_or(Retry::Later, Retry::At),
        };
        StartError::Container {
            failure: failure(problem.reason, &problem.message),
            retry,
        }
    })
}
