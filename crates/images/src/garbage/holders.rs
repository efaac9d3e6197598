//! What holds images on this node: containers, active pods, image volumes, and the runtime itself.
//!
//! Owns the queries and their interpretation. An image counts as held before the first container uses it: otherwise the
//! image of a pod that waits to start would be removed and pulled again and again.

use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use rubelet_lifecycle::configuration::labels;
use rubelet_model::pod::PodName;
use rubelet_ports::{NoAnswer, PodView, PodsToRun, RuntimeError, RuntimeReader};
use rubelet_wire::cri::v1;
use serde_json::Value;

use crate::garbage::ledger::ImageKey;

/// An image that a container has, or mounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldImage {
    pub image: ImageKey,
    /// A text for users.
    pub holder: String,
}

#[async_trait]
pub trait ImageHolders: Send + Sync {
    /// The images of all containers that the runtime has, also of those that ended.
    async fn containers(&self) -> Result<Vec<HeldImage>, RuntimeError>;

    /// The pods that need their images; `None` while that is not known.
    async fn pods(&self) -> Result<Option<Vec<Arc<Pod>>>, NoAnswer>;

    /// The image that the runtime makes sandboxes from, if it reports it. Runtimes that know what pinning is pin it.
    async fn sandbox_image(&self) -> Result<Option<String>, RuntimeError>;
}

/// The node as the agent and the runtime show it.
pub struct NodeHolders {
    pub runtime: Arc<dyn RuntimeReader>,
    /// What the agent has seen of containers: the runtime's lists do not have mounts.
    pub seen: Arc<dyn PodView>,
    pub to_run: Arc<dyn PodsToRun>,
}

#[async_trait]
impl ImageHolders for NodeHolders {
    async fn containers(&self) -> Result<Vec<HeldImage>, RuntimeError> {
        // The list has containers of others than pods too.
        let listed = self.runtime.list_containers(None).await?;
        let mut held: Vec<HeldImage> = listed.iter().map(of_container).collect();
        for pod in self.seen.runtime_pods().await? {
            for container in &pod.containers {
                let mounted = container.mounts.iter().filter_map(|mount| mount.image.as_ref());
                held.extend(mounted.map(|image| HeldImage {
                    image: ImageKey::new(image, ""),
                    holder: format!("a volume of {}/{}/{}", pod.namespace, pod.name, container.name),
                }));
            }
        }
        Ok(held)
    }

    async fn pods(&self) -> Result<Option<Vec<Arc<Pod>>>, NoAnswer> {
        self.to_run.pods_to_run().await
    }

    async fn sandbox_image(&self) -> Result<Option<String>, RuntimeError> {
        let status = self.runtime.status(true).await?;
        Ok(status.info.get("config").and_then(|text| sandbox_image_in(text)))
    }
}

fn of_container(container: &v1::Container) -> HeldImage {
    // Older runtimes report the id only as the reference.
    let id = match container.image_id.as_str() {
        "" => &container.image_ref,
        id => id,
    };
    let handler = container
        .image
        .as_ref()
        .map_or("", |image| image.runtime_handler.as_str());
    let label = |key: &str| container.labels.get(key).map_or("", String::as_str);
    let name = container
        .metadata
        .as_ref()
        .map_or("", |metadata| metadata.name.as_str());
    let holder = match (label(labels::POD_NAMESPACE), label(labels::POD_NAME)) {
        ("", "") => format!("container {}", container.id),
        (namespace, pod) => format!("{namespace}/{pod}/{name}"),
    };
    HeldImage {
        image: ImageKey::new(id, handler),
        holder,
    }
}

/// containerd's configuration of sandboxes, as its status shows it.
fn sandbox_image_in(text: &str) -> Option<String> {
    let configuration: Value = serde_json::from_str(text).ok()?;
    let image = configuration.get("sandboxImage")?.as_str()?;
    (!image.is_empty()).then(|| image.to_owned())
}

/// The names of all images that a pod needs, each with the container or volume that needs it. A container that has ended may be needed again when its sandbox dies.
pub(crate) fn needs_of(pod: &Pod) -> Vec<(String, String)> {
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let pod_name = PodName::of(pod);
    let init = spec.init_containers.iter().flatten();
    let containers = init
        .chain(&spec.containers)
        .map(|container| (&container.image, &container.name));
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let containers = containers.chain(ephemeral.map(|container| (&container.image, &container.name)));
    let containers = containers.map(|(image, name)| (text(image), format!("{pod_name}/{name}")));
    let volumes = spec.volumes.iter().flatten().filter_map(|volume| {
        let image = volume.image.as_ref()?;
        Some((
            text(&image.reference),
            format!("volume {} of {pod_name}", volume.name),
        ))
    });
    containers
        .chain(volumes)
        .filter(|(image, _)| !image.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_needs_all_its_images() {
        let check = |pod: Value, expected: &[(&str, &str)]| {
            let pod: Pod = serde_json::from_value(pod).unwrap();
            let needs = needs_of(&pod);
            let needs: Vec<(&str, &str)> = needs
                .iter()
                .map(|(image, holder)| (image.as_str(), holder.as_str()))
                .collect();
            assert_eq!(needs, expected);
        };
        check(json!({"metadata": {"name": "orphan"}}), &[]);
        check(
            json!({"metadata": {"namespace": "ns", "name": "p"}, "spec": {
                "initContainers": [{"name": "i", "image": "init:1"}],
                "containers": [{"name": "a", "image": "app:1"}, {"name": "b"}],
                "ephemeralContainers": [{"name": "e", "image": "tools:1"}],
                "volumes": [{"name": "v", "image": {"reference": "data:1"}}, {"name": "w", "emptyDir": {}}]}}),
            &[
                ("init:1", "ns/p/i"),
                ("app:1", "ns/p/a"),
                ("tools:1", "ns/p/e"),
                ("data:1", "volume v of ns/p"),
            ],
        );
    }

    #[test]
    fn containers_hold_their_images_by_id() {
        let container = |id: &str, reference: &str, labels: &[(&str, &str)]| v1::Container {
            id: "c1".to_owned(),
            image_id: id.to_owned(),
            image_ref: reference.to_owned(),
            image: Some(v1::ImageSpec {
                runtime_handler: "h".to_owned(),
                ..v1::ImageSpec::default()
            }),
            metadata: Some(v1::ContainerMetadata {
                name: "main".to_owned(),
                attempt: 0,
            }),
            labels: labels
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
            ..v1::Container::default()
        };
        let check = |container: v1::Container, id: &str, holder: &str| {
            let held = of_container(&container);
            assert_eq!(
                (held.image, held.holder.as_str()),
                (ImageKey::new(id, "h"), holder)
            );
        };
        let of_pod = [(labels::POD_NAMESPACE, "ns"), (labels::POD_NAME, "p")];
        check(container("id", "ref", &of_pod), "id", "ns/p/main");
        check(container("", "ref", &of_pod), "ref", "ns/p/main");
        check(container("id", "", &[]), "id", "container c1");
    }

    #[test]
    fn the_sandbox_image_is_where_containerd_tells_it() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(sandbox_image_in(text).as_deref(), expected, "{text}");
        };
        check("{\"sandboxImage\": \"pause:3\"}", Some("pause:3"));
        check("{\"sandboxImage\": \"\"}", None);
        check("{\"sandboxImage\": 3}", None);
        check("{}", None);
        check("no JSON", None);
    }
}
