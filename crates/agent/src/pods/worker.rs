//! One pod whose state machine runs: its definition, its job and what is known from one job to the next.
//!
//! Owns the definition that jobs work with and whether one of them runs.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rubelet_lifecycle::allocation::{Allocation, rebuilt};
use rubelet_lifecycle::pod_state::{ActiveDeadline, PodState, Requeue, Retry, active_deadline, kill_timeout};
use rubelet_lifecycle::resize::ResizeConditions;
use rubelet_lifecycle::standing::{Standing, Unclaimed};
use rubelet_lifecycle::status::{Eviction, Settling, StatusBase, settle};
use rubelet_model::Timestamp;
use rubelet_model::observation::{PodObservation, PodUid, SandboxObservation, SandboxState};
use rubelet_ports::{Moment, ProbeReading};
use tokio::sync::watch;

use super::explain::is_ready;
use super::records::PodRecord;
use super::start_times::Start;
use super::statuses::Statuses;
use super::{AgentContext, probes};
use crate::job::{MemoryLeft, PodMemory};
use crate::recorder::FlightRecorder;
use crate::waits::Waits;

/// A job in hand.
pub(super) struct RunningJob {
    /// Tells answers of this job from those of an earlier one.
    pub(super) number: u64,
    pub(super) cancel: watch::Sender<bool>,
    /// The last observation of the pod since the job began. The job may have looked before that.
    pub(super) observed: Option<Arc<PodObservation>>,
    pub(super) began: Moment,
    pub(super) memory_left: MemoryLeft,
    /// The pod's newest definition, sent again whenever an object that it refers to has changed.
    pub(super) newest: watch::Sender<Arc<Pod>>,
    /// What the work is, as upstream's metrics call it.
    pub(super) operation: &'static str,
}

impl RunningJob {
    /// What the job knew of its pod at its end.
    pub(super) fn left(&self) -> Option<PodMemory> {
        let mut left = self.memory_left.lock().unwrap_or_else(PoisonError::into_inner);
        left.take()
    }
}

pub(super) struct Worker {
    /// The newest definition, with the resources that were allocated to it; of an orphan its name and namespace only.
    pod: Arc<Pod>,
    /// The newest definition as it came.
    asked: Arc<Pod>,
    /// What the pod was admitted with, or got since; `None` for an orphan.
    allocation: Option<Allocation>,
    /// Grows with each allocation.
    allocation_number: u64,
    /// What the status shows of a resize.
    pub(super) resize: ResizeConditions,
    /// `name_namespace`
    full_name: String,
    qos_class: &'static str,
    /// With the job while one runs.
    pub(super) memory: Option<PodMemory>,
    pub(super) job: Option<RunningJob>,
    pub(super) waits: Waits,
    pub(super) recorder: FlightRecorder,
    pub(super) statuses: Statuses,
    /// Why the pod has to fail, if it has to.
    pub(super) eviction: Option<Eviction>,
    /// When the last job ended.
    pub(super) resting_since: Timestamp,
    /// How the pod's start is measured.
    pub(super) start: Start,
}

impl Worker {
    /// `may_live`: the runtime may have something of the pod that lives. `is_readded`: another pod of this UID ended before.
    fn new(context: &AgentContext, asked: Arc<Pod>, may_live: bool, is_readded: bool) -> Self {
        let clock = &context.ports.clock;
        let now = clock.now();
        let mut memory = PodMemory::new(&context.settings, clock.moment());
        if is_readded {
            memory.set_readded();
        }
        let allocation = asked.spec.as_ref().map(|_| {
            let uid = uid_of(&asked);
            let known = context.resources.allocated.get(&uid);
            let allocation = known.map_or_else(|| rebuilt::allocated(&asked), |known| (*known).clone());
            context.resources.allocated.set(&uid, allocation.clone());
            allocation
        });
        let pod = allocated(&asked, allocation.as_ref());
        let mut resize = ResizeConditions::of(&asked, now);
        if !allocation
            .as_ref()
            .is_some_and(|allocation| allocation.differs_from(&asked))
        {
            // It was taken back while no agent ran.
            resize.clear_pending(now);
        }
        Self {
            full_name: full_name_of(&pod),
            qos_class: super::qos_class_of(&pod, context),
            allocation,
            allocation_number: 0,
            resize,
            asked,
            memory: Some(memory),
            job: None,
            waits: Waits::new(Arc::clone(clock)),
            recorder: FlightRecorder::default(),
            statuses: Statuses::of(&pod),
            eviction: None,
            resting_since: now,
            start: Start::of(&pod, may_live, now),
            pod,
        }
    }

    /// The worker of a pod whose state machine begins; `None` when there is nothing to begin with.
    pub(super) fn of(
        record: &PodRecord,
        context: &AgentContext,
        before: &Standing,
        is_admitted: bool,
    ) -> Option<Self> {
        let pod = match (before, record.desired()) {
            (Standing::Unclaimed(Unclaimed::Removed(pod)), _) if !is_admitted => Arc::clone(pod),
            (_, Some(pod)) if is_admitted => Arc::clone(pod),
            (_, _) => Arc::new(pod_of(record.seen()?)),
        };
        Some(Self::new(context, pod, record.may_live(), record.is_readded()))
    }

    pub(super) fn pod(&self) -> &Arc<Pod> {
        &self.pod
    }

    pub(super) fn full_name(&self) -> &str {
        &self.full_name
    }

