//! What the runtime has of every pod, kept fresh.
//!
//! The observer is one task. It routes between components that own their state and answer with what to do next:
//!
//! - [`looks`]: at which pod to look next;
//! - [`event_stream`]: the runtime's container events, hints to look at a pod;
//! - [`relist`]: when to list everything, the safety net;
//! - [`first_list`]: what of the first list is still to be looked at and reported;
//! - [`cache`]: the last observation of each pod;
//! - [`questions`]: jobs and servers that wait for a look.
//!
//! It receives requests from [`ObserverHandle`]s, and sends each change to the sync loop as a [`Sighting`]. An event carries no
//! state: it only names the pod to look at. A pod whose look hangs or fails keeps its last observation and delays no other pod.

mod cache;
mod event_stream;
mod first_list;
mod handle;
mod inspect;
mod listing;
mod looks;
mod questions;
mod relist;
mod termination_message;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{FuturesUnordered, StreamExt};
use rubelet_model::Timestamp;
use rubelet_model::observation::{PodObservation, PodUid, SandboxId};
use rubelet_ports::{Elapsed, Moment, RuntimeError, RuntimeErrorKind, within};
use rubelet_wire::cri::v1;
use tokio::sync::mpsc;
use tracing::{Instrument, Span};

use crate::settings::AgentPorts;
use cache::ObservationCache;
pub(crate) use cache::same_facts;
use event_stream::ContainerEvents;
use first_list::FirstList;
use handle::Request;
pub(crate) use handle::{ObserverHandle, TableSizes};
use inspect::inspect;
use listing::{Listed, list_all, list_pod};
use looks::LookQueue;
use questions::Questions;
use relist::{Begin, RelistSchedule};

/// What a look at one pod may take. The runtime's own deadlines are longer; here a stuck pod only loses its turn.
const LOOK_LIMIT: Duration = Duration::from_secs(60);
/// The pause before a look that failed is tried again.
const LOOK_RETRY: Duration = Duration::from_secs(1);
/// What a list of everything may take.
const RELIST_LIMIT: Duration = Duration::from_secs(30);
/// How long a question about everything waits for looks after the list has arrived.
const EVERYTHING_LIMIT: Duration = Duration::from_secs(5);
/// Requests that wait to be read.
const REQUEST_BUFFER: usize = 256;

/// What the observer reports to the sync loop.
pub(crate) enum Sighting {
    /// The pod has changed; an empty observation means that the runtime has nothing of it any more.
    Pod(Arc<PodObservation>),
    /// The runtime's first list, before the observer looks at any pod.
    Living {
        /// Name, namespace and UID of the pods that run. Each follows as [`Self::Pod`], also when it is gone by then.
        living: Vec<(String, String, PodUid)>,
        /// All pods of which the runtime has anything.
        listed: BTreeSet<PodUid>,
    },
    /// Every pod of the first list was looked at.
    FirstListDone,
}

/// The end of something that the observer waited for.
enum Done {
    Look {
        uid: PodUid,
        began: Moment,
        result: Result<PodObservation, RuntimeError>,
    },
    Relist {
        began: Moment,
        /// The same on the wall clock.
        began_at: Timestamp,
        result: Result<BTreeMap<PodUid, Listed>, RuntimeError>,
    },
    /// It is time to open the stream of events again.
    StreamRetry,
    /// It is time to try a look again.
    LookRetry { uid: PodUid },
    /// A look may have become slow.
    SlowLook,
    /// Questions about everything have waited long enough.
    EverythingLimit,
}

/// When the last list of everything that succeeded began, in nanoseconds of the clock's moments; zero before the first.
pub(crate) type LastList = Arc<AtomicU64>;

pub(crate) struct Observer {
    ports: AgentPorts,
    requests: mpsc::Receiver<Request>,
    sightings: mpsc::Sender<Sighting>,
    last_list: LastList,
    running: FuturesUnordered<BoxFuture<'static, Done>>,
    cache: ObservationCache,
    looks: LookQueue,
    questions: Questions,
    relists: RelistSchedule,
    events: ContainerEvents,
    first_list: FirstList,
}

