//! The sync loop: every pod's state, and what each event makes of it.
//!
//! Owns the desired pods, the state machine of each, who holds which static pod's name, and when a pod is looked at again. It
//! runs no call itself: an effect of the state machine becomes a job, one at most per pod, and the job's outcome becomes the
//! next event. Work is started by events; ticks are only a safety net.

mod admission;
mod census;
mod entry;
mod explain;
mod housekeeping;
mod kills;
mod node_waits;
mod outside;
mod probes;
mod query;
mod replaced;
mod reporting;
mod room;
mod second_look;
mod sightings;
mod spared;
mod starts;
mod to_run;
mod unreadable;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::stream::{BoxStream, StreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use rubelet_lifecycle::allocation::Allocation;
use rubelet_lifecycle::configuration::{NodeConfiguration, unsupported};
use rubelet_lifecycle::garbage::PodFates;
use rubelet_lifecycle::pod_state::{
    ActiveDeadline, DEADLINE_MESSAGE, DEADLINE_REASON, Effect, EndCause, Event, Job, KillRequest, Outcome,
    PodFacts, PodState, Requeue, Retry, StaticNames, UpdateKind, active_deadline, step,
};
use rubelet_lifecycle::status::{Eviction, is_api_pod};
use rubelet_model::Timestamp;
use rubelet_model::observation::{PodObservation, PodUid, ProbeResults, SandboxId};
use rubelet_ports::{Moment, PodEvent};
use rubelet_resources::{PodDemand, qos_class};
use tokio::sync::{mpsc, watch};

use crate::garbage::{GarbageCollector, GarbagePorts, GarbageScope, GarbageSettings, StuckSandbox};
use crate::job::{PodJob, PodWork, Progress, Report, Shared, WorkLeft};
use crate::metrics::static_label;
use crate::observer::{Sighting, same_facts};
use crate::recorder::FlightRecorder;
use crate::sources::{Merger, PodChange, Source, SourceSet};
use crate::supervisor::{Panicked, Supervisor, contained};
use crate::waits::Waits;
use admission::Admission;
use entry::{Entry, RunningJob, full_name_of, is_waiting, uid_of};
pub(crate) use query::Query;
use spared::Spared;
use starts::Start;
use unreadable::Unreadable;

/// Safety net for everything that should have come by an event.
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(2);

/// The end of a job.
pub(crate) struct JobDone {
    uid: PodUid,
    number: u64,
    result: Result<Report, Panicked>,
}

/// What the sync loop listens to.
pub(crate) struct Inputs {
    pub(crate) sources: mpsc::Receiver<SourceSet>,
    pub(crate) sightings: mpsc::Receiver<Sighting>,
    /// Pods whose probes say something new.
    pub(crate) probes: BoxStream<'static, PodUid>,
    /// Pods that refer to something that changed.
    pub(crate) objects: BoxStream<'static, PodUid>,
    pub(crate) queries: mpsc::Receiver<Query>,
}

type StuckById = BTreeMap<SandboxId, StuckSandbox>;

/// When the loop last turned, in nanoseconds of the clock's moments; read by the health check.
pub(crate) type Heartbeat = Arc<AtomicU64>;

pub(crate) struct Pods {
    shared: Arc<Shared>,
    supervisor: Supervisor,
    merger: Merger,
    heartbeat: Heartbeat,
    desired: BTreeMap<PodUid, Arc<Pod>>,
    admission: Admission,
    pods: BTreeMap<PodUid, Entry>,
    /// What the runtime has, also of pods that nobody wants.
    seen: BTreeMap<PodUid, Arc<PodObservation>>,
    /// Pods that lived at the first list and were not looked at since.
    unseen: BTreeSet<PodUid>,
    spared: Spared,
    /// Pods of the API server that cannot be decoded: they stay as they run.
    unreadable: BTreeMap<PodUid, Unreadable>,
    names: StaticNames,
    wakes: BTreeSet<(Moment, PodUid)>,
    /// What lived in the runtime at the start is in line for its name.
    are_names_known: bool,
    is_first_list_done: bool,
    sources_ready: bool,
    /// A static pod may wait for the end of an older version.
    are_names_contested: bool,
    next_job: u64,
    garbage: housekeeping::Schedule,
    progress: mpsc::Sender<Progress>,
    done: mpsc::Sender<JobDone>,
    garbage_scopes: mpsc::Sender<GarbageScope>,
    fates: watch::Sender<Arc<PodFates>>,
    are_fates_stale: bool,
    /// Sandboxes that the garbage collector cannot remove.
    stuck_sandboxes: watch::Receiver<StuckById>,
    node_waits: node_waits::NodeWaits,
    /// A pod with a network of its own was seen to start.
    has_network_pod_started: bool,
}

/// What jobs, and second looks at the node, send back.
struct Answers {
    progress: mpsc::Receiver<Progress>,
    done: mpsc::Receiver<JobDone>,
    second_looks: mpsc::Receiver<second_look::Look>,
}

impl Pods {
    /// Runs until nobody holds the other ends any more.
    pub(crate) async fn run(
        shared: Arc<Shared>,
        supervisor: Supervisor,
        merger: Merger,
        heartbeat: Heartbeat,
        mut inputs: Inputs,
    ) {
        // Every job can leave a few messages without waiting.
        let (progress, progress_receiver) = mpsc::channel(256);
        let (done, done_receiver) = mpsc::channel(256);
        let (admission, second_looks) = Admission::new();
        let mut answers = Answers {
            progress: progress_receiver,
            done: done_receiver,
            second_looks,
        };
        let (garbage_scopes, scopes) = mpsc::channel(64);
        let (fates, fates_receiver) = watch::channel(Arc::default());
        let (stuck, stuck_sandboxes) = watch::channel(StuckById::default());
        supervisor.spawn(
            "garbage",
            collect_garbage(Arc::clone(&shared), scopes, fates_receiver, stuck),
        );
        let sources_ready = merger.seen_all();
        let node_waits = node_waits::NodeWaits::new(shared.ports.clock.now());
        let mut pods = Self {
            node_waits,
            shared,
            supervisor,
            merger,
            heartbeat,
            desired: BTreeMap::new(),
            admission,
            pods: BTreeMap::new(),
            seen: BTreeMap::new(),
            unseen: BTreeSet::new(),
            spared: Spared::default(),
            unreadable: BTreeMap::new(),
            names: StaticNames::default(),
            wakes: BTreeSet::new(),
            are_names_known: false,
            is_first_list_done: false,
            sources_ready,
            are_names_contested: false,
            next_job: 0,
            garbage: housekeeping::Schedule::default(),
            progress,
            done,
            garbage_scopes,
            fates,
            are_fates_stale: true,
            stuck_sandboxes,
            has_network_pod_started: false,
        };
        if sources_ready {
            pods.shared.ports.reporter.sources_are_ready();
        }
        pods.turn_forever(&mut inputs, &mut answers).await;
    }

