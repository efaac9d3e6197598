//! What a plan consists of.
//!
//! Owns the actions and their reasons, and the texts of the events that they cause.

use rubelet_model::Timestamp;
use rubelet_model::observation::{ContainerId, ContainerKind, SandboxId};

use super::sandbox::SandboxChange;
use crate::backoff::BackoffKey;
use crate::hooks::FAILED_POST_START;
use crate::pod_state::Retry;
use crate::resize::PodResize;
use crate::status::Eviction;
use crate::termination::{ContainerStop, PodStop};

/// Actions in the order of execution. An action that fails ends the plan, except where its own [`OnFailure`] is `Continue`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub actions: Vec<Action>,
}

impl Plan {
    pub(super) fn only(action: Action) -> Self {
        Self {
            actions: vec![action],
        }
    }

    /// Only the waits of this plan stay, and nothing but `before` is done until the block is gone.
    pub(super) fn blocked(mut self, before: impl IntoIterator<Item = Action>, block: Block) -> Self {
        self.actions.retain(|action| matches!(action, Action::Wait(_)));
        self.actions.extend(before);
        self.actions.push(Action::Block(block));
        self
    }

    /// Whether the plan changes nothing: everything is as desired, or has to wait.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let is_quiet = |action: &Action| {
            matches!(
                action,
                Action::Keep { .. } | Action::Wait(_) | Action::RefreshVolumes
            )
        };
        self.actions.iter().all(is_quiet)
    }

    /// Whether both change the same at the runtime.
    pub(super) fn has_same_changes(&self, other: &Self) -> bool {
        let is_change = |action: &&Action| !action.is_preparation();
        let changes = self.actions.iter().filter(is_change);
        changes.eq(other.actions.iter().filter(is_change))
    }

    /// Whether a container is killed because its probes fail, perhaps with all of its pod.
    #[must_use]
    pub fn kills_for_probes(&self) -> bool {
        let is_for_probe = |kill: &KillContainer| {
            matches!(
                kill.reason,
                KillReason::StartupProbe { .. } | KillReason::LivenessProbe { .. }
            )
        };
        self.actions.iter().any(|action| match action {
            Action::KillContainers(kills) => kills.iter().any(is_for_probe),
            Action::KillPod { reason, stop } => {
                *reason == KillPodReason::AllContainersEnded && !stop.containers.is_empty()
            }
            _ => false,
        })
    }

    /// Whether all that is left is to stop what is there: the pod has nothing to start again.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(
            self.actions.as_slice(),
            [Action::KillPod {
                reason: KillPodReason::NothingToRestart,
                ..
            }]
        )
    }

    /// Whether this plan replaces one that was executed before and had no effect.
    #[must_use]
    pub fn is_repeated(&self) -> bool {
        let is_repeated =
            |action: &Action| matches!(action, Action::FailPod(_) | Action::Block(Block::NoEffect));
        self.actions.iter().any(is_repeated)
    }

    /// The earliest time at which a wait ends by itself.
    #[must_use]
    pub fn look_again_at(&self) -> Option<Timestamp> {
        self.waits().filter_map(Wait::until).min()
    }

    pub fn waits(&self) -> impl Iterator<Item = &Wait> {
        self.actions.iter().filter_map(|action| match action {
            Action::Wait(wait) => Some(wait),
            _ => None,
        })
    }

    pub fn starts(&self) -> impl Iterator<Item = &StartContainer> {
        self.actions.iter().filter_map(|action| match action {
            Action::StartContainer(start) => Some(start),
            _ => None,
        })
    }

    /// The sandbox that is created.
    #[must_use]
    pub fn sandbox(&self) -> Option<&SandboxChange> {
        self.actions.iter().find_map(|action| match action {
            Action::CreateSandbox(change) => Some(change),
            _ => None,
        })
    }

    pub(super) fn starts_something(&self) -> bool {
        self.sandbox().is_some() || self.starts().next().is_some()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Observe the pod anew before anything else is decided.
    LookAgain {
        reason: LookReason,
    },
    /// Find out whether the cgroup of a running pod exists, then plan again.
    CheckCgroup,
    /// Set up the pod's volumes, and bring files that follow its definition up to date.
    SetUpVolumes,
    /// Bring the files of a pod that starts nothing up to date.
    RefreshVolumes,
    /// Stop all containers and all sandboxes.
    KillPod {
        reason: KillPodReason,
        stop: PodStop,
    },
    /// All at the same time.
    KillContainers(Vec<KillContainer>),
    RemoveContainer {
        id: ContainerId,
        name: String,
        reason: RemoveReason,
    },
    /// A sandbox of an earlier pod of the same UID.
    RemoveSandbox {
        id: SandboxId,
        on_failure: OnFailure,
    },
    /// Look up the runtime handler of the pod's RuntimeClass.
    FindRuntimeHandler {
        class: String,
        reason: PrepareReason,
    },
    /// Both at the same time: neither needs the other.
    CreateDirectoriesAndCgroup {
        reason: PrepareReason,
    },
    /// Allocate the ids of the pod's user namespace.
    AllocateUserIds {
        reason: PrepareReason,
    },
    CreateSandbox(SandboxChange),
    /// The container runs and is left alone.
    Keep {
        id: ContainerId,
        name: String,
    },
    /// Give running containers, and the pod's cgroup, the resources that are allocated to them, without a restart.
    Resize(PodResize),
    StartContainer(StartContainer),
    /// A container that does not run yet, and what it waits for.
    Wait(Wait),
    /// The statuses of all containers show what the node has no provider for.
    ShowMissing {
        message: String,
    },
    /// The pod cannot go on and ends as `Failed`.
    FailPod(Eviction),
    /// Nothing else can be done now; the pod is tried again.
    Block(Block),
}

