//! Pulls under way: how many at a time, and which callers share one.
//!
//! Owns the queue in front of the registry and the pulls in flight. It must not know pods: policies, backoff and events are the
//! caller's.
//!
//! A pull is shared and driven by all callers that wait for it; when the last of them leaves, the call is cancelled.
//! A caller that only needs the image joins a pull at any time. One that asks for the newest (policy `Always`) joins only a pull
//! that still queues, because one that has begun may have asked the registry before the tag moved.
//!
//! ```text
//! queue ─► had to wait, and no caller needs the newest: is it there by now? ─► yes: nothing is pulled
//!                                                        └ no ─► rate ─► pull ─► the place is free once all callers have noted it
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Either, Shared, WeakShared, select};
use rubelet_model::pod::CONFIG_ANNOTATION_PREFIX;
use rubelet_ports::{Clock, ImageReader, ImageWriter, PullProgress, RuntimeError, RuntimeErrorKind};
use rubelet_wire::cri::v1;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::credential::Candidate;
use crate::progress::{Begun, Stage, UnderWay};
use crate::rate::PullRate;

/// How often the runtime is asked what has arrived.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

/// What the runtime is asked to pull.
#[derive(Clone, Debug)]
pub(crate) struct Pull {
    pub(crate) spec: v1::ImageSpec,
    pub(crate) sandbox_config: Option<v1::PodSandboxConfig>,
    /// Tried in turn; with none, the registry is asked without any.
    pub(crate) candidates: Vec<Candidate>,
    /// An answer from the registry that is older than the question is not good enough.
    pub(crate) must_be_fresh: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Pulled {
    pub(crate) image_ref: String,
    /// The runtime's status of the image right after.
    pub(crate) status: Result<Option<v1::Image>, RuntimeError>,
    /// Without the time in the queue.
    pub(crate) duration: Duration,
    /// Which of the candidates opened the registry.
    pub(crate) used: Option<usize>,
    /// Kept until all waiting callers have noted the pull, so that the next one finds it.
    _place: Option<Arc<OwnedSemaphorePermit>>,
}

impl Pulled {
    /// What the image is known by from now on: most runtimes answer a pull with its id, some with a digest.
    pub(crate) fn references(&self) -> BTreeSet<&str> {
        let found = self.status.as_ref().ok().and_then(Option::as_ref);
        let id = found.map(|image| image.id.as_str()).filter(|id| !id.is_empty());
        [self.image_ref.as_str()].into_iter().chain(id).collect()
    }
}

/// How an image came.
#[derive(Clone, Debug)]
pub(crate) enum Arrival {
    Pulled(Pulled),
    /// With another pull, while this one queued.
    Meanwhile(v1::Image),
}

#[derive(Clone, Debug)]
pub(crate) enum PullError {
    /// The node asks registries too often.
    TooManyPulls,
    /// One error for each candidate.
    Runtime(Vec<RuntimeError>),
}

pub(crate) type Outcome = Result<Arrival, PullError>;
pub(crate) type Flight = Shared<BoxFuture<'static, Outcome>>;

/// Pulls that give the same result.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FlightKey {
    image: String,
    runtime_handler: String,
    annotations: Vec<(String, String)>,
    /// Two pods may have the same credentials in different secrets: it is the content that counts, and its order.
    credentials: Vec<String>,
}

impl FlightKey {
    fn of(pull: &Pull) -> Self {
        let spec = &pull.spec;
        // The kubelet's own annotations differ from pod to pod and do not affect a pull.
        let annotations = spec
            .annotations
            .iter()
            .filter(|(key, _)| !key.starts_with(CONFIG_ANNOTATION_PREFIX))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        Self {
            image: spec.image.clone(),
            runtime_handler: spec.runtime_handler.clone(),
            annotations,
            credentials: pull
                .candidates
                .iter()
                .map(|candidate| candidate.hash.clone())
                .collect(),
        }
    }
}

struct Joinable {
    number: u64,
    /// A caller needs the registry's own answer.
    must_be_fresh: bool,
    stage: Stage,
    flight: WeakShared<BoxFuture<'static, Outcome>>,
}