    async fn turn_forever(&mut self, inputs: &mut Inputs, answers: &mut Answers) {
        let clock = Arc::clone(&self.shared.ports.clock);
        let mut housekeeping = clock.sleep(HOUSEKEEPING_INTERVAL);
        let mut sources_open = true;
        let mut health = self.shared.health.clone();
        let mut node = self.shared.ports.node.object.clone();
        loop {
            let beat = clock.moment().since(Moment::default()).as_nanos();
            self.heartbeat
                .store(u64::try_from(beat).unwrap_or(u64::MAX), Ordering::Relaxed);
            self.share_room();
            if std::mem::take(&mut self.are_names_contested) {
                self.end_replaced_pods();
            }
            if std::mem::take(&mut self.are_fates_stale) {
                self.publish_fates();
            }
            let wake = self.next_wake();
            // Every arm is cancel-safe: channels keep what was not taken, timers are made anew or kept.
            tokio::select! {
                biased;
                // Before the ends of jobs: what a job saw itself is no reason for another one.
                sighting = inputs.sightings.recv() => match sighting {
                    Some(sighting) => self.sighted(sighting),
                    None => return,
                },
                Some(progress) = answers.progress.recv() => self.progressed(progress),
                Some(done) = answers.done.recv() => self.job_done(done),
                Some(look) = answers.second_looks.recv() => self.looked_again(&look),
                Ok(()) = node.changed() => self.node_changed(),
                Some(uid) = inputs.probes.next() => self.probe_changed(&uid),
                Some(uid) = inputs.objects.next() => self.objects_changed(&uid),
                set = inputs.sources.recv(), if sources_open => match set {
                    Some(set) => self.delivered(set),
                    None => sources_open = false,
                },
                query = inputs.queries.recv() => match query {
                    Some(query) => self.answer(query),
                    None => return,
                },
                Ok(()) = health.changed() => {
                    let is_ready = {
                        let health = health.borrow_and_update();
                        self.node_waits.set_health(&health, clock.now());
                        health.runtime_problem.is_none()
                    };
                    if is_ready {
                        self.judge_waiting();
                        self.runtime_is_back();
                    }
                }
                () = wait_until(clock.as_ref(), wake) => self.wake_up(),
                () = &mut housekeeping => {
                    self.keep_house();
                    housekeeping = clock.sleep(HOUSEKEEPING_INTERVAL);
                }
            }
        }
    }

