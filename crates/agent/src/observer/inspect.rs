//! One look at one pod: from the runtime's lists and statuses to an observation.
//!
//! Owns which calls a look needs: what is listed in the state in which it was last seen is not asked for again, because the
//! facts of a sandbox or container change only with its state. It keeps nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use futures_util::future::try_join_all;
use rubelet_lifecycle::configuration::labels;
use rubelet_lifecycle::configuration::termination_message::{
    MAX_FILE_BYTES, MAX_LOG_BYTES, MAX_LOG_LINES, MessageFile, Source, combined, falls_back_to_log,
    message_of_cut_log, message_of_file, message_of_log, message_of_log_end, path_in_container,
};
use rubelet_lifecycle::observe::{observe_container, observe_sandbox, observe_unreadable_sandbox};
use rubelet_model::Timestamp;
use rubelet_model::observation::{
    ContainerObservation, ContainerState, OOM_KILLED, PodObservation, PodUid, SandboxId, SandboxObservation,
    SandboxState,
};
use rubelet_ports::{FileError, FileErrorKind, FileReader, MemoryKills, RuntimeError, RuntimeErrorKind};
use rubelet_wire::cri::v1;

use crate::settings::AgentPorts;

/// Statuses of one pod that are asked for at the same time.
const STATUSES_IN_FLIGHT: usize = 4;
/// How often a sandbox's status is asked for before it counts as unreadable: such a pod may lose its sandbox, so that one
/// failure must not be enough.
const STATUS_TRIES: usize = 4;
const STATUS_RETRY: Duration = Duration::from_millis(500);
/// The exit code of a process that was killed.
const KILLED: i32 = 128 + 9;
/// A log line can be longer than what is kept of it; this much of the file's end is looked at.
const LOG_END_BYTES: usize = MAX_LOG_BYTES * 2 + MAX_LOG_LINES * 64;
/// This much when lines are longer than that. Runtimes cut them at 8 or 16 KiB unless they are told otherwise.
const LONG_LOG_END_BYTES: usize = 256 << 10;

/// What the runtime has of one pod, by its lists.
#[derive(Clone, Debug, Default)]
pub(super) struct Listed {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) sandboxes: Vec<v1::PodSandbox>,
    pub(super) containers: Vec<v1::Container>,
}

impl Listed {
    /// Whether anything of the pod runs or may run.
    pub(super) fn lives(&self) -> bool {
        let is_ready =
            |sandbox: &v1::PodSandbox| sandbox.observed_state() == v1::PodSandboxState::SandboxReady;
        let may_run = |container: &v1::Container| match container.observed_state() {
            v1::ContainerState::ContainerRunning | v1::ContainerState::ContainerUnknown => true,
            v1::ContainerState::ContainerCreated | v1::ContainerState::ContainerExited => false,
        };
        self.sandboxes.iter().any(is_ready) || self.containers.iter().any(may_run)
    }

    fn note_identity(&mut self, labels: &BTreeMap<String, String>) {
        let text = |key: &str| labels.get(key).cloned().unwrap_or_default();
        if self.name.is_empty() {
            self.name = text(labels::POD_NAME);
            self.namespace = text(labels::POD_NAMESPACE);
        }
    }
}

/// Sorts both lists by pod; what carries no pod's label is not ours. A runtime that lists something twice means one thing.
pub(super) fn group_by_pod(
    sandboxes: Vec<v1::PodSandbox>,
    containers: Vec<v1::Container>,
) -> BTreeMap<PodUid, Listed> {
    let mut pods: BTreeMap<PodUid, Listed> = BTreeMap::new();
    let mut ids = BTreeSet::new();
    for sandbox in sandboxes {
        if !ids.insert(sandbox.id.clone()) {
            continue;
        }
        if let Some(uid) = rubelet_lifecycle::observe::pod_uid_of(&sandbox.labels) {
            let listed = pods.entry(uid).or_default();
            listed.note_identity(&sandbox.labels);
            listed.sandboxes.push(sandbox);
        }
    }
    for container in containers {
        if !ids.insert(container.id.clone()) {
            continue;
        }
        if let Some(uid) = rubelet_lifecycle::observe::pod_uid_of(&container.labels) {
            let listed = pods.entry(uid).or_default();
            listed.note_identity(&container.labels);
            listed.containers.push(container);
        }
    }
    pods
}

