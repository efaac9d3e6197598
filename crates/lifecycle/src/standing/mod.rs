//! Where a pod is on the node: one value, from the moment a source or the runtime has the pod until neither does.
//!
//! Owns the transitions as `step(standing, event, now) -> (standing, effects)`. Admission decides elsewhere
//! (`rubelet_resources::admission`); its answer arrives here as a [`Decision`]. Once a pod is [`Standing::Managed`], its own state
//! machine ([`crate::pod_state`]) runs inside this one.
//!
//! ```text
//! from                                event                     to
//! Unclaimed, Awaits, Rejected (*)     Decided(Await.., Preempt) Awaits(runtime, node refresh, room, preemption)
//!                                     Decided(Reject)           Rejected
//!                                     Decided(Admit)            Managed(Absent); the effect Begin sends the first Update
//! Unclaimed(Undecided)                Listed                    Unclaimed(FoundAtStart)
//! Unclaimed                           Undecodable               Unclaimed(Undecodable)
//! Unclaimed(Undecodable)              Decodable                 Unclaimed(Undecided)
//! Unclaimed(Removed)                  NothingRuns               Unclaimed(Undecided)
//! Unclaimed(FoundAtStart)             NoUnreadableManifest      Unclaimed(Undecided)
//! Unclaimed, but not Undecodable      Pod(FoundInRuntime)       Managed(Terminating): only the runtime has it, it is stopped
//! Awaits(runtime)                     Removed                   Unclaimed(Removed)
//! Awaits(other)                       Removed                   Unclaimed(Undecided)
//! Rejected, without leftovers         Removed                   Unclaimed(Undecided); (Removed) before the runtime's first list
//! Rejected, with leftovers            Removed                   Managed(leftovers)
//! Rejected, Awaits after a rejection  Pod(FoundInRuntime)       Rejected, with leftovers that are stopped
//! Rejected, with leftovers            Pod                       Rejected; the leftovers' state machine takes the event
//! Managed                             Pod                       Managed; Unclaimed(Undecided) when the state becomes Absent
//! ```
//!
//! (*) A decision about a rejected pod is ignored while its leftovers are stopped. `AwaitRuntime` does not replace a wait for room or
//! preemption, so that what is reserved stays reserved. Rejected static pods are decided about again. An event that is not in the table
//! for a standing changes nothing.
//!
//! A slow step that admission has to wait for, such as the allocation of devices or claims, becomes one more
//! [`Wait`] beside `NodeRefresh`: a [`Decision`] that names it, left by the next decision when the step has answered.
//!
//! Leftovers are containers of a rejected pod: a call that was cancelled may create a container after the rejection. They are
//! stopped like an orphan while the pod stays rejected.

mod step;

pub use step::step;

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use rubelet_model::Timestamp;
use rubelet_model::observation::PodUid;
use rubelet_resources::admission::Refusal;

use crate::pod_state::{self, PodFacts, PodState};

/// The reason of a pod that asks for something which this version does not support.
pub const NOT_SUPPORTED: &str = "NotSupported";

/// Why and since when a pod is rejected.
#[derive(Clone, Debug, PartialEq)]
pub struct Rejection {
    /// The definition that was rejected.
    pub pod: Arc<Pod>,
    pub refusal: Refusal,
    pub since: Timestamp,
}

/// What is known of a pod that no source has, or that no decision was due about.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Unclaimed {
    /// A source has just delivered the pod, or only the runtime has it.
    #[default]
    Undecided,
    /// The runtime had the pod when rubelet started, and no source has had it since. Its manifest may be one that cannot be read.
    FoundAtStart,
    /// Its source removed the pod before admission could decide. Its running containers are terminated by this definition.
    Removed(Arc<Pod>),
    /// The API server has the pod and its object cannot be decoded. What runs of it stays.
    Undecodable { pod: Arc<Pod>, since: Timestamp },
}

/// What has to happen before a pod can start.
#[derive(Clone, Debug, PartialEq)]
pub enum Wait {
    /// The runtime's first list of pods, or its report of features.
    Runtime { rejected: Option<Rejection> },
    /// Only the node's labels do not match the pod; the Node object is read again.
    NodeRefresh { rejected: Option<Rejection> },
    /// Terminating pods free what is reserved for this one.
    Room,
    /// What the pod needs is reserved; these pods are preempted for it and have to end.
    Preemption { victims: Vec<PodUid> },
}

/// Where a pod is.
#[derive(Clone, Debug, PartialEq)]
pub enum Standing {
    Unclaimed(Unclaimed),
    Awaits {
        wait: Wait,
        since: Timestamp,
    },
    /// The node cannot run the pod, for good or for now. `leftovers` is the stop of what runs of it nevertheless.
    Rejected {
        rejection: Rejection,
        leftovers: PodState,
    },
    /// The pod's own state machine runs: it was admitted, or it is an orphan that is stopped.
    Managed(PodState),
}

impl StandingEvent {
    /// The event for the pod's own state machine, if it is one.
    #[must_use]
    pub fn pod(&self) -> Option<pod_state::Event> {
        if let Self::Pod(event) = self {
            Some(*event)
        } else {
            None
        }
    }
}

