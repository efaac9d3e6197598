//! The pod's own files on the node: directories, hosts file, termination messages, logs.
//!
//! Owns their paths and modes; `lifecycle::configuration` decides their content.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, HostAlias, Pod};
use rubelet_lifecycle::configuration::hostname::pod_hostname;
use rubelet_lifecycle::configuration::{ConfigurationError, ResolvConf, hosts_file, log_paths, resolv_conf};
use rubelet_model::observation::PodUid;
use rubelet_ports::FileError;
use thiserror::Error;

use super::AgentContext;
use super::context::is_on_host_network;

const POD_DIRECTORY_MODE: u32 = 0o750;
const LOG_DIRECTORY_MODE: u32 = 0o755;
const HOSTS_FILE_MODE: u32 = 0o644;
/// Any user of the container has to be able to write its termination message.
const MESSAGE_FILE_MODE: u32 = 0o666;
/// More of the node's hosts file is not taken over.
const HOSTS_FILE_LIMIT_BYTES: u64 = 1 << 20;

#[derive(Debug, Error)]
pub(super) enum PodFileError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
}

/// `<root>/pods/<uid>`
pub(crate) fn pod_directory(root: &Path, uid: &PodUid) -> PathBuf {
    root.join("pods").join(uid.as_str())
}

/// What every pod has before its sandbox is made.
pub(super) async fn create_pod_directories(
    agent: &AgentContext,
    pod: &Pod,
    uid: &PodUid,
) -> Result<(), FileError> {
    let files = &agent.ports.file_writer;
    let directory = pod_directory(&agent.settings.root_dir, uid);
    files.create_directory(&directory, POD_DIRECTORY_MODE).await?;
    let logs = log_paths::pod_logs_dir(&agent.settings.node.pod_logs_dir, pod);
    files.create_directory(Path::new(&logs), LOG_DIRECTORY_MODE).await
}

/// The files of one container that is about to be created.
pub(super) struct ContainerFiles {
    pub(super) hosts_file: Option<String>,
    pub(super) termination_message_file: Option<String>,
}

pub(super) async fn create_container_files(
    agent: &AgentContext,
    pod: &Pod,
    uid: &PodUid,
    container: &Container,
    pod_ips: &[String],
) -> Result<ContainerFiles, PodFileError> {
    let files = &agent.ports.file_writer;
    let directory = pod_directory(&agent.settings.root_dir, uid);
    let logs = log_paths::container_logs_dir(&agent.settings.node.pod_logs_dir, pod, &container.name);
    files
        .create_directory(Path::new(&logs), LOG_DIRECTORY_MODE)
        .await?;
    let hosts_file = if hosts_file::is_mounted(pod, container, pod_ips) {
        let path = directory.join("etc-hosts");
        let content = hosts_content(agent, pod, pod_ips).await?;
        // In place: running containers of the pod have the file mounted.
        files.write_in_place(&path, &content, HOSTS_FILE_MODE).await?;
        Some(text(&path))
    } else {
        None
    };
    let has_message = container
        .termination_message_path
        .as_deref()
        .is_some_and(|path| !path.is_empty());
    let termination_message_file = if has_message {
        let folder = directory.join("containers").join(&container.name);
        files.create_directory(&folder, POD_DIRECTORY_MODE).await?;
        // A new name each time: the message of the previous instance is still to be read.
        let name = format!("{:08x}", agent.ports.randomness.number() & 0xffff_ffff);
        let path = folder.join(name);
        files.write_in_place(&path, b"", MESSAGE_FILE_MODE).await?;
        Some(text(&path))
    } else {
        None
    };
    Ok(ContainerFiles {
        hosts_file,
        termination_message_file,
    })
}

async fn hosts_content(agent: &AgentContext, pod: &Pod, pod_ips: &[String]) -> Result<Vec<u8>, PodFileError> {
    let spec = pod.spec.as_ref();
    let no_aliases: &[HostAlias] = &[];
    let aliases = spec
        .and_then(|spec| spec.host_aliases.as_deref())
        .unwrap_or(no_aliases);
    if is_on_host_network(pod) {
        let reader = &agent.ports.file_reader;
        let node_file = reader
            .read(Path::new(hosts_file::PATH), HOSTS_FILE_LIMIT_BYTES)
            .await?;
        return Ok(hosts_file::host_network_content(&node_file, aliases));
    }
    let hostname = pod_hostname(pod, &agent.settings.node.cluster_domain)?;
    Ok(hosts_file::content(pod_ips, &hostname, aliases).into_bytes())
}

/// The node's resolver file as it is now. The error text is shown in events.
pub(crate) async fn read_resolver_file(agent: &AgentContext) -> Result<Option<ResolvConf>, String> {
    let Some(path) = &agent.settings.node.resolver_file else {
        return Ok(None);
    };
    let read = agent
        .ports
        .file_reader
        .read(path, resolv_conf::MAX_LENGTH_BYTES as u64);
    let content = read.await.map_err(|error| error.to_string())?;
    let parsed = ResolvConf::parse(&String::from_utf8_lossy(&content));
    parsed
        .map(Some)
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// How often the container was restarted according to its log files, when the runtime does not know it any more.
pub(super) async fn restart_count_from_logs(agent: &AgentContext, pod: &Pod, container: &str) -> u32 {
    let logs = log_paths::container_logs_dir(&agent.settings.node.pod_logs_dir, pod, container);
    let entries = agent.ports.file_reader.list(Path::new(&logs)).await;
    entries
        .unwrap_or_default()
        .iter()
        .filter_map(|entry| log_number(&entry.name))
        .max()
        .map_or(0, |highest| highest.saturating_add(1))
}

/// The number of `3.log`, and of its rotated files.
fn log_number(name: &str) -> Option<u32> {
    let (number, rest) = name.split_once('.')?;
    (rest == "log" || rest.starts_with("log.")).then(|| number.parse().ok())?
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_files_have_numbers() {
        let check = |name: &str, expected: Option<u32>| assert_eq!(log_number(name), expected, "{name}");
        check("0.log", Some(0));
        check("12.log", Some(12));
        check("12.log.20260101-000000", Some(12));
        check("12.log.20260101-000000.gz", Some(12));
        check("12.logs", None);
        check("a.log", None);
        check("log", None);
    }
}
