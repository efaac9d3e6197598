//! What the runtime has of every pod, kept fresh.
//!
//! Owns the cache of observations and when to look: after our own actions on demand, on the runtime's events as hints, and
//! by a list of everything as safety net. An event carries no state: it only says which pod to look at. A pod whose look
//! hangs or fails keeps its last observation and delays nobody else.

mod handle;
mod inspect;
mod relist;
mod stream;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{FuturesUnordered, StreamExt};
use rubelet_model::Timestamp;
use rubelet_model::observation::{PodObservation, PodUid};
use rubelet_ports::{EventStream, Moment, RuntimeError, RuntimeErrorKind, within};
use tokio::sync::{mpsc, oneshot};

use crate::settings::AgentPorts;
use handle::{Look, Request};
pub(crate) use handle::{ObserverHandle, TableSizes};
use inspect::{Listed, inspect, list_pod};
use stream::STREAM_RETRY;

/// Pods that are looked at at the same time.
const LOOKS_IN_FLIGHT: usize = 16;
/// A look that takes longer waits for something else than its turn at the runtime, and others need not wait for it.
const SLOW_LOOK: Duration = Duration::from_secs(2);
/// Slow looks at the same time, beside the others: more than a node has pods by default.
const SLOW_LOOKS_IN_FLIGHT: usize = 128;
/// What a look at one pod may take. The runtime's own deadlines are longer; here a stuck pod only loses its turn.
const LOOK_LIMIT: Duration = Duration::from_secs(60);
/// The pause before a look that failed is tried again, whoever else may ask for one.
const LOOK_RETRY: Duration = Duration::from_secs(1);
/// Requests that wait to be read.
const REQUEST_BUFFER: usize = 256;

/// What the observer tells of itself.
pub(crate) enum Sighting {
    /// The pod has changed; an empty observation means that the runtime has nothing of it any more.
    Pod(Arc<PodObservation>),
    /// What lives in the runtime when the agent starts, before anybody looked at it: name, namespace and uid. Each of them is
    /// told of as a pod later, also when it is gone by then.
    Living {
        living: Vec<(String, String, PodUid)>,
        /// Everybody whom the runtime has anything of, be it dead.
        listed: BTreeSet<PodUid>,
    },
    /// Everything that the runtime has was told once.
    FirstListDone,
}

struct Entry {
    observation: Arc<PodObservation>,
    /// When the look began that it comes from.
    looked_at: Moment,
}

struct Waiter {
    after: Moment,
    reply: oneshot::Sender<Look>,
}

/// How many more looks may begin.
struct Room {
    usual: usize,
    slow: usize,
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
    /// A look may be slow by now.
    SlowLook,
    /// Whoever asked about everything has waited long enough.
    AllPatienceOver,
}

pub(crate) struct Observer {
    ports: AgentPorts,
    requests: mpsc::Receiver<Request>,
    sightings: mpsc::Sender<Sighting>,
    pods: BTreeMap<PodUid, Entry>,
    waiters: BTreeMap<PodUid, Vec<Waiter>>,
    /// Pods to look at, in order of arrival, with what the last list says of them.
    queue: VecDeque<PodUid>,
    queued: BTreeSet<PodUid>,
    /// Since when.
    looking: BTreeMap<PodUid, Moment>,
    /// Pods whose look takes long, or did the last time.
    slow: BTreeSet<PodUid>,
    is_slow_look_awaited: bool,
    /// How many jobs say so: the end of one and the begin of the next may arrive in any order.
    busy: BTreeMap<PodUid, usize>,
    /// Hints about busy pods, and when the last one came.
    hinted: BTreeMap<PodUid, Moment>,
    running: FuturesUnordered<BoxFuture<'static, Done>>,
    all_waiters: Vec<oneshot::Sender<Result<Vec<Arc<PodObservation>>, RuntimeError>>>,
    relisting: bool,
    /// Something asks for a newer list than the one under way.
    relist_again: bool,
    /// The last list came. One that did not is tried again soon, however healthy the events are.
    is_list_fresh: bool,
    /// The next list must not wait as long as it was planned.
    is_tick_stale: bool,
    /// Before the first list nothing is known to be absent.
    listed_at: Option<Moment>,
    first_list_told: bool,
    /// Pods of the first list that were not looked at yet.
    first_looks: BTreeSet<PodUid>,
    /// Pods that were told of as living and not as pods yet, with name and namespace.
    owed: BTreeMap<PodUid, (String, String)>,
    /// Pods whose look failed and is tried again after a pause.
    retrying: BTreeSet<PodUid>,
    stream: Option<EventStream>,
    stream_opened_at: Moment,
    stream_retry: Duration,
    stream_works: bool,
    /// When the last list of everything began.
    relisted_at: Option<Moment>,
    last_list: LastList,
}

