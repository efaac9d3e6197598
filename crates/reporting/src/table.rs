//! Decides which calls to the API server are due.
//!
//! Owns the newest report of each pod, what was delivered of it, and the choice of the next calls. It makes no call: it hands out
//! [`Job`]s and takes their [`Outcome`]s. One entry per pod, so that an outage costs no memory however long it lasts.
//!
//! ```text
//! report, forget ──► entries ─┐                       ┌─► Job ── the call ── Outcome ─┐
//! api_pods ────────► ApiPods ─┼─► Queue ── look(key) ─┤                               │
//! node, sources ──────────────┘      ▲                └─► nothing, or later           │
//!                                    └──────────────── the same key again ◄───────────┘
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use rubelet_lifecycle::deliberate::{Bug, is_on};
use rubelet_model::observation::PodUid;
use rubelet_model::pod::{PodName, is_mirror_pod, is_static_pod, uid_of, uid_text};
use rubelet_ports::api::{ApiError, ApiErrorKind, Change};
use rubelet_ports::{Moment, PodReport};

use crate::api_pods::ApiPods;
use crate::entry::{Entry, MirrorState};
use crate::figures::count;
use crate::job::{Job, Look, Outcome, Scene, Work};
use crate::mirror;
use crate::outage::Outage;
use crate::queue::{Key, Queue, Urgency};

/// How many calls are under way at once.
pub(crate) const MAX_CALLS: usize = 10;

#[derive(Default)]
pub(crate) struct Table {
    api: ApiPods,
    entries: BTreeMap<PodUid, Entry>,
    mirrors: BTreeMap<PodName, MirrorState>,
    queue: Queue,
    outage: Outage,
    /// Static pods by name, the eldest first.
    statics: BTreeMap<PodName, BTreeMap<u64, PodUid>>,
    node: Option<Arc<Node>>,
    sources_are_ready: bool,
    last_born: u64,
}

impl Table {
    /// How many pods and names of mirrors are remembered.
    pub(crate) fn len(&self) -> usize {
        self.entries.len().max(self.mirrors.len())
    }

    pub(crate) fn report(&mut self, report: PodReport, now: Moment) {
        let uid = uid_of(&report.pod);
        let Some(entry) = self.entries.get_mut(&uid) else {
            self.add(&uid, report, now);
            return;
        };
        if is_static_pod(&report.pod) && !Arc::ptr_eq(&entry.report.pod, &report.pod) {
            // It may have been edited in place: then its mirror is not the right one any more.
            if mirror::shows_other(&entry.report.pod, &report.pod) {
                self.api.forget_made(&entry.name);
            }
            self.queue.push(Key::Mirror(entry.name.clone()), Urgency::Usual);
        }
        if entry.update(report, now) {
            self.push_status(&uid);
        }
    }

    fn add(&mut self, uid: &PodUid, report: PodReport, now: Moment) {
        self.last_born += 1;
        let entry = Entry::new(report, self.last_born, now);
        if entry.is_static() {
            let of_name = self.statics.entry(entry.name.clone()).or_default();
            of_name.insert(entry.born, uid.clone());
            self.queue.push(Key::Mirror(entry.name.clone()), Urgency::Urgent);
        }
        self.entries.insert(uid.clone(), entry);
        self.push_status(uid);
    }

    pub(crate) fn forget(&mut self, uid: &PodUid) {
        let Some(entry) = self.entries.remove(uid) else {
            return;
        };
        self.queue.remove(&Key::Status(uid.clone()));
        if let Some(of_name) = self.statics.get_mut(&entry.name) {
            of_name.remove(&entry.born);
            let next = of_name.values().next().cloned();
            if of_name.is_empty() {
                self.statics.remove(&entry.name);
            }
            self.queue.push(Key::Mirror(entry.name), Urgency::Usual);
            if let Some(next) = next {
                self.push_status(&next);
            }
        }
    }

    pub(crate) fn api_change(&mut self, change: &Change<Pod>, now: Moment) {
        let changed = self.api.apply(change, now);
        if matches!(change, Change::All(_) | Change::Resumed) {
            self.outage.hint(now);
        }
        for name in changed {
            self.api_pod_changed(&name);
        }
        if matches!(change, Change::All(_)) {
            // Mirrors that waited for the first list.
            self.push_statics();
        }
    }

    /// Looks again at everything that depends on the API server's pod of this name.
    fn api_pod_changed(&mut self, name: &PodName) {
        if let Some(state) = self.mirrors.get_mut(name) {
            // The object changed, so the last failure does not apply any more. The rate limit still does.
            state.backoff = None;
        }
        self.queue.push(Key::Mirror(name.clone()), Urgency::Urgent);
        let of_api = self.api.get(name).map(|pod| uid_of(pod));
        let is_gone = of_api.is_none();
        for uid in [of_api, self.static_of(name).cloned()].into_iter().flatten() {
            if let Some(entry) = self.entries.get_mut(&uid) {
                entry.must_look = true;
                if is_gone {
                    // The next object of this name is another one.
                    entry.backoff = None;
                }
                self.push_status(&uid);
            }
        }
    }

