//! The flight recorder: the last decisions about one pod, with everything they were made from.
//!
//! Owns a bounded ring per pod. Decisions are pure, so that a record can be replayed later with the same result; a defect from the
//! field becomes a test that way. Plans are recorded as they are executed. It decides nothing, and keeps nothing on disk.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::Pod;
use rubelet_lifecycle::backoff::CrashBackoff;
use rubelet_lifecycle::plan::{Plan, PlanInput, PodPlanFacts, PodPlanInput, plan_pod};
use rubelet_lifecycle::pod_state::{Effect, Event, PodState};
use rubelet_lifecycle::resize::ResizeNeeds;
use rubelet_lifecycle::restart::RestartGates;
use rubelet_model::Timestamp;
use rubelet_model::observation::{PodObservation, ProbeResults};
use serde::{Deserialize, Serialize};

/// The version of the form of a record.
pub const RECORD_VERSION: u32 = 3;
/// Entries that are kept of one pod.
const CAPACITY: usize = 24;

/// One decision or one thing that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum Entry {
    /// What an event made of the pod's state.
    Step {
        at: Timestamp,
        state: PodState,
        event: Event,
        next: PodState,
        effects: Vec<Effect>,
    },
    /// What the pod needed, and from which facts that follows.
    Plan {
        at: Timestamp,
        /// The definition of that time, when it was another one than the record's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pod: Option<Box<Pod>>,
        observation: Box<PodObservation>,
        /// Of containers with probes.
        #[serde(default)]
        probes: ProbeResults,
        backoff: CrashBackoff,
        restarting_all: bool,
        /// What of the pod had other resources than were allocated to it.
        #[serde(default)]
        resize: Box<ResizeNeeds>,
        facts: Box<PodPlanFacts>,
        /// Whether the same plan was executed before and had no effect.
        repeats: bool,
        /// The executed actions as text, one each.
        actions: Vec<String>,
    },
    /// Something that was decided elsewhere.
    Note { at: Timestamp, text: String },
}

/// The record of one pod.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    pub version: u32,
    /// The feature gates of the node, as far as decisions depend on them.
    pub gates: RestartGates,
    pub pod: Pod,
    pub entries: Vec<Entry>,
}

/// Makes the plan of an entry again, from what it was made from then; nothing for other entries.
#[must_use]
pub fn replay_plan(entry: &Entry, record: &Record) -> Option<Plan> {
    let Entry::Plan {
        at,
        pod,
        observation,
        probes,
        backoff,
        restarting_all,
        resize,
        facts,
        repeats,
        ..
    } = entry
    else {
        return None;
    };
    let containers = PlanInput {
        pod: pod.as_deref().unwrap_or(&record.pod),
        observation,
        probes,
        backoff,
        gates: record.gates,
        restarting_all: *restarting_all,
        resize,
        now: *at,
    };
    let plan = |previous| {
        plan_pod(&PodPlanInput {
            containers,
            facts,
            previous,
        })
    };
    let first = plan(None);
    Some(if *repeats { plan(Some(&first)) } else { first })
}

/// The actions of a plan as a record has them.
#[must_use]
pub fn actions_as_text(plan: &Plan) -> Vec<String> {
    plan.actions.iter().map(|action| format!("{action:?}")).collect()
}

/// A plan as it is kept: the observation is shared with the cache, and the text is made when the record is read.
enum Kept {
    Plan {
        at: Timestamp,
        pod: Arc<Pod>,
        observation: Arc<PodObservation>,
        probes: ProbeResults,
        backoff: CrashBackoff,
        restarting_all: bool,
        resize: Box<ResizeNeeds>,
        facts: Box<PodPlanFacts>,
        plan: Plan,
    },
    Other(Entry),
}

/// The ring of one pod, shared by its jobs and the sync loop. The lock is held for a few instructions only.
#[derive(Clone, Default)]
pub(crate) struct FlightRecorder {
    ring: Arc<Mutex<VecDeque<Kept>>>,
}

/// A plan and what it was made from.
pub(crate) struct Planned<'a> {
    pub(crate) pod: &'a Arc<Pod>,
    pub(crate) observation: &'a Arc<PodObservation>,
    pub(crate) input: &'a PlanInput<'a>,
    pub(crate) facts: &'a PodPlanFacts,
    pub(crate) plan: &'a Plan,
}

impl FlightRecorder {
    fn push(&self, entry: Kept) {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        if ring.len() == CAPACITY {
            ring.pop_front();
        }
        ring.push_back(entry);
    }

    pub(crate) fn step(&self, at: Timestamp, change: (PodState, Event), result: (PodState, Vec<Effect>)) {
        let (state, event) = change;
        let (next, effects) = result;
        self.push(Kept::Other(Entry::Step {
            at,
            state,
            event,
            next,
            effects,
        }));
    }

    pub(crate) fn plan(&self, planned: &Planned<'_>) {
        self.push(Kept::Plan {
            at: planned.input.now,
            pod: Arc::clone(planned.pod),
            observation: Arc::clone(planned.observation),
            probes: planned.input.probes.clone(),
            backoff: planned.input.backoff.clone(),
            restarting_all: planned.input.restarting_all,
            resize: Box::new(planned.input.resize.clone()),
            facts: Box::new(planned.facts.clone()),
            plan: planned.plan.clone(),
        });
    }

    pub(crate) fn note(&self, at: Timestamp, text: impl Into<String>) {
        self.push(Kept::Other(Entry::Note {
            at,
            text: text.into(),
        }));
    }

    pub(crate) fn record(&self, pod: &Pod, gates: RestartGates) -> Record {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let entries = ring.iter().map(|kept| match kept {
            Kept::Plan {
                at,
                pod: of_then,
                observation,
                probes,
                backoff,
                restarting_all,
                resize,
                facts,
                plan,
            } => Entry::Plan {
                at: *at,
                pod: (**of_then != *pod).then(|| Box::new(of_then.as_ref().clone())),
                observation: Box::new(observation.as_ref().clone()),
                probes: probes.clone(),
                backoff: backoff.clone(),
                restarting_all: *restarting_all,
                resize: resize.clone(),
                facts: facts.clone(),
                repeats: plan.is_repeated(),
                actions: actions_as_text(plan),
            },
            Kept::Other(entry) => entry.clone(),
        });
        Record {
            version: RECORD_VERSION,
            gates,
            pod: pod.clone(),
            entries: entries.collect(),
        }
    }
}