impl Action {
    /// Whether it makes something on the node that sandbox and containers need. Done twice it has the same effect as once.
    fn is_preparation(&self) -> bool {
        matches!(
            self,
            Self::SetUpVolumes
                | Self::FindRuntimeHandler { .. }
                | Self::CreateDirectoriesAndCgroup { .. }
                | Self::AllocateUserIds { .. }
        )
    }

    /// Whether it is a part of the creation of a sandbox.
    #[must_use]
    pub fn is_for_new_sandbox(&self) -> bool {
        match self {
            Self::CreateSandbox(_) => true,
            Self::FindRuntimeHandler { reason, .. }
            | Self::CreateDirectoriesAndCgroup { reason }
            | Self::AllocateUserIds { reason } => *reason == PrepareReason::NewSandbox,
            _ => false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookReason {
    /// A container is about to be killed because of its probe.
    ProbeFailed,
}

/// Why something is made on the node for the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrepareReason {
    NewSandbox,
    /// The sandbox exists, and this run of the agent has not made it.
    AgentRestarted,
}

/// Why nothing of the pod can start now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Block {
    NetworkNotReady {
        problem: String,
    },
    /// The node has no driver for a resource claim.
    ClaimsUnprepared {
        message: String,
    },
    /// The node has no plugin for a volume or a device.
    ProviderMissing {
        message: String,
    },
    /// The same plan was executed before.
    NoEffect,
}

impl Block {
    /// Upstream's reason of the event, if there is one.
    #[must_use]
    pub fn event_reason(&self) -> Option<&'static str> {
        match self {
            Self::NetworkNotReady { .. } => Some("NetworkNotReady"),
            Self::ClaimsUnprepared { .. } => Some("FailedPrepareDynamicResources"),
            Self::ProviderMissing { .. } => Some("FailedSync"),
            Self::NoEffect => None,
        }
    }