    pub(crate) fn sources_are_ready(&mut self) {
        self.sources_are_ready = true;
        let names: Vec<PodName> = self.api.names().cloned().collect();
        for name in names {
            self.queue.push(Key::Mirror(name), Urgency::Usual);
        }
    }

    pub(crate) fn node_is(&mut self, node: Option<Arc<Node>>) {
        let before = std::mem::replace(&mut self.node, node);
        // Mirrors depend on nothing else of it.
        if self.node.as_deref().map(mirror::ownership) != before.as_deref().map(mirror::ownership) {
            self.push_statics();
        }
    }

    fn push_statics(&mut self) {
        let names: Vec<PodName> = self.statics.keys().cloned().collect();
        for name in names {
            self.queue.push(Key::Mirror(name), Urgency::Urgent);
        }
    }

    /// Queues a pod's status.
    fn push_status(&mut self, uid: &PodUid) {
        let Some(entry) = self.entries.get(uid) else {
            return;
        };
        let urgency = entry.urgency(self.target(uid, entry).map(AsRef::as_ref));
        self.queue.push(Key::Status(uid.clone()), urgency);
    }

    /// The static pod of this name that has the mirror.
    fn static_of(&self, name: &PodName) -> Option<&PodUid> {
        self.statics.get(name)?.values().next()
    }

    /// Whether the API server's pod is the mirror of the entry's static pod.
    fn is_right(&self, pod: &Pod, entry: &Entry) -> bool {
        mirror::is_right(pod, self.api.as_made(&entry.name), &entry.report.pod)
    }

    /// The API object that an entry's status belongs to.
    fn target(&self, uid: &PodUid, entry: &Entry) -> Option<&Arc<Pod>> {
        let pod = self.api.get(&entry.name)?;
        let is_it = if entry.is_static() {
            self.static_of(&entry.name) == Some(uid) && self.is_right(pod, entry)
        } else {
            uid_of(pod) == *uid && !is_mirror_pod(pod)
        };
        is_it.then_some(pod)
    }

    /// How many of the API server's pods have a status that was not delivered yet.
    pub(crate) fn undelivered(&self) -> usize {
        let waits =
            |(uid, entry): &(&PodUid, &Entry)| entry.is_waiting() && self.target(uid, entry).is_some();
        self.entries.iter().filter(waits).count()
    }

    /// The calls that may begin now, and when to look again.
    pub(crate) fn take(&mut self, now: Moment) -> (Vec<Job>, Option<Moment>) {
        let room = match self.outage.room(now, MAX_CALLS) {
            Ok(room) => room.saturating_sub(self.queue.running()),
            Err(until) => return (Vec::new(), Some(until)),
        };
        let (mut jobs, mut idle, mut later) = (Vec::new(), Vec::new(), Vec::new());
        if room == 0 {
            return (jobs, None);
        }
        self.queue.wake(now);
        for key in self.queue.waiting() {
            match self.look(key, now) {
                Look::Nothing => idle.push(key.clone()),
                Look::Later(at) => later.push((key.clone(), at)),
                Look::Now(name, work) => {
                    let key = key.clone();
                    jobs.push(Job { key, name, work });
                    if jobs.len() == room {
                        break;
                    }
                }
            }
        }
        for (key, until) in &later {
            self.queue.put_off(key, *until);
        }
        for key in &idle {
            self.queue.remove(key);
            self.drop_idle_mirror(key);
        }
        for job in &jobs {
            self.queue.begin(&job.key);
            if let Key::Status(uid) = &job.key
                && let Some(entry) = self.entries.get_mut(uid)
            {
                entry.must_look = false;
            }
        }
        (jobs, self.queue.next_wake())
    }

    /// Forgets the mirror state of a name that neither a static pod nor an API pod has.
    fn drop_idle_mirror(&mut self, key: &Key) {
        if let Key::Mirror(name) = key
            && !self.statics.contains_key(name)
            && self.api.get(name).is_none()
        {
            self.mirrors.remove(name);
        }
    }

    fn look(&self, key: &Key, now: Moment) -> Look {
        match key {
            Key::Status(uid) => {
                let entry = self.entries.get(uid);
                let target = entry.and_then(|entry| Some((entry, self.target(uid, entry)?)));
                target.map_or(Look::Nothing, |(entry, target)| entry.look(target, now))
            }
            Key::Mirror(name) => self.look_at_mirror(name, now),
        }
    }

    fn look_at_mirror(&self, name: &PodName, now: Moment) -> Look {
        let wanted = self.static_of(name).and_then(|uid| self.entries.get(uid));
        let work = match (wanted, self.api.get(name)) {
            (Some(entry), Some(pod)) if self.is_right(pod, entry) => return Look::Nothing,
            // Another pod, not a mirror, has the name: it is not removed.
            (Some(_) | None, Some(pod)) if !is_mirror_pod(pod) => return Look::Nothing,
            (Some(_), Some(pod)) => Work::DeleteMirror {
                target: Arc::clone(pod),
            },
            (None, Some(pod)) if self.sources_are_ready => Work::DeleteMirror {
                target: Arc::clone(pod),
            },
            (None, Some(_) | None) => return Look::Nothing,
            (Some(_), None) if is_on(Bug::MirrorsForgotten) => return Look::Nothing,
            (Some(entry), None) => match &self.node {
                Some(node) if self.api.is_known() && mirror::can_own(node) => {
                    let mirror = mirror::mirror_of(&entry.report.pod, node);
                    Work::CreateMirror {
                        mirror: Arc::new(mirror),
                    }
                }
                Some(_) | None => return Look::Nothing,
            },
        };
        match self.mirrors.get(name).and_then(|state| state.ready_at(now)) {
            Some(at) => Look::Later(at),
            None => Look::Now(name.clone(), work),
        }
    }