impl Observer {
    pub(crate) fn new(
        ports: AgentPorts,
        sightings: mpsc::Sender<Sighting>,
        last_list: LastList,
    ) -> (Self, ObserverHandle) {
        let (sender, requests) = mpsc::channel(REQUEST_BUFFER);
        let observer = Self {
            ports,
            requests,
            sightings,
            last_list,
            running: FuturesUnordered::new(),
            cache: ObservationCache::default(),
            looks: LookQueue::default(),
            questions: Questions::default(),
            relists: RelistSchedule::default(),
            events: ContainerEvents::new(),
            first_list: FirstList::default(),
        };
        (observer, ObserverHandle { requests: sender })
    }

    /// Runs until every handle is gone.
    pub(crate) async fn run(mut self) {
        self.open_stream();
        self.tick();
        let mut tick_at = self.relists.next_at();
        let mut tick = self.sleep_until(tick_at);
        loop {
            // Every arm is cancel-safe: channels and streams keep what was not taken, the timer keeps its time.
            tokio::select! {
                biased;
                Some(done) = self.running.next(), if !self.running.is_empty() => self.finished(done).await,
                request = self.requests.recv() => match request {
                    Some(request) => self.requested(request),
                    None => return,
                },
                event = self.events.next() => self.event(event),
                () = &mut tick => self.tick(),
            }
            self.start_looks();
            if self.relists.next_at() != tick_at {
                tick_at = self.relists.next_at();
                tick = self.sleep_until(tick_at);
            }
        }
    }

