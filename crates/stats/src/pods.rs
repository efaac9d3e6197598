//! Which pods and containers have statistics.
//!
//! Owns upstream's choice among the runtime's lists: of the sandboxes of one namespace and name all that are ready, or else the newest;
//! of those the ones in which a container runs; where the runtime counts what pods use, also the others. It must not ask the runtime.

use std::collections::BTreeMap;

use rubelet_model::Timestamp;
use rubelet_wire::cri::v1;

/// A sandbox with the containers that run in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunningPod {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) sandbox_id: String,
    pub(crate) created_at: Timestamp,
    /// By name.
    pub(crate) containers: Vec<RunningContainer>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunningContainer {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) created_at: Timestamp,
}

/// By namespace and name.
pub(crate) fn running_pods(
    sandboxes: Vec<v1::PodSandbox>,
    containers: Vec<v1::Container>,
    has_empty: bool,
) -> Vec<RunningPod> {
    let mut running: BTreeMap<String, Vec<RunningContainer>> = BTreeMap::new();
    for container in containers {
        if container.state() != v1::ContainerState::ContainerRunning {
            continue;
        }
        let sandbox = running.entry(container.pod_sandbox_id).or_default();
        sandbox.push(RunningContainer {
            id: container.id,
            name: container
                .metadata
                .map(|metadata| metadata.name)
                .unwrap_or_default(),
            created_at: Timestamp::from_unix_nanos(container.created_at),
        });
    }
    let pods = chosen(sandboxes).into_iter().filter_map(|sandbox| {
        let containers = running.remove(&sandbox.id);
        let mut containers = containers.or_else(|| has_empty.then(Vec::new))?;
        containers.sort_by(|one, other| (&one.name, &one.id).cmp(&(&other.name, &other.id)));
        let metadata = sandbox.metadata?;
        Some(RunningPod {
            uid: metadata.uid,
            namespace: metadata.namespace,
            name: metadata.name,
            sandbox_id: sandbox.id,
            created_at: Timestamp::from_unix_nanos(sandbox.created_at),
            containers,
        })
    });
    pods.collect()
}

fn chosen(sandboxes: Vec<v1::PodSandbox>) -> Vec<v1::PodSandbox> {
    let mut by_name: BTreeMap<(String, String), Vec<v1::PodSandbox>> = BTreeMap::new();
    for sandbox in sandboxes {
        let Some(metadata) = &sandbox.metadata else {
            continue;
        };
        let name = (metadata.namespace.clone(), metadata.name.clone());
        by_name.entry(name).or_default().push(sandbox);
    }
    let is_ready = |sandbox: &v1::PodSandbox| sandbox.state() == v1::PodSandboxState::SandboxReady;
    by_name
        .into_values()
        .flat_map(|mut same_name| {
            if same_name.iter().any(is_ready) {
                same_name.retain(is_ready);
            } else {
                same_name.sort_by_key(|sandbox| sandbox.created_at);
                same_name.drain(..same_name.len().saturating_sub(1));
            }
            same_name
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(id: &str, name: &str, is_ready: bool, created_at: i64) -> v1::PodSandbox {
        let state = if is_ready {
            v1::PodSandboxState::SandboxReady
        } else {
            v1::PodSandboxState::SandboxNotready
        };
        v1::PodSandbox {
            id: id.to_owned(),
            metadata: Some(v1::PodSandboxMetadata {
                name: name.to_owned(),
                namespace: "default".to_owned(),
                uid: format!("uid-{id}"),
                ..v1::PodSandboxMetadata::default()
            }),
            state: state.into(),
            created_at,
            ..v1::PodSandbox::default()
        }
    }

    fn container(id: &str, sandbox: &str, state: v1::ContainerState) -> v1::Container {
        v1::Container {
            id: id.to_owned(),
            pod_sandbox_id: sandbox.to_owned(),
            metadata: Some(v1::ContainerMetadata {
                name: format!("name-{id}"),
                ..v1::ContainerMetadata::default()
            }),
            state: state.into(),
            created_at: 7,
            ..v1::Container::default()
        }
    }

    fn check(sandboxes: &[v1::PodSandbox], containers: &[v1::Container], expected: &[(&str, &[&str])]) {
        let pods = running_pods(sandboxes.to_vec(), containers.to_vec(), false);
        let found: Vec<(&str, Vec<&str>)> = pods
            .iter()
            .map(|pod| {
                let ids = pod.containers.iter().map(|container| container.id.as_str());
                (pod.sandbox_id.as_str(), ids.collect())
            })
            .collect();
        let expected: Vec<(&str, Vec<&str>)> = expected
            .iter()
            .map(|(sandbox, ids)| (*sandbox, ids.to_vec()))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_pod_is_where_a_container_runs() {
        use v1::ContainerState::{ContainerExited as Exited, ContainerRunning as Running};
        check(&[], &[], &[]);
        // By name, with the containers by name.
        check(
            &[sandbox("s2", "web", true, 2), sandbox("s1", "api", true, 1)],
            &[
                container("c3", "s2", Running),
                container("c2", "s1", Running),
                container("c1", "s1", Running),
            ],
            &[("s1", &["c1", "c2"]), ("s2", &["c3"])],
        );
        // Where nothing runs there is nothing to show, and neither of a container without its sandbox.
        check(
            &[sandbox("s1", "web", true, 1)],
            &[container("c1", "s1", Exited), container("c2", "gone", Running)],
            &[],
        );
        let empty = running_pods(vec![sandbox("s1", "web", true, 1)], Vec::new(), true);
        assert_eq!(
            empty.iter().map(|pod| pod.containers.len()).collect::<Vec<_>>(),
            [0]
        );
        let both = [container("c1", "s1", Running), container("c2", "s2", Running)];
        let pair =
            |first: bool, second: bool| [sandbox("s1", "web", first, 1), sandbox("s2", "web", second, 2)];
        check(&pair(true, true), &both, &[("s1", &["c1"]), ("s2", &["c2"])]);
        check(&pair(true, false), &both, &[("s1", &["c1"])]);
        check(&pair(false, false), &both, &[("s2", &["c2"])]);
    }
}