#[derive(Default)]
struct Flights {
    last_number: u64,
    by_key: BTreeMap<FlightKey, Vec<Joinable>>,
}

impl Flights {
    fn join(&mut self, key: &FlightKey, must_be_fresh: bool) -> Option<(Flight, Stage)> {
        let joinable = self.by_key.get_mut(key)?.iter_mut();
        joinable
            .filter(|one| !must_be_fresh || !one.stage.has_begun())
            .find_map(|one| {
                let flight = one.flight.upgrade()?;
                one.must_be_fresh |= must_be_fresh;
                Some((flight, one.stage.clone()))
            })
    }

    /// Ends a flight without a pull, unless a caller needs one. From then on it cannot be joined.
    fn end_early(&mut self, number: u64) -> bool {
        let mut flights = self.by_key.values().flatten();
        let may_end = flights.any(|one| one.number == number && !one.must_be_fresh);
        if may_end {
            self.remove(number);
        }
        may_end
    }

    fn remove(&mut self, number: u64) {
        self.retain(|one| one.number != number);
    }

    fn retain(&mut self, mut keep: impl FnMut(&Joinable) -> bool) {
        self.by_key.retain(|_, flights| {
            flights.retain(&mut keep);
            !flights.is_empty()
        });
    }
}

/// The way to the registries.
struct Line {
    reader: Arc<dyn ImageReader>,
    writer: Arc<dyn ImageWriter>,
    clock: Arc<dyn Clock>,
    /// `None`: any number at a time.
    places: Option<Arc<Semaphore>>,
    /// Held for arithmetic only, never across an await.
    rate: Option<Mutex<PullRate>>,
    /// Held to look up and to note, never across an await.
    under_way: Arc<Mutex<UnderWay>>,
    progress: Option<Arc<dyn PullProgress>>,
    /// The runtime does not report progress.
    is_silent: AtomicBool,
}

impl Line {
    /// A place, and what came of the image while this pull waited for it.
    async fn place(&self, pull: &Pull) -> (Option<OwnedSemaphorePermit>, Option<v1::Image>) {
        let Some(places) = &self.places else {
            return (None, None);
        };
        if let Ok(place) = Arc::clone(places).try_acquire_owned() {
            return (Some(place), None);
        }
        // The queue is first come, first served. It is never closed, so there is always a place in the end.
        let place = Arc::clone(places).acquire_owned().await.ok();
        if pull.must_be_fresh {
            return (place, None);
        }
        let status = self.reader.image_status(pull.spec.clone(), false).await;
        (place, status.ok().and_then(|answer| answer.image))
    }

    async fn pull(
        &self,
        pull: Pull,
        stage: &Stage,
        place: Option<OwnedSemaphorePermit>,
    ) -> Result<Pulled, PullError> {
        let began = self.clock.moment();
        if let Some(rate) = &self.rate
            && !unpoisoned(rate).take(began)
        {
            return Err(PullError::TooManyPulls);
        }
        let _begun = Begun::new(&self.under_way, stage, began);
        let (image_ref, used) = {
            let pulling = pin!(self.try_candidates(&pull));
            let watching = pin!(self.watch(stage));
            match select(pulling, watching).await {
                Either::Left((pulled, _)) => pulled?,
                Either::Right((never, _)) => match never {},
            }
        };
        let status = self.reader.image_status(pull.spec, false).await;
        Ok(Pulled {
            image_ref,
            status: status.map(|answer| answer.image),
            duration: self.clock.moment().since(began),
            used,
            _place: place.map(Arc::new),
        })
    }

    /// Notes what arrives, for as long as it is polled.
    async fn watch(&self, stage: &Stage) -> Infallible {
        let Some(progress) = &self.progress else {
            return std::future::pending().await;
        };
        let begun_at = self.clock.now();
        loop {
            self.clock.sleep(PROGRESS_INTERVAL).await;
            if !stage.is_alone() || self.is_silent.load(Ordering::Relaxed) {
                return std::future::pending().await;
            }
            match progress.ingests().await {
                Ok(ingests) => stage.note(&ingests, begun_at),
                Err(error) => {
                    tracing::debug!(%error, "the runtime does not report the progress of pulls");
                    let is_final = matches!(
                        error.kind(),
                        RuntimeErrorKind::Unimplemented | RuntimeErrorKind::PermissionDenied
                    );
                    self.is_silent.store(is_final, Ordering::Relaxed);
                }
            }
        }
    }

