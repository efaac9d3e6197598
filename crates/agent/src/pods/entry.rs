//! One pod as the sync loop knows it.

use std::sync::{Arc, PoisonError, Weak};

use k8s_openapi::api::core::v1::{Pod, PodCondition, PodStatus};
use rubelet_lifecycle::allocation::Allocation;
use rubelet_lifecycle::pod_state::PodState;
use rubelet_lifecycle::status::{Eviction, StatusGates, is_api_pod, published_status, reported_status};
use rubelet_model::Timestamp;
use rubelet_model::observation::{PodObservation, PodUid, SandboxObservation, SandboxState};
use rubelet_ports::Moment;
use rubelet_resources::admission::Refusal;
use tokio::sync::watch;

use super::explain::is_ready;
use super::starts::Start;
use crate::job::{PodWork, WorkLeft};
use crate::recorder::FlightRecorder;
use crate::waits::Waits;

/// A job in hand.
pub(super) struct RunningJob {
    /// Tells answers of this job from those of an earlier one.
    pub(super) number: u64,
    pub(super) cancel: watch::Sender<bool>,
    /// The last news of the pod since the job began. The job may have looked before that.
    pub(super) sighted: Option<Arc<PodObservation>>,
    pub(super) began: Moment,
    pub(super) work_left: WorkLeft,
    /// The pod's newest definition, sent again whenever an object that it refers to has changed.
    pub(super) newest: watch::Sender<Arc<Pod>>,
    /// What the work is, as upstream's metrics call it.
    pub(super) operation: &'static str,
}

impl RunningJob {
    /// What the job knew of its pod at its end.
    pub(super) fn left(&self) -> Option<PodWork> {
        let mut left = self.work_left.lock().unwrap_or_else(PoisonError::into_inner);
        left.take()
    }
}

pub(super) struct Entry {
    /// The newest definition, with the resources it was let in with; of an orphan its name and namespace only.
    pub(super) pod: Arc<Pod>,
    /// What it was let in with; nothing for pods that are not resized in place.
    pub(super) allocation: Option<Allocation>,
    /// Why it does not get the resources that it asks for by now.
    pub(super) resize: Option<PodCondition>,
    /// `name_namespace`
    pub(super) full_name: String,
    pub(super) qos_class: &'static str,
    pub(super) state: PodState,
    /// With the job while one runs.
    pub(super) work: Option<PodWork>,
    pub(super) job: Option<RunningJob>,
    pub(super) waits: Waits,
    pub(super) recorder: FlightRecorder,
    /// The newest status that a job derived.
    pub(super) derived: Option<Arc<PodStatus>>,
    /// What is shown: a terminal phase waits there until nothing runs.
    pub(super) shown: Arc<PodStatus>,
    /// What it was made from.
    pub(super) shown_from: Option<ShownFrom>,
    /// What others were last shown.
    pub(super) last_view: Option<View>,
    /// What was last reported, and whether as finished.
    pub(super) reported: Option<(Arc<PodStatus>, bool)>,
    pub(super) eviction: Option<Eviction>,
    /// When the pod is looked at again.
    pub(super) wake_at: Option<Moment>,
    /// Since when the last job has been over.
    pub(super) resting_since: Option<Timestamp>,
    /// How its start is measured.
    pub(super) start: Start,
}

impl Entry {
    /// What the pod's files are made from has changed: a job that waits for something else brings them up to date meanwhile.
    pub(super) fn tell_job_of_news(&self) {
        if let Some(job) = &self.job {
            job.newest.send_replace(Arc::clone(&self.pod));
        }
    }