    fn now(&self) -> Timestamp {
        self.shared.ports.clock.now()
    }

    // ---- what is desired

    fn delivered(&mut self, mut set: SourceSet) {
        let now = self.now();
        if set.source == Source::File {
            self.spared.set_files(std::mem::take(&mut set.never_good));
            self.node_waits.unusable = std::mem::take(&mut set.unusable);
            self.are_fates_stale = true;
        }
        if set.source == Source::Api {
            self.take_unreadable(std::mem::take(&mut set.unreadable));
        }
        let merged = self.merger.merge(set, now);
        for duplicate in merged.duplicates {
            self.shared.ports.events.record(
                &duplicate.pod,
                PodEvent::warning("FailedValidation", duplicate.message.clone()),
            );
        }
        let became_ready = !self.sources_ready && self.merger.seen_all();
        for change in self.in_order(merged.changes) {
            self.changed(change);
        }
        self.are_names_contested = true;
        if became_ready {
            self.sources_ready = true;
            tracing::info!(pods = self.desired.len(), "Every pod source has delivered");
            self.shared.ports.reporter.sources_are_ready();
            // What left its source before could still be wanted by another one.
            let known = self.pods.keys();
            let gone: Vec<PodUid> = known
                .filter(|uid| !self.desired.contains_key(uid))
                .cloned()
                .collect();
            for uid in gone {
                self.unwanted(&uid);
            }
            self.keep_house();
        }
    }

    fn changed(&mut self, change: PodChange) {
        self.are_fates_stale = true;
        match change {
            PodChange::Add(pod) => {
                self.report_wanted(&pod);
                let uid = uid_of(&pod);
                if self.is_from_a_removed_pod(&pod) {
                    self.admission.set_reborn(&uid);
                }
                self.spared.rule_out(&uid);
                self.wanted(&uid, pod, UpdateKind::Create);
            }
            PodChange::Update(pod) | PodChange::Delete(pod) => {
                let uid = uid_of(&pod);
                self.count_shown_start(&uid, &pod);
                self.check_declared_features(&uid, &pod);
                self.wanted(&uid, pod, UpdateKind::Update);
            }
            PodChange::Reconcile(pod) => {
                let uid = uid_of(&pod);
                self.count_shown_start(&uid, &pod);
                self.reconciled(&uid, &pod);
            }
            PodChange::Remove(pod) => {
                let uid = uid_of(&pod);
                self.desired.remove(&uid);
                self.admission.left(&uid, pod);
                self.forget_unbegun(&uid);
                // Before every source has delivered, another one may still want it.
                if self.sources_ready {
                    self.unwanted(&uid);
                } else if let Some(state) = self.pods.get(&uid).map(|entry| entry.state) {
                    self.note_holding(&uid, state);
                }
            }
        }
    }

    /// Whether what the runtime has is of another pod of this identity: this life has never known one, though every source had delivered.
    /// The garbage collector may be in the middle of it.
    fn is_from_a_removed_pod(&self, pod: &Pod) -> bool {
        let uid = uid_of(pod);
        let is_late = self.sources_ready && self.is_first_list_done && !self.pods.contains_key(&uid);
        let is_left = self.seen.contains_key(&uid) && !self.may_live(&uid);
        is_late && is_left && !is_api_pod(pod) && !self.is_spared(&uid)
    }

