//! Which cgroups are on the page, and what each of them is.
//!
//! Owns the choice among the runtime's lists: sandboxes that are ready and containers that run, each with its pod; around them the
//! cgroups of pods, of their QoS classes, of the node's programs, and the root.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rubelet_model::Timestamp;
use rubelet_ports::UsageQuestion;
use rubelet_usage::Classes;
use rubelet_wire::cri::v1;

use super::labels::Labels;
use super::names::ImageNames;
use crate::places::CgroupPlaces;

/// What runs, by the runtime's lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) sandboxes: Vec<ListedSandbox>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListedSandbox {
    pub(super) id: String,
    pub(super) uid: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) created_at: Timestamp,
    pub(super) containers: Vec<ListedContainer>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListedContainer {
    pub(super) id: String,
    pub(super) name: String,
    /// As the runtime refers to its image.
    pub(super) image: String,
    pub(super) created_at: Timestamp,
}

impl Listed {
    /// Sandboxes that are ready, or in which a container runs.
    pub(super) fn of_lists(sandboxes: Vec<v1::PodSandbox>, containers: Vec<v1::Container>) -> Self {
        let mut running: BTreeMap<String, Vec<ListedContainer>> = BTreeMap::new();
        for container in containers {
            if container.state() != v1::ContainerState::ContainerRunning {
                continue;
            }
            let image = [container.image_id, container.image_ref]
                .into_iter()
                .find(|image| !image.is_empty());
            let sandbox = running.entry(container.pod_sandbox_id).or_default();
            sandbox.push(ListedContainer {
                id: container.id,
                name: container
                    .metadata
                    .map(|metadata| metadata.name)
                    .unwrap_or_default(),
                image: image.unwrap_or_default(),
                created_at: Timestamp::from_unix_nanos(container.created_at),
            });
        }
        let sandboxes = sandboxes.into_iter().filter_map(|sandbox| {
            let is_ready = sandbox.state() == v1::PodSandboxState::SandboxReady;
            let containers = running.remove(&sandbox.id);
            let metadata = sandbox.metadata.filter(|_| is_ready || containers.is_some())?;
            Some(ListedSandbox {
                id: sandbox.id,
                uid: metadata.uid,
                namespace: metadata.namespace,
                name: metadata.name,
                created_at: Timestamp::from_unix_nanos(sandbox.created_at),
                containers: containers.unwrap_or_default(),
            })
        });
        Self {
            sandboxes: sandboxes.collect(),
        }
    }

    /// The images of all containers.
    pub(super) fn images(&self) -> BTreeSet<&str> {
        let containers = self.sandboxes.iter().flat_map(|sandbox| &sandbox.containers);
        containers.map(|container| container.image.as_str()).collect()
    }
}

/// A cgroup that is asked for.
pub(super) struct Asked {
    pub(super) subject: Subject,
    pub(super) labels: RowLabels,
    /// When the runtime made it; `None` where the cgroup says it.
    pub(super) created_at: Option<Timestamp>,
    pub(super) question: UsageQuestion,
}

/// Whose cgroup it is; where it was found is remembered under this.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    Node(Arc<str>),
    Pod(String),
    Sandbox(String),
    Container(String),
}

/// The labels of a row beside its path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RowLabels {
    container: String,
    image: String,
    name: String,
    namespace: String,
    pod: String,
}

impl RowLabels {
    pub(super) fn with_path(&self, path: &str) -> Labels {
        Labels::new(&[
            &[("container", &self.container)],
            &[("id", path), ("image", &self.image)],
            &[("name", &self.name), ("namespace", &self.namespace)],
            &[("pod", &self.pod)],
        ])
    }
}

const EVERYTHING: Classes = Classes {
    pressure: true,
    io_pressure: true,
    limits: true,
    network: false,
    processes: false,
    detail: true,
    file_limit: false,
};

/// The whole machine.
pub(super) fn root(path: &Arc<str>) -> UsageQuestion {
    UsageQuestion {
        paths: vec![Arc::clone(path)],
        classes: Classes {
            network: true,
            file_limit: true,
            ..EVERYTHING
        },
    }
}

