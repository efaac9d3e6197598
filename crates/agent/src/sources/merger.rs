//! From whole sets of pods to what changed.
//!
//! Owns the pods that each source wants, as last delivered, and the comparison. Pure: time comes in as a value, and nothing is
//! logged or recorded here; who calls does that from [`Merged::duplicates`].
//!
//! Two pods of one source with the same full name are as upstream: the first of the set counts. Two pods with the same UID
//! upstream does not notice, and they overwrite each other in whatever is kept by UID. Here the first one delivered keeps its
//! UID, the other is a duplicate, which is logged and takes over when the first has gone.
//!
//! A set is mostly the one before, pod by pod. Only the stretch in which they differ is looked at, so that a change of one pod costs
//! the same however many there are; a set with duplicates is taken as a whole.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff;
use rubelet_model::Timestamp;
use rubelet_model::pod::{MIRROR_ANNOTATION, PodName, SEEN_ANNOTATION, SOURCE_ANNOTATION, uid_text};

use super::{Source, SourceSet, Stretch};

/// Annotations of our own: they are no change, and they stay.
const LOCAL_ANNOTATIONS: [&str; 3] = [SOURCE_ANNOTATION, MIRROR_ANNOTATION, SEEN_ANNOTATION];

/// What a new set changes for one pod. Each carries the pod as it is to be known from now on.
#[derive(Clone, Debug, PartialEq)]
pub enum PodChange {
    /// A UID that was not there.
    Add(Arc<Pod>),
    /// Spec, labels or annotations are different.
    Update(Arc<Pod>),
    /// Graceful deletion was requested.
    Delete(Arc<Pod>),
    /// The source has it no longer.
    Remove(Arc<Pod>),
    /// Only the status is different.
    Reconcile(Arc<Pod>),
}

impl PodChange {
    #[must_use]
    pub fn pod(&self) -> &Arc<Pod> {
        match self {
            Self::Add(pod)
            | Self::Update(pod)
            | Self::Delete(pod)
            | Self::Remove(pod)
            | Self::Reconcile(pod) => pod,
        }
    }

    /// Upstream's order: what goes makes room before what comes.
    fn rank(&self) -> u8 {
        match self {
            Self::Remove(_) => 0,
            Self::Add(_) => 1,
            Self::Update(_) => 2,
            Self::Delete(_) => 3,
            Self::Reconcile(_) => 4,
        }
    }
}

/// A pod that is left out because another one has its name or its UID. Logged once, until it is gone or counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Duplicate {
    pub pod: Arc<Pod>,
    pub source: Source,
    /// For the event `FailedValidation` and the log.
    pub message: String,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Merged {
    /// Removals first.
    pub changes: Vec<PodChange>,
    pub duplicates: Vec<Duplicate>,
}

/// A pod with its source: whose word counts for this UID.
#[derive(Debug)]
struct Held {
    source: Source,
    /// As it is known, with our own annotations.
    pod: Arc<Pod>,
    /// As its source gave it. The same one again is nothing new.
    delivered: Arc<Pod>,
}

#[derive(Debug)]
pub struct Merger {
    registered: BTreeSet<Source>,
    seen: BTreeSet<Source>,
    held: BTreeMap<String, Held>,
    /// Pods of a source whose UID another source holds, by UID.
    waiting: BTreeMap<(Source, String), Arc<Pod>>,
    /// Duplicates that were logged, by source, full name and UID.
    told: BTreeSet<DuplicateKey>,
    /// The newest set of each source.
    sets: BTreeMap<Source, Vec<Arc<Pod>>>,
    /// The names of the pods in it that are no duplicates.
    names: BTreeSet<(Source, PodName)>,
}

impl Merger {
    #[must_use]
    pub fn new(registered: impl IntoIterator<Item = Source>) -> Self {
        Self {
            registered: registered.into_iter().collect(),
            seen: BTreeSet::new(),
            held: BTreeMap::new(),
            waiting: BTreeMap::new(),
            told: BTreeSet::new(),
            sets: BTreeMap::new(),
            names: BTreeSet::new(),
        }
    }

    /// Whether every registered source has delivered a complete set once. Until then nothing may be concluded from a pod's absence.
    #[must_use]
    pub fn seen_all(&self) -> bool {
        self.seen.is_superset(&self.registered)
    }

    /// The registered sources that have not delivered a complete set yet.
    pub fn missing(&self) -> impl Iterator<Item = Source> {
        self.registered.difference(&self.seen).copied()
    }

    /// Whether it is known which pods this source wants: it has delivered a complete set, or it is not configured and wants none.
    #[must_use]
    pub fn has_delivered(&self, source: Source) -> bool {
        self.seen.contains(&source) || !self.registered.contains(&source)
    }

