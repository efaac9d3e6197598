//! The pod's volumes on its way: there before a container starts, gone before the pod counts as gone.
//!
//! Owns when they are asked for, and what the pod waits for meanwhile. What a volume is, and how it comes to be, is behind the
//! port.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;

use futures_util::future::{Either, select};
use k8s_openapi::api::core::v1::{Container, Pod};
use rubelet_lifecycle::configuration::ConfigurationError;
use rubelet_lifecycle::configuration::environment::{Sources, environment};
use rubelet_lifecycle::configuration::unsupported_volumes::without_plugin_volumes;
use rubelet_lifecycle::plan::{Action, Plan};
use rubelet_lifecycle::pod_state::Retry;
use rubelet_ports::{ImageRequest, MountRequest, PodEvent, VolumeFailure};
use rubelet_resources::PodDemand;
use rubelet_storage::{image_volumes, uses_volumes};
use rubelet_wire::cri::v1::{ImageSpec, Mount};
use tokio::sync::OwnedSemaphorePermit;

use super::objects::Variables;
use super::sandbox::ActiveSandbox;
use super::{PERMIT_PATIENCE, PodJob, Stop, giving_way};

/// The reason of an event about volumes that keep a pod from ending.
const FAILED_UNMOUNT: &str = "FailedUnmount";

/// The images of a container's image volumes, by volume.
pub(super) type VolumeImages = BTreeMap<String, ImageSpec>;

/// Whether the plan needs the pod's volumes.
pub(super) fn needs_volumes(plan: &Plan) -> bool {
    let makes_sandbox = |action: &Action| matches!(action, Action::CreateSandbox(_));
    plan.starts().next().is_some() || plan.actions.iter().any(makes_sandbox)
}

fn asks_for_recursive_read_only(pod: &Pod) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| {
        let init = spec.init_containers.iter().flatten();
        init.chain(&spec.containers)
    });
    let mut mounts = containers.flat_map(|container| container.volume_mounts.iter().flatten());
    mounts.any(|mount| mount.recursive_read_only.is_some())
}

fn retry_of(failure: &VolumeFailure) -> Retry {
    failure.retry_at.map_or(Retry::Later, Retry::At)
}

/// The pod with the volumes whose files change while it runs.
fn refreshed(pod: &Arc<Pod>) -> Arc<Pod> {
    without_plugin_volumes(pod).map_or_else(|| Arc::clone(pod), Arc::new)
}

fn volume_names(pod: &Pod) -> String {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let names: Vec<&str> = volumes.map(|volume| volume.name.as_str()).collect();
    names.join(", ")
}

impl PodJob {
    /// Whether the runtime can make a mount read-only with everything below it.
    pub(super) fn supports_recursive_read_only(&self) -> bool {
        let health = self.shared.health.borrow();
        let handler = self.work.runtime_handler.as_deref().unwrap_or_default();
        let features = health.handlers.get(handler);
        features.is_some_and(|features| features.recursive_read_only_mounts)
    }

    /// Finds out what that depends on, where a mount asks for it: a restart has forgotten it. What cannot be had counts as no.
    pub(super) async fn find_mount_handler(&mut self) -> Result<(), Stop> {
        if asks_for_recursive_read_only(&self.pod)
            && let Err(problem) = self.find_runtime_handler().await?
        {
            tracing::debug!(pod = %self.uid, problem, "The pod's runtime handler is not known");
        }
        Ok(())
    }

    /// Makes sure of the pod's volumes, and brings files that follow its definition up to date.
    pub(super) async fn set_up_volumes(&mut self) -> Result<(), Stop> {
        self.set_up_volumes_of(Arc::clone(&self.pod)).await
    }

    /// Brings the files of a pod that starts nothing up to date.
    pub(super) async fn refresh_volumes(&mut self) -> Result<(), Stop> {
        self.set_up_volumes_of(refreshed(&self.pod)).await
    }

    async fn set_up_volumes_of(&self, pod: Arc<Pod>) -> Result<(), Stop> {
        if !uses_volumes(&pod) {
            return Ok(());
        }
        let volumes = Arc::clone(&self.ports().volumes);
        let what = format!("the pod's volumes: {}", volume_names(&pod));
        match self.read(what, volumes.set_up(pod)).await? {
            Ok(()) => Ok(()),
            Err(failure) => {
                let retry = retry_of(&failure);
                Err(self.fail(failure.message, retry))
            }
        }
    }