impl StandingEffect {
    /// The effect of the pod's own state machine, if it is one.
    #[must_use]
    pub fn pod(&self) -> Option<pod_state::Effect> {
        if let Self::Pod(effect) = self {
            Some(*effect)
        } else {
            None
        }
    }
}

impl Default for Standing {
    fn default() -> Self {
        Self::UNDECIDED
    }
}

/// Admission's answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    AwaitRuntime,
    AwaitNodeRefresh,
    AwaitRoom,
    /// Admitted once these pods have ended. `scarce` is the first resource that there is not enough of.
    Preempt {
        victims: Vec<PodUid>,
        scarce: String,
    },
    Admit,
    Reject {
        pod: Arc<Pod>,
        refusal: Refusal,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub enum StandingEvent {
    /// The runtime's first list has the pod, and no source has it.
    Listed,
    Undecodable(Arc<Pod>),
    /// The API server's object can be decoded again, or is gone.
    Decodable,
    Decided(Decision),
    /// No source has the pod any more. `is_listed`: the runtime's first list is known.
    Removed {
        pod: Arc<Pod>,
        is_listed: bool,
    },
    /// The runtime has nothing of the pod that runs.
    NothingRuns,
    /// No manifest that cannot be read has the pod.
    NoUnreadableManifest,
    Pod(pod_state::Event),
}

#[derive(Clone, Debug, PartialEq)]
pub enum StandingEffect {
    /// Send the pod's first `Update` to its state machine.
    Begin,
    /// Give back what the pod has reserved.
    Release,
    /// End these pods so that this one can start.
    Preempt {
        victims: Vec<PodUid>,
        scarce: String,
    },
    /// The rejection is new: record its event.
    RecordRejection,
    /// Report the status of a rejected pod.
    ReportRejection,
    Pod(pod_state::Effect),
}

impl Standing {
    pub const UNDECIDED: Self = Self::Unclaimed(Unclaimed::Undecided);
    pub const FOUND_AT_START: Self = Self::Unclaimed(Unclaimed::FoundAtStart);

    /// The state from which the pod's own state machine goes on.
    #[must_use]
    pub fn life(&self) -> PodState {
        match self {
            Self::Managed(state) => *state,
            Self::Rejected { leftovers, .. } => *leftovers,
            Self::Unclaimed(Unclaimed::Removed(pod)) => PodState::Waiting {
                pod: PodFacts::of(pod),
            },
            Self::Unclaimed(
                Unclaimed::Undecided | Unclaimed::FoundAtStart | Unclaimed::Undecodable { .. },
            )
            | Self::Awaits { .. } => PodState::Absent,
        }
    }

    /// Whether the pod's own state machine runs.
    #[must_use]
    pub fn is_managed(&self) -> bool {
        match self {
            Self::Managed(_) => true,
            Self::Rejected { leftovers, .. } => *leftovers != PodState::Absent,
            Self::Unclaimed(_) | Self::Awaits { .. } => false,
        }
    }

    /// Whether admission has decided that the pod does not start now, or could not decide yet.
    #[must_use]
    pub fn is_unadmitted(&self) -> bool {
        match self {
            Self::Awaits { .. } | Self::Rejected { .. } => true,
            Self::Unclaimed(_) | Self::Managed(_) => false,
        }
    }

    #[must_use]
    pub fn is_undecodable(&self) -> bool {
        matches!(self, Self::Unclaimed(Unclaimed::Undecodable { .. }))
    }

    /// The wait, if the pod waits for admission or for room.
    #[must_use]
    pub fn wait(&self) -> Option<&Wait> {
        match self {
            Self::Awaits { wait, .. } => Some(wait),
            Self::Unclaimed(_) | Self::Rejected { .. } | Self::Managed(_) => None,
        }
    }

    /// The last rejection, also while the pod is decided about again.
    #[must_use]
    pub fn rejection(&self) -> Option<&Rejection> {
        match self {
            Self::Rejected { rejection, .. } => Some(rejection),
            Self::Awaits { wait, .. } => match wait {
                Wait::Runtime { rejected } | Wait::NodeRefresh { rejected } => rejected.as_ref(),
                Wait::Room | Wait::Preemption { .. } => None,
            },
            Self::Unclaimed(_) | Self::Managed(_) => None,
        }
    }

    /// Whether running containers of the pod have to be stopped. When only a new version is not supported, the old version goes on.
    #[must_use]
    pub fn is_shut_out(&self) -> bool {
        self.rejection()
            .is_some_and(|rejection| rejection.refusal.reason != NOT_SUPPORTED)
    }

    /// Whether what the pod needs is reserved, and other pods have to free it first.
    #[must_use]
    pub fn awaits_room(&self) -> bool {
        self.wait().is_some_and(|wait| match wait {
            Wait::Room | Wait::Preemption { .. } => true,
            Wait::Runtime { .. } | Wait::NodeRefresh { .. } => false,
        })
    }

    /// Whether the pod may start when other pods have freed what they hold.
    #[must_use]
    pub fn waits_for_others(&self) -> bool {
        let rejection = self.rejection();
        self.awaits_room() || rejection.is_some_and(|rejection| rejection.refusal.is_for_now)
    }
}