/// All but the root.
pub(super) fn questions(
    listed: &Listed,
    node: &[Arc<str>],
    places: &CgroupPlaces,
    images: &ImageNames,
    known: impl Fn(&Subject) -> Option<Arc<str>>,
) -> Vec<Asked> {
    let place = |subject: &Subject, possible: Vec<Arc<str>>| match known(subject) {
        Some(path) => vec![path],
        None => possible,
    };
    let mut asked: Vec<Asked> = node
        .iter()
        .map(|path| Asked {
            subject: Subject::Node(Arc::clone(path)),
            labels: RowLabels::default(),
            created_at: None,
            question: UsageQuestion {
                paths: vec![Arc::clone(path)],
                classes: EVERYTHING,
            },
        })
        .collect();
    let mut pods: BTreeSet<&str> = BTreeSet::new();
    for sandbox in &listed.sandboxes {
        let of_pod = Subject::Pod(sandbox.uid.clone());
        let parents = place(&of_pod, places.pod(&sandbox.uid));
        let labels = RowLabels {
            namespace: sandbox.namespace.clone(),
            pod: sandbox.name.clone(),
            ..RowLabels::default()
        };
        let mut ask = |subject: Subject, labels, created_at, paths, classes| {
            let question = UsageQuestion { paths, classes };
            asked.push(Asked {
                subject,
                labels,
                created_at,
                question,
            });
        };
        let program = Classes {
            file_limit: true,
            ..EVERYTHING
        };
        if pods.insert(&sandbox.uid) {
            ask(of_pod, labels.clone(), None, parents.clone(), EVERYTHING);
        }
        let subject = Subject::Sandbox(sandbox.id.clone());
        let paths = place(&subject, places.container(&parents, &sandbox.id));
        let of_sandbox = RowLabels {
            container: places.sandbox_label().to_owned(),
            image: images.of_sandboxes().to_owned(),
            name: sandbox.id.clone(),
            ..labels.clone()
        };
        let created_at = Some(sandbox.created_at);
        ask(subject, of_sandbox, created_at, paths, program.with_network(true));
        for container in &sandbox.containers {
            let subject = Subject::Container(container.id.clone());
            let paths = place(&subject, places.container(&parents, &container.id));
            let of_container = RowLabels {
                container: container.name.clone(),
                image: images.of(&container.image).to_owned(),
                name: container.id.clone(),
                ..labels.clone()
            };
            ask(subject, of_container, Some(container.created_at), paths, program);
        }
    }
    asked
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(id: &str, is_ready: bool) -> v1::PodSandbox {
        let state = if is_ready {
            v1::PodSandboxState::SandboxReady
        } else {
            v1::PodSandboxState::SandboxNotready
        };
        v1::PodSandbox {
            id: id.to_owned(),
            metadata: Some(v1::PodSandboxMetadata {
                uid: format!("uid-{id}"),
                ..v1::PodSandboxMetadata::default()
            }),
            state: state.into(),
            ..v1::PodSandbox::default()
        }
    }

    fn container(id: &str, sandbox: &str, state: v1::ContainerState) -> v1::Container {
        v1::Container {
            id: id.to_owned(),
            pod_sandbox_id: sandbox.to_owned(),
            image_ref: "sha256:1".to_owned(),
            state: state.into(),
            ..v1::Container::default()
        }
    }

    #[test]
    fn a_sandbox_counts_without_a_container() {
        use v1::ContainerState::{ContainerExited, ContainerRunning};
        let listed = Listed::of_lists(
            vec![
                sandbox("ready", true),
                sandbox("ended", false),
                sandbox("ending", false),
            ],
            vec![
                container("a", "ready", ContainerExited),
                container("b", "ending", ContainerRunning),
                container("c", "gone", ContainerRunning),
            ],
        );
        let rows: Vec<(&str, usize)> = listed
            .sandboxes
            .iter()
            .map(|sandbox| (sandbox.id.as_str(), sandbox.containers.len()))
            .collect();
        assert_eq!(rows, [("ready", 0), ("ending", 1)]);
        assert_eq!(listed.images().into_iter().collect::<Vec<_>>(), ["sha256:1"]);
    }
}
