//! How long a container that keeps ending waits before it is started again.
//!
//! Owns the delays and their growth. It reads no clock, and it does not decide whether a container restarts at all.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};
use rubelet_model::Timestamp;
use rubelet_model::observation::PodUid;
use rubelet_model::pod::uid_of;
use serde::{Deserialize, Serialize};

use crate::deliberate::{Bug, is_on};

const INITIAL_DELAY: Duration = Duration::from_secs(10);
const MAX_DELAY: Duration = Duration::from_secs(300);
const REDUCED_INITIAL_DELAY: Duration = Duration::from_secs(1);
const REDUCED_MAX_DELAY: Duration = Duration::from_secs(60);
const RESET_AFTER: Duration = Duration::from_secs(600);

/// The first delay, and the one where growth ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackoffLimits {
    pub initial: Duration,
    pub max: Duration,
}

impl Default for BackoffLimits {
    fn default() -> Self {
        Self {
            initial: INITIAL_DELAY,
            max: MAX_DELAY,
        }
    }
}

impl BackoffLimits {
    /// `reduced` is the gate `ReduceDefaultCrashLoopBackOffDecay`. `configured_max` is the configuration's
    /// `maxContainerRestartPeriod`, given only while the gate `KubeletCrashLoopBackOffMax` is on.
    #[must_use]
    pub fn new(reduced: bool, configured_max: Option<Duration>) -> Self {
        let (initial, max) = if reduced {
            (REDUCED_INITIAL_DELAY, REDUCED_MAX_DELAY)
        } else {
            (INITIAL_DELAY, MAX_DELAY)
        };
        let max = configured_max.unwrap_or(max);
        Self {
            initial: initial.min(max),
            max,
        }
    }
}

/// What a delay belongs to. Another image or other resources begin anew.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BackoffKey {
    pod: PodUid,
    container: String,
    image: String,
    resources: String,
}

impl BackoffKey {
    #[must_use]
    pub fn new(pod: &Pod, container: &Container) -> Self {
        Self {
            pod: uid_of(pod),
            container: container.name.clone(),
            image: container.image.clone().unwrap_or_default(),
            // Maps of resources are ordered, so equal resources give equal text.
            resources: format!("{:?}", container.resources),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    delay: Duration,
    stepped_at: Timestamp,
}

impl Entry {
    /// A container that ran long enough after the last step begins with the first delay again.
    fn is_over(self, event_at: Timestamp) -> bool {
        event_at.since(self.stepped_at) > RESET_AFTER
    }
}

/// A restart that has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackoffWait {
    pub delay: Duration,
    pub until: Timestamp,
}

/// The delays of all containers of the node. Kept in memory only, as upstream does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Recorded", into = "Recorded")]
pub struct CrashBackoff {
    limits: BackoffLimits,
    entries: BTreeMap<BackoffKey, Entry>,
}

/// The form in records: keys of a map in JSON can only be text.
#[derive(Serialize, Deserialize)]
struct Recorded {
    limits: BackoffLimits,
    entries: Vec<(BackoffKey, Entry)>,
}

impl From<Recorded> for CrashBackoff {
    fn from(recorded: Recorded) -> Self {
        Self {
            limits: recorded.limits,
            entries: recorded.entries.into_iter().collect(),
        }
    }
}

impl From<CrashBackoff> for Recorded {
    fn from(backoff: CrashBackoff) -> Self {
        Self {
            limits: backoff.limits,
            entries: backoff.entries.into_iter().collect(),
        }
    }
}

impl CrashBackoff {
    #[must_use]
    pub fn new(limits: BackoffLimits) -> Self {
        Self {
            limits,
            entries: BTreeMap::new(),
        }
    }

    /// Whether a container that ended at `exited_at` still has to wait.
    #[must_use]
    pub fn wait(&self, key: &BackoffKey, exited_at: Timestamp, now: Timestamp) -> Option<BackoffWait> {
        let entry = self.entries.get(key).filter(|entry| !entry.is_over(exited_at))?;
        // An exit in the future means that the clock was set back; waiting for it could take hours.
        let is_over = exited_at > now || now.since(exited_at) >= entry.delay;
        if is_over || is_on(Bug::BackoffForgotten) {
            return None;
        }
        Some(BackoffWait {
            delay: entry.delay,
            until: exited_at.plus(entry.delay),
        })
    }

    /// Records that a container that ended at `exited_at` is started again, which makes the next delay longer.
    pub fn step(&mut self, key: BackoffKey, exited_at: Timestamp, now: Timestamp) {
        let delay = match self.entries.get(&key) {
            Some(entry) if !entry.is_over(exited_at) => (entry.delay * 2).min(self.limits.max),
            Some(_) | None => self.limits.initial,
        };
        self.entries.insert(
            key,
            Entry {
                delay,
                stepped_at: now,
            },
        );
    }

    /// Drops what no longer delays anything.
    pub fn forget_old(&mut self, now: Timestamp) {
        self.entries.retain(|_, entry| !entry.is_over(now));
    }

    /// Drops everything of one pod.
    pub fn forget_pod(&mut self, pod: &PodUid) {
        self.entries.retain(|key, _| key.pod != *pod);
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
