//! The ConfigMaps or Secrets that pods of this node refer to, with the pods that refer to each.
//!
//! Owns reference counts and the last state of each object. It makes no call: each change returns what follows from it.
//!
//! ```text
//! from           event                                                       to
//! (no entry)     a pod refers to the object                                  Unsure; its watch begins with the first need
//! Unsure         Broken: the watch fails                                     Unsure, with the error
//! any            All, Applied, Deleted from the watch; a kept read (Cache)   There or Absent
//! There, Absent  not read for a while, and in no volume                      Unsure, with the last object; its watch ends
//! There          immutable, and one more pod refers to it                    Unsure, with the last object; watched again
//! any            the last pod that refers to it is released                  (no entry); its watch ends
//! ```
//!
//! The watch of an immutable object ends when the object is seen.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rubelet_model::observation::PodUid;
use rubelet_ports::Moment;
use rubelet_ports::api::{ApiError, Change};
use tokio::sync::{oneshot, watch};

use crate::kinds::{Kind, is_older, is_same};
use crate::references::Purpose;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Key {
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }
}

/// What is known of an object. It cannot be printed: it may be a Secret.
#[derive(Clone)]
pub(crate) enum Seen<T> {
    /// It was not listed yet, or is not followed any more.
    Unsure {
        /// Why following it does not work.
        error: Option<ApiError>,
        /// What it was when it was seen last.
        last: Option<Arc<T>>,
    },
    There(Arc<T>),
    Absent,
}

impl<T> Seen<T> {
    /// Whether waiting any longer is of no use.
    pub(crate) fn is_decided(&self) -> bool {
        !matches!(self, Self::Unsure { error: None, .. })
    }

    fn object(&self) -> Option<&Arc<T>> {
        match self {
            Self::Unsure { last, .. } => last.as_ref(),
            Self::There(object) => Some(object),
            Self::Absent => None,
        }
    }
}

type Answer<T> = Result<Arc<T>, ApiError>;

/// The task that follows an object ends when this is dropped.
struct Follow {
    number: u64,
    stop: oneshot::Sender<()>,
}

/// What a task that follows an object gets at its start.
pub(crate) struct Begun {
    pub(crate) number: u64,
    pub(crate) stop: oneshot::Receiver<()>,
}

struct Entry<T> {
    users: BTreeMap<PodUid, Purpose>,
    seen: watch::Sender<Seen<T>>,
    follow: Option<Follow>,
    /// Seen as immutable, and so not followed.
    is_frozen: bool,
    /// A pod was refused, and has to be synced when that changes.
    is_owed: bool,
    used: Moment,
    /// When it was fetched; without following it, it is good for a while from then.
    fetched: Option<Moment>,
    /// The answer to the last direct question and its number, for callers that came while it was under way.
    answer: (u64, Option<Answer<T>>),
    /// Held while it is fetched.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// The consequence of a change.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Consequence {
    /// Pods to sync again.
    pub(crate) affected: Vec<PodUid>,
    /// There is nothing more to follow.
    pub(crate) is_over: bool,
}

pub(crate) struct Table<T> {
    entries: BTreeMap<Key, Entry<T>>,
    last_number: u64,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            last_number: 0,
        }
    }
}

/// An object that may be read: by waiting for what is seen of it, or in one's turn.
pub(crate) struct Access<T> {
    pub(crate) seen: watch::Receiver<Seen<T>>,
    pub(crate) fetched: Option<Moment>,
    pub(crate) answer: (u64, Option<Answer<T>>),
    pub(crate) turn: Arc<tokio::sync::Mutex<()>>,
}

impl<T: Kind> Table<T> {
    /// A pod refers to the object from now on.
    pub(crate) fn refer(&mut self, key: &Key, uid: &PodUid, purpose: Purpose, now: Moment) {
        let entry = self.entries.entry(key.clone()).or_insert_with(|| Entry::new(now));
        let is_new = entry.users.insert(uid.clone(), purpose).is_none();
        if !is_new {
            return;
        }
        entry.used = now;
        entry.fetched = None;
        if entry.is_frozen {
            // It cannot have changed, but it may have been replaced without notice.
            entry.is_frozen = false;
            entry.forget_state();
        }
    }

