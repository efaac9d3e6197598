//! The ground truth: what was asked for and what really happened, told by the simulated edges and not by the agent.
//!
//! Owns the list of facts. The checks read it and nothing else, so that an agent that lies about a pod is found out.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rubelet_ports::ProbeKind;
use rubelet_ports::api::Change;

/// Why a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// By itself.
    Own,
    /// It answered the stop signal.
    Term,
    /// The grace period of a stop was over.
    GraceOver,
    /// Its sandbox was stopped or removed under it.
    SandboxStopped,
    /// It was removed while it ran.
    Removed,
    /// The machine or the runtime's state went away.
    Lost,
    /// It never ran.
    StartFailed,
}

/// A lifecycle hook of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookKind {
    PostStart,
    PreStop,
}

/// A call that changes something, at the time when it leaves rubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    RunSandbox {
        uid: String,
        attempt: u32,
    },
    StopSandbox {
        id: String,
    },
    RemoveSandbox {
        id: String,
    },
    Create {
        sandbox: String,
        name: String,
        attempt: u32,
    },
    Start {
        id: String,
    },
    Stop {
        id: String,
        grace_seconds: i64,
    },
    Remove {
        id: String,
    },
    /// Other resources for a container that runs.
    Update {
        id: String,
    },
    /// The command of a hook.
    Hook {
        id: String,
        kind: HookKind,
    },
}

/// What the runtime was given for a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub shares: i64,
    /// Zero for none, as for the other.
    pub quota: i64,
    pub memory: i64,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Fact {
    Asked(Ask),
    SandboxReady {
        id: String,
        uid: String,
        attempt: u32,
        /// Nobody waited for the answer any more.
        is_late: bool,
    },
    SandboxStopped {
        id: String,
    },
    SandboxRemoved {
        id: String,
    },
    /// A list of everything lacked something of the pod.
    LeftOut {
        uid: String,
    },
    /// The runtime cannot read the sandbox any more.
    NetworkLost {
        id: String,
    },
    Created {
        id: String,
        sandbox: String,
        uid: String,
        name: String,
        attempt: u32,
        image: String,
        /// Nobody waited for the answer any more.
        is_late: bool,
    },
    Started {
        id: String,
        /// Nobody waited for the answer any more.
        is_late: bool,
    },
    /// The stop signal arrived.
    Signalled {
        id: String,
    },
    Ended {
        id: String,
        code: i32,
        cause: Cause,
    },
    Removed {
        id: String,
    },
    /// A probe of this container was answered, or given up.
    Probed {
        id: String,
        kind: ProbeKind,
        is_good: bool,
    },
    /// The command of a hook came to its end, or its call failed.
    HookEnded {
        id: String,
        kind: HookKind,
        is_good: bool,
    },
    /// A call of this container was answered with an injected error.
    CallFailed {
        subject: String,
    },
    RuntimeDown,
    RuntimeUp,
    /// The runtime forgot everything.
    StateLost,
    /// The machine went off and on.
    PowerLost,
    /// The agent got this listing of the manifest folder.
    Listed {
        names: Vec<String>,
    },
    /// The agent got this content of a manifest.
    ManifestRead {
        path: PathBuf,
        content: Arc<Vec<u8>>,
    },
    /// The agent got this document from the address.
    Fetched {
        content: Vec<u8>,
    },
    /// The API server has this object from now on.
    ApiApplied {
        pod: Arc<Pod>,
    },
    /// The API server has the object no longer.
    ApiRemoved {
        uid: String,
        /// The node said that nothing of it is left.
        by_node: bool,
    },
    /// The agent got this from the API server.
    ApiTold {
        change: Change<Pod>,
    },
    TreeRemoved {
        path: PathBuf,
    },
    /// A pod has its cgroup.
    CgroupMade {
        uid: String,
    },
    /// A pod's cgroup has these limits now.
    PodLimited {
        uid: String,
        memory: Option<i64>,
        quota: Option<i64>,
    },
    /// A container has these resources now.
    Resized {
        id: String,
        limits: Limits,
        /// While it runs, and by a call that rubelet still waits for.
        is_update: bool,
    },
    /// A pod's cgroup is gone, with whatever was in it.
    CgroupGone {
        uid: String,
    },
    /// A volume of a pod is ready to be used.
    VolumeStands {
        uid: String,
        volume: String,
    },
    /// A volume of a pod is not there any more.
    VolumeGone {
        uid: String,
        volume: String,
    },
    /// What rubelet says about its pods.
    Published {
        pods: Vec<Arc<Pod>>,
    },
    /// Rubelet does not answer, or one of its loops ended.
    Fatal {
        text: String,
    },
    RubeletStarted,
    RubeletCrashed,
    ClockMoved,
}

/// Facts with their times, shared by all simulated edges.
#[derive(Clone, Debug, Default)]
pub struct History(Arc<Mutex<Vec<(Duration, Fact)>>>);

impl History {
    pub fn add(&self, at: Duration, fact: Fact) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((at, fact));
    }

    /// The facts that nobody took yet.
    #[must_use]
    pub fn take(&self) -> Vec<(Duration, Fact)> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
