//! Takes events through the pods' standings and carries their effects out.
//!
//! Owns the pods: their records, and every component that an effect goes to. A standing changes in [`PodWorkers::apply`] alone. The
//! sync loop and its handlers see the pods through the methods here; they cannot reach a component past the state machine.

use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use rubelet_lifecycle::allocation::Allocation;
use rubelet_lifecycle::pod_state::{
    ActiveDeadline, DEADLINE_MESSAGE, DEADLINE_REASON, Effect, EndCause, Event, Job, KillRequest,
    MIN_GRACE_SECONDS, PodFacts, PodState, Requeue, UpdateKind, kill_timeout,
};
use rubelet_lifecycle::resize::Trigger;
use rubelet_lifecycle::standing::{self, Decision, Standing, StandingEffect, StandingEvent};
use rubelet_lifecycle::status::{Eviction, is_api_pod, readiness_is_stale};
use rubelet_model::Timestamp;
use rubelet_model::observation::{PodObservation, PodUid};
use rubelet_ports::{Moment, PodEvent};
use rubelet_resources::admission::preemption::{DISRUPTION_MESSAGE, PREEMPTED_MESSAGE, PREEMPTED_REASON};

use super::admission::{Admission, NodeRead, Refreshed, unsupported_refusal};
use super::explain::Explainer;
use super::garbage::{Garbage, SpaceReply};
use super::jobs::{JobDone, Jobs};
use super::kill_requests::{
    EndPod, EndPodError, EndPodReply, KillRequests, Requester, rejection_of_unstarted,
};
use super::records::{PodRecord, Records};
use super::resizes::{Judged, Resizes};
use super::start_times::ShownStart;
use super::startup::Startup;
use super::static_names::Names;
use super::statuses::{record_rejection, report_rejection, status_of_rejected};
use super::timers::Timers;
use super::unreadable_manifests::UnreadableManifests;
use super::worker::{Worker, full_name, is_waiting};
use super::{AgentContext, Answers, qos_class_of};
use crate::job::Progress;
use crate::metrics::static_label;
use crate::observer::TableSizes;
use crate::supervisor::Supervisor;

const OVERDUE_REASON: &str = "ExceededGracePeriod";
const OVERDUE_MESSAGE: &str = "Container runtime did not kill the pod within specified grace period.";

type Events = VecDeque<(PodUid, StandingEvent)>;

pub(super) struct PodWorkers {
    context: Arc<AgentContext>,
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
    resizes: Resizes,
}

