//! ConfigMaps and Secrets, each read by its name.
//!
//! Owns the strategies: to follow an object for as long as a pod refers to it, to keep what was read for a while, or to read it each
//! time. Objects that no pod of this node refers to are refused, because the API server would refuse them too.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use rubelet_model::observation::PodUid;
use rubelet_ports::api::{ApiError, ApiErrorKind, Change, LONGEST_CALL, ObjectReader};
use rubelet_ports::{Clock, ObjectFailure, Spawner, within};

use crate::changed_pods::ChangedPods;
use crate::kinds::Kind;
use crate::references::Purpose;
use crate::table::{Access, Begun, Consequence, Key, Seen, Table};
use crate::ttl::ObjectTtl;

/// How long a caller waits for the first list before it reads the object directly.
const FIRST_LIST_LIMIT: Duration = Duration::from_secs(1);

/// `configMapAndSecretChangeDetectionStrategy`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChangeDetection {
    /// Objects are followed; a change is known at once.
    #[default]
    Watch,
    /// What was read is kept for a while, which the Node's annotation sets.
    Cache,
    /// Objects are read each time.
    Get,
}

impl ChangeDetection {
    /// By the name in the configuration.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        match name {
            "Watch" => Some(Self::Watch),
            "Cache" => Some(Self::Cache),
            "Get" => Some(Self::Get),
            _ => None,
        }
    }
}

/// What objects of any kind are read with.
#[derive(Clone)]
pub(crate) struct Means {
    pub(crate) detection: ChangeDetection,
    pub(crate) reader: Arc<dyn ObjectReader>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) spawner: Arc<dyn Spawner>,
    pub(crate) changed: Arc<ChangedPods>,
    pub(crate) ttl: Arc<ObjectTtl>,
}

/// The objects of one kind.
pub(crate) struct Named<T: Kind> {
    means: Means,
    /// Held to look up and to note, never across an await.
    table: Mutex<Table<T>>,
}

impl<T: Kind> Named<T> {
    pub(crate) fn new(means: Means) -> Arc<Self> {
        Arc::new(Self {
            means,
            table: Mutex::default(),
        })
    }

    fn table(&self) -> MutexGuard<'_, Table<T>> {
        // A panic can only be one of our own, in a step that changes one entry; the others are whole.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pod refers to the object from now on; it is read ahead when it is sure to be needed.
    pub(crate) fn refer(self: &Arc<Self>, key: &Key, uid: &PodUid, purpose: Purpose) {
        let now = self.means.clock.moment();
        self.table().refer(key, uid, purpose, now);
        if self.means.detection == ChangeDetection::Watch && purpose != Purpose::Pull {
            self.follow(key);
        }
    }

    pub(crate) fn release(&self, key: &Key, uid: &PodUid) {
        self.table().release(key, uid);
    }

    pub(crate) fn stop_idle(&self, limit: Duration) {
        let stopped = self.table().stop_idle(self.means.clock.moment(), limit);
        if stopped > 0 {
            tracing::debug!(
                kind = T::WORD,
                stopped,
                "No longer following objects that were not read for long"
            );
        }
    }

    pub(crate) async fn get(self: &Arc<Self>, key: &Key) -> Result<Arc<T>, ObjectFailure> {
        match self.means.detection {
            ChangeDetection::Watch => self.get_followed(key).await,
            ChangeDetection::Cache => self.get_kept(key).await,
            ChangeDetection::Get => {
                let fetched = self.fetch(key).await;
                fetched.map_err(|error| failure::<T>(key, &error))
            }
        }
    }

    async fn get_followed(self: &Arc<Self>, key: &Key) -> Result<Arc<T>, ObjectFailure> {
        let Access { mut seen, .. } = self.access(key)?;
        self.follow(key);
        let decided = async {
            let decided = seen.wait_for(Seen::is_decided).await;
            decided.map(|seen| seen.clone())
        };
        let known = match within(self.means.clock.as_ref(), FIRST_LIST_LIMIT, decided).await {
            Ok(Ok(known)) => known,
            // The last pod that refers to it has gone meanwhile.
            Ok(Err(_)) => return Err(not_registered(key)),
            Err(_) => seen.borrow().clone(),
        };
        match known {
            Seen::There(object) => Ok(object),
            Seen::Absent => Err(not_found::<T>(key)),
            Seen::Unsure { last, .. } => self.get_instead(key, last).await,
        }
    }

    /// Asks directly, because following the object has not begun yet or does not work. Concurrent callers share one request. In an
    /// outage the last known state is the answer.
    async fn get_instead(&self, key: &Key, last: Option<Arc<T>>) -> Result<Arc<T>, ObjectFailure> {
        let Access { turn, answer, .. } = self.access(key)?;
        let before = answer.0;
        let Ok(_turn) = within(self.means.clock.as_ref(), LONGEST_CALL, turn.lock()).await else {
            return Err(too_late::<T>(key));
        };
        let fetched = match self.access(key)?.answer {
            (number, Some(answer)) if number != before => answer,
            (_, Some(_) | None) => {
                let fetched = self.fetch(key).await;
                self.table().note_fetched(key, &fetched);
                fetched
            }
        };
        fetched.or_else(|error| {
            let last = last.filter(|_| error.is_passing());
            last.ok_or_else(|| failure::<T>(key, &error))
        })
    }

