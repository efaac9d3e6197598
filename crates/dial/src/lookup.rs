//! Looking up host names.
//!
//! Owns the limits on look-ups, each of which blocks a thread in the system's resolver without a deadline: one limit for the node, and
//! a lower one for each pod. A pod with slow names delays only itself. Callers that need a name while it is being looked up share that
//! look-up. It must not decide how long a caller waits.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use rubelet_model::observation::PodUid;
use rubelet_ports::{LogThrottle, Moment};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// A resolver that hangs keeps this many threads, and no more.
const MAX_LOOKUPS: usize = 32;
const MAX_LOOKUPS_PER_POD: usize = 2;

/// Finds the addresses of a name, or fails; it has no deadline.
pub type Resolver = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

/// The addresses, or why there are none.
type Found = Result<Vec<IpAddr>, String>;

pub(crate) struct Lookups {
    resolver: Arc<Resolver>,
    places: Arc<Semaphore>,
    // Each held for a few look-ups in the map, never across an await.
    places_of_pods: Mutex<BTreeMap<PodUid, Weak<Semaphore>>>,
    under_way: Arc<UnderWay>,
    started: Instant,
    throttle: Mutex<LogThrottle>,
}

/// Look-ups that have a place, by name.
type UnderWay = Mutex<BTreeMap<String, Shared<BoxFuture<'static, Found>>>>;

/// Whether a caller waits for a free place; after a timeout it shows that the look-up was not even begun.
#[derive(Default)]
pub(crate) struct PlaceWait(AtomicBool);

impl PlaceWait {
    pub(crate) fn is_waiting(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Lookups {
    pub(crate) fn new(resolver: Arc<Resolver>) -> Self {
        Self {
            resolver,
            places: Arc::new(Semaphore::new(MAX_LOOKUPS)),
            places_of_pods: Mutex::default(),
            under_way: Arc::default(),
            started: Instant::now(),
            throttle: Mutex::default(),
        }
    }

    /// The addresses of a name that a call of this pod needs.
    pub(crate) async fn find(&self, pod: &PodUid, name: &str, wait: &PlaceWait) -> Found {
        let known = locked(&self.under_way).get(name).cloned();
        if let Some(lookup) = known {
            return lookup.await;
        }
        wait.0.store(true, Ordering::Relaxed);
        let places = self.places(pod).await?;
        wait.0.store(false, Ordering::Relaxed);
        let lookup = {
            let mut under_way = locked(&self.under_way);
            match under_way.get(name) {
                // Begun while this caller waited; its own place is free again.
                Some(lookup) => lookup.clone(),
                None => {
                    let lookup = self.begin(name, places);
                    under_way.insert(name.to_owned(), lookup.clone());
                    lookup
                }
            }
        };
        lookup.await
    }

    /// The pod's own place first: what waits for that must hold no place of the node.
    async fn places(&self, pod: &PodUid) -> Result<[OwnedSemaphorePermit; 2], String> {
        // The semaphores are never closed.
        let closed = |error: tokio::sync::AcquireError| error.to_string();
        let own = self.places_of(pod).acquire_owned().await.map_err(closed)?;
        let shared = Arc::clone(&self.places).acquire_owned().await.map_err(closed)?;
        Ok([own, shared])
    }

    fn places_of(&self, pod: &PodUid) -> Arc<Semaphore> {
        let mut places = locked(&self.places_of_pods);
        if let Some(own) = places.get(pod).and_then(Weak::upgrade) {
            return own;
        }
        places.retain(|_, own| own.strong_count() > 0);
        let own = Arc::new(Semaphore::new(MAX_LOOKUPS_PER_POD));
        places.insert(pod.clone(), Arc::downgrade(&own));
        own
    }

    /// Goes on after its callers have timed out: the resolver cannot be interrupted, and they will ask again.
    fn begin(&self, name: &str, places: [OwnedSemaphorePermit; 2]) -> Shared<BoxFuture<'static, Found>> {
        let resolver = Arc::clone(&self.resolver);
        let ended = Ended {
            under_way: Arc::clone(&self.under_way),
            name: name.to_owned(),
            _places: places,
        };
        let lookup = tokio::task::spawn_blocking(move || resolver(&ended.name));
        let found = async {
            match lookup.await {
                Ok(Ok(found)) => Ok(found),
                Ok(Err(_)) => Err("no such host".to_owned()),
                Err(error) => Err(error.to_string()),
            }
        };
        found.boxed().shared()
    }

    /// The error of a caller that got no place in time.
    pub(crate) fn no_place(&self, pod: &PodUid, name: &str) -> String {
        let mut throttle = self.throttle.lock().unwrap_or_else(PoisonError::into_inner);
        if throttle.is_due("", Moment::from_start(self.started.elapsed())) {
            tracing::warn!(
                %pod,
                host = name,
                "Look-ups of host names take too long; probes of other host names have no result meanwhile"
            );
        }
        format!("lookup {name}: not begun in time, because look-ups of other host names take too long")
    }
}

/// Makes room when a look-up is over, also when it panicked.
struct Ended {
    under_way: Arc<UnderWay>,
    name: String,
    _places: [OwnedSemaphorePermit; 2],
}

impl Drop for Ended {
    fn drop(&mut self) {
        locked(&self.under_way).remove(&self.name);
    }
}

// A panic while the lock is held would leave nothing half-changed here.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As the machine's own programs find them.
pub(crate) fn system(name: &str) -> io::Result<Vec<IpAddr>> {
    Ok((name, 0).to_socket_addrs()?.map(|address| address.ip()).collect())
}