impl PodWorkers {
    pub(super) fn new(
        context: &Arc<AgentContext>,
        supervisor: Supervisor,
        are_sources_ready: bool,
    ) -> (Self, Answers) {
        let (admission, refreshed) = Admission::new(context, &supervisor);
        let garbage = Garbage::new(context, &supervisor);
        let (jobs, progress, done) = Jobs::new(context, supervisor);
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
            resizes: Resizes::default(),
            context: Arc::clone(context),
        };
        let answers = Answers {
            progress,
            done,
            refreshed,
        };
        (pods, answers)
    }

    // ---- what is known

    pub(super) fn context(&self) -> &Arc<AgentContext> {
        &self.context
    }

    pub(super) fn records(&self) -> &Records {
        &self.records
    }

    pub(super) fn admission(&self) -> &Admission {
        &self.admission
    }

    pub(super) fn names(&self) -> &Names {
        &self.names
    }

    pub(super) fn startup(&self) -> Startup {
        self.startup
    }

    pub(super) fn manifests(&self) -> &UnreadableManifests {
        &self.manifests
    }

    /// Whether the pod is looked at again without an event.
    pub(super) fn is_requeued(&self, uid: &PodUid) -> bool {
        self.wakes.contains(uid)
    }

    /// When the next timer fires.
    pub(super) fn next_timer(&self) -> Option<Moment> {
        // Where no pod waits for room, housekeeping is early enough.
        let is_awaited = self.records.is_room_awaited();
        let deadline = is_awaited.then(|| self.admission.next_deadline()).flatten();
        let retry = self.resizes.next_retry();
        let moments = [self.wakes.next(), deadline, self.kills.next_deadline(), retry];
        moments.into_iter().flatten().min()
    }

    pub(super) fn explainer(&self) -> Explainer<'_> {
        Explainer {
            context: &self.context,
            records: &self.records,
            admission: &self.admission,
            names: &self.names,
            manifests: &self.manifests,
            garbage: &self.garbage,
            startup: self.startup,
        }
    }

    pub(super) fn table_sizes(&self) -> TableSizes {
        let mut sizes = vec![
            ("pods.wakes", self.wakes.len()),
            ("pods.names", self.names.len()),
            ("pods.kill_requests", self.kills.len()),
            ("pods.stuck_sandboxes", self.garbage.stuck().len()),
            ("pods.resizes", self.resizes.len()),
            ("pods.allocated", self.context.resources.allocated.len()),
            ("pods.actuated", self.context.resources.actuated.len()),
        ];
        sizes.extend(self.records.table_sizes());
        sizes.extend(self.admission.table_sizes());
        sizes
    }

    pub(super) fn now(&self) -> Timestamp {
        self.context.ports.clock.now()
    }

    pub(super) fn moment(&self) -> Moment {
        self.context.ports.clock.moment()
    }

    pub(super) fn record_event(&self, pod: &Pod, event: PodEvent) {
        self.context.ports.events.record(pod, event);
    }

    pub(super) fn publish_fates(&mut self) {
        let is_complete = self.startup.is_complete();
        self.garbage
            .publish_fates(&mut self.records, &self.manifests, is_complete);
    }

    /// Takes an event through the pod's standing, with everything that follows from it.
    pub(super) fn apply(&mut self, uid: &PodUid, event: StandingEvent) {
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

    /// Removes dead containers that a node short of disk space can do without.
    pub(super) fn make_space(&self, reply: SpaceReply) {
        self.garbage.make_space(reply);
    }

    /// The pod's state machine begins. The garbage collector has to know the pod before anything of it is made.
    fn create_worker(&mut self, uid: &PodUid, before: &Standing, is_admitted: bool) {
        let record = self.records.get(uid);
        let worker = record.and_then(|record| Worker::of(record, &self.context, before, is_admitted));
        if let Some(worker) = worker {
            self.resizes.added(uid, &worker);
            self.records.set_readded(uid, false);
            self.records.set_worker(uid, worker);
            self.publish_fates();
        }
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
        let record = self.records.get(uid);
        let sources_ready = self.startup.are_sources_ready();
        if let Some(event) = record.and_then(|record| record.finish_event(sources_ready)) {
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
                    record_rejection(rejection, &self.context);
                }
            }
            StandingEffect::ReportRejection => {
                if let Some(rejection) = self.records.standing(uid).rejection() {
                    report_rejection(rejection, self.records.may_live(uid), &self.context);
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
    pub(super) fn release_name(&mut self, name: &str, uid: &PodUid) -> Option<(PodUid, StandingEvent)> {
        let next = self.names.release(name, uid)?;
        let is_desired = self.records.is_desired(&next);
        is_desired.then_some((next, StandingEvent::Pod(Event::StartAllowed)))
    }

    /// The pod's state machine is over; a pod that a source still has is decided about anew.
    fn forget(&mut self, uid: &PodUid) -> Option<(PodUid, StandingEvent)> {
        let mut worker = self.records.remove_worker(uid)?;
        self.resizes.ended(uid, &mut worker, &self.context);
        self.context.resources.forget(uid);
        self.wakes.remove(uid);
        self.kills.answer(uid);
        self.context.ports.probes.forget(uid);
        self.garbage.pod_gone(uid.clone());
        let Some(pod) = self.records.desired(uid).cloned() else {
            self.context.ports.api.reporter.forget(uid);
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

    pub(super) fn kill(&mut self, uid: &PodUid, cause: EndCause, grace_seconds: Option<i64>) {
        let request = KillRequest { cause, grace_seconds };
        self.apply(uid, StandingEvent::Pod(Event::Kill(request)));
    }

    /// Sends the newest definition of a managed pod to its state machine.
    pub(super) fn update(&mut self, uid: &PodUid, kind: UpdateKind) {
        if let Some(event) = self.take_definition(uid, kind) {
            self.apply(uid, event);
        }
    }

    /// Gives the worker the pod's newest definition. The answer is the event for its state machine.
    fn take_definition(&mut self, uid: &PodUid, kind: UpdateKind) -> Option<StandingEvent> {
        let pod = Arc::clone(self.records.desired(uid)?);
        let is_ending = self.records.standing(uid).life().ending().is_some();
        // A static pod that ends does so by its own definition; one of the same UID may be there already.
        if let Some(worker) = self.records.worker_mut(uid)
            && (!is_ending || is_api_pod(&pod))
        {
            let before = worker.set_pod(&pod);
            worker.send_news_to_job();
            self.resizes.changed(uid, worker, &before, &self.context);
        }
        Some(StandingEvent::Pod(Event::Update {
            kind,
            pod: PodFacts::of(&pod),
            is_idle: !self.records.may_live(uid),
        }))
    }

    pub(super) fn look_again(&mut self, uid: &PodUid) {
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

    /// A call that was cancelled may take effect long after the pod's end: what it has created is stopped again.
    pub(super) fn stop_late_containers(&mut self, uid: &PodUid) {
        let Some(record) = self.records.get(uid) else {
            return;
        };
        let has_job = record.worker().is_none_or(|worker| worker.job.is_some());
        if record.is_seen_alive() && !has_job {
            let grace_seconds = MIN_GRACE_SECONDS;
            self.run_job(uid, Job::TerminateOrphan { grace_seconds });
        }
    }

    pub(super) fn job_progressed(&mut self, progress: Progress) {
        if let Some(worker) = self.records.worker_mut(&progress.uid) {
            worker.statuses.set_computed(progress.status);
            if let Some(report) = &progress.resize {
                let by = (report, self.context.as_ref());
                self.resizes
                    .reported(&progress.uid, worker, &mut self.admission, by);
            }
            self.publish_status(&progress.uid);
        }
    }

    pub(super) fn job_done(&mut self, done: JobDone) {
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
    pub(super) fn publish_status(&mut self, uid: &PodUid) {
        let state = self.records.standing(uid).life();
        if let Some(worker) = self.records.worker_mut(uid) {
            if worker.statuses.has_ended() {
                self.resizes.ended(uid, worker, &self.context);
            }
            worker.publish(state, &self.context);
        }
    }

    fn requeue(&mut self, uid: &PodUid, requeue: Requeue) {
        if let Some(worker) = self.records.worker(uid) {
            let delay = worker.delay_of(requeue, &self.context);
            self.wakes.set(uid, self.moment().plus(delay));
        }
    }

    pub(super) fn timer_fired(&mut self) {
        self.give_up_overdue();
        let now = self.moment();
        self.resizes.timer_fired(now);
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
    pub(super) fn check_deadline(&mut self, uid: &PodUid) {
        let worker = self.records.worker(uid);
        let deadline = worker.map(|worker| worker.active_deadline(self.now()));
        if deadline == Some(ActiveDeadline::Passed) {
            self.apply(uid, StandingEvent::Pod(Event::DeadlinePassed));
        }
    }

    /// Stops waiting for pods that missed their time to end.
    pub(super) fn give_up_overdue(&mut self) {
        let records = &self.records;
        self.admission.give_up_overdue(|uid| records.is_desired(uid));
        for uid in self.kills.time_out(self.moment()) {
            if let Some(worker) = self.records.worker(&uid) {
                let event = PodEvent::warning(OVERDUE_REASON, OVERDUE_MESSAGE);
                self.record_event(worker.pod(), event);
            }
        }
    }

    pub(super) fn probe_changed(&mut self, uid: &PodUid) {
        let state = self.records.standing(uid).life();
        let Some(worker) = self.records.worker_mut(uid) else {
            return;
        };
        if worker.job.is_some() {
            let reading = self.context.ports.probes.read(uid);
            worker.publish_probes(&reading, state, &self.context);
        }
        // While the pod ends, nothing else follows from a probe.
        if matches!(state, PodState::Syncing { .. }) {
            self.look_again(uid);
        }
    }

    pub(super) fn objects_changed(&mut self, uid: &PodUid) {
        if let Some(worker) = self.records.worker(uid) {
            worker.send_news_to_job();
        }
        self.look_again(uid);
    }

    /// Decides about a desired pod that is not managed, and begins it if it may run.
    pub(super) fn admit(&mut self, uid: &PodUid, node: NodeRead<'_>) {
        if let Some(decision) = self.decide(uid, node) {
            self.apply(uid, StandingEvent::Decided(decision));
        }
    }

    fn decide(&mut self, uid: &PodUid, node: NodeRead<'_>) -> Option<Decision> {
        let record = self.records.get(uid)?;
        let is_listed = self.startup.are_names_known();
        let pod = self.admission.counted_definition(uid, record)?;
        let decision = self.admission.decide(uid, &pod, record, is_listed, node)?;
        if matches!(decision, Decision::Admit | Decision::Preempt { .. }) {
            // What it asks for by the time when it begins is a resize.
            let allocated = &self.context.resources.allocated;
            allocated.set(uid, Allocation::asked(&pod));
        }
        if decision != Decision::AwaitRuntime {
            self.records.clear_listed(uid);
        }
        let is_new_wait = decision == Decision::AwaitRoom && !self.records.standing(uid).awaits_room();
        if is_new_wait {
            let terminating = self.admission.terminating();
            let workers = terminating.filter_map(|uid| self.records.worker(uid));
            let names: Vec<&str> = workers.map(Worker::full_name).collect();
            let terminating = names.join(", ");
            tracing::info!(pod = %uid, terminating, "The pod starts when terminating pods have freed what it needs");
        }
        Some(decision)
    }

    /// Ends the pods that have to make room for a critical one.
    fn preempt(&mut self, uid: &PodUid, victims: Vec<PodUid>, scarce: &str) -> Vec<(PodUid, StandingEvent)> {
        let mut events = Vec::new();
        for victim in victims {
            tracing::info!(pod = %victim, preemptor = %uid, "The pod has to make room for a critical one");
            let status = Eviction {
                reason: PREEMPTED_REASON.to_owned(),
                message: PREEMPTED_MESSAGE.to_owned(),
                disruption: Some(DISRUPTION_MESSAGE.to_owned()),
            };
            let Some(worker) = self.records.worker_mut(&victim) else {
                self.kills.count_preemption(scarce);
                match rejection_of_unstarted(self.records.desired(&victim), status, true) {
                    Some(event) => events.push((victim, event)),
                    None => self.admission.release(&victim),
                }
                continue;
            };
            worker.eviction = Some(status);
            let event = PodEvent::warning(PREEMPTED_REASON, PREEMPTED_MESSAGE);
            self.context.ports.events.record(worker.pod(), event);
            let until = worker.kill_deadline(None, &self.context);
            let scarce = scarce.to_owned();
            self.kills.add(&victim, until, Requester::Preemption { scarce });
            self.admission.preempted(&victim, until);
            let request = KillRequest {
                cause: EndCause::Evicted,
                grace_seconds: None,
            };
            events.push((victim, StandingEvent::Pod(Event::Kill(request))));
        }
        events
    }

    /// Ends a pod on request of the agent's handle.
    pub(super) fn end_pod(&mut self, uid: &PodUid, request: EndPod, reply: EndPodReply) {
        let EndPod {
            reason,
            grace_seconds,
        } = request;
        let cause = reason.cause();
        let state = self.records.standing(uid).life();
        let Some(worker) = self.records.worker_mut(uid) else {
            let is_rejected = self.records.standing(uid).rejection().is_some();
            let rejection = rejection_of_unstarted(self.records.desired(uid), reason.into_status(), false);
            // The caller may have stopped waiting.
            let _ = reply.send(rejection.as_ref().map(|_| ()).ok_or(EndPodError::UnknownPod));
            if let Some(event) = rejection.filter(|_| !is_rejected) {
                self.apply(uid, event);
            }
            return;
        };
        let until = worker.kill_deadline(grace_seconds, &self.context);
        if state.may_run() && worker.eviction.is_none() {
            worker.eviction = Some(reason.into_status());
        }
        self.kills.add(uid, until, Requester::Handle(reply));
        self.kill(uid, cause, grace_seconds);
    }

    /// The API server has another status of the pod, and nothing else is new.
    pub(super) fn reconciled(&mut self, uid: &PodUid, pod: &Arc<Pod>) {
        self.records.set_desired(uid, Arc::clone(pod));
        let is_ending = self.records.standing(uid).life().ending().is_some();
        let Some(worker) = self.records.worker_mut(uid) else {
            return;
        };
        worker.set_pod(pod);
        let is_ended_elsewhere = PodFacts::of(pod).is_terminal && !is_ending;
        if is_ended_elsewhere || readiness_is_stale(pod) {
            self.update(uid, UpdateKind::Update);
        } else {
            self.publish_status(uid);
        }
    }

    // ---- what sources deliver

    /// A source has the pod, new or changed.
    pub(super) fn set_desired(&mut self, uid: &PodUid, pod: Arc<Pod>) {
        self.records.set_desired(uid, pod);
    }

    /// No source has the pod any more.
    pub(super) fn remove_desired(&mut self, uid: &PodUid) {
        self.records.remove_desired(uid);
    }

    pub(super) fn set_readded(&mut self, uid: &PodUid, is_readded: bool) {
        self.records.set_readded(uid, is_readded);
    }

    pub(super) fn prune(&mut self, uid: &PodUid) {
        self.records.prune(uid);
    }

    /// The manifests that were never readable since rubelet started.
    pub(super) fn set_unreadable_files(&mut self, files: Vec<PathBuf>) {
        if self.manifests.set_files(files) {
            self.records.touch_found_at_start();
        }
    }

    /// A source has delivered: pods may wait for names.
    pub(super) fn set_names_contested(&mut self) {
        self.names.set_contested();
    }

    /// Every source has delivered. The answer is whether that is new.
    pub(super) fn set_sources_ready(&mut self) -> bool {
        self.resizes.retry(Trigger::PodsAdded);
        self.startup.set_sources_ready()
    }

    /// A pod that no source has keeps its place until it terminates.
    pub(super) fn note_undesired(&mut self, uid: &PodUid) {
        let state = self.records.standing(uid).life();
        self.admission.note_state(uid, state, false);
    }

    /// What a terminating pod is counted with is its newest definition.
    pub(super) fn reserve_stopping(&mut self, uid: &PodUid, pod: &Pod) {
        self.admission.reserve_stopping(uid, pod);
    }

    /// The API server shows the pod as started for the first time.
    pub(super) fn take_shown_start(&mut self, uid: &PodUid, pod: &Pod) -> Option<ShownStart> {
        let now = self.now();
        self.records.worker_mut(uid)?.start.shown(pod, now)
    }

    // ---- what the runtime shows

    /// The runtime's first list: what it has anything of, and what of it lives.
    pub(super) fn list(&mut self, living: &[(String, String, PodUid)], listed: BTreeSet<PodUid>) {
        let found: Vec<PodUid> = listed.iter().cloned().collect();
        self.records.list(listed, living.iter().map(|(_, _, uid)| uid));
        self.startup.names_known();
        self.resizes.retry(Trigger::PodsAdded);
        for uid in found {
            if !self.records.is_desired(&uid) {
                self.apply(&uid, StandingEvent::Listed);
            }
        }
        for (name, namespace, uid) in living {
            let standing = self.records.standing(uid);
            if !standing.is_managed() || is_waiting(&standing.life()) {
                self.names.queue(&full_name(name, namespace), uid);
            }
        }
    }

    /// Every pod of the first list was inspected.
    pub(super) fn inspected(&mut self) {
        self.startup.inspected();
    }

    /// The runtime was looked at. The answer is whether the pod lives without a worker.
    pub(super) fn observed(&mut self, observation: &Arc<PodObservation>) -> bool {
        let uid = &observation.uid;
        let before = self.records.observe(observation);
        self.garbage.observed(before.as_deref(), observation);
        if observation.is_empty() {
            self.apply(uid, StandingEvent::NoUnreadableManifest);
        }
        let is_alive = self.records.get(uid).is_some_and(PodRecord::is_seen_alive);
        match self.records.worker_mut(uid) {
            Some(worker) => match &mut worker.job {
                // The job sees for itself, unless its last look is already over.
                Some(job) => job.observed = Some(Arc::clone(observation)),
                None => self.look_again(uid),
            },
            None if is_alive => return true,
            None => {
                self.apply(uid, StandingEvent::NothingRuns);
                // It may have held its name since the first list.
                let name = full_name(&observation.name, &observation.namespace);
                if let Some((next, event)) = self.release_name(&name, uid) {
                    self.apply(&next, event);
                }
            }
        }
        false
    }

    /// Logs once that the pod is kept because its manifest may be one that cannot be read.
    pub(super) fn log_kept(&mut self, uid: &PodUid) {
        if let Some(record) = self.records.get(uid) {
            self.manifests.log_kept(record);
        }
    }

    /// What the first list had says nothing about new pods, and records of pods that were gone by then belong to none.
    pub(super) fn forget_first_list(&mut self) {
        self.records.forget_first_list();
        let records = &self.records;
        self.context.resources.retain(|uid| records.get(uid).is_some());
    }

    // ---- resizes

    /// Something may have made room for resizes that wait.
    pub(super) fn retry_resizes(&mut self, trigger: Trigger) {
        self.resizes.retry(trigger);
    }

    /// Judges the resizes that wait, if anything may have made room for them.
    pub(super) fn judge_resizes(&mut self) {
        let context = Arc::clone(&self.context);
        let (records, admission) = (&mut self.records, &mut self.admission);
        let judged = self.resizes.judge(records, admission, self.startup, &context);
        for one in judged {
            match one {
                Judged::Look(uid) => {
                    self.publish_status(&uid);
                    self.look_again(&uid);
                }
                Judged::Preempt { uid, victims, scarce } => {
                    for (victim, event) in self.preempt(&uid, victims, &scarce) {
                        self.apply(&victim, event);
                    }
                }
            }
        }
    }

    pub(super) fn collect_garbage(&mut self) {
        let is_busy = self.records.workers().any(|(_, worker)| worker.job.is_some());
        self.garbage.collect_due(self.moment(), is_busy);
    }

    // ---- what was freed and answered since the last turn

    pub(super) fn take_room_freed(&mut self) -> bool {
        self.admission.take_room_freed()
    }

    pub(super) fn take_names_contested(&mut self) -> bool {
        self.names.take_contested()
    }

    /// The pods that waited for this look at the node.
    pub(super) fn take_refreshed(&mut self, refreshed: &Refreshed) -> Vec<PodUid> {
        self.admission.take_refreshed(refreshed)
    }

    /// The desired pods with their statuses.
    pub(super) fn views(&mut self) -> Vec<Arc<Pod>> {
        let context = &self.context;
        let pods = self.records.desired_mut().map(|(pod, standing, worker)| {
            if let Some(rejection) = standing.rejection() {
                let class = qos_class_of(&rejection.pod, context);
                let mut pod = pod.as_ref().clone();
                pod.status = Some(status_of_rejected(rejection, class));
                return Arc::new(pod);
            }
            worker.map_or_else(|| Arc::clone(pod), Worker::view)
        });
        pods.collect()
    }
}
