//! The conditions `PodResizePending` and `PodResizeInProgress`.
//!
//! Owns their reasons, their times and generations, and which change of them is worth an event.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodCondition};
use rubelet_model::Timestamp;

use crate::status::conditions::{RESIZE_IN_PROGRESS, RESIZE_PENDING};
use crate::status::{api_time, find_condition};

/// The node cannot take the new resources now.
pub const DEFERRED: &str = "Deferred";
/// The node can never take the new resources.
pub const INFEASIBLE: &str = "Infeasible";
/// A step of the resize failed; it is tried again.
pub const ERROR: &str = "Error";

#[derive(Clone, Debug, PartialEq, Eq)]
struct Shown {
    /// Empty while a resize goes on without an error.
    reason: String,
    message: String,
    /// Of a resize in progress, the generation that began.
    generation: Option<i64>,
    /// Since when the reason holds.
    since: Timestamp,
    probed_at: Timestamp,
}

impl Shown {
    fn read(condition: &PodCondition, now: Timestamp) -> Self {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let since = condition.last_transition_time.as_ref().map(|time| {
            let nanos = i64::try_from(time.0.as_nanosecond()).unwrap_or(i64::MAX);
            Timestamp::from_unix_nanos(nanos)
        });
        Self {
            reason: text(&condition.reason),
            message: text(&condition.message),
            generation: condition.observed_generation,
            since: since.unwrap_or(now),
            probed_at: now,
        }
    }

    /// The condition after this one, which keeps its times as far as nothing changes.
    fn next(
        before: Option<&Self>,
        reason: &str,
        message: &str,
        generation: Option<i64>,
        now: Timestamp,
    ) -> Self {
        let new = Self {
            reason: reason.to_owned(),
            message: message.to_owned(),
            generation,
            since: before
                .filter(|before| before.reason == reason)
                .map_or(now, |before| before.since),
            probed_at: now,
        };
        match before {
            Some(before) if before.is_same(&new) => before.clone(),
            Some(_) | None => new,
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        (&self.reason, &self.message, self.generation) == (&other.reason, &other.message, other.generation)
    }

    fn condition(&self, type_: &str) -> PodCondition {
        let text = |text: &String| (!text.is_empty()).then(|| text.clone());
        PodCondition {
            type_: type_.to_owned(),
            status: "True".to_owned(),
            reason: text(&self.reason),
            message: text(&self.message),
            observed_generation: self.generation,
            last_transition_time: Some(api_time(self.since)),
            last_probe_time: Some(api_time(self.probed_at)),
        }
    }
}

/// How long a resize was deferred that is not any more.
pub type Deferred = Option<Duration>;

/// Both conditions of one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResizeConditions {
    pending: Option<Shown>,
    in_progress: Option<Shown>,
}

impl ResizeConditions {
    /// What the API server shows of a pod that ran before this agent started.
    #[must_use]
    pub fn of(pod: &Pod, now: Timestamp) -> Self {
        let conditions = pod
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_deref());
        let read = |type_: &str| {
            let found = find_condition(conditions.unwrap_or_default(), type_)?;
            Some(Shown::read(found, now))
        };
        Self {
            pending: read(RESIZE_PENDING),
            in_progress: read(RESIZE_IN_PROGRESS),
        }
    }

    /// For the status.
    #[must_use]
    pub fn list(&self) -> Vec<PodCondition> {
        let pending = self.pending.iter().map(|one| one.condition(RESIZE_PENDING));
        let in_progress = self.in_progress.iter();
        pending
            .chain(in_progress.map(|one| one.condition(RESIZE_IN_PROGRESS)))
            .collect()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pending.is_none() && self.in_progress.is_none()
    }

    #[must_use]
    pub fn is_in_progress(&self) -> bool {
        self.in_progress.is_some()
    }

    /// `Deferred` or `Infeasible`, while a resize waits.
    #[must_use]
    pub fn pending_reason(&self) -> Option<&str> {
        self.pending.as_ref().map(|pending| pending.reason.as_str())
    }

    /// Since when the resize waits for this reason.
    #[must_use]
    pub fn pending_since(&self) -> Option<Timestamp> {
        self.pending.as_ref().map(|pending| pending.since)
    }

    /// The resize waits. The answer is whether that is worth an event.
    pub fn set_pending(
        &mut self,
        reason: &str,
        message: &str,
        generation: Option<i64>,
        now: Timestamp,
    ) -> bool {
        let before = self.pending.take();
        let is_new = before
            .as_ref()
            .is_none_or(|before| before.reason != reason || before.generation != generation);
        self.pending = Some(Shown::next(before.as_ref(), reason, message, generation, now));
        is_new
    }

    /// No resize waits any more.
    pub fn clear_pending(&mut self, now: Timestamp) -> Deferred {
        let pending = self.pending.take().filter(|pending| pending.reason == DEFERRED)?;
        Some(now.since(pending.since))
    }

    /// The resize of this generation begins; an error of an earlier one is over.
    pub fn begin(&mut self, generation: Option<i64>, now: Timestamp) {
        self.in_progress = Some(Shown::next(None, "", "", generation, now));
    }

    /// The pod has other resources than are allocated to it. What is shown of it already stays.
    pub fn set_in_progress(&mut self, generation: Option<i64>, now: Timestamp) {
        if self.in_progress.is_none() {
            self.begin(generation, now);
        }
    }

    /// A step failed. The answer is whether that is worth an event.
    pub fn fail(&mut self, message: &str, generation: Option<i64>, now: Timestamp) -> bool {
        let before = self.in_progress.take();
        let generation = match &before {
            Some(before) => before.generation,
            None => generation,
        };
        let next = Shown::next(before.as_ref(), ERROR, message, generation, now);
        let is_new = before.is_none_or(|before| !before.is_same(&next));
        self.in_progress = Some(next);
        is_new
    }

    /// The pod has the resources that are allocated to it. The answer is whether a resize has ended, and its generation.
    pub fn complete(&mut self) -> Option<Option<i64>> {
        self.in_progress.take().map(|ended| ended.generation)
    }

    /// The generation of the resize in progress.
    #[must_use]
    pub fn generation(&self) -> Option<i64> {
        self.in_progress.as_ref().and_then(|one| one.generation)
    }
}