/// The runtime's lists of one pod.
pub(super) async fn list_pod(ports: &AgentPorts, uid: &PodUid) -> Result<Listed, RuntimeError> {
    let selector = BTreeMap::from([(labels::POD_UID.to_owned(), uid.to_string())]);
    let sandbox_filter = v1::PodSandboxFilter {
        label_selector: selector.clone(),
        ..v1::PodSandboxFilter::default()
    };
    let container_filter = v1::ContainerFilter {
        label_selector: selector,
        ..v1::ContainerFilter::default()
    };
    let (sandboxes, containers) = futures_util::future::try_join(
        ports.runtime_reader.list_pod_sandboxes(Some(sandbox_filter)),
        ports.runtime_reader.list_containers(Some(container_filter)),
    )
    .await?;
    Ok(group_by_pod(sandboxes, containers)
        .remove(uid)
        .unwrap_or_default())
}

/// Whether the lists show anything that the observation does not.
pub(super) fn differs(listed: &Listed, seen: &PodObservation) -> bool {
    let same_sandboxes = listed.sandboxes.len() == seen.sandboxes.len()
        && listed
            .sandboxes
            .iter()
            .all(|sandbox| known_sandbox(sandbox, seen).is_some());
    let same_containers = listed.containers.len() == seen.containers.len()
        && listed
            .containers
            .iter()
            .all(|container| known_container(container, seen).is_some());
    !(same_sandboxes && same_containers)
}

fn known_sandbox<'a>(listed: &v1::PodSandbox, seen: &'a PodObservation) -> Option<&'a SandboxObservation> {
    let is_ready = listed.observed_state() == v1::PodSandboxState::SandboxReady;
    seen.sandboxes
        .iter()
        .find(|sandbox| sandbox.id.as_str() == listed.id && sandbox.is_ready() == is_ready)
}

fn known_container<'a>(listed: &v1::Container, seen: &'a PodObservation) -> Option<&'a ContainerObservation> {
    let same_state = |state: &ContainerState| match listed.observed_state() {
        v1::ContainerState::ContainerCreated => matches!(state, ContainerState::Created),
        v1::ContainerState::ContainerRunning => matches!(state, ContainerState::Running { .. }),
        v1::ContainerState::ContainerExited => matches!(state, ContainerState::Exited(_)),
        // What it was can only be told by asking.
        v1::ContainerState::ContainerUnknown => false,
    };
    seen.containers
        .iter()
        .find(|container| container.id.as_str() == listed.id && same_state(&container.state))
}

/// The pod as the lists show it, with statuses of what is new.
pub(super) async fn inspect(
    ports: &AgentPorts,
    uid: &PodUid,
    listed: Listed,
    seen: Option<&PodObservation>,
    observed_at: Timestamp,
) -> Result<PodObservation, RuntimeError> {
    let mut sandboxes = Vec::with_capacity(listed.sandboxes.len());
    for chunk in listed.sandboxes.chunks(STATUSES_IN_FLIGHT) {
        let mut looks = Vec::with_capacity(chunk.len());
        for sandbox in chunk {
            looks.push(look_at_sandbox(ports, sandbox, seen));
        }
        sandboxes.extend(try_join_all(looks).await?.into_iter().flatten());
    }
    let mut containers = Vec::with_capacity(listed.containers.len());
    for chunk in listed.containers.chunks(STATUSES_IN_FLIGHT) {
        let mut looks = Vec::with_capacity(chunk.len());
        for container in chunk {
            looks.push(look_at_container(ports, container, seen));
        }
        containers.extend(try_join_all(looks).await?.into_iter().flatten());
    }
    let identity = (uid.clone(), listed.namespace, listed.name);
    let mut observation = PodObservation::new(identity, sandboxes, containers, observed_at);
    if let Some(seen) = seen {
        if observation.ips.is_empty() && observation.active_sandbox().is_none() {
            observation.ips.clone_from(&seen.ips);
        }
        if observation.name.is_empty() {
            observation.name.clone_from(&seen.name);
            observation.namespace.clone_from(&seen.namespace);
        }
    }
    Ok(observation)
}