    /// No source has the pod any more.
    fn unwanted(&mut self, uid: &PodUid) {
        let Some(entry) = self.pods.get(uid) else { return };
        let is_waiting = is_waiting(&entry.state);
        if is_waiting && self.may_live(uid) {
            // It ran before this agent did and ends as its definition says.
            self.apply(uid, Event::FoundInRuntime);
        } else if !is_waiting || self.is_first_list_done {
            let request = KillRequest {
                cause: EndCause::Removed,
                grace_seconds: None,
            };
            self.apply(uid, Event::Kill(request));
        }
    }

    fn qos_class_of(&self, pod: &Pod) -> &'static str {
        let demand = PodDemand::read(pod);
        // Quantities were checked when the manifest was read.
        demand.map_or("BestEffort", |demand| {
            qos_class(&demand, &self.shared.settings.node.rules).as_str()
        })
    }

    /// Tells the state machine about the newest definition of a desired pod.
    fn update(&mut self, uid: &PodUid, kind: UpdateKind) {
        let Some(pod) = self.desired.get(uid).cloned() else {
            return;
        };
        if !self.pods.contains_key(uid) {
            let entry = self.new_entry(Arc::clone(&pod));
            self.pods.insert(uid.clone(), entry);
            self.publish_fates();
        }
        let now = self.now();
        // A static pod that ends does so by its own definition; one of the same identity may be there already.
        if let Some(entry) = self.pods.get_mut(uid)
            && (entry.state.ending().is_none() || is_api_pod(&pod))
        {
            let is_resized = entry.take_on(&pod, now);
            entry.tell_job_of_news();
            if is_resized {
                self.refuse_resize(&pod);
            }
        }
        let event = Event::Update {
            kind,
            pod: PodFacts::of(&pod),
            is_idle: !self.may_live(uid),
        };
        self.apply(uid, event);
    }

    fn new_entry(&mut self, pod: Arc<Pod>) -> Entry {
        let uid = uid_of(&pod);
        let start = Start::of(&pod, self.may_live(&uid), self.now());
        let clock = &self.shared.ports.clock;
        let mut work = PodWork::new(&self.shared.settings, clock.moment());
        // What the incarnation before has left says nothing about this one.
        work.is_new_incarnation = self.admission.take_reborn(&uid);
        work.is_reborn = work.is_new_incarnation;
        Entry {
            full_name: full_name_of(&pod),
            qos_class: self.qos_class_of(&pod),
            allocation: is_api_pod(&pod).then(|| Allocation::of(&pod)),
            resize: None,
            shown_from: None,
            last_view: None,
            reported: None,
            state: PodState::Absent,
            work: Some(work),
            job: None,
            waits: Waits::new(Arc::clone(clock)),
            recorder: FlightRecorder::default(),
            derived: None,
            shown: Arc::new(pod.status.clone().unwrap_or_default()),
            eviction: None,
            wake_at: None,
            resting_since: Some(clock.now()),
            start,
            pod,
        }
    }

    // ---- the state machine

    /// Takes an event through the state machine, with everything that follows from it.
    fn apply(&mut self, uid: &PodUid, event: Event) {
        let mut events = VecDeque::from([(uid.clone(), event)]);
        while let Some((uid, event)) = events.pop_front() {
            let now = self.now();
            let Some(entry) = self.pods.get_mut(&uid) else {
                continue;
            };
            let before = entry.state;
            let (next, effects) = step(before, event, now);
            if next != before || !effects.is_empty() {
                entry.recorder.step(now, (before, event), (next, effects.clone()));
            }
            entry.state = next;
            if let Event::Update { kind, .. } = event {
                entry.start.asked_for(kind);
            }
            self.are_fates_stale |= next != before;
            self.show_and_report(&uid);
            self.note_holding(&uid, next);
            for effect in effects {
                events.extend(self.effect(&uid, effect));
            }
            self.finish_quickly(&uid, &mut events);
        }
    }

