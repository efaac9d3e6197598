//! One pod in the table: its newest report, what the API server has of it, and what has to be sent next. The counterpart of
//! upstream's `versionedPodStatus`.
//!
//! Owns the decision for one pod: which status is new, what was delivered, when the next call may begin. Which API object the status
//! belongs to comes in as a value.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rubelet_lifecycle::status::may_be_deleted;
use rubelet_lifecycle::status_patch::is_urgent;
use rubelet_model::pod::{PodName, is_mirror_pod, is_static_pod, uid_text};
use rubelet_ports::{Moment, PodReport};

use crate::backoff::{Backoff, Pace};
use crate::job::{Look, Work};
use crate::queue::Urgency;

/// A status that the API server has, or that did not have to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Delivered {
    /// The API object: of a static pod its mirror.
    uid: String,
    version: u64,
}

/// The newest report of a pod.
pub(crate) struct Entry {
    pub(crate) name: PodName,
    /// The order in which pods were reported first. Of two static pods of one name the elder has the mirror until it is forgotten;
    /// the other one does not run before.
    pub(crate) born: u64,
    pub(crate) report: PodReport,
    version: u64,
    delivered: Option<Delivered>,
    /// Since when there is a status that was not delivered.
    waiting_since: Option<Moment>,
    /// The API server's pod changed: its status may be overwritten.
    pub(crate) must_look: bool,
    pub(crate) backoff: Option<Backoff>,
    pace: Pace,
}

impl Entry {
    pub(crate) fn new(report: PodReport, born: u64, now: Moment) -> Self {
        Self {
            name: PodName::of(&report.pod),
            born,
            version: 1,
            delivered: None,
            waiting_since: has_phase(&report).then_some(now),
            report,
            must_look: false,
            backoff: None,
            pace: Pace::default(),
        }
    }

    pub(crate) fn is_static(&self) -> bool {
        is_static_pod(&self.report.pod)
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting_since.is_some()
    }

    /// Takes a newer report of the same pod. Whether the status has changed.
    pub(crate) fn update(&mut self, report: PodReport, now: Moment) -> bool {
        if !has_phase(&report) {
            // The pod is made known again; its last status still holds.
            self.report.pod = report.pod;
            return false;
        }
        let is_same = self.report.is_finished == report.is_finished && self.report.status == report.status;
        self.report = report;
        if is_same {
            return false;
        }
        self.version += 1;
        self.waiting_since.get_or_insert(now);
        if let Some(backoff) = &mut self.backoff
            && backoff.ends_with_news
        {
            backoff.until = now;
        }
        true
    }

    /// How urgent the status is. `target` is the API object that it belongs to.
    pub(crate) fn urgency(&self, target: Option<&Pod>) -> Urgency {
        let Some(target) = target.filter(|_| has_phase(&self.report)) else {
            return Urgency::Usual;
        };
        let nothing = PodStatus::default();
        let api = target.status.as_ref().unwrap_or(&nothing);
        let is_deletion = self.report.is_finished && target.metadata.deletion_timestamp.is_some();
        if is_deletion || is_urgent(api, &self.report.status) {
            Urgency::Urgent
        } else {
            Urgency::Usual
        }
    }

    /// What `target`, the API object that the status belongs to, needs now.
    pub(crate) fn look(&self, target: &Arc<Pod>, now: Moment) -> Look {
        if self.report.status.phase.is_none() {
            // The pod is only known to be desired: its mirror's status stays.
            return Look::Nothing;
        }
        let delivered = self.delivered.as_ref();
        let is_repeat =
            delivered.is_some_and(|last| last.uid == uid_text(target) && last.version == self.version);
        let is_undefined = !has_definition(&self.report.pod);
        if is_undefined && !may_end(target, self.report.is_finished) {
            return Look::Nothing;
        }
        let is_end = (is_repeat || is_undefined) && may_end(target, self.report.is_finished);
        if is_repeat && !is_end && !self.must_look {
            return Look::Nothing;
        }
        if let Some(backoff) = &self.backoff
            && now < backoff.until
        {
            return Look::Later(backoff.until);
        }
        if is_repeat
            && !is_end
            && let Some(at) = self.pace.ready_at(now)
        {
            return Look::Later(at);
        }
        let target = Arc::clone(target);
        let work = if is_end {
            Work::Delete { target }
        } else {
            Work::Status {
                target,
                status: Arc::clone(&self.report.status),
                version: self.version,
                is_repeat,
            }
        };
        Look::Now(self.name.clone(), work)
    }

    /// Notes that a version of the status is at the API server. The answer is how long the newest status has waited for that, if it is
    /// this one.
    pub(crate) fn delivered(&mut self, target: &Pod, version: u64, now: Moment) -> Option<Duration> {
        self.delivered = Some(Delivered {
            uid: uid_text(target).to_owned(),
            version,
        });
        self.backoff = None;
        let since = self.waiting_since.take_if(|_| self.version == version)?;
        Some(now.since(since))
    }

    /// Notes that an overwritten status was sent again, which is limited in its rate.
    pub(crate) fn repeated(&mut self, now: Moment) {
        self.pace.spend(now);
    }
}

/// What is known of the creation and deletion of a mirror pod.
#[derive(Default)]
pub(crate) struct MirrorState {
    pub(crate) backoff: Option<Backoff>,
    pace: Pace,
}

impl MirrorState {
    /// Notes a call. `backoff`: it has failed.
    pub(crate) fn called(&mut self, backoff: Option<Backoff>, now: Moment) {
        self.backoff = backoff;
        self.pace.spend(now);
    }

    /// The time at which the next call may begin; `None`: at once.
    pub(crate) fn ready_at(&self, now: Moment) -> Option<Moment> {
        let backoff = self.backoff.as_ref().map(|backoff| backoff.until);
        backoff
            .filter(|until| now < *until)
            .or_else(|| self.pace.ready_at(now))
    }
}

/// Whether the API object may be deleted. The status of an object that cannot be decoded is not visible; its end was delivered all the
/// same.
fn may_end(target: &Pod, is_finished: bool) -> bool {
    let is_unreadable = target.spec.is_none();
    let is_deleted = target.metadata.deletion_timestamp.is_some();
    may_be_deleted(target, is_finished)
        || (is_unreadable && is_deleted && is_finished && !is_mirror_pod(target))
}

/// Without its definition a pod is terminated, and its status would be made up.
fn has_definition(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    spec.is_some_and(|spec| !spec.containers.is_empty())
}

/// A status without a phase only makes the pod known: it is not synced yet.
fn has_phase(report: &PodReport) -> bool {
    let phase = report.status.phase.as_deref();
    phase.is_some_and(|phase| !phase.is_empty())
}