    fn sleep_until(&self, at: Moment) -> BoxFuture<'static, ()> {
        let clock = &self.ports.clock;
        clock.sleep(at.since(clock.moment()))
    }

    fn after(&self, pause: Duration, done: Done) {
        let sleep = self.ports.clock.sleep(pause);
        self.running.push(sleep.map(|()| done).boxed());
    }

    fn requested(&mut self, request: Request) {
        match request {
            Request::Look { uid, after, reply } => {
                if let Some(observation) = self.cache.get_after(&uid, after) {
                    // The question may have been cancelled.
                    let _ = reply.send(Ok(Arc::clone(observation)));
                } else {
                    self.looks.ask(&uid);
                    self.questions.ask(uid, after, reply);
                }
            }
            Request::Busy { uid } => self.looks.job_started(&uid),
            Request::Idle { uid } => {
                let is_settled = self.looks.job_ended(&uid, self.cache.looked_at(&uid));
                if is_settled && self.cache.forget_absent(&uid) {
                    self.looks.forget(&uid);
                }
            }
            Request::Outdate { uid, at } => self.cache.outdate(&uid, at),
            Request::Tables { reply } => {
                let _ = reply.send(self.table_sizes());
            }
            Request::All { reply } => {
                self.questions.ask_about_everything(reply);
                let begin = self.relists.want(self.ports.clock.moment());
                self.relist(begin);
            }
        }
    }

    fn table_sizes(&self) -> TableSizes {
        let mut sizes = self.cache.table_sizes();
        sizes.extend(self.looks.table_sizes());
        sizes.extend(self.questions.table_sizes());
        sizes.extend(self.first_list.table_sizes());
        sizes
    }

    fn open_stream(&mut self) {
        let stream = self.ports.runtime_reader.container_events();
        self.events.open(stream, self.ports.clock.moment());
    }

    fn tick(&mut self) {
        let now = self.ports.clock.moment();
        if self.events.judge(now) {
            self.ports.metrics.observer.streams.inc();
        }
        let begin = self.relists.tick(now, self.events.works());
        self.relist(begin);
    }

    fn event(&mut self, event: Option<Result<v1::ContainerEventResponse, RuntimeError>>) {
        let metrics = &self.ports.metrics.observer;
        let error = match event {
            Some(Ok(event)) => {
                let sent_at = Timestamp::from_unix_nanos(event.created_at);
                let delay = self.ports.clock.now().since(sent_at);
                metrics.event_delays.observe(delay.as_secs_f64());
                self.events.received();
                return self.hint(&event);
            }
            Some(Err(error)) => {
                metrics.stream_errors.inc();
                Some(error)
            }
            None => None,
        };
        let end = self.events.ended(error.as_ref());
        if end.has_worked {
            let begin = self.relists.events_lost(self.ports.clock.moment());
            self.relist(begin);
        }
        self.after(end.retry_after, Done::StreamRetry);
    }

    /// Looks at the pod that the event is about. containerd leaves out the pod when its sandbox was removed.
    fn hint(&mut self, event: &v1::ContainerEventResponse) {
        let now = self.ports.clock.moment();
        let status = event.pod_sandbox_status.as_ref();
        let named = status
            .and_then(|status| status.metadata.as_ref())
            .map(|metadata| PodUid::new(metadata.uid.clone()))
            .filter(|uid| !uid.is_empty());
        let of_sandbox = || {
            let id = SandboxId::new(event.container_id.clone());
            self.cache.pod_of_sandbox(&id).cloned()
        };
        let Some(uid) = named.or_else(of_sandbox) else {
            // What is gone and not known was seen to be gone: there is nothing to find.
            if event.container_event_type() == v1::ContainerEventType::ContainerDeletedEvent {
                return;
            }
            let begin = self.relists.want(now);
            return self.relist(begin);
        };
        let wall_clock = self.ports.clock.now();
        if !self.cache.covers_event(&uid, event.created_at, wall_clock) {
            self.looks.hint(&uid, now);
        }
    }

    fn start_looks(&mut self) {
        let now = self.ports.clock.moment();
        for uid in self.looks.start(now) {
            let seen = self.cache.known_facts(&uid);
            let span = pod_span(&uid, seen.as_deref());
            let look = look(self.ports.clone(), uid, seen);
            self.running.push(look.instrument(span).boxed());
        }
        if let Some(pause) = self.looks.set_timer(now) {
            self.after(pause, Done::SlowLook);
        }
    }

    fn relist(&self, begin: Option<Begin>) {
        let Some(Begin { interval }) = begin else { return };
        if let Some(interval) = interval {
            let intervals = &self.ports.metrics.observer.relist_intervals;
            intervals.observe(interval.as_secs_f64());
        }
        self.running.push(relist(self.ports.clone()).boxed());
    }

    async fn finished(&mut self, done: Done) {
        let now = self.ports.clock.moment();
        match done {
            Done::Look { uid, began, result } => {
                self.looks.ended(&uid, now.since(began));
                self.looked(uid, began, result).await;
            }
            Done::Relist {
                began,
                began_at,
                result: Ok(pods),
            } => {
                self.note_list(began, began_at);
                self.relisted(began, &pods).await;
                let begin = self.relists.succeeded(now);
                self.relist(begin);
            }
            Done::Relist {
                result: Err(error), ..
            } => {
                tracing::debug!(%error, "The runtime does not list its pods");
                self.questions.answer_everything(&Err(error));
                let begin = self.relists.failed(now);
                self.relist(begin);
            }
            Done::StreamRetry => self.open_stream(),
            Done::LookRetry { uid } => self.looks.retry(&uid, now),
            Done::SlowLook => self.looks.timer_fired(),
            Done::EverythingLimit => self.answer_everything(),
        }
        if let Some(sighting) = self.first_list.finish() {
            self.report(sighting).await;
        }
        if !self.relists.is_running() && self.looks.is_idle() {
            self.answer_everything();
        }
    }

    async fn report(&mut self, sighting: Sighting) {
        // The receiver is gone only when the agent ends.
        let _ = self.sightings.send(sighting).await;
    }

    async fn looked(&mut self, uid: PodUid, began: Moment, result: Result<PodObservation, RuntimeError>) {
        self.first_list.looked(&uid);
        let answer = match result {
            Ok(observation) => Ok(self.record(began, observation).await),
            Err(error) => {
                // The next list may be far away.
                if self.looks.failed(&uid) {
                    self.after(LOOK_RETRY, Done::LookRetry { uid: uid.clone() });
                }
                Err(error)
            }
        };
        if self.questions.answer(&uid, began, &answer) {
            self.looks.ask(&uid);
        }
    }

    /// Keeps the observation and reports it when it differs from the one before.
    async fn record(&mut self, began: Moment, mut observation: PodObservation) -> Arc<PodObservation> {
        let is_owed = self.first_list.settle(&mut observation);
        let observation = Arc::new(observation);
        let has_changed = self.cache.record(&observation, began);
        let uid = &observation.uid;
        if !self.looks.has_job(uid) && self.cache.forget_absent(uid) {
            self.looks.forget(uid);
        }
        if is_owed || has_changed {
            self.report(Sighting::Pod(Arc::clone(&observation))).await;
        }
        observation
    }

    /// A list succeeded. Whether the node is healthy depends on when the last of them began.
    fn note_list(&self, began: Moment, began_at: Timestamp) {
        let metrics = &self.ports.metrics.observer;
        metrics.last_relist.set(began_at.unix_seconds());
        let nanos = began.since(Moment::default()).as_nanos();
        // Zero means that there was none yet.
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX).max(1);
        self.last_list.store(nanos, Ordering::Relaxed);
    }

    /// Looks at what differs from the observations.
    async fn relisted(&mut self, began: Moment, pods: &BTreeMap<PodUid, Listed>) {
        let mut changed = self.cache.changed(pods, began);
        match self.first_list.listed(pods, &changed) {
            Some(sighting) => self.report(sighting).await,
            None => changed.extend(self.first_list.vanished(pods)),
        }
        for uid in changed {
            self.looks.hint(&uid, began);
        }
        if self.questions.is_everything_asked() {
            self.after(EVERYTHING_LIMIT, Done::EverythingLimit);
        }
    }

    fn answer_everything(&mut self) {
        if self.questions.is_everything_asked() {
            self.questions.answer_everything(&Ok(self.cache.present()));
        }
    }
}