/// `None` when it was removed since it was listed.
async fn look_at_sandbox(
    ports: &AgentPorts,
    listed: &v1::PodSandbox,
    seen: Option<&PodObservation>,
) -> Result<Option<SandboxObservation>, RuntimeError> {
    if let Some(known) = seen.and_then(|seen| known_sandbox(listed, seen)) {
        return Ok(Some(known.clone()));
    }
    let was_unreadable = is_known_unreadable(listed, seen);
    let mut tries_left = if was_unreadable { 1 } else { STATUS_TRIES };
    loop {
        tries_left -= 1;
        let error = match ports.runtime_reader.pod_sandbox_status(&listed.id, false).await {
            Ok(answer) => return Ok(answer.status.as_ref().map(observe_sandbox)),
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) if !is_about_sandbox(&error) => return Err(error),
            Err(error) => error,
        };
        let unreadable = observe_unreadable_sandbox(listed);
        // What the list shows as stopped stays so, whatever else could be known of it.
        if tries_left == 0 || unreadable.state == SandboxState::NotReady {
            if !was_unreadable {
                let sandbox = &listed.id;
                tracing::warn!(sandbox, %error, "The runtime cannot read the sandbox; its pod is shown without it");
            }
            return Ok(Some(unreadable));
        }
        ports.clock.sleep(STATUS_RETRY).await;
    }
}

fn is_known_unreadable(listed: &v1::PodSandbox, seen: Option<&PodObservation>) -> bool {
    let mut sandboxes = seen.iter().flat_map(|seen| &seen.sandboxes);
    sandboxes.any(|one| one.id.as_str() == listed.id && one.state == SandboxState::Unreadable)
}

/// Whether the runtime answered that it cannot read the sandbox. No answer says nothing about the sandbox.
fn is_about_sandbox(error: &RuntimeError) -> bool {
    matches!(
        error.kind(),
        RuntimeErrorKind::Unknown | RuntimeErrorKind::Internal | RuntimeErrorKind::FailedPrecondition
    )
}

async fn look_at_container(
    ports: &AgentPorts,
    listed: &v1::Container,
    seen: Option<&PodObservation>,
) -> Result<Option<ContainerObservation>, RuntimeError> {
    if let Some(known) = seen.and_then(|seen| known_container(listed, seen)) {
        return Ok(Some(known.clone()));
    }
    let answer = match ports.runtime_reader.container_status(&listed.id, false).await {
        Ok(answer) => answer,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error),
    };
    let sandbox_id = SandboxId::new(listed.pod_sandbox_id.clone());
    let mut container = answer
        .status
        .as_ref()
        .map(|status| observe_container(&sandbox_id, status));
    if let Some(container) = &mut container {
        correct_reason(ports.memory_kills.as_ref(), container).await;
        add_termination_message(ports.file_reader.as_ref(), container).await;
    }
    Ok(container)
}

/// A runtime may learn too late, or never, that it was the kernel who killed a container for its memory.
async fn correct_reason(kills: &dyn MemoryKills, container: &mut ContainerObservation) {
    let ContainerState::Exited(exit) = &mut container.state else {
        return;
    };
    if exit.exit_code != KILLED || exit.reason == OOM_KILLED {
        return;
    }
    match kills.was_killed(container.id.as_str()).await {
        Ok(true) => OOM_KILLED.clone_into(&mut exit.reason),
        Ok(false) => {}
        Err(error) => tracing::debug!(%error, "The kernel does not say why a container was killed"),
    }
}

