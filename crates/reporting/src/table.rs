//! What has to be written to the API server.
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

use k8s_openapi::api::core::v1::{Node, Pod, PodStatus};
use rubelet_lifecycle::deliberate::{Bug, is_on};
use rubelet_lifecycle::status::may_be_deleted;
use rubelet_lifecycle::status_patch::is_urgent;
use rubelet_model::observation::PodUid;
use rubelet_model::pod::{PodName, is_mirror_pod, is_static_pod, uid_of, uid_text};
use rubelet_ports::api::Change;
use rubelet_ports::{Moment, PodReport};

use crate::api_pods::ApiPods;
use crate::backoff::{Backoff, Pace};
use crate::mirror;
use crate::outage::Outage;
use crate::queue::{Key, Queue, Urgency};

/// How many calls are under way at once.
pub(crate) const MAX_CALLS: usize = 10;

/// A status that the API server has, or that did not have to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Delivered {
    /// The API object: of a static pod its mirror.
    pub(crate) uid: String,
    pub(crate) version: u64,
}

/// The newest report of a pod.
pub(crate) struct Entry {
    pub(crate) name: PodName,
    /// Which of two static pods of one name counts: the elder, until nothing of it is left. The other one does not run before.
    born: u64,
    pub(crate) report: PodReport,
    pub(crate) version: u64,
    pub(crate) delivered: Option<Delivered>,
    /// Since when there is something that was not delivered.
    pub(crate) waiting_since: Option<Moment>,
    /// The API server's pod changed: its status may be overwritten.
    pub(crate) must_look: bool,
    pub(crate) backoff: Option<Backoff>,
    pub(crate) pace: Pace,
}

/// What is known of the making of a mirror.
#[derive(Default)]
pub(crate) struct MirrorState {
    pub(crate) backoff: Option<Backoff>,
    pub(crate) pace: Pace,
}

/// A call to be made.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Status {
        target: Arc<Pod>,
        status: Arc<PodStatus>,
        version: u64,
        /// It was delivered before: only what was overwritten is sent.
        is_repeat: bool,
    },
    /// The end of a pod that is being deleted.
    Delete {
        target: Arc<Pod>,
    },
    CreateMirror {
        mirror: Arc<Pod>,
    },
    DeleteMirror {
        target: Arc<Pod>,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) key: Key,
    pub(crate) name: PodName,
    pub(crate) work: Work,
}

/// What a key needs.
enum Look {
    Nothing,
    Later(Moment),
    Now(PodName, Work),
}

#[derive(Default)]
pub(crate) struct Table {
    pub(crate) api: ApiPods,
    pub(crate) entries: BTreeMap<PodUid, Entry>,
    pub(crate) mirrors: BTreeMap<PodName, MirrorState>,
    pub(crate) queue: Queue,
    pub(crate) outage: Outage,
    /// Static pods by name, the eldest first.
    statics: BTreeMap<PodName, BTreeMap<u64, PodUid>>,
    node: Option<Arc<Node>>,
    sources_are_ready: bool,
    last_born: u64,
}

