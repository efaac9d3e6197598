//! A whole set of objects, followed from the first query on.
//!
//! Owns what is in the set. The owner decides which parts of an object are kept and which pods a change concerns.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::Metadata;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rubelet_ports::api::{ApiError, Change, Changes};
use rubelet_ports::{Clock, Spawner, within};
use tokio::sync::watch;

use crate::kinds::is_same;
use crate::table::Key;

/// What is in a set, by namespace and name.
pub(crate) type Members<T> = BTreeMap<Key, Arc<T>>;

/// What the owner of a set decides.
pub(crate) trait Owner: Send + Sync + 'static {
    type Object: Metadata<Ty = ObjectMeta> + PartialEq + Send + Sync + 'static;
    /// As logs call the set.
    const WORD: &'static str;

    fn follow(&self) -> Changes<Self::Object>;

    /// What is worth keeping of an object, if anything.
    fn keep(&self, object: Arc<Self::Object>) -> Option<Arc<Self::Object>> {
        Some(object)
    }

    /// These were added, changed or removed; a removed one is given as it was last.
    fn on_change(&self, objects: &[Arc<Self::Object>]);

    /// The set is known for the first time.
    fn on_first_list(&self) {}
}

#[derive(Clone)]
enum Progress {
    Idle,
    /// It was not listed yet; the last try failed like that.
    Begun(Option<ApiError>),
    Listed,
}

pub(crate) struct WholeSet<O: Owner> {
    pub(crate) owner: O,
    clock: Arc<dyn Clock>,
    spawner: Arc<dyn Spawner>,
    /// Held to look up and to note, never across an await.
    members: Mutex<Members<O::Object>>,
    progress: watch::Sender<Progress>,
}

/// Nothing is known of a set yet.
pub(crate) struct NotListed(pub(crate) Option<ApiError>);

/// The task should never end. When it does, or panics, the next query starts another one.
struct Ending<'a>(&'a watch::Sender<Progress>);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.send_replace(Progress::Idle);
    }
}

impl<O: Owner> WholeSet<O> {
    pub(crate) fn new(owner: O, clock: Arc<dyn Clock>, spawner: Arc<dyn Spawner>) -> Arc<Self> {
        Arc::new(Self {
            owner,
            clock,
            spawner,
            members: Mutex::default(),
            progress: watch::Sender::new(Progress::Idle),
        })
    }

    fn members(&self) -> MutexGuard<'_, Members<O::Object>> {
        // Every change puts or removes whole members.
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows the set from now on.
    pub(crate) fn begin(self: &Arc<Self>) {
        let has_begun = self.progress.send_if_modified(|progress| match progress {
            Progress::Idle => {
                *progress = Progress::Begun(None);
                true
            }
            Progress::Begun(_) | Progress::Listed => false,
        });
        if has_begun {
            let run = Arc::clone(self).live();
            self.spawner.spawn(&format!("follow {}", O::WORD), Box::pin(run));
        }
    }

    /// Waits until the set was listed once, for at most `limit`, and not at all when listing it fails. It may be old by now.
    pub(crate) async fn listed(self: &Arc<Self>, limit: Duration) -> Result<(), NotListed> {
        self.begin();
        let mut progress = self.progress.subscribe();
        let decided = async {
            let is_decided =
                |progress: &Progress| matches!(progress, Progress::Listed | Progress::Begun(Some(_)));
            let decided = progress.wait_for(is_decided).await;
            decided.map(|progress| progress.clone())
        };
        match within(self.clock.as_ref(), limit, decided).await {
            Ok(Ok(Progress::Listed)) => Ok(()),
            Ok(Ok(Progress::Begun(error))) => Err(NotListed(error)),
            Ok(Ok(Progress::Idle) | Err(_)) | Err(_) => Err(NotListed(None)),
        }
    }

    pub(crate) fn with<R>(&self, look: impl FnOnce(&Members<O::Object>) -> R) -> R {
        look(&self.members())
    }

    async fn live(self: Arc<Self>) {
        let _ending = Ending(&self.progress);
        let mut changes = self.owner.follow();
        let mut is_broken = false;
        while let Some(change) = changes.next().await {
            let is_first = matches!(change, Change::All(_)) && !self.is_listed();
            match &change {
                Change::Broken(error) if !is_broken => {
                    tracing::warn!(set = O::WORD, %error, "Objects cannot be followed");
                    is_broken = true;
                }
                Change::All(_) | Change::Resumed if is_broken => {
                    tracing::info!(set = O::WORD, "Objects are followed again");
                    is_broken = false;
                }
                Change::Broken(_)
                | Change::Resumed
                | Change::All(_)
                | Change::Applied(_)
                | Change::Deleted(_) => {}
            }
            let changed = self.apply(change);
            if is_first {
                self.progress.send_replace(Progress::Listed);
                self.owner.on_first_list();
            }
            if !changed.is_empty() {
                self.owner.on_change(&changed);
            }
        }
    }

    fn is_listed(&self) -> bool {
        matches!(*self.progress.borrow(), Progress::Listed)
    }

    fn apply(&self, change: Change<O::Object>) -> Vec<Arc<O::Object>> {
        match change {
            Change::All(objects) => self.replace(objects),
            Change::Applied(object) => {
                let key = key_of(object.as_ref());
                let mut members = self.members();
                match self.owner.keep(object) {
                    Some(kept) => {
                        let old = members.insert(key, Arc::clone(&kept));
                        let is_old = old.is_some_and(|old| is_same(old.as_ref(), kept.as_ref()));
                        if is_old { Vec::new() } else { vec![kept] }
                    }
                    None => members.remove(&key).into_iter().collect(),
                }
            }
            Change::Deleted(object) => {
                let removed = self.members().remove(&key_of(object.as_ref()));
                removed.into_iter().collect()
            }
            Change::Resumed => Vec::new(),
            Change::Broken(error) => {
                self.progress.send_if_modified(|progress| match progress {
                    Progress::Begun(old) => {
                        *old = Some(error);
                        true
                    }
                    Progress::Idle | Progress::Listed => false,
                });
                Vec::new()
            }
        }
    }

    fn replace(&self, objects: Vec<Arc<O::Object>>) -> Vec<Arc<O::Object>> {
        let kept = objects.into_iter().filter_map(|object| {
            let key = key_of(object.as_ref());
            Some((key, self.owner.keep(object)?))
        });
        let new: Members<O::Object> = kept.collect();
        let mut members = self.members();
        let old = std::mem::replace(&mut *members, new);
        let is_known = |key: &Key, object: &Arc<O::Object>| {
            old.get(key)
                .is_some_and(|old| is_same(old.as_ref(), object.as_ref()))
        };
        let added = members.iter().filter(|(key, object)| !is_known(key, object));
        let removed = old.iter().filter(|(key, _)| !members.contains_key(*key));
        added
            .chain(removed)
            .map(|(_, object)| Arc::clone(object))
            .collect()
    }
}

fn key_of<T: Metadata<Ty = ObjectMeta>>(object: &T) -> Key {
    let metadata = object.metadata();
    Key::new(
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default(),
    )
}