/// When the last list of everything that succeeded began, in nanoseconds of the clock's moments; zero before the first.
pub(crate) type LastList = Arc<AtomicU64>;

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
            pods: BTreeMap::new(),
            waiters: BTreeMap::new(),
            queue: VecDeque::new(),
            queued: BTreeSet::new(),
            looking: BTreeMap::new(),
            slow: BTreeSet::new(),
            is_slow_look_awaited: false,
            busy: BTreeMap::new(),
            hinted: BTreeMap::new(),
            running: FuturesUnordered::new(),
            all_waiters: Vec::new(),
            relisting: false,
            relist_again: false,
            is_list_fresh: false,
            is_tick_stale: false,
            listed_at: None,
            first_list_told: false,
            first_looks: BTreeSet::new(),
            owed: BTreeMap::new(),
            retrying: BTreeSet::new(),
            stream: None,
            stream_opened_at: Moment::default(),
            stream_retry: STREAM_RETRY,
            stream_works: false,
            relisted_at: None,
            last_list,
        };
        (observer, ObserverHandle { requests: sender })
    }

    /// Runs until every handle is gone.
    pub(crate) async fn run(mut self) {
        self.open_stream();
        self.relist();
        let mut tick = self.ports.clock.sleep(self.relist_interval());
        loop {
            let next_event = async {
                match &mut self.stream {
                    Some(stream) => stream.next().await,
                    None => std::future::pending().await,
                }
            };
            // Every arm is cancel-safe: channels and streams keep what was not taken, the timer keeps its time.
            tokio::select! {
                biased;
                Some(done) = self.running.next(), if !self.running.is_empty() => self.finished(done).await,
                request = self.requests.recv() => match request {
                    Some(request) => self.requested(request),
                    None => return,
                },
                event = next_event => self.event(event),
                () = &mut tick => {
                    self.judge_stream();
                    self.relist();
                    tick = self.ports.clock.sleep(self.relist_interval());
                }
            }
            self.start_looks();
            if std::mem::take(&mut self.is_tick_stale) {
                tick = self.ports.clock.sleep(self.relist_interval());
            }
        }
    }

    fn requested(&mut self, request: Request) {
        match request {
            Request::Look { uid, after, reply } => match self.pods.get(&uid) {
                Some(entry) if entry.looked_at >= after => {
                    // Whoever asked may have been cancelled.
                    let _ = reply.send(Ok(Arc::clone(&entry.observation)));
                }
                Some(_) | None => {
                    self.waiters
                        .entry(uid.clone())
                        .or_default()
                        .push(Waiter { after, reply });
                    self.enqueue(uid);
                }
            },
            Request::Busy { uid } => *self.busy.entry(uid).or_default() += 1,
            Request::Idle { uid } => {
                if let Some(jobs) = self.busy.get_mut(&uid).filter(|jobs| **jobs > 1) {
                    *jobs -= 1;
                    return;
                }
                self.busy.remove(&uid);
                let looked_at = self.pods.get(&uid).map(|entry| entry.looked_at);
                let hinted_at = self.hinted.remove(&uid);
                if hinted_at.is_some_and(|hint| looked_at.is_none_or(|look| look <= hint)) {
                    self.enqueue(uid);
                } else if self
                    .pods
                    .get(&uid)
                    .is_some_and(|entry| entry.observation.is_empty())
                {
                    self.forget(&uid);
                }
            }
            Request::Tables { reply } => {
                let _ = reply.send(self.table_sizes());
            }
            Request::All { reply } => {
                self.all_waiters.push(reply);
                self.relist_anew();
            }
        }
    }

    fn table_sizes(&self) -> TableSizes {
        vec![
            ("observer.pods", self.pods.len()),
            ("observer.waiters", self.waiters.len()),
            ("observer.queue", self.queue.len()),
            ("observer.looking", self.looking.len()),
            ("observer.slow", self.slow.len()),
            ("observer.busy", self.busy.len()),
            ("observer.hinted", self.hinted.len()),
            ("observer.first_looks", self.first_looks.len()),
            ("observer.owed", self.owed.len()),
            ("observer.retrying", self.retrying.len()),
            ("observer.all_waiters", self.all_waiters.len()),
        ]
    }

    fn enqueue(&mut self, uid: PodUid) {
        if self.queued.insert(uid.clone()) {
            self.queue.push_back(uid);
        }
    }

    /// Starts as many looks as may run at the same time; at most one per pod.
    fn start_looks(&mut self) {
        if self.queue.is_empty() {
            return;
        }
        let now = self.ports.clock.moment();
        let mut room = self.room_for_looks(now);
        for uid in std::mem::take(&mut self.queue) {
            let is_slow = self.slow.contains(&uid);
            let room = if is_slow { &mut room.slow } else { &mut room.usual };
            if *room == 0 || self.looking.contains_key(&uid) {
                self.queue.push_back(uid);
                continue;
            }
            *room -= 1;
            self.queued.remove(&uid);
            self.looking.insert(uid.clone(), now);
            self.running.push(self.look(uid));
        }
        if room.usual == 0 && !self.queue.is_empty() {
            self.await_slow_look(now);
        }
    }

    /// How many more looks may run. One that has become slow gives up its place among the others.
    fn room_for_looks(&mut self, now: Moment) -> Room {
        let (slow, mut usual): (Vec<_>, Vec<_>) =
            self.looking.iter().partition(|(uid, _)| self.slow.contains(uid));
        let mut slow_room = SLOW_LOOKS_IN_FLIGHT.saturating_sub(slow.len());
        usual.retain(|(uid, began)| {
            let becomes_slow = slow_room > 0 && now.since(**began) >= SLOW_LOOK;
            if becomes_slow {
                slow_room -= 1;
                self.slow.insert((*uid).clone());
            }
            !becomes_slow
        });
        Room {
            usual: LOOKS_IN_FLIGHT.saturating_sub(usual.len()),
            slow: slow_room,
        }
    }

    /// Comes back when the oldest of the usual looks has become slow.
    fn await_slow_look(&mut self, now: Moment) {
        let usual = self.looking.iter().filter(|(uid, _)| !self.slow.contains(*uid));
        let Some(oldest) = usual.map(|(_, began)| *began).min() else {
            return;
        };
        let left = SLOW_LOOK.saturating_sub(now.since(oldest));
        // What is slow already finds no room; it ends by its limit.
        if left.is_zero() || std::mem::replace(&mut self.is_slow_look_awaited, true) {
            return;
        }
        let clock = Arc::clone(&self.ports.clock);
        let wait = async move { clock.sleep(left).await };
        self.running.push(wait.map(|()| Done::SlowLook).boxed());
    }

    fn look(&self, uid: PodUid) -> BoxFuture<'static, Done> {
        let ports = self.ports.clone();
        let seen = self.pods.get(&uid).map(|entry| Arc::clone(&entry.observation));
        async move {
            // Before the lists: what happens while they are on their way may be missing in them.
            let (began, observed_at) = (ports.clock.moment(), ports.clock.now());
            let look = async {
                let listed = list_pod(&ports, &uid).await?;
                inspect(&ports, &uid, listed, seen.as_deref(), observed_at).await
            };
            let result = match within(ports.clock.as_ref(), LOOK_LIMIT, look).await {
                Ok(result) => result,
                Err(elapsed) => Err(RuntimeError::new(
                    "look at the pod",
                    "",
                    RuntimeErrorKind::DeadlineExceeded,
                    &elapsed.to_string(),
                )),
            };
            let took = ports.clock.moment().since(began);
            ports.metrics.observer.looks.observe(took.as_secs_f64());
            Done::Look { uid, began, result }
        }
        .boxed()
    }

    async fn finished(&mut self, done: Done) {
        match done {
            Done::Look { uid, began, result } => {
                self.looking.remove(&uid);
                if self.ports.clock.moment().since(began) < SLOW_LOOK {
                    self.slow.remove(&uid);
                }
                self.looked(uid, began, result).await;
            }
            Done::Relist {
                began,
                began_at,
                result,
            } => {
                self.relisting = false;
                if result.is_ok() {
                    self.note_list(began, began_at);
                }
                self.relisted(began, result).await;
                if std::mem::take(&mut self.relist_again) {
                    self.relist();
                }
            }
            Done::StreamRetry => self.open_stream(),
            Done::LookRetry { uid } => {
                self.retrying.remove(&uid);
                let now = self.ports.clock.moment();
                self.look_or_remember(uid, now);
            }
            Done::SlowLook => self.is_slow_look_awaited = false,
            Done::AllPatienceOver => self.answer_all_now(),
        }
        self.tell_first_list().await;
        self.answer_all();
    }

    async fn looked(&mut self, uid: PodUid, began: Moment, result: Result<PodObservation, RuntimeError>) {
        self.first_looks.remove(&uid);
        let answer = match result {
            Ok(observation) => {
                let observation = self.remember(&uid, began, observation).await;
                Ok(observation)
            }
            Err(error) => {
                tracing::debug!(pod = %uid, %error, "The runtime does not show the pod");
                self.retry_look(&uid);
                Err(error)
            }
        };
        let waiters = self.waiters.remove(&uid).unwrap_or_default();
        let (served, early): (Vec<_>, Vec<_>) = waiters
            .into_iter()
            .partition(|waiter| answer.is_err() || began >= waiter.after);
        for waiter in served {
            let _ = waiter.reply.send(answer.clone());
        }
        if !early.is_empty() {
            self.waiters.insert(uid.clone(), early);
            self.enqueue(uid);
        }
    }

    /// The runtime has nothing of the pod, and no job works on it.
    fn forget(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
        self.slow.remove(uid);
    }

    /// What was hinted at is not known yet, and the next list may be far away.
    fn retry_look(&mut self, uid: &PodUid) {
        if self.retrying.insert(uid.clone()) {
            let (clock, uid) = (Arc::clone(&self.ports.clock), uid.clone());
            let pause = async move { clock.sleep(LOOK_RETRY).await };
            self.running.push(pause.map(|()| Done::LookRetry { uid }).boxed());
        }
    }

    /// Keeps the observation and tells of it when it says something new.
    async fn remember(
        &mut self,
        uid: &PodUid,
        began: Moment,
        mut observation: PodObservation,
    ) -> Arc<PodObservation> {
        let owed = self.owed.remove(uid);
        if let Some((name, namespace)) = owed.clone().filter(|_| observation.name.is_empty()) {
            (observation.name, observation.namespace) = (name, namespace);
        }
        let known = self.pods.get(uid);
        let is_news = known.is_none_or(|known| !same_facts(&known.observation, &observation));
        let was_known = known.is_some();
        let observation = Arc::new(observation);
        if observation.is_empty() && !self.busy.contains_key(uid) {
            self.forget(uid);
        } else {
            let entry = Entry {
                observation: Arc::clone(&observation),
                looked_at: began,
            };
            self.pods.insert(uid.clone(), entry);
        }
        if owed.is_some() || is_news && (was_known || !observation.is_empty()) {
            // The receiver is gone only when the agent ends.
            let _ = self.sightings.send(Sighting::Pod(Arc::clone(&observation))).await;
        }
        observation
    }

    /// A job looks at its pod itself, so that a hint about it waits for the job's end.
    fn look_or_remember(&mut self, uid: PodUid, hinted_at: Moment) {
        if self.busy.contains_key(&uid) {
            self.hinted.insert(uid, hinted_at);
        } else {
            self.enqueue(uid);
        }
    }
}

/// Whether two observations say the same; when they were made does not count.
pub(crate) fn same_facts(left: &PodObservation, right: &PodObservation) -> bool {
    left.sandboxes == right.sandboxes && left.containers == right.containers && left.ips == right.ips
}