impl Table {
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
        if !says_something(&report) {
            // The pod is made known again; its last status still holds.
            entry.report.pod = report.pod;
            return;
        }
        let is_same = entry.report.is_finished == report.is_finished && entry.report.status == report.status;
        entry.report = report;
        if is_same {
            return;
        }
        entry.version += 1;
        entry.waiting_since.get_or_insert(now);
        if let Some(backoff) = &mut entry.backoff
            && backoff.ends_with_news
        {
            backoff.until = now;
        }
        self.push_status(&uid);
    }

    fn add(&mut self, uid: &PodUid, report: PodReport, now: Moment) {
        self.last_born += 1;
        let name = PodName::of(&report.pod);
        let entry = Entry {
            name: name.clone(),
            born: self.last_born,
            version: 1,
            delivered: None,
            waiting_since: says_something(&report).then_some(now),
            report,
            must_look: false,
            backoff: None,
            pace: Pace::default(),
        };
        if is_static_pod(&entry.report.pod) {
            let of_name = self.statics.entry(name.clone()).or_default();
            of_name.insert(entry.born, uid.clone());
            self.queue.push(Key::Mirror(name), Urgency::Urgent);
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
            // What had to wait for the whole set.
            self.push_statics();
        }
    }

    /// Looks again at everything that depends on the API server's pod of this name.
    pub(crate) fn api_pod_changed(&mut self, name: &PodName) {
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
        self.node = node;
        self.push_statics();
    }

    fn push_statics(&mut self) {
        let names: Vec<PodName> = self.statics.keys().cloned().collect();
        for name in names {
            self.queue.push(Key::Mirror(name), Urgency::Urgent);
        }
    }

    /// Puts a pod's status in line, where others wait for it in front.
    pub(crate) fn push_status(&mut self, uid: &PodUid) {
        let Some(entry) = self.entries.get(uid) else {
            return;
        };
        let urgency = match self.target(uid, entry).filter(|_| says_something(&entry.report)) {
            Some(target) => {
                let nothing = PodStatus::default();
                let api = target.status.as_ref().unwrap_or(&nothing);
                let is_deletion = entry.report.is_finished && target.metadata.deletion_timestamp.is_some();
                if is_deletion || is_urgent(api, &entry.report.status) {
                    Urgency::Urgent
                } else {
                    Urgency::Usual
                }
            }
            None => Urgency::Usual,
        };
        self.queue.push(Key::Status(uid.clone()), urgency);
    }

    /// The static pod of this name that counts.
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
        let is_it = if is_static_pod(&entry.report.pod) {
            self.static_of(&entry.name) == Some(uid) && self.is_right(pod, entry)
        } else {
            uid_of(pod) == *uid && !is_mirror_pod(pod)
        };
        is_it.then_some(pod)
    }

    /// How many pods the API server has that it does not know the newest state of.
    pub(crate) fn undelivered(&self) -> usize {
        let waits = |(uid, entry): &(&PodUid, &Entry)| {
            entry.waiting_since.is_some() && self.target(uid, entry).is_some()
        };
        self.entries.iter().filter(waits).count()
    }

    /// The calls that may begin now, and when to look again.
    pub(crate) fn take(&mut self, now: Moment) -> (Vec<Job>, Option<Moment>) {
        let room = match self.outage.room(now, MAX_CALLS) {
            Ok(room) => room.saturating_sub(self.queue.running()),
            Err(until) => return (Vec::new(), Some(until)),
        };
        let (mut jobs, mut idle, mut wake) = (Vec::new(), Vec::new(), None::<Moment>);
        if room == 0 {
            return (jobs, wake);
        }
        for key in self.queue.waiting() {
            match self.look(key, now) {
                Look::Nothing => idle.push(key.clone()),
                Look::Later(at) => wake = Some(wake.map_or(at, |wake| wake.min(at))),
                Look::Now(name, work) => {
                    let key = key.clone();
                    jobs.push(Job { key, name, work });
                    if jobs.len() == room {
                        break;
                    }
                }
            }
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
        (jobs, wake)
    }

    /// A name that is neither a static pod's nor in the API needs no memory.
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
            Key::Status(uid) => self.look_at_status(uid, now),
            Key::Mirror(name) => self.look_at_mirror(name, now),
        }
    }

    fn look_at_status(&self, uid: &PodUid, now: Moment) -> Look {
        let Some(entry) = self.entries.get(uid) else {
            return Look::Nothing;
        };
        let Some(target) = self.target(uid, entry) else {
            return Look::Nothing;
        };
        if entry.report.status.phase.is_none() {
            // The pod is only known to be desired: its mirror's status stays.
            return Look::Nothing;
        }
        let delivered = entry.delivered.as_ref();
        let is_repeat =
            delivered.is_some_and(|last| last.uid == uid_text(target) && last.version == entry.version);
        let is_end = is_repeat && may_end(target, entry.report.is_finished);
        if is_repeat && !is_end && !entry.must_look {
            return Look::Nothing;
        }
        if let Some(backoff) = &entry.backoff
            && now < backoff.until
        {
            return Look::Later(backoff.until);
        }
        if is_repeat
            && !is_end
            && let Some(at) = entry.pace.ready_at(now)
        {
            return Look::Later(at);
        }
        let target = Arc::clone(target);
        let work = if is_end {
            Work::Delete { target }
        } else {
            Work::Status {
                target,
                status: Arc::clone(&entry.report.status),
                version: entry.version,
                is_repeat,
            }
        };
        Look::Now(entry.name.clone(), work)
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
        if let Some(state) = self.mirrors.get(name) {
            if let Some(backoff) = &state.backoff
                && now < backoff.until
            {
                return Look::Later(backoff.until);
            }
            if let Some(at) = state.pace.ready_at(now) {
                return Look::Later(at);
            }
        }
        Look::Now(name.clone(), work)
    }
}

/// Whether the API object may go. Of one that cannot be decoded the status cannot be seen; the end was delivered all the same.
fn may_end(target: &Pod, is_finished: bool) -> bool {
    let is_unreadable = target.spec.is_none();
    let is_deleted = target.metadata.deletion_timestamp.is_some();
    may_be_deleted(target, is_finished)
        || (is_unreadable && is_deleted && is_finished && !is_mirror_pod(target))
}

/// A status without a phase only makes the pod known: it is not synced yet.
fn says_something(report: &PodReport) -> bool {
    report
        .status
        .phase
        .as_deref()
        .is_some_and(|phase| !phase.is_empty())
}