/// A container's last words are in a file that was mounted into it, or at the end of its log.
async fn add_termination_message(files: &dyn FileReader, container: &mut ContainerObservation) {
    let ContainerState::Exited(exit) = &mut container.state else {
        return;
    };
    let recorded = &container.recorded;
    let falls_back = falls_back_to_log(&recorded.termination_message_policy, exit.exit_code, &exit.reason);
    let mounted_at = path_in_container(&recorded.termination_message_path);
    let mount = container
        .mounts
        .iter()
        .find(|mount| Some(&mount.container_path) == mounted_at.as_ref());
    let read = match mount {
        Some(mount) => Some(
            files
                .read_end(Path::new(&mount.host_path), MAX_FILE_BYTES as u64)
                .await,
        ),
        None => None,
    };
    let problem = read
        .as_ref()
        .and_then(|read| read.as_ref().err())
        .map(ToString::to_string);
    let file = match (&read, mount) {
        (Some(Ok(bytes)), _) => MessageFile::Content(bytes),
        (Some(Err(error)), Some(mount)) if error.kind != FileErrorKind::NotFound => MessageFile::Unreadable {
            path: &mount.host_path,
            problem: problem.as_deref().unwrap_or_default(),
        },
        (Some(Err(_)) | None, _) => MessageFile::Absent,
    };
    let message = match message_of_file(&file, falls_back) {
        Source::Message(message) => message,
        Source::Log => match last_words(files, Path::new(&container.log_path)).await {
            Ok(message) => message,
            Err(error) => format!("the end of the log cannot be read: {error}"),
        },
    };
    exit.message = combined(&exit.message, &message);
}

/// What the end of a log says. A pod that may write to the directory of all logs could put links into it; they lead to
/// nothing outside of it.
async fn last_words(files: &dyn FileReader, log: &Path) -> Result<String, FileError> {
    // `<directory of all logs>/<pod>/<container>/<number>.log`
    let directory = log.ancestors().nth(3).unwrap_or(Path::new("/"));
    let inside = log.strip_prefix(directory).unwrap_or(log);
    let end = files
        .read_end_within(directory, inside, LOG_END_BYTES as u64)
        .await?;
    if end.len() < LOG_END_BYTES {
        return Ok(message_of_log(&end));
    }
    if let Some(message) = message_of_log_end(&end) {
        return Ok(message);
    }
    let end = files
        .read_end_within(directory, inside, LONG_LOG_END_BYTES as u64)
        .await?;
    if end.len() < LONG_LOG_END_BYTES {
        return Ok(message_of_log(&end));
    }
    Ok(message_of_log_end(&end).unwrap_or_else(|| message_of_cut_log(&end)))
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test of links needs real ones")]
mod tests {
    use rubelet_host::HostFiles;
    use rubelet_model::Timestamp;
    use rubelet_model::observation::ContainerExit;

    use super::*;

    #[tokio::test]
    async fn a_log_that_is_a_link_shows_nothing_of_the_node() {
        let folder = tempfile::tempdir().unwrap();
        let (logs, secret) = (folder.path().join("pods"), folder.path().join("secret"));
        std::fs::write(&secret, "t stdout F hush\n").unwrap();
        let outside = folder.path().join("outside");
        std::fs::create_dir_all(&outside).unwrap();
        std::fs::write(outside.join("0.log"), "t stdout F hush\n").unwrap();
        std::fs::create_dir_all(logs.join("ns_web_u/main")).unwrap();
        std::fs::write(logs.join("ns_web_u/main/0.log"), "t stdout F last words\n").unwrap();
        std::os::unix::fs::symlink(&secret, logs.join("ns_web_u/main/1.log")).unwrap();
        std::os::unix::fs::symlink("../../../secret", logs.join("ns_web_u/main/2.log")).unwrap();
        std::os::unix::fs::symlink(&outside, logs.join("ns_web_u/side")).unwrap();
        let files = HostFiles::new();
        let message = async |log: &str| {
            let now = Timestamp::EPOCH;
            let exit = ContainerExit {
                exit_code: 1,
                reason: "Error".to_owned(),
                message: String::new(),
                started_at: now,
                finished_at: now,
            };
            let mut container =
                ContainerObservation::new("c", "main", "s", ContainerState::Exited(exit), now);
            container.recorded.termination_message_policy = "FallbackToLogsOnError".to_owned();
            container.log_path = logs.join(log).display().to_string();
            add_termination_message(&files, &mut container).await;
            match container.state {
                ContainerState::Exited(exit) => exit.message,
                state => panic!("{state:?}"),
            }
        };
        assert_eq!(message("ns_web_u/main/0.log").await, "last words\n");
        for link in [
            "ns_web_u/main/1.log",
            "ns_web_u/main/2.log",
            "ns_web_u/side/0.log",
        ] {
            let message = message(link).await;
            assert!(
                message.starts_with("the end of the log cannot be read"),
                "{link}: {message}"
            );
        }
    }
}
