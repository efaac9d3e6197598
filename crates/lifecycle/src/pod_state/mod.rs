//! The state machine of a pod on the node: sync, terminating, terminated. The counterpart of upstream's `podSyncStatus`.
//!
//! Owns the transitions as `step(state, event, now) -> (state, effects)`. It starts nothing itself: an effect names what
//! `PodWorkers` of the agent has to do. At most one job runs per pod; an event that arrives meanwhile is remembered as "look again".
//!
//! ```text
//! from         event                                              to           effects
//! Absent       Update: terminal, and nothing of it runs           Terminated   Run(CleanUp)
//! Absent       Update: deleted or terminal otherwise              Terminating  Run(Terminate)
//! Absent       Update: static pod                                 Waiting      QueueByName
//! Absent       Update: other pod                                  Syncing      Run(Sync)
//! Absent       FoundInRuntime                                     Terminating  Run(TerminateOrphan)
//! Waiting      StartAllowed                                       Syncing      Run(Sync)
//! Waiting      Update                                             Waiting      QueueByName
//! Waiting      Update: deleted or terminal; Kill                  Finished     ReleaseName, AnswerKills
//! Waiting      FoundInRuntime                                     Terminating  Run(Terminate)
//! Waiting      Housekeeping: not desired                          Absent       ReleaseName, Forget
//! Syncing      Update                                             Syncing      Run(Sync), or look again after the running one
//! Syncing      JobDone: success, failed, cancelled                Syncing      Requeue, or Run(Sync) to look again
//! Syncing      Update: deleted or terminal; Kill; FoundInRuntime; Terminating  Run(Terminate), or Cancel while a sync runs
//!              Housekeeping: not desired; JobDone: terminal
//! Syncing      DeadlinePassed                                     Terminating  the same, and FailByDeadline
//! Terminating  Update, Kill, FoundInRuntime,                      Terminating  Run(Terminate), or look again after the running
//!              Housekeeping: not desired                                       job; Cancel when the grace period got shorter
//! Terminating  JobDone: the sync ended, or a stop was cancelled   Terminating  Run(Terminate)
//! Terminating  JobDone: a stop failed                             Terminating  Requeue, or Run(Terminate) to look again
//! Terminating  JobDone: Terminate succeeded                       Terminated   AnswerKills, Run(CleanUp)
//! Terminating  JobDone: TerminateOrphan succeeded                 Absent       ReleaseName, AnswerKills, Forget
//! Terminated   Update, Kill, Housekeeping: not desired            Terminated   Run(CleanUp), or look again; Kill: AnswerKills
//! Terminated   JobDone: CleanUp failed                            Terminated   Requeue, or Run(CleanUp) to look again
//! Terminated   JobDone: CleanUp succeeded                         Finished     ReleaseName
//! Finished     Kill                                               Finished     AnswerKills
//! Finished     Housekeeping: not desired, or the pod was added    Absent       Forget
//!              again since it began to terminate
//! ```
//!
//! Once Terminating, no container of the pod is started again before the pod was Absent, and the grace period only shrinks. An orphan
//! is stopped by `TerminateOrphan`, because its definition is not known. An `Update` of kind `Create` from Terminating on only notes
//! that the pod was added again. An event that is not in the table for a state changes nothing.

mod deadline;
mod grace;
mod static_names;
mod step;

pub use deadline::{ActiveDeadline, DEADLINE_MESSAGE, DEADLINE_REASON, active_deadline};
pub use grace::{MIN_GRACE_SECONDS, effective_grace_seconds, kill_timeout};
pub use static_names::StaticNames;
pub use step::step;

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rubelet_model::Timestamp;
use serde::{Deserialize, Serialize};

use crate::deliberate::{Bug, is_on};

const CONFIG_SOURCE_ANNOTATION: &str = "kubernetes.io/config.source";
const API_SOURCE: &str = "api";

/// The facts of a pod that its state machine depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodFacts {
    /// From a file or an address, not from the API server.
    pub is_static: bool,
    pub is_deleted: bool,
    /// The phase at the API server is `Succeeded` or `Failed`.
    pub is_terminal: bool,
    pub deletion_grace_seconds: Option<i64>,
    pub termination_grace_seconds: Option<i64>,
}

impl PodFacts {
    #[must_use]
    pub fn of(pod: &Pod) -> Self {
        let source = pod
            .metadata
            .annotations
            .as_ref()
            .and_then(|annotations| annotations.get(CONFIG_SOURCE_ANNOTATION));
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        Self {
            is_static: source.is_some_and(|source| source != API_SOURCE),
            is_deleted: pod.metadata.deletion_timestamp.is_some(),
            is_terminal: matches!(phase, Some("Succeeded" | "Failed")),
            deletion_grace_seconds: pod.metadata.deletion_grace_period_seconds,
            termination_grace_seconds: pod
                .spec
                .as_ref()
                .and_then(|spec| spec.termination_grace_period_seconds),
        }
    }
}

/// What the pod's task may be doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Job {
    /// Start and maintain the pod.
    Sync,
    /// Stop everything within this time.
    Terminate { grace_seconds: i64 },
    /// The same for an orphan, which only the runtime knows.
    TerminateOrphan { grace_seconds: i64 },
    /// Release what the pod used.
    CleanUp,
}

/// The job in hand, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    Idle,
    Running {
        job: Job,
        /// Something changed since it began.
        look_again: bool,
    },
}

