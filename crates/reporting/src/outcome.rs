//! What follows from the answer to a call.
//!
//! Owns what is remembered of it: the newest pod of the API server, what was delivered, pauses after failures. In any case the
//! key is queued again: the next look at it decides whether something is left to do.

use k8s_openapi::api::core::v1::Pod;
use rubelet_model::pod::uid_text;
use rubelet_ports::api::{ApiError, ApiErrorKind};
use rubelet_ports::{Moment, Randomness};

use crate::backoff::{Backoff, Limits, MIRROR_REFUSED, PASSING, REFUSED};
use crate::figures::{Counters, count};
use crate::outage::Outage;
use crate::queue::{Key, Urgency};
use crate::table::{Delivered, Job, Table, Work};

#[derive(Debug)]
pub(crate) enum Outcome {
    /// There was nothing to send.
    Same,
    Patched {
        pod: Box<Pod>,
        /// The answer shows that another client changed what this node writes.
        is_overwritten: bool,
    },
    Created(Box<Pod>),
    Deleted,
    Failed(ApiError),
}

/// What an outcome is seen with.
pub(crate) struct Scene<'a> {
    pub(crate) now: Moment,
    pub(crate) chance: &'a dyn Randomness,
    pub(crate) counters: &'a Counters,
}

impl Table {
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
                    entry.delivered = Some(Delivered {
                        uid: uid_text(target).to_owned(),
                        version: *version,
                    });
                    entry.backoff = None;
                    if entry.version == *version
                        && let Some(since) = entry.waiting_since.take()
                    {
                        counters.delivered_after(now.since(since));
                    }
                    if *is_repeat && was_sent {
                        entry.pace.spend(now);
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
                self.mirror_was_touched(job, None, now);
            }
            Work::CreateMirror { .. } => self.mirror_was_touched(job, None, now),
        }
    }

    fn mirror_was_touched(&mut self, job: &Job, backoff: Option<Backoff>, now: Moment) {
        let state = self.mirrors.entry(job.name.clone()).or_default();
        state.backoff = backoff;
        state.pace.spend(now);
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
        let target = match &job.work {
            Work::Status { target, .. } | Work::Delete { target } | Work::DeleteMirror { target } => {
                Some(target)
            }
            Work::CreateMirror { .. } => None,
        };
        // A deletion with the wrong UID is a conflict; so is a patch that raced with others, which does not concern the pod.
        let is_gone = matches!(
            (&job.work, error.kind),
            (
                Work::Delete { .. } | Work::DeleteMirror { .. },
                ApiErrorKind::NotFound | ApiErrorKind::Conflict
            )
        );
        if let Some(target) = target
            && is_gone
        {
            tracing::debug!(pod = %job.name, uid = uid_text(target), %error, "The pod is not in the API any more");
            self.api.gone(&job.name, uid_text(target));
            self.queue.push(Key::Mirror(job.name.clone()), Urgency::Urgent);
            return;
        }
        self.pause(job, error, scene);
    }

    /// Compares the status with the API server's once more.
    fn look_again(&mut self, job: &Job) {
        if let Key::Status(uid) = &job.key
            && let Some(entry) = self.entries.get_mut(uid)
        {
            entry.must_look = true;
        }
    }

    fn pause(&mut self, job: &Job, error: &ApiError, scene: &Scene<'_>) {
        let limits = limits_of(&job.key, error);
        let message = error.message.clone();
        let before = match &job.key {
            Key::Status(uid) => self.entries.get(uid).and_then(|entry| entry.backoff.as_ref()),
            Key::Mirror(name) => self.mirrors.get(name).and_then(|state| state.backoff.as_ref()),
        };
        let is_absent = matches!(job.work, Work::Status { .. }) && error.kind == ApiErrorKind::NotFound;
        if is_absent {
            tracing::debug!(pod = %job.name, %error, "The API server does not find a pod; its watch decides whether it is gone");
        } else if before.is_none_or(|before| before.message != message) {
            tracing::warn!(pod = %job.name, %error, "The API server does not take what is reported of a pod; trying again");
        }
        let mut backoff = if is_absent {
            Backoff::for_absence(message, scene.now)
        } else {
            Backoff::after(before, limits, message, scene.now, scene.chance)
        };
        backoff.ends_with_news = error.kind == ApiErrorKind::Invalid;
        match &job.key {
            Key::Status(uid) => {
                if let Some(entry) = self.entries.get_mut(uid) {
                    entry.backoff = Some(backoff);
                }
            }
            Key::Mirror(_) => self.mirror_was_touched(job, Some(backoff), scene.now),
        }
    }
}

fn limits_of(key: &Key, error: &ApiError) -> Limits {
    // A conflict is over as soon as the others have finished.
    if error.is_passing() || error.kind == ApiErrorKind::Conflict {
        return PASSING;
    }
    match key {
        Key::Status(_) => REFUSED,
        Key::Mirror(_) => MIRROR_REFUSED,
    }
}
