//! What a container's environment variables are taken from: ConfigMaps, Secrets, Services and files of volumes.
//!
//! Owns reading them. `lifecycle::configuration` makes the variables; watching the objects is behind the port.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use futures_util::future::{join, join_all};
use k8s_openapi::api::core::v1::{Container, Pod};
use rubelet_lifecycle::configuration::env_file::LIMIT_BYTES;
use rubelet_lifecycle::configuration::environment::{EnvFiles, env_files};
use rubelet_lifecycle::configuration::object_variables::{EnvObjects, ObjectProblem, env_references};
use rubelet_lifecycle::configuration::service_variables::service_variables;
use rubelet_lifecycle::status::is_static_pod;
use rubelet_ports::{ObjectFailure, PodObjects, within};
use rubelet_storage::PodLayout;
use rubelet_storage::layout::{EMPTY_DIR, pods_directory};

use super::context::{Interrupted, JobContext};

/// A static pod may be the API server itself: it waits no longer than this for services.
const STATIC_PATIENCE: Duration = Duration::from_millis(100);

/// What a container's variables are taken from, beside its own definition.
#[derive(Clone, Default)]
pub(super) struct Variables {
    pub(super) files: EnvFiles,
    pub(super) objects: EnvObjects,
    pub(super) services: BTreeMap<String, String>,
}

/// Reads everything that the container's variables are taken from. The failure is for people.
pub(super) async fn read_variables(
    context: &JobContext,
    container: &Container,
) -> Result<Variables, Interrupted<String>> {
    let files = read_files(context, container).await?;
    let Some(objects) = context.ports().api.objects.as_deref() else {
        return Ok(Variables {
            files,
            ..Variables::default()
        });
    };
    let what = format!(
        "ConfigMaps, Secrets and Services for container {}",
        container.name
    );
    let both = async {
        let objects = join(
            read_objects(context, container, objects),
            read_services(context, objects),
        );
        let (objects, services) = objects.await;
        services.map(|services| (objects, services))
    };
    let (objects, services) = context.try_read(what, both).await?;
    Ok(Variables {
        files,
        objects,
        services,
    })
}

/// What is in the files of `fileKeyRef`. A volume that cannot have such files is left out; a container that needs it fails.
///
/// Containers may have made links to anywhere, so that files are read inside of their volume only.
async fn read_files(context: &JobContext, container: &Container) -> Result<EnvFiles, Interrupted<String>> {
    let mut files = EnvFiles::new();
    for key in env_files(container) {
        if !has_empty_dir(&context.pod, &key.volume) {
            continue;
        }
        let layout = PodLayout::new(&pods_directory(&context.agent.settings.root_dir), &context.uid);
        let directory = layout.volume(EMPTY_DIR, &key.volume);
        let reader = &context.ports().file_reader;
        let read = reader.read_within(&directory, Path::new(&key.path), LIMIT_BYTES);
        let what = format!("file {} of volume {}", key.path, key.volume);
        let content = context.waits.named(what, context.or_cancelled(read)).await?;
        files.insert(key, content.map_err(|error| error.message));
    }
    Ok(files)
}

/// The API allows such files in no other kind of volume.
fn has_empty_dir(pod: &Pod, volume: &str) -> bool {
    let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.any(|one| one.name == volume && one.empty_dir.is_some())
}

fn namespace(context: &JobContext) -> &str {
    context.pod.metadata.namespace.as_deref().unwrap_or_default()
}

async fn read_objects(context: &JobContext, container: &Container, objects: &dyn PodObjects) -> EnvObjects {
    let references = env_references(container);
    let namespace = namespace(context);
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

fn problem(failure: ObjectFailure) -> ObjectProblem {
    match failure {
        ObjectFailure::NotFound(text) => ObjectProblem::NotFound(text),
        ObjectFailure::Unavailable(text) => ObjectProblem::Unavailable(text),
    }
}

async fn read_services(
    context: &JobContext,
    objects: &dyn PodObjects,
) -> Result<BTreeMap<String, String>, String> {
    let namespace = namespace(context);
    let listed = objects.services(namespace);
    let services = if is_static_pod(&context.pod) {
        let found = within(context.ports().clock.as_ref(), STATIC_PATIENCE, listed).await;
        found.ok().and_then(Result::ok).unwrap_or_default()
    } else {
        listed.await.map_err(|failure| failure.to_string())?
    };
    let links = context
        .pod
        .spec
        .as_ref()
        .and_then(|spec| spec.enable_service_links);
    Ok(service_variables(&services, namespace, links.unwrap_or(true)))
}
