//! What the simulated runtime has: sandboxes, containers, names, images.
//!
//! Owns the objects and how they look in CRI messages. When something changes is decided by the calls.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rubelet_ports::RuntimeErrorKind;
use rubelet_wire::cri::v1;
use tokio::sync::{Notify, mpsc, watch};

use super::script::Script;
use crate::dice::{hash_bytes, hash_start};
use crate::history::Limits;

pub(super) type EventSender = mpsc::UnboundedSender<Result<v1::ContainerEventResponse, Failure>>;

/// A failure on the runtime's side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) kind: RuntimeErrorKind,
    pub(super) message: String,
}

impl Failure {
    pub(super) fn new(kind: RuntimeErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    pub(super) fn unknown(message: impl Into<String>) -> Self {
        Self::new(RuntimeErrorKind::Unknown, message)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Sandbox {
    pub(super) config: v1::PodSandboxConfig,
    pub(super) name: String,
    pub(super) is_ready: bool,
    pub(super) created_at: i64,
    pub(super) ip: String,
    /// Its network namespace was taken away, so that its status cannot be read and its network cannot be torn down.
    pub(super) has_lost_network: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Process {
    Created,
    Running,
    Exited {
        code: i32,
        reason: &'static str,
        finished_at: i64,
    },
}

#[derive(Clone, Debug)]
pub(super) struct SimContainer {
    pub(super) config: v1::ContainerConfig,
    pub(super) sandbox: String,
    pub(super) name: String,
    pub(super) log_path: String,
    pub(super) script: Script,
    pub(super) process: Process,
    pub(super) created_at: i64,
    pub(super) started_at: i64,
    /// The same on a clock that nobody sets.
    pub(super) running_since: Duration,
    pub(super) image: SimImage,
    /// Told when the process ends.
    pub(super) ended: Arc<Notify>,
}

impl SimContainer {
    pub(super) fn is_running(&self) -> bool {
        matches!(self.process, Process::Running)
    }

    /// What it was given.
    pub(super) fn limits(&self) -> Limits {
        let linux = self.config.linux.as_ref();
        let resources = linux.and_then(|linux| linux.resources.as_ref());
        resources.map_or_else(Limits::default, |resources| Limits {
            shares: resources.cpu_shares,
            quota: resources.cpu_quota,
            memory: resources.memory_limit_in_bytes,
        })
    }

    pub(super) fn attempt(&self) -> u32 {
        self.config
            .metadata
            .as_ref()
            .map_or(0, |metadata| metadata.attempt)
    }

    pub(super) fn state(&self) -> i32 {
        let state = match self.process {
            Process::Created => v1::ContainerState::ContainerCreated,
            Process::Running => v1::ContainerState::ContainerRunning,
            Process::Exited { .. } => v1::ContainerState::ContainerExited,
        };
        state as i32
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SimImage {
    pub(super) id: String,
    pub(super) tag: String,
}

impl SimImage {
    pub(super) fn new(tag: &str) -> Self {
        let hash = hash_bytes(hash_start(), tag.as_bytes());
        Self {
            id: format!("sha256:{hash:064x}"),
            tag: tag.to_owned(),
        }
    }

    pub(super) fn digest(&self) -> String {
        let repository = self
            .tag
            .rsplit_once(':')
            .map_or(self.tag.as_str(), |(name, _)| name);
        format!("{repository}@{}", self.id)
    }
}

pub(super) struct State {
    pub(super) sandboxes: BTreeMap<String, Sandbox>,
    pub(super) containers: BTreeMap<String, SimContainer>,
    /// Name to id; a name is taken before its object can be seen.
    pub(super) names: BTreeMap<String, String>,
    pub(super) images: BTreeMap<String, SimImage>,
    pub(super) pulls: BTreeMap<String, u32>,
    pub(super) next_id: u64,
    /// Grows with each restart of the runtime; calls of an older one never answer.
    pub(super) epoch: watch::Sender<u64>,
    pub(super) is_down: bool,
    pub(super) is_network_ready: bool,
    pub(super) has_events: bool,
    pub(super) subscribers: Vec<EventSender>,
}

impl State {
    pub(super) fn new() -> Self {
        Self {
            sandboxes: BTreeMap::new(),
            containers: BTreeMap::new(),
            names: BTreeMap::new(),
            images: BTreeMap::new(),
            pulls: BTreeMap::new(),
            next_id: 1,
            epoch: watch::Sender::new(0),
            is_down: false,
            is_network_ready: true,
            has_events: true,
            subscribers: Vec::new(),
        }
    }

    pub(super) fn new_id(&mut self, letter: char) -> String {
        let id = format!("{letter}{}", self.next_id);
        self.next_id += 1;
        id
    }

    /// Takes a name for an id, as containerd does.
    pub(super) fn reserve(&mut self, what: &str, name: &str, id: &str) -> Result<(), Failure> {
        if let Some(holder) = self.names.get(name) {
            return Err(Failure::unknown(format!(
                "failed to reserve {what} name \"{name}\": name \"{name}\" is reserved for \"{holder}\""
            )));
        }
        self.names.insert(name.to_owned(), id.to_owned());
        Ok(())
    }

    pub(super) fn find_image(&self, reference: &str) -> Option<&SimImage> {
        self.images
            .values()
            .find(|image| image.tag == reference || image.id == reference || image.digest() == reference)
    }

    pub(super) fn containers_of<'a>(
        &'a self,
        sandbox: &'a str,
    ) -> impl Iterator<Item = (&'a String, &'a SimContainer)> {
        self.containers
            .iter()
            .filter(move |(_, container)| container.sandbox == sandbox)
    }

    /// The sandbox of a container that could start otherwise, when it does not stand any more.
    pub(super) fn dead_sandbox_of(&self, id: &str) -> Option<String> {
        let container = self.containers.get(id)?;
        let is_created = matches!(container.process, Process::Created);
        let sandbox = self.sandboxes.get(&container.sandbox);
        let is_dead = sandbox.is_none_or(|sandbox| !sandbox.is_ready);
        (is_created && is_dead).then(|| container.sandbox.clone())
    }
}

pub(super) fn sandbox_name(metadata: &v1::PodSandboxMetadata) -> String {
    format!(
        "{}_{}_{}_{}",
        metadata.name, metadata.namespace, metadata.uid, metadata.attempt
    )
}

pub(super) fn container_name(container: &v1::ContainerMetadata, pod: &v1::PodSandboxMetadata) -> String {
    format!(
        "{}_{}_{}_{}_{}",
        container.name, pod.name, pod.namespace, pod.uid, container.attempt
    )
}

fn namespaces(config: &v1::PodSandboxConfig) -> Option<&v1::NamespaceOption> {
    let linux = config.linux.as_ref()?;
    linux.security_context.as_ref()?.namespace_options.as_ref()
}

impl Sandbox {
    /// What containerd answers when it cannot look at the network namespace.
    pub(super) fn check_network(&self, what: &str) -> Result<(), Failure> {
        if !self.has_lost_network {
            return Ok(());
        }
        Err(Failure::unknown(format!(
            "{what}: check network namespace closed: remove netns: device or resource busy"
        )))
    }

    pub(super) fn uses_node_network(&self) -> bool {
        namespaces(&self.config).is_some_and(|options| options.network == v1::NamespaceMode::Node as i32)
    }

    pub(super) fn uid(&self) -> &str {
        let metadata = self.config.metadata.as_ref();
        metadata.map_or("", |metadata| metadata.uid.as_str())
    }

    pub(super) fn state(&self) -> i32 {
        if self.is_ready {
            v1::PodSandboxState::SandboxReady as i32
        } else {
            v1::PodSandboxState::SandboxNotready as i32
        }
    }

    pub(super) fn listed(&self, id: &str) -> v1::PodSandbox {
        v1::PodSandbox {
            id: id.to_owned(),
            metadata: self.config.metadata.clone(),
            state: self.state(),
            created_at: self.created_at,
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            runtime_handler: String::new(),
        }
    }

    pub(super) fn status(&self, id: &str) -> v1::PodSandboxStatus {
        v1::PodSandboxStatus {
            id: id.to_owned(),
            metadata: self.config.metadata.clone(),
            state: self.state(),
            created_at: self.created_at,
            network: Some(v1::PodSandboxNetworkStatus {
                // A stopped sandbox has given its address back.
                ip: if self.is_ready {
                    self.ip.clone()
                } else {
                    String::new()
                },
                additional_ips: Vec::new(),
            }),
            linux: Some(v1::LinuxPodSandboxStatus {
                namespaces: Some(v1::Namespace {
                    options: Some(namespaces(&self.config).cloned().unwrap_or_default()),
                }),
            }),
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            runtime_handler: String::new(),
        }
    }
}

impl SimContainer {
    pub(super) fn listed(&self, id: &str) -> v1::Container {
        v1::Container {
            id: id.to_owned(),
            pod_sandbox_id: self.sandbox.clone(),
            metadata: self.config.metadata.clone(),
            image: self.config.image.clone(),
            image_ref: self.image.id.clone(),
            state: self.state(),
            created_at: self.created_at,
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            image_id: self.image.id.clone(),
        }
    }

    pub(super) fn status(&self, id: &str) -> v1::ContainerStatus {
        let (exit_code, reason, finished_at) = match self.process {
            Process::Created | Process::Running => (0, "", 0),
            Process::Exited {
                code,
                reason,
                finished_at,
            } => (code, reason, finished_at),
        };
        v1::ContainerStatus {
            id: id.to_owned(),
            metadata: self.config.metadata.clone(),
            state: self.state(),
            created_at: self.created_at,
            started_at: self.started_at,
            finished_at,
            exit_code,
            image: Some(v1::ImageSpec {
                image: self.image.tag.clone(),
                ..v1::ImageSpec::default()
            }),
            image_ref: self.image.digest(),
            reason: reason.to_owned(),
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            mounts: self.config.mounts.clone(),
            log_path: self.log_path.clone(),
            image_id: self.image.id.clone(),
            resources: self.config.linux.as_ref().map(|linux| v1::ContainerResources {
                linux: linux.resources.clone(),
                ..v1::ContainerResources::default()
            }),
            ..v1::ContainerStatus::default()
        }
    }
}

/// The answer to a process's end in upstream's runtimes.
pub(super) fn exit_reason(code: i32) -> &'static str {
    if code == 0 { "Completed" } else { "Error" }
}

/// How long a killed process takes to be gone.
pub(super) const KILL_TIME: Duration = Duration::from_millis(5);
