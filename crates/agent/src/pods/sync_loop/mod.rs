//! Routes events to the pods' standings and effects to the components.
//!
//! Owns the order in which things happen. A pod's standing changes only in [`SyncLoop::apply`], which is here; the files beside this
//! one hold the handlers of one kind of input each. The loop has no state of its own: each field is a component that owns its part and
//! changes it by its own methods.

mod admit;
mod queries;
mod runtime;
mod sources;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rubelet_lifecycle::allocation::{INFEASIBLE_EVENT, INFEASIBLE_MESSAGE};
use rubelet_lifecycle::pod_state::{
    ActiveDeadline, DEADLINE_MESSAGE, DEADLINE_REASON, Effect, EndCause, Event, Job, KillRequest, PodFacts,
    PodState, Requeue, Retry, UpdateKind, kill_timeout,
};
use rubelet_lifecycle::standing::{self, Decision, Standing, StandingEffect, StandingEvent, Unclaimed};
use rubelet_lifecycle::status::{Eviction, Settling, StatusBase, is_api_pod, settle};
use rubelet_model::Timestamp;
use rubelet_model::observation::PodUid;
use rubelet_ports::{Moment, PodEvent};

use super::admission::{Admission, NodeRead, unsupported_refusal};
use super::explain::is_ready;
use super::garbage::Garbage;
use super::jobs::{JobDone, Jobs};
use super::kill_requests::KillRequests;
use super::node_waits::NodeWaits;
use super::records::Records;
use super::start_times::ShownStarts;
use super::startup::Startup;
use super::static_names::Names;
use super::statuses::report_of_rejected;
use super::timers::Timers;
use super::unreadable_manifests::UnreadableManifests;
use super::worker::{Worker, pod_of};
use super::{AgentContext, Answers, probes, qos_class_of};
use crate::job::Progress;
use crate::metrics::static_label;
use crate::sources::Merger;
use crate::supervisor::Supervisor;

const OVERDUE_REASON: &str = "ExceededGracePeriod";
const OVERDUE_MESSAGE: &str = "Container runtime did not kill the pod within specified grace period.";

type Events = VecDeque<(PodUid, StandingEvent)>;

pub(super) struct SyncLoop {
    context: Arc<AgentContext>,
    merger: Merger,
    startup: Startup,
    records: Records,
    admission: Admission,
    names: Names,
    /// When a pod is looked at again without an event.
    wakes: Timers,
    jobs: Jobs,
    kills: KillRequests,
    garbage: Garbage,
    manifests: UnreadableManifests,
    node_waits: NodeWaits,
    shown_starts: ShownStarts,
}

impl SyncLoop {
    pub(in crate::pods) fn new(
        context: &Arc<AgentContext>,
        supervisor: Supervisor,
        merger: Merger,
    ) -> (Self, Answers) {
        let (admission, refreshed) = Admission::new(context, &supervisor);
        let garbage = Garbage::new(context, &supervisor);
        let (jobs, progress, done) = Jobs::new(context, supervisor);
        let are_sources_ready = merger.seen_all();
        if are_sources_ready {
            context.ports.reporter.sources_are_ready();
        }
        let pods = Self {
            startup: Startup::new(are_sources_ready),
            records: Records::default(),
            admission,
            names: Names::default(),
            wakes: Timers::default(),
            jobs,
            kills: KillRequests::new(context),
            garbage,
            manifests: UnreadableManifests::default(),
            node_waits: NodeWaits::new(context.ports.clock.now()),
            shown_starts: ShownStarts::default(),
            context: Arc::clone(context),
            merger,
        };
        let answers = Answers {
            progress,
            done,
            refreshed,
        };
        (pods, answers)
    }

    fn now(&self) -> Timestamp {
        self.context.ports.clock.now()
    }

    fn moment(&self) -> Moment {
        self.context.ports.clock.moment()
    }

    fn record_event(&self, pod: &Pod, event: PodEvent) {
        self.context.ports.events.record(pod, event);
    }

