//! The one table of pods: what a source wants, what the runtime shows, and where the pod stands.
//!
//! Owns every record and the indexes over them: desired static pods by name, pods that admission has not let start, and the pods
//! whose fate the garbage collector has to hear of. A record exists as long as a source or the runtime has the pod, or its
//! state machine runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use rubelet_lifecycle::pod_state::{ActiveDeadline, Event, PodState};
use rubelet_lifecycle::standing::{Standing, Unclaimed, Wait};
use rubelet_lifecycle::status::is_static_pod;
use rubelet_model::Timestamp;
use rubelet_model::observation::{PodObservation, PodUid};

use super::worker::{Worker, full_name_of, lives};
use crate::observer::TableSizes;

/// What the runtime has of a pod.
#[derive(Default)]
pub(super) struct RuntimeView {
    /// The last inspection, if the runtime has anything of the pod.
    seen: Option<Arc<PodObservation>>,
    /// The first list has the pod alive, and it was not inspected since.
    is_listed_alive: bool,
    /// The runtime had something of the pod when rubelet started, and admission has not counted it yet.
    was_listed: bool,
}

/// One pod.
#[derive(Default)]
pub(super) struct PodRecord {
    desired: Option<Arc<Pod>>,
    runtime: RuntimeView,
    standing: Standing,
    /// Exists while the pod's state machine runs.
    worker: Option<Box<Worker>>,
    /// The pod was added again after its end: what that end left in the runtime says nothing about it.
    is_readded: bool,
}

impl PodRecord {
    /// The newest definition, if a source has one.
    pub(super) fn desired(&self) -> Option<&Arc<Pod>> {
        self.desired.as_ref()
    }

    pub(super) fn seen(&self) -> Option<&Arc<PodObservation>> {
        self.runtime.seen.as_ref()
    }

    pub(super) fn standing(&self) -> &Standing {
        &self.standing
    }

    pub(super) fn worker(&self) -> Option<&Worker> {
        self.worker.as_deref()
    }

    pub(super) fn is_readded(&self) -> bool {
        self.is_readded
    }

    /// Whether anything of the pod lives. What was listed and not inspected may.
    pub(super) fn may_live(&self) -> bool {
        self.runtime.is_listed_alive || self.is_seen_alive()
    }

    pub(super) fn is_seen_alive(&self) -> bool {
        self.seen().is_some_and(|seen| lives(seen))
    }

    /// Whether rubelet admitted the pod before it was started anew: the runtime has something of it that is not left over from an
    /// end or a rejection since.
    pub(super) fn was_admitted_before(&self) -> bool {
        let is_new = self.is_readded || self.standing.is_shut_out();
        !is_new && (self.runtime.was_listed || self.may_live())
    }

    /// What ends a finished pod without waiting for the next housekeeping.
    pub(super) fn finish_event(&self, sources_ready: bool) -> Option<Event> {
        let PodState::Finished { ending } = self.standing.life() else {
            return None;
        };
        let is_desired = self.desired.is_some();
        // A pod that was added again is desired, whatever other sources deliver.
        let is_over = ending.restart_requested && is_desired || sources_ready && !is_desired;
        let is_idle = self.worker.as_ref()?.job.is_none();
        (is_over && is_idle).then_some(Event::Housekeeping { is_desired })
    }

    /// Whether housekeeping may do anything about the pod. About one that a source has and that is kept running it does nothing before
    /// its deadline.
    pub(super) fn needs_housekeeping(&self, now: Timestamp) -> bool {
        let Some(worker) = self.worker() else {
            return false;
        };
        let is_kept = self.desired.is_some() && matches!(self.standing.life(), PodState::Syncing { .. });
        !is_kept || worker.active_deadline(now) == ActiveDeadline::Passed
    }

    fn is_empty(&self) -> bool {
        let runtime = &self.runtime;
        let is_in_runtime = runtime.seen.is_some() || runtime.is_listed_alive || runtime.was_listed;
        let has_standing = match &self.standing {
            Standing::Unclaimed(Unclaimed::Undecided | Unclaimed::FoundAtStart) => false,
            // Housekeeping ends the first when the runtime has nothing of the pod, the API source the other.
            Standing::Unclaimed(Unclaimed::Removed(_) | Unclaimed::Undecodable { .. }) => true,
            Standing::Awaits { .. } | Standing::Rejected { .. } | Standing::Managed(_) => true,
        };
        self.desired.is_none() && self.worker.is_none() && !is_in_runtime && !has_standing
    }
}

