//! The pod's volumes: set up before a container starts, taken down before the pod counts as gone.
//!
//! Owns the calls of the volumes' port and what a failure means for the pod. When they are made is the plan's part; what a volume
//! is, and how it comes to be, is behind the port.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;

use futures_util::future::{Either, select};
use k8s_openapi::api::core::v1::{Container, Pod};
use rubelet_lifecycle::configuration::ConfigurationError;
use rubelet_lifecycle::configuration::environment::{Sources, environment};
use rubelet_lifecycle::configuration::unsupported_volumes::without_plugin_volumes;
use rubelet_lifecycle::pod_state::Retry;
use rubelet_ports::{MountRequest, PodEvent, VolumeFailure};
use rubelet_resources::PodDemand;
use rubelet_storage::uses_volumes;
use rubelet_wire::cri::v1::Mount;
use tokio::sync::watch;

use super::context::{Interrupted, JobContext};
use super::host::PodHost;
use super::images::VolumeImages;
use super::variables::Variables;

/// The reason of an event about volumes that keep a pod from ending.
const FAILED_UNMOUNT: &str = "FailedUnmount";

pub(super) struct Volumes {
    context: Arc<JobContext>,
    /// The pod's newest definition; it changes also when an object changes that the pod refers to.
    newest: watch::Receiver<Arc<Pod>>,
}

impl Volumes {
    pub(super) fn new(context: Arc<JobContext>, newest: watch::Receiver<Arc<Pod>>) -> Self {
        Self { context, newest }
    }

    /// Sets the pod's volumes up, and brings files that follow its definition up to date.
    pub(super) async fn set_up(&self) -> Result<(), Interrupted> {
        self.set_up_of(Arc::clone(&self.context.pod)).await
    }

    /// Brings the files of a pod that starts nothing up to date.
    pub(super) async fn refresh(&self) -> Result<(), Interrupted> {
        self.set_up_of(refreshed(&self.context.pod)).await
    }

    async fn set_up_of(&self, pod: Arc<Pod>) -> Result<(), Interrupted> {
        if !uses_volumes(&pod) {
            return Ok(());
        }
        let context = &self.context;
        let what = format!("the pod's volumes: {}", volume_names(&pod));
        let set_up = context.try_read(what, context.ports().volumes.set_up(pod)).await;
        set_up.map_err(|error| error.map(|failure| self.failed(failure)))
    }

    fn failed(&self, failure: VolumeFailure) -> Retry {
        let retry = failure.retry_at.map_or(Retry::Later, Retry::At);
        self.context.failed(failure.message, retry)
    }

    /// Waits for something that can take minutes. The files of containers that run meanwhile follow what they are made from.
    pub(super) async fn refreshed_during<T>(&self, future: impl Future<Output = T>) -> T {
        let following = async {
            let mut newest = self.newest.clone();
            // The sender is gone only when the agent ends.
            while newest.changed().await.is_ok() {
                let pod = Arc::clone(&newest.borrow_and_update());
                let volumes = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.volumes.clone());
                if uses_volumes(&pod) && volumes(&pod) == volumes(&self.context.pod) {
                    // A failure here happens again in the next sync, which reports it.
                    let _ = self.context.ports().volumes.set_up(refreshed(&pod)).await;
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

    /// The mounts of a container's volumes.
    pub(super) async fn container_mounts(
        &self,
        container: &Container,
        images: VolumeImages,
        host: &PodHost,
        pod_ips: &[String],
        variables: &Variables,
    ) -> Result<Vec<Mount>, Interrupted<String>> {
        let mut mounts = container.volume_mounts.iter().flatten();
        let has_devices = container
            .volume_devices
            .as_ref()
            .is_some_and(|list| !list.is_empty());
        if !has_devices && mounts.clone().next().is_none() {
            return Ok(Vec::new());
        }
        let environment = if mounts.any(|mount| mount.sub_path_expr.is_some()) {
            let environment = self.environment_of(container, pod_ips, variables);
            environment.map_err(|error| Interrupted::Failed(error.to_string()))?
        } else {
            BTreeMap::new()
        };
        let request = MountRequest {
            pod: Arc::clone(&self.context.pod),
            container: container.clone(),
            environment,
            images,
            supports_recursive_read_only: host.supports_recursive_read_only(),
        };
        let what = format!("the mounts of container {}", container.name);
        let mounts = self.context.ports().volumes.mounts(request);
        let mounts = self.context.try_read(what, mounts).await;
        mounts.map_err(|error| error.map(|failure| failure.message))
    }

    fn environment_of(
        &self,
        container: &Container,
        pod_ips: &[String],
        variables: &Variables,
    ) -> Result<BTreeMap<String, String>, ConfigurationError> {
        let context = &self.context;
        let demand = PodDemand::read(&context.pod)?;
        let container_demand = demand.container(&container.name).cloned().unwrap_or_default();
        let sources = Sources {
            pod: &context.pod,
            demand: &demand,
            container_demand: &container_demand,
            node: &context.agent.settings.node,
            pod_ips,
            host_ips: &context.host_ips(),
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

    pub(super) async fn tear_down(&self) -> Result<(), Interrupted> {
        let context = &self.context;
        let volumes = context.pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
        if volumes.is_none_or(Vec::is_empty) {
            return Ok(());
        }
        let tear_down = context.ports().volumes.tear_down(&context.uid);
        let torn_down = context
            .try_read("the pod's volumes to be taken down", tear_down)
            .await;
        torn_down.map_err(|error| {
            error.map(|failure| {
                // A failure that the second try mends is not worth an event.
                if context.waits.last_error().as_ref() == Some(&failure.message) {
                    context.record(PodEvent::warning(FAILED_UNMOUNT, failure.message.clone()));
                }
                self.failed(failure)
            })
        })
    }
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