    /// Does what events have left for the end of the turn. The answer is when the next timer fires.
    pub(in crate::pods) fn settle(&mut self) -> Option<Moment> {
        if self.admission.take_room_freed() {
            self.share_room();
        }
        if self.names.take_contested() {
            self.end_replaced_pods();
        }
        self.publish_fates();
        // Where no pod waits for room, housekeeping is early enough.
        let is_awaited = self.records.is_room_awaited();
        let deadline = is_awaited.then(|| self.admission.next_deadline()).flatten();
        let moments = [self.wakes.next(), deadline, self.kills.next_deadline()];
        moments.into_iter().flatten().min()
    }

    fn publish_fates(&mut self) {
        let is_complete = self.startup.is_complete();
        self.garbage
            .publish_fates(&mut self.records, &self.manifests, is_complete);
    }

    /// Takes an event through the pod's standing, with everything that follows from it.
    fn apply(&mut self, uid: &PodUid, event: StandingEvent) {
        let mut events = Events::from([(uid.clone(), event)]);
        while let Some((uid, event)) = events.pop_front() {
            self.step(&uid, event, &mut events);
        }
    }

    fn step(&mut self, uid: &PodUid, event: StandingEvent, events: &mut Events) {
        let now = self.now();
        let before = self.records.standing(uid).clone();
        let life = before.life();
        let pod_event = event.pod();
        let (next, effects) = standing::step(before.clone(), event, now);
        if next.is_managed() && !before.is_managed() {
            self.create_worker(uid, &before, pod_event.is_none());
        }
        let state = next.life();
        if next != before {
            self.records.set_standing(uid, next);
        }
        if let (Some(event), Some(worker)) = (pod_event, self.records.worker_mut(uid)) {
            let pod_effects = effects.iter().filter_map(StandingEffect::pod);
            let pod_effects: Vec<Effect> = pod_effects.collect();
            if state != life || !pod_effects.is_empty() {
                worker.recorder.step(now, (life, event), (state, pod_effects));
            }
            if let Event::Update { kind, .. } = event {
                worker.start.asked_for(kind);
            }
            self.publish_status(uid);
            self.note_state(uid, state);
        }
        for effect in effects {
            events.extend(self.effect(uid, effect));
        }
        self.finish_quickly(uid, events);
    }

    /// The pod's state machine begins. The garbage collector has to know the pod before anything of it is made.
    fn create_worker(&mut self, uid: &PodUid, before: &Standing, is_admitted: bool) {
        let Some(record) = self.records.get(uid) else {
            return;
        };
        let pod = match (before, record.desired(), record.seen()) {
            (Standing::Unclaimed(Unclaimed::Removed(pod)), _, _) if !is_admitted => Arc::clone(pod),
            (_, Some(pod), _) if is_admitted => Arc::clone(pod),
            (_, _, Some(seen)) => Arc::new(pod_of(seen)),
            (_, _, None) => return,
        };
        let worker = Worker::new(&self.context, pod, record.may_live(), record.is_readded());
        self.records.set_readded(uid, false);
        self.records.set_worker(uid, worker);
        self.publish_fates();
    }

    fn note_state(&mut self, uid: &PodUid, state: PodState) {
        self.admission
            .note_state(uid, state, self.records.is_desired(uid));
        if let Some(ending) = state.ending() {
            let until = self.moment().plus(kill_timeout(ending.grace_seconds));
            self.kills.limit(uid, until);
        }
    }

    /// The end of a pod need not wait for the next housekeeping.
    fn finish_quickly(&self, uid: &PodUid, events: &mut Events) {
        let Some(record) = self.records.get(uid) else {
            return;
        };
        let (Some(worker), PodState::Finished { ending }) = (record.worker(), record.standing().life())
        else {
            return;
        };
        let is_desired = record.desired().is_some();
        // A pod that was added again is desired, whatever other sources deliver.
        let is_over =
            ending.restart_requested && is_desired || self.startup.are_sources_ready() && !is_desired;
        if is_over && worker.job.is_none() {
            let event = Event::Housekeeping { is_desired };
            events.push_back((uid.clone(), StandingEvent::Pod(event)));
        }
    }