    async fn try_candidates(&self, pull: &Pull) -> Result<(String, Option<usize>), PullError> {
        let Pull {
            spec,
            sandbox_config,
            candidates,
            ..
        } = pull;
        let image = &spec.image;
        if candidates.is_empty() {
            tracing::debug!(image, "pulling image without credentials");
            let pulled = self
                .writer
                .pull_image(spec.clone(), None, sandbox_config.clone())
                .await;
            return pulled
                .map(|image_ref| (image_ref, None))
                .map_err(|error| PullError::Runtime(vec![error]));
        }
        let passwords: Vec<&str> = candidates
            .iter()
            .map(|candidate| candidate.user.password.as_str())
            .collect();
        let mut errors = Vec::new();
        for (number, candidate) in candidates.iter().enumerate() {
            tracing::debug!(
                image,
                number,
                of = candidates.len(),
                "pulling image with credentials"
            );
            let auth = candidate.user.auth_config();
            match self
                .writer
                .pull_image(spec.clone(), Some(auth), sandbox_config.clone())
                .await
            {
                Ok(image_ref) => return Ok((image_ref, Some(number))),
                Err(error) => errors.push(error.without(&passwords)),
            }
        }
        Err(PullError::Runtime(errors))
    }
}

pub(crate) struct Pulls {
    line: Arc<Line>,
    /// Held to look up and to note, never across an await.
    flights: Arc<Mutex<Flights>>,
}

impl Pulls {
    pub(crate) fn new(
        reader: Arc<dyn ImageReader>,
        writer: Arc<dyn ImageWriter>,
        clock: Arc<dyn Clock>,
        places: Option<usize>,
        rate: Option<PullRate>,
        progress: Option<Arc<dyn PullProgress>>,
    ) -> Self {
        Self {
            line: Arc::new(Line {
                reader,
                writer,
                clock,
                places: places.map(|places| Arc::new(Semaphore::new(places))),
                rate: rate.map(Mutex::new),
                under_way: Arc::default(),
                progress,
                is_silent: AtomicBool::new(false),
            }),
            flights: Arc::default(),
        }
    }

    /// A pull, or one under way of the same image with the same credentials. Nothing happens before it is polled.
    pub(crate) fn flight(&self, pull: Pull) -> (Flight, Stage) {
        let key = FlightKey::of(&pull);
        let mut flights = unpoisoned(&self.flights);
        if let Some(joined) = flights.join(&key, pull.must_be_fresh) {
            return joined;
        }
        // Those without a waiting caller.
        flights.retain(|one| one.flight.upgrade().is_some());
        flights.last_number += 1;
        let number = flights.last_number;
        let (stage, must_be_fresh) = (Stage::default(), pull.must_be_fresh);
        let future = {
            let (line, all, stage) = (Arc::clone(&self.line), Arc::clone(&self.flights), stage.clone());
            async move {
                let (place, present) = line.place(&pull).await;
                if let Some(image) = present
                    && unpoisoned(&all).end_early(number)
                {
                    return Ok(Arrival::Meanwhile(image));
                }
                let pulled = line.pull(pull, &stage, place).await;
                unpoisoned(&all).remove(number);
                pulled.map(Arrival::Pulled)
            }
        };
        let flight = future.boxed().shared();
        if let Some(weak) = flight.downgrade() {
            let joinable = Joinable {
                number,
                must_be_fresh,
                stage: stage.clone(),
                flight: weak,
            };
            flights.by_key.entry(key).or_default().push(joinable);
        }
        (flight, stage)
    }
}

/// What these locks guard is whole between any two statements, so a panic elsewhere does not make it wrong.
pub(crate) fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