/// Why a pod ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EndCause {
    /// Deleted through the API.
    Deleted,
    /// Its phase at the API server is `Succeeded` or `Failed`.
    TerminalPhase,
    /// All its containers ended for good.
    Completed,
    /// No source has it any more.
    Removed,
    Evicted,
    /// Killed by the node: preempted, or the node shuts down.
    Killed,
    DeadlineExceeded,
    /// Only the runtime knows it.
    Orphaned,
}

/// What is known of the end of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    pub cause: EndCause,
    pub since: Timestamp,
    pub grace_seconds: i64,
    /// No source has the pod any more: what it left on the node may be removed.
    pub is_deleted: bool,
    pub is_evicted: bool,
    /// The same pod was added again; it starts anew after this end.
    pub restart_requested: bool,
}

/// The state of a pod on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodState {
    /// Not known.
    Absent,
    /// Known, but another static pod of the same name has to end first.
    Waiting {
        pod: PodFacts,
    },
    Syncing {
        pod: PodFacts,
        work: Work,
    },
    /// Nothing may start any more. `pod` is missing when only the runtime knows the pod.
    Terminating {
        pod: Option<PodFacts>,
        ending: Ending,
        work: Work,
    },
    /// Nothing runs any more.
    Terminated {
        ending: Ending,
        work: Work,
    },
    /// Nothing is left to do; remembered so that it is not started again.
    Finished {
        ending: Ending,
    },
}

/// What an update of a pod is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UpdateKind {
    /// A source added the pod.
    Create,
    Update,
    /// Nothing new: look again.
    Sync,
}

/// A request to end a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KillRequest {
    /// `Removed`, `Evicted` or `Killed`.
    pub cause: EndCause,
    pub grace_seconds: Option<i64>,
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    Success,
    /// A sync found the pod succeeded or failed.
    Terminal,
    Cancelled,
    Failed(Retry),
}

/// When a failed job is worth another try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Retry {
    /// The network of the node is not ready.
    NetworkNotReady,
    /// A backoff ends at this time.
    At(Timestamp),
    Later,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// `is_idle`: the runtime has nothing of the pod that runs. It counts only for a pod that is seen for the first time.
    Update {
        kind: UpdateKind,
        pod: PodFacts,
        is_idle: bool,
    },
    Kill(KillRequest),
    /// The runtime has something of the pod, but no source knows it.
    FoundInRuntime,
    /// No other static pod of the same name is left before this one.
    StartAllowed,
    /// The active deadline passed.
    DeadlinePassed,
    JobDone(Outcome),
    Housekeeping {
        is_desired: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// Put the pod in line behind static pods of the same name, and send `StartAllowed` when it is its turn.
    QueueByName,
    /// The name is free for the next in line.
    ReleaseName,
    Run(Job),
    /// Make the running job return early.
    Cancel,
    /// Send an `Update` of kind `Sync` after this time.
    Requeue(Requeue),
    /// Everything of the pod is stopped: answer the kill requests.
    AnswerKills,
    /// The pod's phase becomes `Failed` with [`DEADLINE_REASON`] and [`DEADLINE_MESSAGE`].
    FailByDeadline,
    /// Nothing is known of the pod any more. With `add_again` a source still has it: send `Update` of kind `Create`.
    Forget {
        add_again: bool,
    },
}

/// When to look at a pod again. The caller adds jitter of up to half of it, so that pods do not sync all at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Requeue {
    Resync,
    Retry(Retry),
}

impl Requeue {
    /// The delay before jitter.
    #[must_use]
    pub fn delay(self, now: Timestamp, sync_frequency: Duration) -> Duration {
        let cap = |delay: Duration| delay.min(sync_frequency);
        match self {
            Self::Resync => sync_frequency,
            Self::Retry(Retry::NetworkNotReady) => Duration::from_secs(1),
            Self::Retry(Retry::At(time)) => cap(time.since(now)),
            Self::Retry(Retry::Later) if is_on(Bug::RetriedAtOnce) => Duration::from_millis(100),
            Self::Retry(Retry::Later) => cap(Duration::from_secs(10)),
        }
    }
}

impl PodState {
    /// Something of the pod may run.
    #[must_use]
    pub fn may_run(&self) -> bool {
        match self {
            Self::Waiting { .. } | Self::Syncing { .. } | Self::Terminating { .. } => true,
            Self::Absent | Self::Terminated { .. } | Self::Finished { .. } => false,
        }
    }

    #[must_use]
    pub fn ending(&self) -> Option<&Ending> {
        match self {
            Self::Absent | Self::Waiting { .. } | Self::Syncing { .. } => None,
            Self::Terminating { ending, .. }
            | Self::Terminated { ending, .. }
            | Self::Finished { ending } => Some(ending),
        }
    }

    /// No container of the pod can be started any more: the pod terminates and no sync is under way.
    #[must_use]
    pub fn has_stopped_starting(&self) -> bool {
        match self {
            Self::Absent | Self::Waiting { .. } | Self::Syncing { .. } => false,
            Self::Terminating { work, .. } => !work.is_running(Job::Sync),
            Self::Terminated { .. } | Self::Finished { .. } => true,
        }
    }

    /// What the pod left on the node may be removed.
    #[must_use]
    pub fn may_content_go(&self) -> bool {
        match self {
            Self::Absent | Self::Waiting { .. } | Self::Syncing { .. } => false,
            Self::Terminating { ending, .. } => ending.is_evicted,
            Self::Terminated { ending, .. } | Self::Finished { ending } => {
                ending.is_evicted || ending.is_deleted
            }
        }
    }
}

impl Work {
    fn is_running(self, wanted: Job) -> bool {
        match self {
            Self::Idle => false,
            Self::Running { job, .. } => job == wanted,
        }
    }
}