    /// Carries an effect out. The answer is what follows from it at once.
    fn effect(&mut self, uid: &PodUid, effect: StandingEffect) -> Vec<(PodUid, StandingEvent)> {
        match effect {
            StandingEffect::Begin => {
                let event = self.take_definition(uid, UpdateKind::Create);
                return event.map(|event| (uid.clone(), event)).into_iter().collect();
            }
            StandingEffect::Release => self.admission.release(uid),
            StandingEffect::Preempt { victims, scarce } => return self.preempt(uid, victims, &scarce),
            StandingEffect::RecordRejection => {
                if let Some(rejection) = self.records.standing(uid).rejection() {
                    let refusal = &rejection.refusal;
                    let event = PodEvent::warning(refusal.reason.clone(), refusal.message.clone());
                    self.record_event(&rejection.pod, event);
                    self.context.ports.metrics.admission.rejected(&refusal.reason);
                }
            }
            StandingEffect::ReportRejection => {
                if let Some(rejection) = self.records.standing(uid).rejection() {
                    let class = qos_class_of(&rejection.pod, &self.context);
                    let gates = self.context.settings.status_gates;
                    let may_live = self.records.may_live(uid);
                    let report = report_of_rejected(rejection, class, gates, may_live);
                    self.context.ports.reporter.report(report);
                }
            }
            StandingEffect::Pod(effect) => return self.pod_effect(uid, effect).into_iter().collect(),
        }
        Vec::new()
    }

    fn pod_effect(&mut self, uid: &PodUid, effect: Effect) -> Option<(PodUid, StandingEvent)> {
        match effect {
            Effect::QueueByName => {
                let name = self.records.worker(uid)?.full_name();
                let is_holder = self.names.queue(name, uid);
                return is_holder.then(|| (uid.clone(), StandingEvent::Pod(Event::StartAllowed)));
            }
            Effect::ReleaseName => {
                let name = self.records.worker(uid)?.full_name().to_owned();
                return self.release_name(&name, uid);
            }
            Effect::Run(job) => self.run_job(uid, job),
            Effect::Cancel => {
                if let Some(job) = &self.records.worker(uid)?.job {
                    job.cancel.send_replace(true);
                }
            }
            Effect::Requeue(requeue) => self.requeue(uid, requeue),
            Effect::AnswerKills => self.kills.answer(uid),
            Effect::FailByDeadline => {
                let worker = self.records.worker_mut(uid)?;
                worker.eviction = Some(Eviction {
                    reason: DEADLINE_REASON.to_owned(),
                    message: DEADLINE_MESSAGE.to_owned(),
                    disruption: None,
                });
                let event = PodEvent::normal(DEADLINE_REASON, DEADLINE_MESSAGE);
                self.context.ports.events.record(worker.pod(), event);
            }
            Effect::Forget { .. } => return self.forget(uid),
        }
        None
    }

    /// Takes the pod out of its name's queue. The answer is the start of the next pod, unless no source has that any more: then
    /// it keeps the name until housekeeping releases it.
    fn release_name(&mut self, name: &str, uid: &PodUid) -> Option<(PodUid, StandingEvent)> {
        let next = self.names.release(name, uid)?;
        let is_desired = self.records.is_desired(&next);
        is_desired.then_some((next, StandingEvent::Pod(Event::StartAllowed)))
    }

    /// The pod's state machine is over; a pod that a source still has is decided about anew.
    fn forget(&mut self, uid: &PodUid) -> Option<(PodUid, StandingEvent)> {
        self.records.remove_worker(uid)?;
        self.wakes.remove(uid);
        self.kills.answer(uid);
        self.context.ports.probes.forget(uid);
        self.garbage.pod_gone(uid.clone());
        let Some(pod) = self.records.desired(uid).cloned() else {
            self.context.ports.reporter.forget(uid);
            return None;
        };
        self.records.set_readded(uid, true);
        let decision = match unsupported_refusal(&pod, &self.context) {
            // While the last good version ran, this was only logged.
            Some(refusal) => Decision::Reject {
                pod: Arc::clone(&pod),
                refusal,
            },
            None => self.decide(uid, NodeRead::Watched)?,
        };
        if decision == Decision::Admit {
            let restarts = &self.context.ports.metrics.jobs.restarts;
            let is_static = PodFacts::of(&pod).is_static;
            restarts.with_label_values(&[static_label(is_static)]).inc();
        }
        Some((uid.clone(), StandingEvent::Decided(decision)))
    }