    /// Waits for something that can take minutes. The files of containers that run meanwhile follow what they are made from.
    pub(super) async fn with_fresh_files<T>(&self, future: impl Future<Output = T>) -> T {
        let following = async {
            let mut newest = self.newest.clone();
            // Nobody sends any more only when the agent ends.
            while newest.changed().await.is_ok() {
                let pod = Arc::clone(&newest.borrow_and_update());
                let volumes = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.volumes.clone());
                if uses_volumes(&pod) && volumes(&pod) == volumes(&self.pod) {
                    // What fails here fails again in the next sync, which tells of it.
                    let _ = self.ports().volumes.set_up(refreshed(&pod)).await;
                }
            }
            std::future::pending::<Infallible>().await
        };
        // On the heap: a job's stack is shallow.
        match select(Box::pin(future), Box::pin(following)).await {
            Either::Left((value, _)) => value,
            Either::Right((never, _)) => match never {},
        }
    }

    /// The images of the container's image volumes, pulled where it has to be.
    pub(super) async fn volume_images(
        &mut self,
        container: &Container,
        sandbox: &mut ActiveSandbox,
        permit: &mut Option<OwnedSemaphorePermit>,
    ) -> Result<Result<VolumeImages, Retry>, Stop> {
        let mut images = VolumeImages::new();
        let mounts = container.volume_mounts.as_deref().unwrap_or_default();
        for volume in image_volumes(&self.pod, mounts) {
            // Told as the container's matter: it is the container that waits for it.
            let wanted = Container {
                name: container.name.clone(),
                image: Some(volume.reference.clone()),
                image_pull_policy: volume.pull_policy,
                ..Container::default()
            };
            let request = ImageRequest {
                pod: Arc::clone(&self.pod),
                container: wanted.clone(),
                sandbox_config: None,
            };
            let provider = Arc::clone(&self.ports().images);
            let what = format!("a look at the image of volume {}", volume.volume);
            let clock = Arc::clone(&self.ports().clock);
            let look = self.read(what, provider.present(&request));
            let image = match giving_way(clock.as_ref(), permit, PERMIT_PATIENCE, look).await? {
                Some(image) => {
                    provider.record_present(&request);
                    image
                }
                None => {
                    // A pull can take long: others may start meanwhile.
                    permit.take();
                    match self.pull(&wanted, sandbox).await? {
                        Ok(image) => image,
                        Err(retry) => return Ok(Err(retry)),
                    }
                }
            };
            let spec = ImageSpec {
                image: image.image_ref,
                user_specified_image: volume.reference,
                annotations: self.pod.metadata.annotations.clone().unwrap_or_default(),
                ..ImageSpec::default()
            };
            images.insert(volume.volume, spec);
        }
        Ok(Ok(images))
    }

    /// The mounts of a container's volumes. The answer is why there are none.
    pub(super) async fn container_mounts(
        &mut self,
        container: &Container,
        images: VolumeImages,
        sandbox: &ActiveSandbox,
        variables: &Variables,
    ) -> Result<Result<Vec<Mount>, VolumeFailure>, Stop> {
        let mut mounts = container.volume_mounts.iter().flatten();
        let is_plain = container.volume_devices.as_ref().is_none_or(Vec::is_empty);
        if is_plain && mounts.clone().next().is_none() {
            return Ok(Ok(Vec::new()));
        }
        let needs_environment = mounts.any(|mount| mount.sub_path_expr.is_some());
        let environment = if needs_environment {
            match self.environment_of(container, &sandbox.ips, variables) {
                Ok(environment) => environment,
                Err(error) => {
                    return Ok(Err(VolumeFailure {
                        message: error.to_string(),
                        retry_at: None,
                    }));
                }
            }
        } else {
            BTreeMap::new()
        };
        let request = MountRequest {
            pod: Arc::clone(&self.pod),
            container: container.clone(),
            environment,
            images,
            supports_recursive_read_only: self.supports_recursive_read_only(),
        };
        let volumes = Arc::clone(&self.ports().volumes);
        let what = format!("the mounts of container {}", container.name);
        self.read(what, volumes.mounts(request)).await
    }

    fn environment_of(
        &self,
        container: &Container,
        pod_ips: &[String],
        variables: &Variables,
    ) -> Result<BTreeMap<String, String>, ConfigurationError> {
        let demand = PodDemand::read(&self.pod)?;
        let container_demand = demand.container(&container.name).cloned().unwrap_or_default();
        let sources = Sources {
            pod: &self.pod,
            demand: &demand,
            container_demand: &container_demand,
            node: &self.shared.settings.node,
            pod_ips,
            host_ips: &self.host_ips(),
            services: &variables.services,
            files: &variables.files,
            objects: &variables.objects,
        };
        let made = environment(container, sources)?;
        Ok(made
            .iter()
            .map(|(name, value)| (name.to_owned(), String::from_utf8_lossy(value).into_owned()))
            .collect())
    }

    /// Lets go of the pod's volumes. The pod is not over before they are gone.
    pub(super) async fn tear_down_volumes(&mut self) -> Result<(), Stop> {
        let has_volumes = self.pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
        if has_volumes.is_none_or(Vec::is_empty) {
            return Ok(());
        }
        let volumes = Arc::clone(&self.ports().volumes);
        let uid = self.uid.clone();
        let what = "the pod's volumes to be taken down";
        match self.read(what, volumes.tear_down(&uid)).await? {
            Ok(()) => Ok(()),
            Err(failure) => {
                // What only took a second try is not worth an event.
                if self.waits.last_error().as_ref() == Some(&failure.message) {
                    self.record(PodEvent::warning(FAILED_UNMOUNT, failure.message.clone()));
                }
                let retry = retry_of(&failure);
                Err(self.fail(failure.message, retry))
            }
        }
    }
}
