//! Finds the container whose log is requested, and its log file.
//!
//! Owns the choice between the container that runs and those before it, with upstream's texts where there is none. The path
//! comes from the scheme that containers are created with; only for an earlier container the runtime is asked.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod};
use rubelet_lifecycle::configuration::log_paths::{container_log_path, pod_logs_dir};
use rubelet_model::pod::{name_of, uid_of};
use rubelet_ports::PodView;

/// A container that exists or existed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Located {
    /// With the runtime's name before it.
    pub(super) id: String,
    /// The number of its log file; `None` when it is not the newest container of its name.
    restart_count: Option<i32>,
}

pub(crate) fn has_container(pod: &Pod, name: &str) -> bool {
    pod.spec.as_ref().is_some_and(|spec| {
        let ephemeral = spec.ephemeral_containers.iter().flatten();
        spec.containers.iter().any(|container| container.name == name)
            || spec
                .init_containers
                .iter()
                .flatten()
                .any(|container| container.name == name)
            || ephemeral.into_iter().any(|container| container.name == name)
    })
}

pub(super) fn status_of<'a>(pod: &'a Pod, container: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ]
    .into_iter()
    .flat_map(|statuses| statuses.iter().flatten())
    .find(|status| status.name == container)
}

/// The container to read, or why there is none.
pub(super) fn locate(pod: &Pod, container: &str, previous: bool) -> Result<Located, String> {
    let place = format!("container {container:?} in pod {:?}", name_of(pod));
    let status = status_of(pod, container).ok_or_else(|| format!("{place} is not available"))?;
    let ended_id = |state: Option<&ContainerState>| {
        let terminated = state?.terminated.as_ref()?;
        terminated.container_id.clone().filter(|id| !id.is_empty())
    };
    let earlier = ended_id(status.last_state.as_ref());
    let newest = |id: String| Located {
        restart_count: Some(status.restart_count).filter(|_| status.container_id.as_ref() == Some(&id)),
        id,
    };
    let before = |id: String| Located {
        id,
        restart_count: None,
    };
    if previous {
        return earlier
            .map(before)
            .ok_or_else(|| format!("previous terminated {place} not found"));
    }
    let state = status.state.as_ref();
    let last_ended = status
        .last_state
        .as_ref()
        .is_some_and(|state| state.terminated.is_some());
    if state.is_some_and(|state| state.running.is_some()) {
        return Ok(newest(status.container_id.clone().unwrap_or_default()));
    }
    if state.is_some_and(|state| state.terminated.is_some()) {
        return ended_id(state)
            .map(newest)
            .or(earlier.map(before))
            .ok_or_else(|| format!("{place} is terminated"));
    }
    if last_ended {
        return earlier
            .map(before)
            .ok_or_else(|| format!("{place} is terminated"));
    }
    Err(match state.and_then(|state| state.waiting.as_ref()) {
        None => format!("{place} is waiting to start - no logs yet"),
        Some(waiting) => match waiting.reason.as_deref().unwrap_or_default() {
            "ErrImagePull" => format!("{place} is waiting to start: image can't be pulled"),
            "ImagePullBackOff" => format!("{place} is waiting to start: trying and failing to pull image"),
            reason => format!("{place} is waiting to start: {reason}"),
        },
    })
}

/// The file that a container writes to, unless the runtime has forgotten it.
pub(super) async fn log_file_of(
    logs_dir: &Path,
    pod: &Pod,
    container: &str,
    located: &Located,
    pods: &dyn PodView,
) -> Option<PathBuf> {
    if let Some(restart_count) = located.restart_count {
        let directory = pod_logs_dir(&logs_dir.to_string_lossy(), pod);
        let number = u32::try_from(restart_count).ok()?;
        return Some(Path::new(&directory).join(container_log_path(container, number)));
    }
    let id = located.id.split_once("://").map_or("", |(_, id)| id);
    let uid = uid_of(pod);
    let observed = pods.runtime_pod(&uid).await.ok()??;
    let container = observed
        .containers
        .iter()
        .find(|container| container.id.as_str() == id)?;
    Some(PathBuf::from(&container.log_path)).filter(|path| path.is_absolute())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(state: &Value, last_state: &Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": { "name": "web", "namespace": "default", "uid": "u" },
            "spec": { "containers": [{ "name": "main" }] },
            "status": { "containerStatuses": [{
                "name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 3,
                "containerID": "containerd://new", "state": state, "lastState": last_state,
            }] },
        }))
        .unwrap()
    }

    #[test]
    fn the_container_is_chosen_as_upstream_does() {
        let check =
            |state: Value, last: Value, previous: bool, expected: Result<(&str, Option<i32>), &str>| {
                let found = locate(&pod(&state, &last), "main", previous);
                let found = found
                    .as_ref()
                    .map(|located| (located.id.as_str(), located.restart_count));
                assert_eq!(
                    found,
                    expected.map_err(str::to_owned).as_ref().copied(),
                    "{state}"
                );
            };
        let none = || json!({});
        let running = || json!({ "running": {} });
        let ended = |id: &str| json!({ "terminated": { "exitCode": 0, "containerID": id } });
        let waiting = |reason: &str| json!({ "waiting": { "reason": reason } });
        let place = r#"container "main" in pod "web""#;
        check(running(), none(), false, Ok(("containerd://new", Some(3))));
        check(
            running(),
            ended("containerd://old"),
            false,
            Ok(("containerd://new", Some(3))),
        );
        check(
            running(),
            ended("containerd://old"),
            true,
            Ok(("containerd://old", None)),
        );
        check(
            running(),
            none(),
            true,
            Err(&format!("previous terminated {place} not found")),
        );
        check(
            ended("containerd://new"),
            none(),
            false,
            Ok(("containerd://new", Some(3))),
        );
        check(
            ended(""),
            ended("containerd://old"),
            false,
            Ok(("containerd://old", None)),
        );
        check(ended(""), none(), false, Err(&format!("{place} is terminated")));
        check(
            waiting("CrashLoopBackOff"),
            ended("containerd://new"),
            false,
            Ok(("containerd://new", None)),
        );
        check(
            waiting("x"),
            ended(""),
            false,
            Err(&format!("{place} is terminated")),
        );
        check(
            waiting("ContainerCreating"),
            none(),
            false,
            Err(&format!("{place} is waiting to start: ContainerCreating")),
        );
        check(
            waiting("ErrImagePull"),
            none(),
            false,
            Err(&format!("{place} is waiting to start: image can't be pulled")),
        );
        check(
            waiting("ImagePullBackOff"),
            none(),
            false,
            Err(&format!(
                "{place} is waiting to start: trying and failing to pull image"
            )),
        );
        check(
            none(),
            none(),
            false,
            Err(&format!("{place} is waiting to start - no logs yet")),
        );
        assert_eq!(
            locate(&pod(&none(), &none()), "other", false),
            Err("container \"other\" in pod \"web\" is not available".to_owned())
        );
    }
}
