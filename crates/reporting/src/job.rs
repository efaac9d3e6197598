//! One API call and its outcome, and the backoff after a failure.
//!
//! Owns which calls and outcomes there are, and how a failure of each call is retried. It keeps no state: the table keeps what follows
//! from an outcome.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rubelet_model::pod::PodName;
use rubelet_ports::api::{ApiError, ApiErrorKind};
use rubelet_ports::{Moment, Randomness};

use crate::backoff::{Backoff, Limits, MIRROR_REFUSED, PASSING, REFUSED};
use crate::figures::Counters;
use crate::queue::Key;

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
pub(crate) enum Look {
    Nothing,
    Later(Moment),
    Now(PodName, Work),
}

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

/// The ports that the handling of an outcome needs.
pub(crate) struct Scene<'a> {
    pub(crate) now: Moment,
    pub(crate) chance: &'a dyn Randomness,
    pub(crate) counters: &'a Counters,
}

impl Job {
    /// The pod that a failed deletion was for, where the failure shows that the pod is not there any more. A deletion with the wrong
    /// UID is a conflict; so is a patch that raced with others, which does not concern the pod.
    pub(crate) fn absent_target(&self, error: &ApiError) -> Option<&Arc<Pod>> {
        match (&self.work, error.kind) {
            (
                Work::Delete { target } | Work::DeleteMirror { target },
                ApiErrorKind::NotFound | ApiErrorKind::Conflict,
            ) => Some(target),
            _ => None,
        }
    }

    /// The backoff of this job's key after a failure that concerns its pod. `before` is the backoff until now.
    pub(crate) fn backoff(&self, error: &ApiError, before: Option<&Backoff>, scene: &Scene<'_>) -> Backoff {
        let message = error.message.clone();
        let is_absent = matches!(self.work, Work::Status { .. }) && error.kind == ApiErrorKind::NotFound;
        if is_absent {
            tracing::debug!(pod = %self.name, %error, "The API server does not find a pod; its watch decides whether it is gone");
            return Backoff::for_absence(message, scene.now);
        }
        if before.is_none_or(|before| before.message != message) {
            tracing::warn!(pod = %self.name, %error, "The API server does not take what is reported of a pod; trying again");
        }
        let mut backoff = Backoff::after(before, self.limits(error), message, scene.now, scene.chance);
        backoff.ends_with_news = error.kind == ApiErrorKind::Invalid;
        backoff
    }

    fn limits(&self, error: &ApiError) -> Limits {
        // A conflict is over as soon as the others have finished.
        if error.is_passing() || error.kind == ApiErrorKind::Conflict {
            return PASSING;
        }
        match self.key {
            Key::Status(_) => REFUSED,
            Key::Mirror(_) => MIRROR_REFUSED,
        }
    }
}