    /// The pods that are wanted, by UID.
    pub fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.held.values().map(|held| &held.pod)
    }

    /// Takes a source's new set.
    pub fn merge(&mut self, set: SourceSet, now: Timestamp) -> Merged {
        let SourceSet {
            source,
            pods,
            is_complete,
            never_good: _,
            unusable: _,
            unreadable: _,
        } = set;
        if is_complete {
            self.seen.insert(source);
        }
        let before = self.sets.remove(&source).unwrap_or_default();
        let stretch = Stretch::of(&before, &pods);
        let mut merged = match self.is_simple(source, &stretch) {
            true => self.merge_stretch(source, &stretch, now),
            false => self.merge_whole(source, &pods, now),
        };
        self.sets.insert(source, pods);
        self.take_over(&mut merged, now);
        merged.changes.sort_by_key(PodChange::rank);
        merged
    }

    /// Whether neither the set before nor the new one has duplicates.
    fn is_simple(&self, source: Source, stretch: &Stretch<'_>) -> bool {
        if self.told.iter().any(|(owner, ..)| *owner == source) {
            return false;
        }
        let old_uids: BTreeSet<&str> = stretch.old.iter().map(|pod| uid_text(pod)).collect();
        let old_names: BTreeSet<PodName> = stretch.old.iter().map(|pod| PodName::of(pod)).collect();
        let (mut uids, mut names) = (BTreeSet::new(), BTreeSet::new());
        stretch.new.iter().all(|pod| {
            let (uid, name) = (uid_text(pod), PodName::of(pod));
            let held = self.held.get(uid);
            let is_uid_free = held.is_none_or(|held| held.source == source && old_uids.contains(uid));
            let is_name_free = old_names.contains(&name) || !self.names.contains(&(source, name.clone()));
            is_uid_free && is_name_free && uids.insert(uid) && names.insert(name)
        })
    }

    /// Takes what differs from the set before, where neither has duplicates.
    fn merge_stretch(&mut self, source: Source, stretch: &Stretch<'_>, now: Timestamp) -> Merged {
        let mut merged = Merged::default();
        let uids: BTreeSet<&str> = stretch.new.iter().map(|pod| uid_text(pod)).collect();
        for pod in stretch.old {
            self.names.remove(&(source, PodName::of(pod)));
            if !uids.contains(uid_text(pod))
                && let Some(held) = self.held.remove(uid_text(pod))
            {
                merged.changes.push(PodChange::Remove(held.pod));
            }
        }
        for pod in stretch.new {
            self.names.insert((source, PodName::of(pod)));
            match self.held.get_mut(uid_text(pod)) {
                Some(held) => merged.changes.extend(compare(held, pod)),
                None => merged.changes.push(self.add(source, pod, now)),
            }
        }
        merged
    }

    fn merge_whole(&mut self, source: Source, pods: &[Arc<Pod>], now: Timestamp) -> Merged {
        let mut merged = Merged::default();
        let mut still_told = BTreeSet::new();
        let (wanted, doubles) = one_of_each(pods);
        self.names.retain(|(owner, _)| *owner != source);
        self.names
            .extend(wanted.iter().map(|pod| (source, PodName::of(pod))));
        self.waiting.retain(|(owner, _), _| *owner != source);

        let uids: BTreeSet<&str> = wanted.iter().map(|pod| uid_text(pod)).collect();
        let gone = self.held.extract_if(.., |uid, held| {
            held.source == source && !uids.contains(uid.as_str())
        });
        let gone: Vec<Arc<Pod>> = gone.map(|(_, held)| held.pod).collect();
        merged.changes.extend(gone.into_iter().map(PodChange::Remove));

        for pod in wanted {
            match self.held.get_mut(uid_text(&pod)) {
                Some(held) if held.source == source => merged.changes.extend(compare(held, &pod)),
                Some(held) => {
                    let message = format!(
                        "pod {} from {} is ignored: its UID {} is that of a pod from {}",
                        PodName::of(&pod),
                        source.as_str(),
                        uid_text(&pod),
                        held.source.as_str()
                    );
                    let uid = uid_text(&pod).to_owned();
                    self.waiting.insert((source, uid), Arc::clone(&pod));
                    self.tell(&mut merged, &mut still_told, (source, pod, message));
                }
                None => merged.changes.push(self.add(source, &pod, now)),
            }
        }
        for (pod, what) in doubles {
            let message = format!(
                "pod {} from {} is ignored: another pod of this source has the same {what}",
                PodName::of(&pod),
                source.as_str()
            );
            self.tell(&mut merged, &mut still_told, (source, pod, message));
        }
        self.told
            .retain(|key| key.0 != source || still_told.contains(key));
        merged
    }

    fn add(&mut self, source: Source, delivered: &Arc<Pod>, now: Timestamp) -> PodChange {
        let mut pod = Pod::clone(delivered);
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(SOURCE_ANNOTATION.to_owned(), source.as_str().to_owned());
        annotations.insert(SEEN_ANNOTATION.to_owned(), rfc3339_nano(now));
        let pod = Arc::new(pod);
        let held = Held {
            source,
            pod: Arc::clone(&pod),
            delivered: Arc::clone(delivered),
        };
        self.held.insert(uid_text(&pod).to_owned(), held);
        PodChange::Add(pod)
    }

    /// Adds pods whose UID has become free.
    fn take_over(&mut self, merged: &mut Merged, now: Timestamp) {
        let keys: Vec<(Source, String)> = self.waiting.keys().cloned().collect();
        for key in keys {
            if self.held.contains_key(&key.1) {
                continue;
            }
            if let Some(pod) = self.waiting.remove(&key) {
                self.told.remove(&told_key(key.0, &pod));
                merged.changes.push(self.add(key.0, &pod, now));
            }
        }
    }

    fn tell(
        &mut self,
        merged: &mut Merged,
        still_told: &mut BTreeSet<DuplicateKey>,
        (source, pod, message): (Source, Arc<Pod>, String),
    ) {
        let key = told_key(source, &pod);
        still_told.insert(key.clone());
        if self.told.insert(key) {
            merged.duplicates.push(Duplicate { pod, source, message });
        }
    }
}