    fn kill(&mut self, uid: &PodUid, cause: EndCause, grace_seconds: Option<i64>) {
        let request = KillRequest { cause, grace_seconds };
        self.apply(uid, StandingEvent::Pod(Event::Kill(request)));
    }

    /// Sends the newest definition of a managed pod to its state machine.
    fn update(&mut self, uid: &PodUid, kind: UpdateKind) {
        if let Some(event) = self.take_definition(uid, kind) {
            self.apply(uid, event);
        }
    }

    /// Gives the worker the pod's newest definition. The answer is the event for its state machine.
    fn take_definition(&mut self, uid: &PodUid, kind: UpdateKind) -> Option<StandingEvent> {
        let pod = Arc::clone(self.records.desired(uid)?);
        let now = self.now();
        let is_ending = self.records.standing(uid).life().ending().is_some();
        // A static pod that ends does so by its own definition; one of the same UID may be there already.
        if let Some(worker) = self.records.worker_mut(uid)
            && (!is_ending || is_api_pod(&pod))
        {
            let is_resized = worker.set_pod(&pod, now);
            worker.send_news_to_job();
            if is_resized {
                self.record_event(&pod, PodEvent::warning(INFEASIBLE_EVENT, INFEASIBLE_MESSAGE));
            }
        }
        Some(StandingEvent::Pod(Event::Update {
            kind,
            pod: PodFacts::of(&pod),
            is_idle: !self.records.may_live(uid),
        }))
    }

    fn look_again(&mut self, uid: &PodUid) {
        let Some(worker) = self.records.worker(uid) else {
            return;
        };
        let pod = PodFacts::of(worker.pod());
        match self.records.standing(uid).life() {
            PodState::Syncing { .. } | PodState::Terminating { .. } => self.sync(uid, pod, false),
            PodState::Finished { .. } => self.stop_late_containers(uid),
            PodState::Absent | PodState::Waiting { .. } | PodState::Terminated { .. } => {}
        }
    }

    fn sync(&mut self, uid: &PodUid, pod: PodFacts, is_idle: bool) {
        let kind = UpdateKind::Sync;
        self.apply(uid, StandingEvent::Pod(Event::Update { kind, pod, is_idle }));
    }

    fn run_job(&mut self, uid: &PodUid, job: Job) {
        if let Some(worker) = self.records.worker_mut(uid) {
            self.jobs.start(uid, worker, job);
            self.wakes.remove(uid);
        }
    }

    pub(in crate::pods) fn job_progressed(&mut self, progress: Progress) {
        if let Some(worker) = self.records.worker_mut(&progress.uid) {
            worker.statuses.set_computed(progress.status);
            self.publish_status(&progress.uid);
        }
    }

    pub(in crate::pods) fn job_done(&mut self, done: JobDone) {
        let uid = done.uid.clone();
        // Before the next job can be busy, and after nothing can be taken for the old job's observation any more.
        self.jobs.set_idle(&uid);
        let Some(worker) = self.records.worker_mut(&uid) else {
            return;
        };
        let Some(result) = self.jobs.finish(done, worker) else {
            return;
        };
        if result.has_restarted {
            self.garbage.container_restarted(uid.clone());
        }
        if result.is_behind {
            self.look_again(&uid);
        }
        self.apply(&uid, StandingEvent::Pod(Event::JobDone(result.outcome)));
    }

    /// Publishes the pod's computed status, and reports it if it is new.
    fn publish_status(&mut self, uid: &PodUid) {
        let now = self.now();
        let state = self.records.standing(uid).life();
        let ports = &self.context.ports;
        let Some(worker) = self.records.worker_mut(uid) else {
            return;
        };
        let pod = Arc::clone(worker.pod());
        let gates = self.context.settings.status_gates;
        let has_changed = worker.statuses.publish(&pod, state.may_run(), gates, now);
        let published = Arc::clone(worker.statuses.published());
        if has_changed {
            let durations = &ports.metrics.starts.durations;
            worker.start.phase_changed(&published, now, durations);
        }
        let is_finished = matches!(state, PodState::Finished { .. });
        if let Some(report) = worker.statuses.take_report(&pod, is_finished) {
            ports.reporter.report(report);
        }
        if has_changed {
            tracing::info!(
                namespace = pod.metadata.namespace.as_deref().unwrap_or_default(),
                pod = pod.metadata.name.as_deref().unwrap_or_default(),
                phase = published.phase.as_deref().unwrap_or_default(),
                ready = is_ready(&published),
                "Pod status"
            );
        }
    }

