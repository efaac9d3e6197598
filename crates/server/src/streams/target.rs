//! Which pod and container a session is for.
//!
//! Owns the reading of the path and the search. Names decide; the runtime answers at that moment whether a container runs,
//! because a status may be a second old. Error texts are upstream's.

use std::sync::Arc;

use http::StatusCode;
use k8s_openapi::api::core::v1::Pod;
use rubelet_model::observation::{PodObservation, SandboxState};
use rubelet_model::pod::{full_name, is_named, uid_of, uid_text};
use rubelet_ports::PodView;

use super::Problem;

/// What a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target<'a> {
    pub(super) namespace: &'a str,
    pub(super) pod: &'a str,
    pub(super) uid: Option<&'a str>,
    /// Empty for what concerns the whole pod.
    pub(super) container: &'a str,
}

impl<'a> Target<'a> {
    /// From `namespace/pod[/uid]/container`.
    pub(super) fn of_container(rest: &'a str) -> Option<Self> {
        let segments: Vec<&str> = rest.split('/').collect();
        let (namespace, pod, uid, container) = match segments[..] {
            [namespace, pod, container] => (namespace, pod, None, container),
            [namespace, pod, uid, container] => (namespace, pod, Some(uid), container),
            _ => return None,
        };
        Some(Self {
            namespace,
            pod,
            uid,
            container,
        })
    }

    /// From `namespace/pod[/uid]`.
    pub(super) fn of_pod(rest: &'a str) -> Option<Self> {
        let segments: Vec<&str> = rest.split('/').collect();
        let (namespace, pod, uid) = match segments[..] {
            [namespace, pod] => (namespace, pod, None),
            [namespace, pod, uid] => (namespace, pod, Some(uid)),
            _ => return None,
        };
        Some(Self {
            namespace,
            pod,
            uid,
            container: "",
        })
    }

    /// The pod's name as upstream's messages have it.
    pub(super) fn full_name(&self) -> String {
        full_name(self.pod, self.namespace)
    }

    pub(super) async fn find_pod(&self, pods: &dyn PodView) -> Result<Arc<Pod>, Problem> {
        let all = pods.pods().await.map_err(|error| Problem::internal(&error))?;
        let mut named: Vec<Arc<Pod>> = all
            .into_iter()
            .filter(|pod| is_named(pod, self.namespace, self.pod))
            .collect();
        // Two of a name can be there while the elder ends: the one that was meant, else the one that stays.
        named.sort_by_key(|pod| {
            let is_meant = self.uid.is_some() && !self.is_another(pod, pods);
            (!is_meant, pod.metadata.deletion_timestamp.is_some())
        });
        named.into_iter().next().ok_or_else(|| {
            let message = "pod does not exist".to_owned();
            Problem::new(StatusCode::NOT_FOUND, message)
        })
    }

    /// Whether the path names another pod than the one that was found. The API server names a static pod by its mirror.
    pub(super) fn is_another(&self, pod: &Pod, pods: &dyn PodView) -> bool {
        let meant = self.uid.map(|uid| pods.uid_on_node(uid));
        meant.is_some_and(|meant| uid_text(pod) != meant.as_str())
    }
}

/// What the runtime has of a pod, if it has something that runs.
pub(super) async fn observe(pod: &Pod, pods: &dyn PodView) -> Result<Option<Arc<PodObservation>>, Problem> {
    let uid = uid_of(pod);
    let observed = pods.runtime_pod(&uid).await;
    let observed = observed.map_err(|error| Problem::of_runtime(&error))?;
    let runs = |pod: &PodObservation| {
        pod.containers
            .iter()
            .any(|container| container.state.is_running())
            || pod
                .sandboxes
                .iter()
                .any(|sandbox| sandbox.state == SandboxState::Ready)
    };
    Ok(observed.filter(|observed| runs(observed)))
}

/// The id of the running container of a name.
pub(super) fn running_container<'a>(observed: Option<&'a PodObservation>, name: &str) -> Option<&'a str> {
    observed?
        .containers
        .iter()
        .find(|container| container.name == name && container.state.is_running())
        .map(|container| container.id.as_str())
}

/// Whether a container of the pod has a terminal, if there is such a container.
pub(super) fn has_terminal(pod: &Pod, name: &str) -> Option<bool> {
    let spec = pod.spec.as_ref()?;
    let ordinary = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten())
        .map(|container| (&container.name, container.tty));
    let ephemeral = spec
        .ephemeral_containers
        .iter()
        .flatten()
        .map(|container| (&container.name, container.tty));
    ordinary
        .chain(ephemeral)
        .find(|(found, _)| *found == name)
        .map(|(_, tty)| tty == Some(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_its_target() {
        let target = |namespace, pod, uid, container| {
            Some(Target {
                namespace,
                pod,
                uid,
                container,
            })
        };
        let check = |rest: &str, container: Option<Target<'_>>, pod: Option<Target<'_>>| {
            assert_eq!(Target::of_container(rest), container, "{rest}");
            assert_eq!(Target::of_pod(rest), pod, "{rest}");
        };
        check("", None, None);
        check("ns", None, None);
        check("ns/web", None, target("ns", "web", None, ""));
        check(
            "ns/web/main",
            target("ns", "web", None, "main"),
            target("ns", "web", Some("main"), ""),
        );
        check("ns/web/u/main", target("ns", "web", Some("u"), "main"), None);
        check("ns/web/u/main/x", None, None);
    }
}