    /// Brings what is shown up to date. The answer is whether the phase or the readiness changed.
    pub(super) fn show(&mut self, gates: StatusGates, now: Timestamp) -> bool {
        let Some(derived) = &self.derived else {
            return false;
        };
        let may_run = self.state.may_run();
        let from = ShownFrom {
            derived: Arc::clone(derived),
            pod: Arc::clone(&self.pod),
            may_run,
        };
        if self.shown_from.as_ref().is_some_and(|last| last.is_same(&from)) {
            return false;
        }
        let shown = if is_api_pod(&self.pod) {
            reported_status(&self.pod, &self.shown, derived, may_run, gates, now)
        } else {
            published_status(&self.pod, &self.shown, derived, may_run, gates, now)
        };
        let summary = |status: &PodStatus| (status.phase.clone(), is_ready(status));
        let changed = summary(&shown) != summary(&self.shown);
        // The same status stays the same value, so that nobody has to compare it again.
        if shown != *self.shown {
            self.shown = Arc::new(shown);
        }
        self.shown_from = Some(from);
        changed
    }

    /// The pod as others see it. As long as somebody has the last view and nothing changed since, it is that one.
    pub(super) fn view(&mut self) -> Arc<Pod> {
        let known = self.last_view.as_ref();
        if let Some(view) = known.and_then(|last| last.of(&self.pod, &self.shown)) {
            return view;
        }
        let view = Arc::new(Pod {
            metadata: self.pod.metadata.clone(),
            spec: self.pod.spec.clone(),
            status: Some(PodStatus::clone(&self.shown)),
        });
        self.last_view = Some(View {
            pod: Arc::clone(&self.pod),
            status: Arc::clone(&self.shown),
            view: Arc::downgrade(&view),
        });
        view
    }
}

/// What others see of a pod, and what it was made from. It costs no memory once nobody has it any more.
pub(super) struct View {
    pod: Arc<Pod>,
    status: Arc<PodStatus>,
    view: Weak<Pod>,
}

impl View {
    /// The view, if it was made from these and somebody still has it.
    fn of(&self, pod: &Arc<Pod>, status: &Arc<PodStatus>) -> Option<Arc<Pod>> {
        let is_same = Arc::ptr_eq(&self.pod, pod) && Arc::ptr_eq(&self.status, status);
        self.view.upgrade().filter(|_| is_same)
    }
}

/// What a shown status was made from. The same again gives the same.
pub(super) struct ShownFrom {
    derived: Arc<PodStatus>,
    pod: Arc<Pod>,
    may_run: bool,
}

impl ShownFrom {
    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.derived, &other.derived)
            && Arc::ptr_eq(&self.pod, &other.pod)
            && self.may_run == other.may_run
    }
}

/// A pod that this node cannot run, or not now.
pub(super) struct Refused {
    pub(super) pod: Arc<Pod>,
    pub(super) refusal: Refusal,
    pub(super) since: Timestamp,
}

pub(super) fn uid_of(pod: &Pod) -> PodUid {
    PodUid::new(pod.metadata.uid.clone().unwrap_or_default())
}

pub(super) fn full_name(name: &str, namespace: &str) -> String {
    format!("{name}_{namespace}")
}

pub(super) fn full_name_of(pod: &Pod) -> String {
    let metadata = &pod.metadata;
    full_name(
        metadata.name.as_deref().unwrap_or_default(),
        metadata.namespace.as_deref().unwrap_or_default(),
    )
}

/// Whether anything of the pod lives: a dead container or sandbox is garbage and no more.
pub(super) fn lives(observation: &PodObservation) -> bool {
    observation.running_containers().next().is_some()
        || observation.sandboxes.iter().any(SandboxObservation::is_ready)
}

/// Whether the runtime cannot read a sandbox of the pod.
pub(super) fn has_unreadable_sandbox(observation: &PodObservation) -> bool {
    let mut sandboxes = observation.sandboxes.iter();
    sandboxes.any(|sandbox| sandbox.state == SandboxState::Unreadable)
}

pub(super) fn is_waiting(state: &PodState) -> bool {
    matches!(state, PodState::Waiting { .. })
}

/// As much of a pod as the runtime knows.
pub(super) fn pod_of(observation: &PodObservation) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = Some(observation.name.clone());
    pod.metadata.namespace = Some(observation.namespace.clone());
    pod.metadata.uid = Some(observation.uid.to_string());
    pod
}