    /// The end of a pod need not wait for the next housekeeping.
    fn finish_quickly(&self, uid: &PodUid, events: &mut VecDeque<(PodUid, Event)>) {
        let Some(entry) = self.pods.get(uid) else { return };
        let PodState::Finished { ending } = entry.state else {
            return;
        };
        let is_desired = self.desired.contains_key(uid);
        // One that was added again is desired, whatever other sources deliver.
        let is_over = ending.restart_requested && is_desired || self.sources_ready && !is_desired;
        if is_over && entry.job.is_none() {
            events.push_back((uid.clone(), Event::Housekeeping { is_desired }));
        }
    }

    /// Carries an effect out. The answer is what follows from it at once.
    fn effect(&mut self, uid: &PodUid, effect: Effect) -> Option<(PodUid, Event)> {
        match effect {
            Effect::QueueByName => return self.queue_by_name_effect(uid),
            Effect::ReleaseName => {
                let name = self.pods.get(uid)?.full_name.clone();
                let next = self.names.release(&name, uid)?;
                // One that nobody wants any more keeps the name until housekeeping lets it go.
                return self
                    .desired
                    .contains_key(&next)
                    .then_some((next, Event::StartAllowed));
            }
            Effect::Run(job) => self.run_job(uid, job),
            Effect::Cancel => {
                let entry = self.pods.get(uid)?;
                if let Some(job) = &entry.job {
                    job.cancel.send_replace(true);
                }
            }
            Effect::Requeue(requeue) => self.requeue(uid, requeue),
            // Nobody asks for kills yet: eviction and preemption come with their own parts.
            Effect::AnswerKills => {}
            Effect::FailByDeadline => {
                let entry = self.pods.get_mut(uid)?;
                entry.eviction = Some(Eviction {
                    reason: DEADLINE_REASON.to_owned(),
                    message: DEADLINE_MESSAGE.to_owned(),
                    disruption: None,
                });
                let event = PodEvent::normal(DEADLINE_REASON, DEADLINE_MESSAGE);
                self.shared.ports.events.record(&entry.pod, event);
            }
            Effect::Forget { .. } => return self.forget(uid),
        }
        None
    }

    fn queue_by_name_effect(&mut self, uid: &PodUid) -> Option<(PodUid, Event)> {
        let name = self.pods.get(uid)?.full_name.clone();
        let is_holder = self.names.queue(&name, uid);
        self.are_names_contested |= !is_holder;
        is_holder.then(|| (uid.clone(), Event::StartAllowed))
    }

    /// The pod is gone; a source that still has it begins anew.
    fn forget(&mut self, uid: &PodUid) -> Option<(PodUid, Event)> {
        let entry = self.pods.remove(uid)?;
        if let Some(at) = entry.wake_at {
            self.wakes.remove(&(at, uid.clone()));
        }
        self.shared.ports.probes.forget(uid);
        self.garbage.pod_gone(uid.clone());
        if !self.desired.contains_key(uid) {
            self.shared.ports.reporter.forget(uid);
        }
        let pod = self.desired.get(uid).cloned()?;
        if !self.may_begin_anew(uid, &pod) {
            return None;
        }
        let facts = PodFacts::of(&pod);
        let restarts = &self.shared.ports.metrics.jobs.restarts;
        restarts.with_label_values(&[static_label(facts.is_static)]).inc();
        let entry = self.new_entry(pod);
        self.pods.insert(uid.clone(), entry);
        self.publish_fates();
        let event = Event::Update {
            kind: UpdateKind::Create,
            pod: facts,
            is_idle: !self.may_live(uid),
        };
        Some((uid.clone(), event))
    }

    // ---- jobs