/// The name of a pod that was not observed yet is added when the runtime lists it.
fn pod_span(uid: &PodUid, seen: Option<&PodObservation>) -> Span {
    let namespace = seen.map(|seen| seen.namespace.as_str());
    let name = seen.map(|seen| seen.name.as_str());
    tracing::info_span!("pod", namespace, name, %uid)
}

fn timed_out(what: &'static str, elapsed: Elapsed) -> RuntimeError {
    let kind = RuntimeErrorKind::DeadlineExceeded;
    RuntimeError::new(what, "", kind, &elapsed.to_string())
}

async fn look(ports: AgentPorts, uid: PodUid, seen: Option<Arc<PodObservation>>) -> Done {
    // Before the lists: what happens while they are on their way may be missing in them.
    let (began, observed_at) = (ports.clock.moment(), ports.clock.now());
    let look = async {
        let listed = list_pod(ports.runtime_reader.as_ref(), &uid).await?;
        if seen.is_none() {
            let span = Span::current();
            span.record("namespace", &listed.namespace)
                .record("name", &listed.name);
        }
        inspect(&ports, &uid, listed, seen.as_deref(), observed_at).await
    };
    let result = within(ports.clock.as_ref(), LOOK_LIMIT, look).await;
    let result = result.unwrap_or_else(|elapsed| Err(timed_out("look at the pod", elapsed)));
    let took = ports.clock.moment().since(began);
    ports.metrics.observer.looks.observe(took.as_secs_f64());
    if let Err(error) = &result {
        tracing::debug!(%error, "The runtime does not show the pod");
    }
    Done::Look { uid, began, result }
}

async fn relist(ports: AgentPorts) -> Done {
    let (began, began_at) = (ports.clock.moment(), ports.clock.now());
    let list = list_all(ports.runtime_reader.as_ref());
    let result = within(ports.clock.as_ref(), RELIST_LIMIT, list).await;
    let result = result.unwrap_or_else(|elapsed| Err(timed_out("list pods", elapsed)));
    let took = ports.clock.moment().since(began);
    ports.metrics.observer.relists.observe(took.as_secs_f64());
    Done::Relist {
        began,
        began_at,
        result,
    }
}
