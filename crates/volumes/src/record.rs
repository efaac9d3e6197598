//! What this process knows of each pod's volumes; nothing is kept over a restart.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use rubelet_model::observation::PodUid;
use rubelet_model::volume_step::VolumeStep;
use rubelet_ports::Moment;
use rubelet_storage::VolumeSetUp;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::backoff::Backoff;
use crate::metrics::{Counted, VolumesMetrics};

/// Identifies a list of steps. The lists themselves hold files, which are large and secret, and are not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint(u64);

impl Fingerprint {
    pub(crate) fn of(steps: &[VolumeStep]) -> Self {
        let mut hasher = DefaultHasher::new();
        steps.hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// The state of a volume that was set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// These steps succeeded, and none ran after them.
    As(Fingerprint),
    /// Later steps failed half-way: the volume can be used, with old or new files, and has to be brought up to date.
    Behind,
}

/// One pod's volumes.
#[derive(Default)]
pub(crate) struct Record {
    pub(crate) standing: BTreeMap<String, Standing>,
    pub(crate) failures: BTreeMap<String, Backoff>,
    /// Failures of the tear-down in a row.
    pub(crate) end_failure: Option<Backoff>,
    /// What the pod counts for in the metrics.
    pub(crate) counted: Counted,
}

impl Record {
    /// Counts the pod's volumes in the metrics as they are now.
    pub(crate) fn show(&mut self, metrics: &VolumesMetrics) {
        metrics.count(&mut self.counted, &self.standing);
    }

    /// Forgets failures of volumes that the pod does not have any more.
    pub(crate) fn keep_failures_of(&mut self, volumes: &[VolumeSetUp]) {
        self.failures
            .retain(|name, _| volumes.iter().any(|one| one.volume == *name));
    }

    /// Whether these steps are done already, or failed and wait for their next try. Steps that differ do not wait: the object that
    /// was missing or wrong has changed.
    pub(crate) fn is_settled(&mut self, volume: &str, attempt: Fingerprint, now: Moment) -> bool {
        if self.standing.get(volume) == Some(&Standing::As(attempt)) {
            self.failures.remove(volume);
            return true;
        }
        self.failures
            .get(volume)
            .is_some_and(|failure| failure.attempt == Some(attempt) && !failure.remaining(now).is_zero())
    }

    /// Whether an event named a short time ago why there is no plan. The newest reason is the one that the pod waits for.
    pub(crate) fn is_waiting_for_plan(&mut self, volume: &str, message: String, now: Moment) -> bool {
        let waiting = self.failures.get_mut(volume);
        let Some(failure) = waiting.filter(|failure| !failure.remaining(now).is_zero()) else {
            return false;
        };
        failure.message = message;
        failure.attempt = None;
        true
    }
}

/// The right to work on a pod's volumes.
pub(crate) type Locked = OwnedMutexGuard<Record>;

#[derive(Default)]
pub(crate) struct Records {
    by_pod: BTreeMap<PodUid, Arc<Mutex<Record>>>,
}

impl Records {
    pub(crate) fn of(&mut self, uid: &PodUid) -> Arc<Mutex<Record>> {
        Arc::clone(self.by_pod.entry(uid.clone()).or_default())
    }

    /// Forgets a pod of which nothing is left, unless another task waits for its lock.
    pub(crate) fn forget(&mut self, uid: &PodUid) {
        // One reference is the map's own, another is the caller's lock.
        let is_wanted = self
            .by_pod
            .get(uid)
            .is_some_and(|record| Arc::strong_count(record) > 2);
        if !is_wanted {
            self.by_pod.remove(uid);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_pod.len()
    }
}