    fn run_job(&mut self, uid: &PodUid, job: Job) {
        let number = self.next_job;
        self.next_job += 1;
        let moment = self.shared.ports.clock.moment();
        let now = self.now();
        let metrics = &self.shared.ports.metrics.jobs;
        let Some(entry) = self.pods.get_mut(uid) else {
            return;
        };
        let (cancel, cancelled) = watch::channel(false);
        let work_left = WorkLeft::default();
        let (newest, definition) = watch::channel(Arc::clone(&entry.pod));
        entry.job = Some(RunningJob {
            number,
            cancel,
            sighted: None,
            began: moment,
            work_left: Arc::clone(&work_left),
            newest,
            operation: entry.start.job_begins(job, &entry.pod, now, metrics),
        });
        if let Some(at) = entry.wake_at.take() {
            self.wakes.remove(&(at, uid.clone()));
        }
        let work = entry.work.take();
        let pod_job = PodJob {
            shared: Arc::clone(&self.shared),
            uid: uid.clone(),
            pod: Arc::clone(&entry.pod),
            qos_class: entry.qos_class,
            work: work.unwrap_or_else(|| PodWork::new(&self.shared.settings, moment)),
            work_left,
            newest: definition,
            waits: entry.waits.clone(),
            recorder: entry.recorder.clone(),
            cancel: cancelled,
            progress: self.progress.clone(),
            eviction: entry.eviction.clone(),
            resize: entry.resize.clone(),
            restarted: false,
            seen: None,
            published_at: Moment::default(),
            probe_results: ProbeResults::default(),
            has_killed: false,
            startup: Arc::clone(&entry.start.times),
        };
        let (done, uid) = (self.done.clone(), uid.clone());
        self.supervisor
            .spawn_job("pod job", pod_job.run(job), move |result| async move {
                // Nobody listens any more when the agent ends.
                let _ = done.send(JobDone { uid, number, result }).await;
            });
    }

    fn progressed(&mut self, progress: Progress) {
        let Some(entry) = self.pods.get_mut(&progress.uid) else {
            return;
        };
        entry.derived = Some(progress.status);
        self.show_and_report(&progress.uid);
    }

    fn job_done(&mut self, done: JobDone) {
        let now = self.now();
        let moment = self.shared.ports.clock.moment();
        // Before the next job can say that it is busy, and after nothing can be taken for the old job's matter any more.
        if let Some(told) = self.shared.observer.idle(&done.uid) {
            self.supervisor.spawn("end of a pod job", told);
        }
        let Some(entry) = self.pods.get_mut(&done.uid) else {
            return;
        };
        let Some(job) = entry.job.take_if(|job| job.number == done.number) else {
            return;
        };
        let durations = &self.shared.ports.metrics.jobs.durations;
        let took = moment.since(job.began);
        durations
            .with_label_values(&[job.operation])
            .observe(took.as_secs_f64());
        let work = job.left();
        entry.resting_since = Some(now);
        let mut is_behind = false;
        let outcome = match done.result {
            Ok(report) => {
                entry.work = work;
                is_behind = match (&job.sighted, &report.seen) {
                    (Some(sighted), Some(seen)) => !same_facts(sighted, seen),
                    (sighted, None) => sighted.is_some(),
                    (None, Some(_)) => false,
                };
                if report.restarted {
                    self.garbage.container_restarted(done.uid.clone());
                }
                report.outcome
            }
            Err(panic) => {
                tracing::error!(pod = %done.uid, error = %panic, "A defect in rubelet: this pod is tried again later");
                entry.recorder.note(now, panic.to_string());
                entry.waits.failed(panic.to_string());
                let settings = &self.shared.settings;
                let work = work.map(|work| work.after_panic(settings, moment));
                let mut work = work.unwrap_or_else(|| PodWork::new(settings, moment));
                work.status = entry.derived.as_deref().cloned();
                entry.work = Some(work);
                Outcome::Failed(Retry::Later)
            }
        };
        if is_behind {
            self.look_again(&done.uid);
        }
        self.apply(&done.uid, Event::JobDone(outcome));
    }

    // ---- time

    fn requeue(&mut self, uid: &PodUid, requeue: Requeue) {
        let delay = requeue.delay(self.now(), self.shared.settings.sync_frequency);
        let jitter = match requeue {
            // A backoff is a promise; the network is asked for every second.
            Requeue::Retry(Retry::At(_) | Retry::NetworkNotReady) => Duration::ZERO,
            Requeue::Resync | Requeue::Retry(Retry::Later) => self.shared.ports.randomness.part_of(delay / 2),
        };
        let delay = self
            .until_deadline(uid)
            .map_or(delay + jitter, |left| left.min(delay + jitter));
        let at = self.shared.ports.clock.moment().plus(delay);
        if let Some(entry) = self.pods.get_mut(uid) {
            if let Some(old) = entry.wake_at.replace(at) {
                self.wakes.remove(&(old, uid.clone()));
            }
            self.wakes.insert((at, uid.clone()));
        }
    }

