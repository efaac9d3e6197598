//! The transitions, one function per event.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use rubelet_model::Timestamp;
use rubelet_resources::admission::Refusal;

use super::{Decision, Rejection, Standing, StandingEffect, StandingEvent, Unclaimed, Wait};
use crate::pod_state::{self, PodState};

type Step = (Standing, Vec<StandingEffect>);

/// What the event makes of the standing, and what has to be done now. An event that means nothing in a standing changes nothing.
#[must_use]
pub fn step(standing: Standing, event: StandingEvent, now: Timestamp) -> Step {
    match event {
        StandingEvent::Pod(event) => step_pod_state(standing, event, now),
        StandingEvent::Decided(decision) => decided(standing, decision, now),
        StandingEvent::Removed { pod, is_listed } => removed(standing, pod, is_listed),
        StandingEvent::Listed
        | StandingEvent::Undecodable(_)
        | StandingEvent::Decodable
        | StandingEvent::NothingRuns
        | StandingEvent::NoUnreadableManifest => match standing {
            Standing::Unclaimed(unclaimed) => {
                (Standing::Unclaimed(noticed(unclaimed, event, now)), Vec::new())
            }
            Standing::Awaits { .. } | Standing::Rejected { .. } | Standing::Managed(_) => {
                (standing, Vec::new())
            }
        },
    }
}

/// Takes over what the runtime or the API server shows of a pod that no source has.
fn noticed(unclaimed: Unclaimed, event: StandingEvent, now: Timestamp) -> Unclaimed {
    match (event, unclaimed) {
        (StandingEvent::Listed, Unclaimed::Undecided) => Unclaimed::FoundAtStart,
        (StandingEvent::Undecodable(pod), Unclaimed::Undecodable { since, .. }) => {
            Unclaimed::Undecodable { pod, since }
        }
        (
            StandingEvent::Undecodable(pod),
            Unclaimed::Undecided | Unclaimed::FoundAtStart | Unclaimed::Removed(_),
        ) => Unclaimed::Undecodable { pod, since: now },
        (StandingEvent::Decodable, Unclaimed::Undecodable { .. })
        | (StandingEvent::NothingRuns, Unclaimed::Removed(_))
        | (StandingEvent::NoUnreadableManifest, Unclaimed::FoundAtStart) => Unclaimed::Undecided,
        (
            StandingEvent::Listed
            | StandingEvent::Decodable
            | StandingEvent::NothingRuns
            | StandingEvent::NoUnreadableManifest
            | StandingEvent::Decided(_)
            | StandingEvent::Removed { .. }
            | StandingEvent::Pod(_),
            unclaimed,
        ) => unclaimed,
    }
}

fn removed(standing: Standing, pod: Arc<Pod>, is_listed: bool) -> Step {
    let unlisted = Standing::Unclaimed(Unclaimed::Removed(pod));
    let next = match standing {
        Standing::Unclaimed(_) | Standing::Managed(_) => standing,
        Standing::Rejected { leftovers, .. } if leftovers != PodState::Absent => Standing::Managed(leftovers),
        Standing::Rejected { .. } if is_listed => Standing::UNDECIDED,
        // What the runtime has of it is not known yet.
        Standing::Rejected { .. } => unlisted,
        Standing::Awaits { wait, .. } => match wait {
            Wait::Runtime { .. } => unlisted,
            Wait::NodeRefresh { .. } => Standing::UNDECIDED,
            Wait::Room | Wait::Preemption { .. } => {
                return (Standing::UNDECIDED, vec![StandingEffect::Release]);
            }
        },
    };
    (next, Vec::new())
}

fn decided(standing: Standing, decision: Decision, now: Timestamp) -> Step {
    if standing.is_managed() {
        return (standing, Vec::new());
    }
    let rejected = standing.rejection().cloned();
    match decision {
        // What is reserved stays reserved.
        Decision::AwaitRuntime if standing.awaits_room() => (standing, Vec::new()),
        Decision::AwaitRuntime => {
            let wait = Wait::Runtime { rejected };
            (await_since(&standing, wait, now), Vec::new())
        }
        Decision::AwaitNodeRefresh => {
            let wait = Wait::NodeRefresh { rejected };
            let next = await_since(&standing, wait, now);
            (next, vec![StandingEffect::Release])
        }
        Decision::AwaitRoom => (await_since(&standing, Wait::Room, now), Vec::new()),
        Decision::Preempt { victims, scarce } => {
            let wait = Wait::Preemption {
                victims: victims.clone(),
            };
            let next = Standing::Awaits { wait, since: now };
            (next, vec![StandingEffect::Preempt { victims, scarce }])
        }
        Decision::Admit => (Standing::Managed(PodState::Absent), vec![StandingEffect::Begin]),
        Decision::Reject { pod, refusal } => reject(&standing, pod, refusal, now),
    }
}

/// A wait of the same kind goes on; another one begins.
fn await_since(standing: &Standing, wait: Wait, now: Timestamp) -> Standing {
    let since = match standing {
        Standing::Awaits { wait: known, since }
            if std::mem::discriminant(known) == std::mem::discriminant(&wait) =>
        {
            *since
        }
        Standing::Awaits { .. }
        | Standing::Unclaimed(_)
        | Standing::Rejected { .. }
        | Standing::Managed(_) => now,
    };
    Standing::Awaits { wait, since }
}

fn reject(standing: &Standing, pod: Arc<Pod>, refusal: Refusal, now: Timestamp) -> Step {
    let before = standing.rejection();
    let is_new = before.is_none_or(|before| before.refusal.reason != refusal.reason);
    let rejection = Rejection {
        pod,
        refusal,
        since: before.map_or(now, |before| before.since),
    };
    let mut effects = vec![StandingEffect::Release];
    if is_new {
        effects.push(StandingEffect::RecordRejection);
    }
    effects.push(StandingEffect::ReportRejection);
    let leftovers = PodState::Absent;
    (Standing::Rejected { rejection, leftovers }, effects)
}

/// An event of the pod's own state machine. It begins for an orphan with `FoundInRuntime`, and otherwise with an admission.
fn step_pod_state(standing: Standing, event: pod_state::Event, now: Timestamp) -> Step {
    let is_found = event == pod_state::Event::FoundInRuntime;
    let begins = match &standing {
        Standing::Managed(_) => true,
        Standing::Unclaimed(_) => is_found && !standing.is_undecodable(),
        // Running containers of a rejected pod are stopped, also while admission decides about the pod again.
        Standing::Rejected { .. } | Standing::Awaits { .. } => {
            standing.is_managed() || is_found && standing.rejection().is_some()
        }
    };
    if !begins {
        return (standing, Vec::new());
    }
    let (state, effects) = pod_state::step(standing.life(), event, now);
    let next = match (standing.rejection().cloned(), state) {
        (Some(rejection), leftovers) => Standing::Rejected { rejection, leftovers },
        (None, PodState::Absent) => Standing::UNDECIDED,
        (None, state) => Standing::Managed(state),
    };
    (next, effects.into_iter().map(StandingEffect::Pod).collect())
}