    fn requeue(&mut self, uid: &PodUid, requeue: Requeue) {
        let now = self.now();
        let delay = requeue.delay(now, self.context.settings.sync_frequency);
        let jitter = match requeue {
            // A backoff ends at a fixed time; the network is looked at every second.
            Requeue::Retry(Retry::At(_) | Retry::NetworkNotReady) => Duration::ZERO,
            Requeue::Resync | Requeue::Retry(Retry::Later) => {
                self.context.ports.randomness.part_of(delay / 2)
            }
        };
        let Some(worker) = self.records.worker(uid) else {
            return;
        };
        let delay = match worker.active_deadline(now) {
            ActiveDeadline::At(at) => at.since(now).min(delay + jitter),
            ActiveDeadline::None | ActiveDeadline::Passed => delay + jitter,
        };
        self.wakes.set(uid, self.moment().plus(delay));
    }

    pub(in crate::pods) fn timer_fired(&mut self) {
        self.give_up_overdue();
        let now = self.moment();
        while let Some(uid) = self.wakes.take_due(now) {
            self.check_deadline(&uid);
            self.look_again(&uid);
            if let Some(worker) = self.records.worker(&uid)
                && matches!(self.records.standing(&uid).life(), PodState::Terminated { .. })
            {
                let pod = PodFacts::of(worker.pod());
                self.sync(&uid, pod, true);
            }
        }
    }

    /// Fails a pod that was active for too long.
    fn check_deadline(&mut self, uid: &PodUid) {
        let worker = self.records.worker(uid);
        let deadline = worker.map(|worker| worker.active_deadline(self.now()));
        if deadline == Some(ActiveDeadline::Passed) {
            self.apply(uid, StandingEvent::Pod(Event::DeadlinePassed));
        }
    }

    /// Stops waiting for pods that missed their time to end.
    fn give_up_overdue(&mut self) {
        let records = &self.records;
        self.admission.give_up_overdue(|uid| records.is_desired(uid));
        for uid in self.kills.time_out(self.moment()) {
            if let Some(worker) = self.records.worker(&uid) {
                let event = PodEvent::warning(OVERDUE_REASON, OVERDUE_MESSAGE);
                self.record_event(worker.pod(), event);
            }
        }
    }

    pub(in crate::pods) fn probe_changed(&mut self, uid: &PodUid) {
        let Some(worker) = self.records.worker(uid) else {
            return;
        };
        if worker.job.is_some() {
            self.publish_probes(uid);
        }
        // While the pod ends, nothing else follows from a probe.
        if matches!(self.records.standing(uid).life(), PodState::Syncing { .. }) {
            self.look_again(uid);
        }
    }

    /// Publishes probe results without waiting for the job that would compute the status from them.
    fn publish_probes(&mut self, uid: &PodUid) {
        let now = self.now();
        let gates = self.context.settings.status_gates;
        let reading = self.context.ports.probes.read(uid);
        let Some(worker) = self.records.worker_mut(uid) else {
            return;
        };
        let pod = Arc::clone(worker.pod());
        let Some(computed) = worker.statuses.computed().cloned() else {
            return;
        };
        let Some(changed) = probes::with_results(&pod, &computed, &reading) else {
            return;
        };
        let settling = Settling {
            pod: &pod,
            base: StatusBase::of(&pod, Some(&computed), None),
            force: false,
            gates,
            now,
        };
        let settled = settle(&settling, changed).status;
        worker.statuses.set_computed(Arc::new(settled));
        self.publish_status(uid);
    }

    pub(in crate::pods) fn objects_changed(&mut self, uid: &PodUid) {
        if let Some(worker) = self.records.worker(uid) {
            worker.send_news_to_job();
        }
        self.look_again(uid);
    }
}