/// Source, name and UID of a duplicate.
type DuplicateKey = (Source, PodName, String);

fn told_key(source: Source, pod: &Pod) -> DuplicateKey {
    (source, PodName::of(pod), uid_text(pod).to_owned())
}

/// A pod, and what it has in common with one before it.
type Double = (Arc<Pod>, &'static str);

/// The first pod of each full name and of each UID; the others with what they have in common with it.
fn one_of_each(pods: &[Arc<Pod>]) -> (Vec<Arc<Pod>>, Vec<Double>) {
    let mut names = BTreeSet::new();
    let mut uids = BTreeSet::new();
    let mut first = Vec::with_capacity(pods.len());
    let mut doubles = Vec::new();
    for pod in pods {
        if !names.insert(PodName::of(pod)) {
            doubles.push((Arc::clone(pod), "name"));
        } else if !uids.insert(uid_text(pod)) {
            doubles.push((Arc::clone(pod), "UID"));
        } else {
            first.push(Arc::clone(pod));
        }
    }
    (first, doubles)
}

/// What a newer version of a held pod changes; the held one takes it on. Name, UID and creation stay as first delivered.
fn compare(held: &mut Held, newer: &Arc<Pod>) -> Option<PodChange> {
    if Arc::ptr_eq(&held.delivered, newer) {
        return None;
    }
    held.delivered = Arc::clone(newer);
    if !differs(&held.pod, newer) {
        if held.pod.status == newer.status {
            return None;
        }
        let mut pod = Pod::clone(&held.pod);
        pod.status.clone_from(&newer.status);
        held.pod = Arc::new(pod);
        return Some(PodChange::Reconcile(Arc::clone(&held.pod)));
    }
    let old = &held.pod.metadata;
    let mut annotations = newer.metadata.annotations.clone().unwrap_or_default();
    for key in LOCAL_ANNOTATIONS {
        if let Some(value) = old
            .annotations
            .as_ref()
            .and_then(|annotations| annotations.get(key))
        {
            annotations.insert(key.to_owned(), value.clone());
        }
    }
    let mut metadata = old.clone();
    metadata.annotations = Some(annotations);
    metadata.labels.clone_from(&newer.metadata.labels);
    metadata
        .deletion_timestamp
        .clone_from(&newer.metadata.deletion_timestamp);
    metadata.deletion_grace_period_seconds = newer.metadata.deletion_grace_period_seconds;
    metadata.generation = newer.metadata.generation;
    let is_deleted = metadata.deletion_timestamp.is_some();
    held.pod = Arc::new(Pod {
        metadata,
        spec: newer.spec.clone(),
        status: newer.status.clone(),
    });
    let pod = Arc::clone(&held.pod);
    Some(match is_deleted {
        true => PodChange::Delete(pod),
        false => PodChange::Update(pod),
    })
}

/// Whether there is more to a newer version than another status.
fn differs(old: &Pod, newer: &Pod) -> bool {
    let (a, b) = (&old.metadata, &newer.metadata);
    old.spec != newer.spec
        || a.labels != b.labels
        || a.deletion_timestamp != b.deletion_timestamp
        || a.deletion_grace_period_seconds != b.deletion_grace_period_seconds
        || !foreign_annotations(old).eq(foreign_annotations(newer))
}

fn foreign_annotations(pod: &Pod) -> impl Iterator<Item = (&String, &String)> {
    let annotations = pod.metadata.annotations.iter().flatten();
    annotations.filter(|(key, _)| !LOCAL_ANNOTATIONS.contains(&key.as_str()))
}

/// UTC with as many digits of the second as are needed.
fn rfc3339_nano(at: Timestamp) -> String {
    jiff::Timestamp::from_nanosecond(i128::from(at.unix_nanos()))
        .unwrap_or(jiff::Timestamp::UNIX_EPOCH)
        .to_string()
}