    pub(super) fn qos_class(&self) -> &'static str {
        self.qos_class
    }

    /// The newest definition as it came.
    pub(super) fn asked(&self) -> &Arc<Pod> {
        &self.asked
    }

    pub(super) fn allocation(&self) -> Option<&Allocation> {
        self.allocation.as_ref()
    }

    /// Tells what is allocated to the pod from what was before.
    pub(super) fn allocation_number(&self) -> u64 {
        self.allocation_number
    }

    /// Whether the pod asks for other resources than are allocated to it.
    pub(super) fn is_resize_asked(&self) -> bool {
        let allocation = self.allocation.as_ref();
        allocation.is_some_and(|allocation| allocation.differs_from(&self.asked))
    }

    /// From now on the pod has other resources.
    pub(super) fn allocate(&mut self, allocation: Allocation) {
        self.allocation = Some(allocation);
        self.allocation_number += 1;
        self.pod = allocated(&self.asked, self.allocation.as_ref());
    }

    /// Takes on a new version of the pod, with the resources that are allocated to it. The answer is the version before.
    pub(super) fn set_pod(&mut self, pod: &Arc<Pod>) -> Arc<Pod> {
        let before = std::mem::replace(&mut self.asked, Arc::clone(pod));
        self.pod = allocated(pod, self.allocation.as_ref());
        before
    }

    /// What the pod's files are made from has changed: a job that waits for something else brings them up to date meanwhile.
    pub(super) fn send_news_to_job(&self) {
        if let Some(job) = &self.job {
            job.newest.send_replace(Arc::clone(&self.pod));
        }
    }

    /// The pod as readers see it.
    pub(super) fn view(&mut self) -> Arc<Pod> {
        self.statuses.view(&self.pod)
    }

    /// When the pod has been active for as long as it may.
    pub(super) fn active_deadline(&self, now: Timestamp) -> ActiveDeadline {
        let started = self.statuses.published().start_time.as_ref().map(|time| {
            let nanos = i64::try_from(time.0.as_nanosecond()).unwrap_or(i64::MAX);
            Timestamp::from_unix_nanos(nanos)
        });
        active_deadline(&self.pod, started, now)
    }

    /// Publishes the computed status, and reports it if it is new.
    pub(super) fn publish(&mut self, state: PodState, context: &AgentContext) {
        let (ports, gates) = (&context.ports, context.settings.status_gates);
        let now = ports.clock.now();
        let resize = self.resize.list();
        let has_changed = self
            .statuses
            .publish((&self.pod, resize), state.may_run(), gates, now);
        let published = Arc::clone(self.statuses.published());
        if has_changed {
            let durations = &ports.metrics.starts.durations;
            self.start.phase_changed(&published, now, durations);
        }
        let is_finished = matches!(state, PodState::Finished { .. });
        if let Some(report) = self.statuses.take_report(&self.pod, is_finished) {
            ports.api.reporter.report(report);
        }
        if has_changed {
            tracing::info!(
                namespace = self.pod.metadata.namespace.as_deref().unwrap_or_default(),
                pod = self.pod.metadata.name.as_deref().unwrap_or_default(),
                phase = published.phase.as_deref().unwrap_or_default(),
                ready = is_ready(&published),
                "Pod status"
            );
        }
    }

    /// Publishes probe results without waiting for the job that would compute the status from them.
    pub(super) fn publish_probes(&mut self, reading: &ProbeReading, state: PodState, context: &AgentContext) {
        let Some(computed) = self.statuses.computed() else {
            return;
        };
        let Some(changed) = probes::with_results(&self.pod, computed, reading) else {
            return;
        };
        let settling = Settling {
            pod: &self.pod,
            base: StatusBase::of(&self.pod, Some(computed), None),
            force: false,
            gates: context.settings.status_gates,
            now: context.ports.clock.now(),
        };
        let settled = settle(&settling, changed).status;
        self.statuses.set_computed(Arc::new(settled));
        self.publish(state, context);
    }

    /// How long until the pod is looked at again.
    pub(super) fn delay_of(&self, requeue: Requeue, context: &AgentContext) -> Duration {
        let now = context.ports.clock.now();
        let delay = requeue.delay(now, context.settings.sync_frequency);
        let jitter = match requeue {
            // A backoff ends at a fixed time; the network is looked at every second.
            Requeue::Retry(Retry::At(_) | Retry::NetworkNotReady) => Duration::ZERO,
            Requeue::Resync | Requeue::Retry(Retry::Later) => context.ports.randomness.part_of(delay / 2),
        };
        match self.active_deadline(now) {
            ActiveDeadline::At(at) => at.since(now).min(delay + jitter),
            ActiveDeadline::None | ActiveDeadline::Passed => delay + jitter,
        }
    }

    /// Until when a kill is waited for, by the grace period that is asked for or the pod's own.
    pub(super) fn kill_deadline(&self, grace_seconds: Option<i64>, context: &AgentContext) -> Moment {
        let spec = self.pod.spec.as_ref();
        let own = spec.and_then(|spec| spec.termination_grace_period_seconds);
        let grace_seconds = grace_seconds.or(own).unwrap_or_default();
        context.ports.clock.moment().plus(kill_timeout(grace_seconds))
    }
}

/// The pod with the resources that are allocated to it.
fn allocated(asked: &Arc<Pod>, allocation: Option<&Allocation>) -> Arc<Pod> {
    let applied = allocation.and_then(|allocation| allocation.applied(asked));
    applied.map_or_else(|| Arc::clone(asked), Arc::new)
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

/// Sandboxes of a pod with nothing alive that the runtime cannot read.
pub(super) fn unreadable_sandboxes(
    observation: &PodObservation,
) -> impl Iterator<Item = &SandboxObservation> {
    let sandboxes = observation.sandboxes.iter().filter(|_| !lives(observation));
    sandboxes.filter(|sandbox| sandbox.state == SandboxState::Unreadable)
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