    #[must_use]
    pub fn message(&self) -> String {
        match self {
            Self::NetworkNotReady { problem } => format!("network is not ready: {problem}"),
            Self::ClaimsUnprepared { message } => format!("Failed to prepare dynamic resources: {message}"),
            Self::ProviderMissing { message } => message.clone(),
            Self::NoEffect => "what was done had no effect; it is tried again".to_owned(),
        }
    }

    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            Self::NetworkNotReady { .. } => Retry::NetworkNotReady,
            Self::ClaimsUnprepared { .. } | Self::ProviderMissing { .. } | Self::NoEffect => Retry::Later,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KillContainer {
    pub stop: ContainerStop,
    pub kind: ContainerKind,
    pub reason: KillReason,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KillPodReason {
    /// The sandbox is replaced.
    SandboxChanged,
    /// The sandbox is gone and nothing of the pod may run again.
    NothingToRestart,
    /// All regular containers have ended for good.
    AllContainersEnded,
    InitContainerFailed {
        container: String,
    },
    /// Its cgroup is gone; what starts next is under a new one.
    CgroupLost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillReason {
    DefinitionChanged,
    LivenessProbe {
        restarts: bool,
    },
    StartupProbe {
        restarts: bool,
    },
    ResizeNeedsRestart,
    /// Its postStart hook failed.
    PostStartHook,
    /// It may or may not run; another instance may not run beside it.
    UnknownState,
    RestartAllContainers,
    /// It runs, but the pod has no container of its name.
    NotInPod,
    /// It runs in a sandbox that is not the pod's any more.
    OutsideSandbox,
    /// A newer instance of the same name exists.
    Superseded,
}

impl KillContainer {
    /// The text of the `Killing` event.
    #[must_use]
    pub fn message(&self) -> String {
        let name = &self.stop.name;
        let (subject, of_init) = match self.kind {
            ContainerKind::Init | ContainerKind::Sidecar => ("Init container", true),
            ContainerKind::Regular | ContainerKind::Ephemeral => ("Container", false),
        };
        // Upstream announces the restart in the messages of regular containers, and not in those of init containers.
        let suffix = |restarts: bool| {
            if restarts && !of_init {
                ", will be restarted"
            } else {
                ""
            }
        };
        match self.reason {
            KillReason::DefinitionChanged => format!("{subject} {name} definition changed{}", suffix(true)),
            KillReason::LivenessProbe { restarts } => {
                format!("{subject} {name} failed liveness probe{}", suffix(restarts))
            }
            KillReason::StartupProbe { restarts } => {
                format!("{subject} {name} failed startup probe{}", suffix(restarts))
            }
            KillReason::ResizeNeedsRestart => format!("Container {name} resize requires restart"),
            KillReason::PostStartHook => FAILED_POST_START.to_owned(),
            KillReason::UnknownState => {
                format!("{subject} is in \"unknown\" state, try killing it before restart")
            }
            KillReason::RestartAllContainers => "killing".to_owned(),
            KillReason::NotInPod => format!("Container {name} is not part of the pod"),
            KillReason::OutsideSandbox => format!("Container {name} runs outside the pod's sandbox"),
            KillReason::Superseded => format!("Container {name} has a newer instance"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoveReason {
    /// Init containers run again in the new sandbox. Their logs are removed too.
    SandboxChanged,
    /// A newer ended instance exists. Its logs are removed too.
    OldInitContainer,
    /// All containers restart. The logs stay.
    RestartAllContainers,
    /// It belongs to an earlier pod of the same UID. The logs stay.
    EarlierPod,
}

impl RemoveReason {
    #[must_use]
    pub fn keeps_logs(self) -> bool {
        match self {
            Self::SandboxChanged | Self::OldInitContainer => false,
            Self::RestartAllContainers | Self::EarlierPod => true,
        }
    }
}

/// What a failure to start a container means for the rest of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// Nothing that follows may start.
    StopPlan,
    /// The rest goes on.
    Continue,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartContainer {
    pub kind: ContainerKind,
    /// The place in the pod's list of containers of this kind; sidecars are in the list of init containers.
    pub index: usize,
    pub name: String,
    pub reason: StartReason,
    pub on_failure: OnFailure,
    /// The step that the backoff has to take when the start is tried, with the time of the last exit.
    pub backoff: Option<(BackoffKey, Timestamp)>,
    /// Whether the status may be published while the image is pulled. Not when the plan kills a container that would not
    /// restart by itself, to start it again: until then its status would show an end.
    pub publishes_progress: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartReason {
    /// No instance is known.
    NeverStarted,
    /// It was created but never ran.
    OnlyCreated,
    Exited {
        exit_code: i32,
    },
    /// It was killed first, see the plan's kills.
    Killed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    pub name: String,
    pub kind: ContainerKind,
    pub reason: WaitReason,
}

impl Wait {
    /// When the wait ends by itself; `None` when it ends by an event.
    #[must_use]
    pub fn until(&self) -> Option<Timestamp> {
        match self.reason {
            WaitReason::CrashLoopBackOff { until, .. } => Some(until),
            WaitReason::InitContainerRunning | WaitReason::StartupProbe => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitReason {
    CrashLoopBackOff {
        until: Timestamp,
        message: String,
    },
    /// The init container runs; the ones after it wait for its end.
    InitContainerRunning,
    /// The sidecar runs; the ones after it wait for its startup probe.
    StartupProbe,
}
