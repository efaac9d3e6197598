//! Pulls under way: how many at a time, who shares one.
//!
//! Owns the queue in front of the registry and the pulls in flight. It must not know pods: policies, backoff and events are the
//! caller's.
//!
//! A pull belongs to everybody who waits for it and is driven by them; when the last of them leaves, the call is cancelled.
//! Whoever only needs the image joins a pull at any time. Whoever asks for the newest one (policy `Always`) joins only a pull
//! that still queues, because one that has begun may have asked the registry before the tag moved.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use rubelet_ports::{Clock, ImageReader, ImageWriter, RuntimeError};
use rubelet_wire::cri::v1;
use tokio::sync::Semaphore;

use crate::rate::PullRate;

/// Marks that the node itself puts on static pods. They differ from pod to pod and mean nothing to a pull.
const NODE_ANNOTATION_PREFIX: &str = "kubernetes.io/config.";

/// What the runtime is asked to pull.
#[derive(Clone, Debug)]
pub(crate) struct Pull {
    pub(crate) spec: v1::ImageSpec,
    pub(crate) sandbox_config: Option<v1::PodSandboxConfig>,
    /// An answer from the registry that is older than the question is not good enough.
    pub(crate) must_be_fresh: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Pulled {
    pub(crate) image_ref: String,
    /// What the runtime says about the image right after.
    pub(crate) status: Result<Option<v1::Image>, RuntimeError>,
    /// Without the time in the queue.
    pub(crate) duration: Duration,
}

#[derive(Clone, Debug)]
pub(crate) enum PullError {
    /// The node asks registries too often.
    TooManyPulls,
    Runtime(RuntimeError),
}

type Outcome = Result<Pulled, PullError>;
type Flight = Shared<BoxFuture<'static, Outcome>>;

/// Pulls that give the same result.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FlightKey {
    image: String,
    runtime_handler: String,
    annotations: Vec<(String, String)>,
}

impl FlightKey {
    fn of(spec: &v1::ImageSpec) -> Self {
        let annotations = spec
            .annotations
            .iter()
            .filter(|(key, _)| !key.starts_with(NODE_ANNOTATION_PREFIX))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        Self {
            image: spec.image.clone(),
            runtime_handler: spec.runtime_handler.clone(),
            annotations,
        }
    }
}

struct Joinable {
    number: u64,
    started: Arc<AtomicBool>,
    flight: WeakShared<BoxFuture<'static, Outcome>>,
}

#[derive(Default)]
struct Flights {
    last_number: u64,
    by_key: BTreeMap<FlightKey, Vec<Joinable>>,
}

impl Flights {
    fn join(&self, key: &FlightKey, must_be_fresh: bool) -> Option<Flight> {
        let joinable = self.by_key.get(key)?.iter();
        joinable
            .filter(|one| !must_be_fresh || !one.started.load(Ordering::Relaxed))
            .find_map(|one| one.flight.upgrade())
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
    places: Option<Semaphore>,
    /// Held for arithmetic only, never across an await.
    rate: Option<Mutex<PullRate>>,
}

impl Line {
    async fn pull(&self, pull: Pull, started: &AtomicBool) -> Outcome {
        // The queue is first come, first served. It is never closed, so there is always a place in the end.
        let _place = match &self.places {
            Some(places) => places.acquire().await.ok(),
            None => None,
        };
        started.store(true, Ordering::Relaxed);
        let began = self.clock.moment();
        if let Some(rate) = &self.rate
            && !unpoisoned(rate).take(began)
        {
            return Err(PullError::TooManyPulls);
        }
        tracing::debug!(image = pull.spec.image, "pulling image without credentials");
        let image_ref = self
            .writer
            .pull_image(pull.spec.clone(), None, pull.sandbox_config)
            .await
            .map_err(PullError::Runtime)?;
        let status = self.reader.image_status(pull.spec, false).await;
        Ok(Pulled {
            image_ref,
            status: status.map(|answer| answer.image),
            duration: self.clock.moment().since(began),
        })
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
    ) -> Self {
        Self {
            line: Arc::new(Line {
                reader,
                writer,
                clock,
                places: places.map(Semaphore::new),
                rate: rate.map(Mutex::new),
            }),
            flights: Arc::default(),
        }
    }

    /// Pulls, or waits for somebody else's pull of the same image.
    pub(crate) async fn pull(&self, pull: Pull) -> Outcome {
        let flight = self.flight(pull);
        flight.await
    }

    fn flight(&self, pull: Pull) -> Flight {
        let key = FlightKey::of(&pull.spec);
        let mut flights = unpoisoned(&self.flights);
        if let Some(flight) = flights.join(&key, pull.must_be_fresh) {
            return flight;
        }
        // Those that everybody left.
        flights.retain(|one| one.flight.upgrade().is_some());
        flights.last_number += 1;
        let number = flights.last_number;
        let started = Arc::new(AtomicBool::new(false));
        let future = {
            let (line, all, started) = (
                Arc::clone(&self.line),
                Arc::clone(&self.flights),
                Arc::clone(&started),
            );
            async move {
                let outcome = line.pull(pull, &started).await;
                unpoisoned(&all).remove(number);
                outcome
            }
        };
        let flight = future.boxed().shared();
        if let Some(weak) = flight.downgrade() {
            let joinable = Joinable {
                number,
                started,
                flight: weak,
            };
            flights.by_key.entry(key).or_default().push(joinable);
        }
        flight
    }
}

/// What these locks guard is whole between any two statements, so a panic elsewhere does not make it wrong.
pub(crate) fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