    /// Takes the answer to a call. In any case the key is queued again: the next look at it decides whether something is left to do.
    pub(crate) fn finish(&mut self, job: &Job, outcome: Outcome, scene: &Scene<'_>) {
        self.queue.end(&job.key);
        match outcome {
            Outcome::Failed(error) => self.failed(job, &error, scene),
            Outcome::Same | Outcome::Patched { .. } | Outcome::Created(_) | Outcome::Deleted => {
                if !matches!(outcome, Outcome::Same) {
                    self.outage.ended(scene.now);
                }
                self.succeeded(job, outcome, scene);
            }
        }
        match &job.key {
            Key::Status(uid) => self.push_status(uid),
            Key::Mirror(_) => self.queue.push(job.key.clone(), Urgency::Urgent),
        }
    }

    fn succeeded(&mut self, job: &Job, outcome: Outcome, scene: &Scene<'_>) {
        let (now, counters) = (scene.now, scene.counters);
        let was_sent = matches!(outcome, Outcome::Patched { .. });
        match outcome {
            Outcome::Patched { pod, is_overwritten } => {
                count(&counters.statuses_sent);
                self.api.answered(*pod, now);
                if is_overwritten {
                    self.look_again(job);
                }
            }
            Outcome::Created(pod) => {
                count(&counters.mirrors_created);
                tracing::info!(pod = %job.name, "Created the mirror of a static pod");
                self.api.created(*pod, now);
                self.api_pod_changed(&job.name);
            }
            Outcome::Same => count(&counters.statuses_unchanged),
            Outcome::Deleted | Outcome::Failed(_) => {}
        }
        match &job.work {
            Work::Status {
                target,
                version,
                is_repeat,
                ..
            } => {
                if let Key::Status(uid) = &job.key
                    && let Some(entry) = self.entries.get_mut(uid)
                {
                    if let Some(delay) = entry.delivered(target, *version, now) {
                        counters.delivered_after(delay);
                    }
                    if *is_repeat && was_sent {
                        entry.repeated(now);
                    }
                }
            }
            Work::Delete { target } => {
                count(&counters.pods_deleted);
                tracing::info!(pod = %job.name, uid = uid_text(target), "Removed a pod from the API that has ended");
                self.api.gone(&job.name, uid_text(target));
            }
            Work::DeleteMirror { target } => {
                count(&counters.mirrors_deleted);
                tracing::info!(pod = %job.name, uid = uid_text(target), "Deleted a mirror that is not right");
                self.api.gone(&job.name, uid_text(target));
                self.mirror(&job.name).called(None, now);
            }
            Work::CreateMirror { .. } => self.mirror(&job.name).called(None, now),
        }
    }

    fn mirror(&mut self, name: &PodName) -> &mut MirrorState {
        self.mirrors.entry(name.clone()).or_default()
    }

    fn failed(&mut self, job: &Job, error: &ApiError, scene: &Scene<'_>) {
        let counter = match &job.key {
            Key::Status(_) => &scene.counters.status_failures,
            Key::Mirror(_) => &scene.counters.mirror_failures,
        };
        count(counter);
        self.look_again(job);
        if Outage::explains(error.kind) {
            self.outage.failed(error, scene.now, scene.chance);
            return;
        }
        if error.kind != ApiErrorKind::DeadlineExceeded {
            self.outage.ended(scene.now);
        }
        if let Some(target) = job.absent_target(error) {
            tracing::debug!(pod = %job.name, uid = uid_text(target), %error, "The pod is not in the API any more");
            self.api.gone(&job.name, uid_text(target));
            self.queue.push(Key::Mirror(job.name.clone()), Urgency::Urgent);
            return;
        }
        match &job.key {
            Key::Status(uid) => {
                let entry = self.entries.get_mut(uid);
                let before = entry.as_ref().and_then(|entry| entry.backoff.as_ref());
                let backoff = job.backoff(error, before, scene);
                if let Some(entry) = entry {
                    entry.backoff = Some(backoff);
                }
            }
            Key::Mirror(name) => {
                let state = self.mirror(name);
                let backoff = job.backoff(error, state.backoff.as_ref(), scene);
                state.called(Some(backoff), scene.now);
            }
        }
    }

    /// Compares the status with the API server's once more.
    fn look_again(&mut self, job: &Job) {
        if let Key::Status(uid) = &job.key
            && let Some(entry) = self.entries.get_mut(uid)
        {
            entry.must_look = true;
        }
    }
}