    fn next_wake(&self) -> Option<Moment> {
        let pods = self.wakes.first().map(|(at, _)| *at);
        pods.into_iter().chain(self.admission.next_deadline()).min()
    }

    fn wake_up(&mut self) {
        self.give_up_overdue();
        let now = self.shared.ports.clock.moment();
        while let Some((at, uid)) = self.wakes.first().cloned() {
            if at > now {
                return;
            }
            self.wakes.pop_first();
            if let Some(entry) = self.pods.get_mut(&uid) {
                entry.wake_at = None;
            }
            self.check_deadline(&uid);
            self.look_again(&uid);
            if let Some(entry) = self.pods.get(&uid)
                && matches!(entry.state, PodState::Terminated { .. })
            {
                let pod = PodFacts::of(&entry.pod);
                let kind = UpdateKind::Sync;
                self.apply(
                    &uid,
                    Event::Update {
                        kind,
                        pod,
                        is_idle: true,
                    },
                );
            }
        }
    }

    fn deadline_of(&self, uid: &PodUid) -> ActiveDeadline {
        let Some(entry) = self.pods.get(uid) else {
            return ActiveDeadline::None;
        };
        let started = entry.shown.start_time.as_ref().map(|time| {
            let nanos = i64::try_from(time.0.as_nanosecond()).unwrap_or(i64::MAX);
            Timestamp::from_unix_nanos(nanos)
        });
        active_deadline(&entry.pod, started, self.now())
    }

    fn until_deadline(&self, uid: &PodUid) -> Option<Duration> {
        match self.deadline_of(uid) {
            ActiveDeadline::At(at) => Some(at.since(self.now())),
            ActiveDeadline::None | ActiveDeadline::Passed => None,
        }
    }

    /// Whether the pod was active for too long.
    fn check_deadline(&mut self, uid: &PodUid) {
        match self.deadline_of(uid) {
            ActiveDeadline::Passed => self.apply(uid, Event::DeadlinePassed),
            ActiveDeadline::None | ActiveDeadline::At(_) => {}
        }
    }

    fn log_phase(&self, uid: &PodUid) {
        let Some(entry) = self.pods.get(uid) else { return };
        let metadata = &entry.pod.metadata;
        tracing::info!(
            namespace = metadata.namespace.as_deref().unwrap_or_default(),
            pod = metadata.name.as_deref().unwrap_or_default(),
            phase = entry.shown.phase.as_deref().unwrap_or_default(),
            ready = explain::is_ready(&entry.shown),
            "Pod status"
        );
    }
}

/// What the pod asks for and cannot have yet, in words.
fn problems_of(pod: &Pod, node: &NodeConfiguration) -> Option<String> {
    let problems: Vec<String> = unsupported(pod, node).iter().map(ToString::to_string).collect();
    (!problems.is_empty()).then(|| problems.join("; "))
}

/// Collects garbage, one search after the other, until the sync loop ends.
async fn collect_garbage(
    shared: Arc<Shared>,
    mut scopes: mpsc::Receiver<GarbageScope>,
    fates: watch::Receiver<Arc<PodFates>>,
    stuck: watch::Sender<StuckById>,
) {
    let collector = GarbageCollector::new(
        GarbagePorts::from(&shared.ports),
        GarbageSettings::from(&shared.settings),
    );
    while let Some(scope) = scopes.recv().await {
        let view = || fates.borrow().clone();
        let collected = async {
            collector.collect(&scope, &view).await;
            stuck.send_replace(collector.stuck_sandboxes());
            let known = view();
            if known.sources_ready {
                let is_known = |uid: &PodUid| known.known.contains_key(uid);
                shared.user_ids.sweep(&shared.ports, is_known).await;
            }
        };
        // What is left behind can wait for the next search; the node's pods cannot wait for a new process.
        if let Err(panic) = contained(collected).await {
            tracing::error!(?scope, error = %panic, "A defect in rubelet: this search for garbage was cut short");
        }
    }
}

async fn wait_until(clock: &dyn rubelet_ports::Clock, at: Option<Moment>) {
    match at {
        Some(at) => clock.sleep(at.since(clock.moment())).await,
        None => std::future::pending().await,
    }
}