/// The table.
#[derive(Default)]
pub(super) struct Records {
    records: BTreeMap<PodUid, PodRecord>,
    /// Desired static pods by full name.
    static_names: BTreeMap<String, BTreeSet<PodUid>>,
    /// Pods that wait for admission or were rejected.
    unadmitted: BTreeSet<PodUid>,
    awaiting_room: usize,
    desired: usize,
    /// Pods whose fate may have changed.
    changed: BTreeSet<PodUid>,
}

impl Records {
    /// How many pods sources have.
    pub(super) fn desired_len(&self) -> usize {
        self.desired
    }

    pub(super) fn get(&self, uid: &PodUid) -> Option<&PodRecord> {
        self.records.get(uid)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&PodUid, &PodRecord)> {
        self.records.iter()
    }

    /// The pods for which the predicate holds.
    pub(super) fn select(&self, holds: impl Fn(&PodRecord) -> bool) -> Vec<PodUid> {
        let found = self.records.iter().filter(|(_, record)| holds(record));
        found.map(|(uid, _)| uid.clone()).collect()
    }

    pub(super) fn desired(&self, uid: &PodUid) -> Option<&Arc<Pod>> {
        self.get(uid)?.desired()
    }

    pub(super) fn is_desired(&self, uid: &PodUid) -> bool {
        self.desired(uid).is_some()
    }

    pub(super) fn worker(&self, uid: &PodUid) -> Option<&Worker> {
        self.get(uid)?.worker()
    }

    pub(super) fn worker_mut(&mut self, uid: &PodUid) -> Option<&mut Worker> {
        self.records.get_mut(uid)?.worker.as_deref_mut()
    }

    pub(super) fn workers(&self) -> impl Iterator<Item = (&PodUid, &Worker)> {
        self.records
            .iter()
            .filter_map(|(uid, record)| Some((uid, record.worker()?)))
    }

    /// Every desired pod with what it needs to be shown.
    pub(super) fn desired_mut(
        &mut self,
    ) -> impl Iterator<Item = (&Arc<Pod>, &Standing, Option<&mut Worker>)> {
        self.records.values_mut().filter_map(|record| {
            let worker = record.worker.as_deref_mut();
            Some((record.desired.as_ref()?, &record.standing, worker))
        })
    }

    pub(super) fn may_live(&self, uid: &PodUid) -> bool {
        self.get(uid).is_some_and(PodRecord::may_live)
    }

    pub(super) fn standing(&self, uid: &PodUid) -> &Standing {
        static NOTHING: Standing = Standing::UNDECIDED;
        self.get(uid).map_or(&NOTHING, PodRecord::standing)
    }

    /// Whether a desired static pod has this full name.
    pub(super) fn has_static_name(&self, full_name: &str) -> bool {
        self.static_names.contains_key(full_name)
    }

    /// The desired static pods of this full name.
    pub(super) fn of_static_name(&self, full_name: &str) -> impl Iterator<Item = &PodUid> {
        self.static_names.get(full_name).into_iter().flatten()
    }

    /// Pods that wait for admission or were rejected.
    pub(super) fn unadmitted(&self) -> impl Iterator<Item = (&PodUid, &PodRecord)> {
        let known = self.unadmitted.iter();
        known.filter_map(|uid| Some((uid, self.records.get(uid)?)))
    }

    /// Admitted pods that wait until the pods that they preempt have ended.
    pub(super) fn preemptors(&self) -> impl Iterator<Item = (&PodUid, &PodRecord, &Vec<PodUid>)> {
        self.unadmitted()
            .filter_map(|(uid, record)| match record.standing().wait()? {
                Wait::Preemption { victims } => Some((uid, record, victims)),
                Wait::Runtime { .. } | Wait::NodeRefresh { .. } | Wait::Room => None,
            })
    }

    /// Whether any pod waits until others free what they hold.
    pub(super) fn is_room_awaited(&self) -> bool {
        self.awaiting_room > 0
    }

    /// Sorts by creation, the oldest first.
    pub(super) fn by_age(&self, mut uids: Vec<PodUid>) -> Vec<PodUid> {
        uids.sort_by_cached_key(|uid| {
            let pod = self.desired(uid);
            pod.and_then(|pod| pod.metadata.creation_timestamp.clone())
        });
        uids
    }

    // ---- changes

    pub(super) fn set_desired(&mut self, uid: &PodUid, pod: Arc<Pod>) {
        self.unindex_name(uid);
        if is_static_pod(&pod) {
            let names = self.static_names.entry(full_name_of(&pod)).or_default();
            names.insert(uid.clone());
        }
        let record = self.records.entry(uid.clone()).or_default();
        self.desired += usize::from(record.desired.is_none());
        record.desired = Some(pod);
        self.changed.insert(uid.clone());
    }