    pub(crate) fn release(&mut self, key: &Key, uid: &PodUid) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.users.remove(uid);
            if entry.users.is_empty() {
                self.entries.remove(key);
            }
        }
    }

    /// `None` when it is followed already, or needs not be.
    pub(crate) fn begin_follow(&mut self, key: &Key) -> Option<Begun> {
        let entry = self.entries.get_mut(key)?;
        // A task that died has dropped its end.
        let is_followed = entry
            .follow
            .as_ref()
            .is_some_and(|follow| !follow.stop.is_closed());
        if is_followed || entry.is_frozen {
            return None;
        }
        self.last_number += 1;
        let (stop, stopped) = oneshot::channel();
        entry.follow = Some(Follow {
            number: self.last_number,
            stop,
        });
        Some(Begun {
            number: self.last_number,
            stop: stopped,
        })
    }

    pub(crate) fn access(&mut self, key: &Key, now: Moment) -> Option<Access<T>> {
        let entry = self.entries.get_mut(key)?;
        entry.used = now;
        Some(Access {
            seen: entry.seen.subscribe(),
            fetched: entry.fetched,
            answer: entry.answer.clone(),
            turn: Arc::clone(&entry.turn),
        })
    }

    /// Takes a change from the task of this number.
    pub(crate) fn apply(&mut self, key: &Key, number: u64, change: Change<T>) -> Consequence {
        let Some(entry) = self.entries.get_mut(key) else {
            return Consequence::over();
        };
        if entry.follow.as_ref().is_none_or(|follow| follow.number != number) {
            return Consequence::over();
        }
        let is_it = |object: &Arc<T>| object.metadata().name.as_deref() == Some(key.name.as_str());
        let seen = match change {
            Change::All(objects) => objects.into_iter().find(is_it).map_or(Seen::Absent, Seen::There),
            Change::Applied(object) if is_it(&object) => Seen::There(object),
            Change::Deleted(object) if is_it(&object) => Seen::Absent,
            Change::Applied(_) | Change::Deleted(_) => return Consequence::default(),
            Change::Broken(error) => {
                entry.note_broken(error);
                return Consequence::default();
            }
            Change::Resumed => {
                return Consequence {
                    affected: entry.take_owed(),
                    is_over: false,
                };
            }
        };
        let affected = entry.see(seen);
        if entry.is_frozen {
            entry.follow = None;
        }
        Consequence {
            affected,
            is_over: entry.is_frozen,
        }
    }

    /// Takes what a direct question was answered: it does not count as followed.
    pub(crate) fn note_fetched(&mut self, key: &Key, answer: &Answer<T>) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        entry.answer = (entry.answer.0 + 1, Some(answer.clone()));
        entry.is_owed |= answer.is_err();
        let Ok(object) = answer else { return };
        entry.seen.send_if_modified(|seen| {
            if let Seen::Unsure { last, .. } = seen {
                *last = Some(Arc::clone(object));
            }
            false
        });
    }

    /// Keeps what was fetched for a while; the answer is what counts now. An older state than the known one does not.
    pub(crate) fn keep(&mut self, key: &Key, object: Arc<T>, now: Moment) -> Arc<T> {
        let Some(entry) = self.entries.get_mut(key) else {
            return object;
        };
        let known = entry.seen.borrow().object().cloned();
        match known {
            Some(known) if is_older(object.as_ref(), known.as_ref()) => known,
            _ => {
                entry.fetched = Some(now);
                entry.seen.send_replace(Seen::There(Arc::clone(&object)));
                object
            }
        }
    }

    /// Remembers that the API server has none.
    pub(crate) fn keep_absence(&mut self, key: &Key) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.fetched = None;
            entry.seen.send_replace(Seen::Absent);
        }
    }

    /// Stops to follow what is in no file and was not read for `limit`.
    pub(crate) fn stop_idle(&mut self, now: Moment, limit: Duration) -> usize {
        let mut stopped = 0;
        for entry in self.entries.values_mut() {
            let is_in_files = entry.users.values().any(|purpose| *purpose == Purpose::Volume);
            // The first answer is waited for: all the work for it would be lost.
            let is_listed = matches!(*entry.seen.borrow(), Seen::There(_) | Seen::Absent);
            let is_idle = is_listed && !is_in_files && now.since(entry.used) >= limit;
            if is_idle && entry.follow.take().is_some() {
                entry.forget_state();
                stopped += 1;
            }
        }
        stopped
    }
}

impl<T: Kind> Entry<T> {
    fn new(now: Moment) -> Self {
        let unsure = Seen::Unsure {
            error: None,
            last: None,
        };
        Self {
            users: BTreeMap::new(),
            seen: watch::Sender::new(unsure),
            follow: None,
            is_frozen: false,
            is_owed: false,
            used: now,
            fetched: None,
            answer: (0, None),
            turn: Arc::default(),
        }
    }

    /// What was seen may be old by the next query.
    fn forget_state(&mut self) {
        let last = self.seen.borrow().object().cloned();
        self.seen.send_replace(Seen::Unsure { error: None, last });
    }

    fn note_broken(&mut self, failure: ApiError) {
        self.seen.send_if_modified(|seen| match seen {
            Seen::Unsure { error, .. } => {
                *error = Some(failure);
                true
            }
            Seen::There(_) | Seen::Absent => false,
        });
    }

    /// The pods that have to look at the object again.
    fn take_owed(&mut self) -> Vec<PodUid> {
        if std::mem::take(&mut self.is_owed) {
            self.users.keys().cloned().collect()
        } else {
            Vec::new()
        }
    }

    fn see(&mut self, new: Seen<T>) -> Vec<PodUid> {
        self.is_frozen = matches!(&new, Seen::There(object) if object.is_immutable());
        let old = self.seen.send_replace(new);
        let new = self.seen.borrow();
        let is_first = matches!(old, Seen::Unsure { last: None, .. });
        let has_changed = match (old.object(), new.object()) {
            (Some(old), Some(new)) => !is_same(old.as_ref(), new.as_ref()),
            (None, None) => false,
            (Some(_), None) | (None, Some(_)) => !is_first,
        };
        drop(new);
        self.is_owed |= has_changed;
        self.take_owed()
    }
}

impl Consequence {
    fn over() -> Self {
        Self {
            affected: Vec::new(),
            is_over: true,
        }
    }
}
