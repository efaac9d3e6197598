//! The API objects that a pod refers to: from its first sync until nothing of it is left.
//!
//! Owns when they are asked for on a container's way, and the words when they cannot be had. What becomes of them is decided by the
//! pure configuration; who watches them is behind the port.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::{join, join_all};
use k8s_openapi::api::core::v1::Container;
use rubelet_lifecycle::configuration::environment::EnvFiles;
use rubelet_lifecycle::configuration::object_variables::{EnvObjects, ObjectProblem, env_references};
use rubelet_lifecycle::configuration::service_variables::service_variables;
use rubelet_lifecycle::status::is_static_pod;
use rubelet_ports::{ObjectFailure, PodObjects, within};

use super::{PodJob, Stop};

/// A static pod may be the API server itself: it waits no longer than this for services.
const STATIC_PATIENCE: Duration = Duration::from_millis(100);

/// What a container's variables are taken from, beside its own definition.
#[derive(Clone, Default)]
pub(super) struct Variables {
    pub(super) files: EnvFiles,
    pub(super) objects: EnvObjects,
    pub(super) services: BTreeMap<String, String>,
}

fn problem(failure: ObjectFailure) -> ObjectProblem {
    match failure {
        ObjectFailure::NotFound(text) => ObjectProblem::NotFound(text),
        ObjectFailure::Unavailable(text) => ObjectProblem::Unavailable(text),
    }
}

impl PodJob {
    /// What the pod refers to is followed from now on.
    pub(super) fn register_objects(&self) {
        if let Some(objects) = &self.ports().objects {
            objects.register(&self.pod);
        }
    }

    pub(super) fn unregister_objects(&self) {
        if let Some(objects) = &self.ports().objects {
            objects.unregister(&self.uid);
        }
    }

    /// Everything that the container's variables are taken from. The inner answer is why it cannot be had.
    pub(super) async fn variables(&self, container: &Container) -> Result<Result<Variables, String>, Stop> {
        let files = self.env_files(container).await?;
        let Some(objects) = self.ports().objects.clone() else {
            return Ok(Ok(Variables {
                files,
                ..Variables::default()
            }));
        };
        let what = format!(
            "ConfigMaps, Secrets and Services for container {}",
            container.name
        );
        let both = join(
            self.env_objects(container, objects.as_ref()),
            self.services(objects.as_ref()),
        );
        let (objects, services) = self.read(what, both).await?;
        Ok(services.map(|services| Variables {
            files,
            objects,
            services,
        }))
    }

    fn namespace(&self) -> &str {
        self.pod.metadata.namespace.as_deref().unwrap_or_default()
    }

    async fn env_objects(&self, container: &Container, objects: &dyn PodObjects) -> EnvObjects {
        let references = env_references(container);
        let namespace = self.namespace();
        let config_maps = references.config_maps.into_iter().map(|name| async move {
            let found = objects.config_map(namespace, &name).await;
            (name, found.map_err(problem))
        });
        let secrets = references.secrets.into_iter().map(|name| async move {
            let found = objects.secret(namespace, &name).await;
            (name, found.map_err(problem))
        });
        let (config_maps, secrets) = join(join_all(config_maps), join_all(secrets)).await;
        EnvObjects {
            config_maps: config_maps.into_iter().collect(),
            secrets: secrets.into_iter().collect(),
        }
    }

    async fn services(&self, objects: &dyn PodObjects) -> Result<BTreeMap<String, String>, String> {
        let namespace = self.namespace();
        let asked = objects.services(namespace);
        let services = if is_static_pod(&self.pod) {
            let found = within(self.ports().clock.as_ref(), STATIC_PATIENCE, asked).await;
            found.ok().and_then(Result::ok).unwrap_or_default()
        } else {
            asked.await.map_err(|failure| failure.to_string())?
        };
        let links = self.pod.spec.as_ref().and_then(|spec| spec.enable_service_links);
        Ok(service_variables(&services, namespace, links.unwrap_or(true)))
    }

    /// What the runtime calls the pod's class; empty is its default.
    pub(super) async fn runtime_handler(&mut self) -> Result<String, Stop> {
        match self.find_runtime_handler().await? {
            Ok(handler) => Ok(handler),
            Err(problem) => Err(self.without_sandbox(&problem)),
        }
    }

    /// The same. The inner answer is why it is not known.
    pub(super) async fn find_runtime_handler(&mut self) -> Result<Result<String, String>, Stop> {
        let class = self
            .pod
            .spec
            .as_ref()
            .and_then(|spec| spec.runtime_class_name.clone());
        let Some(class) = class.filter(|class| !class.is_empty()) else {
            return Ok(Ok(String::new()));
        };
        if let Some(handler) = &self.work.runtime_handler {
            return Ok(Ok(handler.clone()));
        }
        let found = match self.ports().objects.clone() {
            Some(objects) => {
                let lookup = async { objects.runtime_class(&class).await };
                self.read(format!("the runtime class {class}"), lookup).await?
            }
            None => Err(ObjectFailure::Unavailable("there is no API server".to_owned())),
        };
        Ok(match found {
            Ok(class) => {
                self.work.runtime_handler = Some(class.handler.clone());
                Ok(class.handler.clone())
            }
            Err(ObjectFailure::NotFound(text)) => Err(text),
            Err(ObjectFailure::Unavailable(text)) => {
                Err(format!("failed to lookup RuntimeClass {class}: {text}"))
            }
        })
    }
}