    /// No source has the pod any more.
    pub(super) fn remove_desired(&mut self, uid: &PodUid) {
        self.unindex_name(uid);
        if let Some(record) = self.records.get_mut(uid) {
            self.desired -= usize::from(record.desired.is_some());
            record.desired = None;
            record.is_readded = false;
        }
        self.changed.insert(uid.clone());
        self.prune(uid);
    }

    fn unindex_name(&mut self, uid: &PodUid) {
        let Some(name) = self.desired(uid).map(|pod| full_name_of(pod)) else {
            return;
        };
        if let Some(names) = self.static_names.get_mut(&name) {
            names.remove(uid);
            if names.is_empty() {
                self.static_names.remove(&name);
            }
        }
    }

    /// The pod moves to another standing. The answer is the one before.
    pub(super) fn set_standing(&mut self, uid: &PodUid, standing: Standing) -> Standing {
        if standing.is_unadmitted() {
            self.unadmitted.insert(uid.clone());
        } else {
            self.unadmitted.remove(uid);
        }
        let awaits = |standing: &Standing| usize::from(standing.awaits_room());
        self.awaiting_room += awaits(&standing);
        let record = self.records.entry(uid.clone()).or_default();
        let before = std::mem::replace(&mut record.standing, standing);
        self.awaiting_room -= awaits(&before);
        if before != record.standing {
            self.changed.insert(uid.clone());
        }
        before
    }

    pub(super) fn set_worker(&mut self, uid: &PodUid, worker: Worker) {
        let record = self.records.entry(uid.clone()).or_default();
        record.worker = Some(Box::new(worker));
        self.changed.insert(uid.clone());
    }

    pub(super) fn remove_worker(&mut self, uid: &PodUid) -> Option<Box<Worker>> {
        let worker = self.records.get_mut(uid)?.worker.take();
        self.changed.insert(uid.clone());
        self.prune(uid);
        worker
    }

    /// The pod is another one than the one that ended under this UID.
    pub(super) fn set_readded(&mut self, uid: &PodUid, is_readded: bool) {
        if let Some(record) = self.records.get_mut(uid) {
            record.is_readded = is_readded;
        }
    }

    /// Admission has decided about the pod, so that the first list says nothing about it any more.
    pub(super) fn clear_listed(&mut self, uid: &PodUid) {
        if let Some(record) = self.records.get_mut(uid) {
            record.runtime.was_listed = false;
        }
    }

    /// The runtime's first list: what it has anything of, and what of it lives.
    pub(super) fn list<'a>(&mut self, listed: BTreeSet<PodUid>, living: impl Iterator<Item = &'a PodUid>) {
        for uid in listed {
            self.records.entry(uid).or_default().runtime.was_listed = true;
        }
        for uid in living {
            let record = self.records.entry(uid.clone()).or_default();
            record.runtime.is_listed_alive = true;
        }
    }

    /// The runtime was looked at. The answer is what it showed before.
    pub(super) fn observe(&mut self, observation: &Arc<PodObservation>) -> Option<Arc<PodObservation>> {
        let uid = &observation.uid;
        let is_there = !observation.is_empty();
        if !is_there && !self.records.contains_key(uid) {
            return None;
        }
        let runtime = &mut self.records.entry(uid.clone()).or_default().runtime;
        runtime.is_listed_alive = false;
        let seen = is_there.then(|| Arc::clone(observation));
        let before = std::mem::replace(&mut runtime.seen, seen);
        if before.is_some() != is_there {
            self.changed.insert(uid.clone());
        }
        before
    }

    /// Drops the record if nothing has the pod any more.
    pub(super) fn prune(&mut self, uid: &PodUid) {
        if self.records.get(uid).is_some_and(PodRecord::is_empty) {
            self.records.remove(uid);
            self.changed.insert(uid.clone());
        }
    }

    /// What the first list had says nothing about new pods.
    pub(super) fn forget_first_list(&mut self) {
        for record in self.records.values_mut() {
            record.runtime.was_listed = false;
        }
        self.records.retain(|_, record| !record.is_empty());
    }

    /// Whether pods are kept for unreadable manifests is looked at again.
    pub(super) fn touch_found_at_start(&mut self) {
        let found = self.select(|record| record.standing == Standing::FOUND_AT_START);
        self.changed.extend(found);
    }

    pub(super) fn table_sizes(&self) -> TableSizes {
        vec![
            ("pods.records", self.records.len()),
            ("pods.static_names", self.static_names.len()),
            ("pods.unadmitted", self.unadmitted.len()),
            ("pods.awaiting_room", self.awaiting_room),
        ]
    }

    /// The pods whose fate may have changed since the last call.
    pub(super) fn take_changed(&mut self) -> BTreeSet<PodUid> {
        std::mem::take(&mut self.changed)
    }
}