    async fn get_kept(&self, key: &Key) -> Result<Arc<T>, ObjectFailure> {
        let turn = self.access(key)?.turn;
        // The holder of the turn gives it back within the deadline of its own call; several may wait before us.
        let Ok(_turn) = within(self.means.clock.as_ref(), LONGEST_CALL, turn.lock()).await else {
            return Err(too_late::<T>(key));
        };
        let access = self.access(key)?;
        let known = access.seen.borrow().clone();
        let now = self.means.clock.moment();
        let is_fresh = access
            .fetched
            .is_some_and(|fetched| now.since(fetched) < self.means.ttl.get());
        let known = match known {
            Seen::There(object) if is_fresh => return Ok(object),
            Seen::There(object) => Some(object),
            Seen::Absent | Seen::Unsure { .. } => None,
        };
        match self.fetch(key).await {
            Ok(object) => Ok(self.table().keep(key, object, self.means.clock.moment())),
            Err(error) if error.kind == ApiErrorKind::NotFound => {
                self.table().keep_absence(key);
                Err(not_found::<T>(key))
            }
            Err(error) => known.ok_or_else(|| failure::<T>(key, &error)),
        }
    }

    fn access(&self, key: &Key) -> Result<Access<T>, ObjectFailure> {
        let now = self.means.clock.moment();
        let access = self.table().access(key, now);
        access.ok_or_else(|| not_registered(key))
    }

    async fn fetch(&self, key: &Key) -> Result<Arc<T>, ApiError> {
        let question = T::fetch(self.means.reader.as_ref(), &key.namespace, &key.name);
        match within(self.means.clock.as_ref(), LONGEST_CALL, question).await {
            Ok(answer) => answer.map(Arc::new),
            Err(elapsed) => {
                let operation = format!("get {} {}/{}", T::WORD, key.namespace, key.name);
                Err(ApiError::new(
                    operation,
                    ApiErrorKind::DeadlineExceeded,
                    elapsed.to_string(),
                ))
            }
        }
    }

    fn follow(self: &Arc<Self>, key: &Key) {
        let begun = self.table().begin_follow(key);
        let Some(begun) = begun else { return };
        let name = format!("follow {} {}/{}", T::WORD, key.namespace, key.name);
        let run = Arc::clone(self).live(key.clone(), begun);
        self.means.spawner.spawn(&name, Box::pin(run));
    }

    /// The task that follows one object.
    async fn live(self: Arc<Self>, key: Key, begun: Begun) {
        let Begun { number, mut stop } = begun;
        let mut changes = T::follow(self.means.reader.as_ref(), &key.namespace, &key.name);
        let mut is_broken = false;
        loop {
            // Dropping a change that was not taken yet is what ending means.
            let change = tokio::select! {
                biased;
                _ = &mut stop => return,
                change = changes.next() => change,
            };
            let Some(change) = change else { return };
            note_health::<T>(&key, &change, &mut is_broken);
            let Consequence { affected, is_over } = self.table().apply(&key, number, change);
            self.means.changed.add(affected);
            if is_over {
                return;
            }
        }
    }
}

/// A failure is logged when it begins and when it ends.
fn note_health<T: Kind>(key: &Key, change: &Change<T>, is_broken: &mut bool) {
    let Key { namespace, name } = key;
    match change {
        Change::Broken(error) if !*is_broken => {
            tracing::warn!(kind = T::WORD, namespace, name, %error, "An object cannot be followed");
            *is_broken = true;
        }
        Change::All(_) | Change::Resumed if *is_broken => {
            tracing::info!(kind = T::WORD, namespace, name, "An object is followed again");
            *is_broken = false;
        }
        Change::Broken(_) | Change::Resumed | Change::All(_) | Change::Applied(_) | Change::Deleted(_) => {}
    }
}

fn not_registered(key: &Key) -> ObjectFailure {
    ObjectFailure::Unavailable(format!(
        "object {:?}/{:?} not registered",
        key.namespace, key.name
    ))
}

fn too_late<T: Kind>(key: &Key) -> ObjectFailure {
    ObjectFailure::Unavailable(format!(
        "{} {:?}: the API server did not answer in time",
        T::WORD,
        key.name
    ))
}

fn not_found<T: Kind>(key: &Key) -> ObjectFailure {
    ObjectFailure::NotFound(format!("{} {:?} not found", T::WORD, key.name))
}

fn failure<T: Kind>(key: &Key, error: &ApiError) -> ObjectFailure {
    match error.kind {
        ApiErrorKind::NotFound => not_found::<T>(key),
        _ => ObjectFailure::Unavailable(error.to_string()),
    }
}
