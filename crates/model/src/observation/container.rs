//! What the runtime reports about one container.
//!
//! Owns the observed facts. It does not know the pod's specification: whether a container is wanted, and the next step, are
//! decided elsewhere.

use serde::{Deserialize, Serialize};

use super::identity::{ContainerId, SandboxId};
use crate::time::Timestamp;

/// The part that a container plays in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ContainerKind {
    /// Runs to its end before the regular containers start.
    Init,
    /// An init container that is restarted always and runs beside the regular containers.
    Sidecar,
    Regular,
    /// Added to a running pod to look into it; never restarted.
    Ephemeral,
}

/// The state with the facts that exist only in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContainerState {
    /// Created but never started.
    Created,
    Running {
        started_at: Timestamp,
    },
    Exited(ContainerExit),
    /// The runtime does not know, or reports a state that this build does not know.
    Unknown {
        started_at: Timestamp,
    },
}

/// The reason of a container that was killed because memory ran out.
pub const OOM_KILLED: &str = "OOMKilled";

/// How a container ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerExit {
    pub exit_code: i32,
    /// The runtime's reason, e.g. `Completed` or `Error`; [`OOM_KILLED`] also when only the kernel reports the kill.
    pub reason: String,
    /// The runtime's message, followed by the container's own termination message once that was read.
    pub message: String,
    pub started_at: Timestamp,
    pub finished_at: Timestamp,
}

impl ContainerState {
    #[must_use]
    pub fn is_running(&self) -> bool {
        matches!(self, Self::Running { .. })
    }

    #[must_use]
    pub fn exit(&self) -> Option<&ContainerExit> {
        match self {
            Self::Exited(exit) => Some(exit),
            Self::Created | Self::Running { .. } | Self::Unknown { .. } => None,
        }
    }

    /// When it was started, if it ever was.
    #[must_use]
    pub fn started_at(&self) -> Option<Timestamp> {
        match self {
            Self::Created => None,
            Self::Running { started_at } | Self::Unknown { started_at } => Some(*started_at),
            Self::Exited(exit) => Some(exit.started_at),
        }
    }
}

/// Resources as the runtime reports them; `None` where it reports nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerResources {
    pub cpu_request_millis: Option<i64>,
    pub cpu_limit_millis: Option<i64>,
    pub memory_limit_bytes: Option<i64>,
}

/// Identity of the container's first process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerUser {
    pub uid: i64,
    pub gid: i64,
    pub supplemental_groups: Vec<i64>,
}

/// A mount as the runtime made it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerMount {
    pub container_path: String,
    pub host_path: String,
    pub read_only: bool,
    pub recursive_read_only: bool,
    /// The image that is mounted, for image volumes.
    pub image: Option<String>,
}

/// What was written onto the container when it was created, enough to stop it when its pod is not known any more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedSpec {
    pub termination_message_path: String,
    pub termination_message_policy: String,
    pub termination_grace_period_seconds: Option<i64>,
    pub deletion_grace_period_seconds: Option<i64>,
    /// JSON of the preStop handler.
    pub pre_stop_handler: Option<String>,
    /// JSON of the container's ports.
    pub ports: Option<String>,
}

/// One container, alive or dead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerObservation {
    pub id: ContainerId,
    /// The container's name in the pod.
    pub name: String,
    pub sandbox_id: SandboxId,
    pub state: ContainerState,
    pub created_at: Timestamp,
    /// As the pod names it.
    pub image: String,
    pub image_id: String,
    /// With digest.
    pub image_ref: String,
    pub image_runtime_handler: String,
    /// Hash of name and image at creation; zero when none was recorded.
    pub hash: u64,
    pub restart_count: u32,
    pub resources: Option<ContainerResources>,
    pub user: Option<ContainerUser>,
    pub mounts: Vec<ContainerMount>,
    /// The effective stop signal, e.g. `SIGTERM`, when the runtime reports it.
    pub stop_signal: Option<String>,
    pub log_path: String,
    pub recorded: RecordedSpec,
}

impl ContainerObservation {
    /// A container about which only this much is known; the rest is empty.
    pub fn new(
        id: impl Into<ContainerId>,
        name: impl Into<String>,
        sandbox_id: impl Into<SandboxId>,
        state: ContainerState,
        created_at: Timestamp,
    ) -> Self {
        Self {
            id: id.into(),
            name: name.into(),
            sandbox_id: sandbox_id.into(),
            state,
            created_at,
            image: String::new(),
            image_id: String::new(),
            image_ref: String::new(),
            image_runtime_handler: String::new(),
            hash: 0,
            restart_count: 0,
            resources: None,
            user: None,
            mounts: Vec::new(),
            stop_signal: None,
            log_path: String::new(),
            recorded: RecordedSpec::default(),
        }
    }
}
