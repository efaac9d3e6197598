//! The words of a plan.
//!
//! Owns the actions and their reasons, and the texts that people see of them.

use rubelet_model::Timestamp;
use rubelet_model::observation::{ContainerId, ContainerKind};

use super::sandbox::SandboxChange;
use crate::backoff::BackoffKey;
use crate::hooks::FAILED_POST_START;
use crate::termination::{ContainerStop, PodStop};

/// What to do, in this order. An action that fails ends the plan, except where its own [`OnFailure`] says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub actions: Vec<Action>,
}

impl Plan {
    /// Whether the plan changes nothing: everything is as it should be, or has to wait.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.actions.iter().all(|action| match action {
            Action::Keep { .. } | Action::Wait(_) => true,
            Action::KillPod { .. }
            | Action::KillContainer(_)
            | Action::RemoveContainer { .. }
            | Action::CreateSandbox(_)
            | Action::StartContainer(_) => false,
        })
    }

    /// Whether a container is killed because its probes fail, perhaps with all of its pod.
    #[must_use]
    pub fn kills_for_probes(&self) -> bool {
        self.actions.iter().any(|action| match action {
            Action::KillContainer(kill) => matches!(
                kill.reason,
                KillReason::StartupProbe { .. } | KillReason::LivenessProbe { .. }
            ),
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

    /// The earliest time at which a wait ends by itself.
    #[must_use]
    pub fn look_again_at(&self) -> Option<Timestamp> {
        self.actions
            .iter()
            .filter_map(|action| match action {
                Action::Wait(wait) => wait.until(),
                Action::KillPod { .. }
                | Action::KillContainer(_)
                | Action::RemoveContainer { .. }
                | Action::CreateSandbox(_)
                | Action::Keep { .. }
                | Action::StartContainer(_) => None,
            })
            .min()
    }

    pub fn starts(&self) -> impl Iterator<Item = &StartContainer> {
        self.actions.iter().filter_map(|action| match action {
            Action::StartContainer(start) => Some(start),
            Action::KillPod { .. }
            | Action::KillContainer(_)
            | Action::RemoveContainer { .. }
            | Action::CreateSandbox(_)
            | Action::Keep { .. }
            | Action::Wait(_) => None,
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Stop all containers and all sandboxes.
    KillPod {
        reason: KillPodReason,
        stop: PodStop,
    },
    KillContainer(KillContainer),
    RemoveContainer {
        id: ContainerId,
        name: String,
        reason: RemoveReason,
    },
    CreateSandbox(SandboxChange),
    /// The container runs and is left alone.
    Keep {
        id: ContainerId,
        name: String,
    },
    StartContainer(StartContainer),
    /// A container that does not run yet, and what it waits for.
    Wait(Wait),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KillContainer {
    pub stop: ContainerStop,
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
    pub fn message(&self, kind: ContainerKind) -> String {
        let name = &self.stop.name;
        let (subject, of_init) = match kind {
            ContainerKind::Init | ContainerKind::Sidecar => ("Init container", true),
            ContainerKind::Regular | ContainerKind::Ephemeral => ("Container", false),
        };
        // Regular containers say that they come back; of init containers upstream does not say it.
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
    /// Init containers run again in the new sandbox. Their logs go too.
    SandboxChanged,
    /// A newer ended instance exists. Its logs go too.
    OldInitContainer,
    /// All containers restart. The logs stay.
    RestartAllContainers,
}

impl RemoveReason {
    #[must_use]
    pub fn keeps_logs(self) -> bool {
        match self {
            Self::SandboxChanged | Self::OldInitContainer => false,
            Self::RestartAllContainers => true,
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
