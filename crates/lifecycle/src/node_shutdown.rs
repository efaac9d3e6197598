//! The graceful shutdown of the node: which pods end together, in which order, and how long each may take.
//!
//! Owns the periods of both configurations, the groups of pods, and upstream's reason and message. It ends no pod and reads no
//! clock: a group's period counts from the moment at which the group begins.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rubelet_config::gates::{FeatureGates, Gate};
use rubelet_config::kubelet_configuration::KubeletConfiguration;
use rubelet_model::GoDuration;
use rubelet_model::observation::PodUid;
use rubelet_model::pod::{SYSTEM_CRITICAL_PRIORITY, uid_of};

use crate::status::Eviction;

const REASON: &str = "Terminated";
const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";
/// Of pods without a priority class.
const DEFAULT_PRIORITY: i32 = 0;

/// How long the pods from one priority up to the next one may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutdownPeriod {
    pub priority: i32,
    pub seconds: i64,
}

/// The periods of a node that shuts down gracefully, the lowest priority first; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShutdownPeriods(Vec<ShutdownPeriod>);

/// Pods that end together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShutdownGroup {
    pub priority: i32,
    /// The next group begins at the latest when this has passed.
    pub period: Duration,
    pub pods: Vec<EndingPod>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndingPod {
    pub uid: PodUid,
    pub grace_seconds: i64,
}

impl ShutdownPeriods {
    /// `None` where the node does not wait for its pods.
    #[must_use]
    pub fn of(configuration: &KubeletConfiguration, gates: &FeatureGates) -> Option<Self> {
        if !gates.enabled(Gate::GracefulNodeShutdown) {
            return None;
        }
        let listed = &configuration.shutdown_grace_period_by_pod_priority;
        let by_priority = gates.enabled(Gate::GracefulNodeShutdownBasedOnPodPriority) && !listed.is_empty();
        if !by_priority {
            return Self::of_two(
                configuration.shutdown_grace_period,
                configuration.shutdown_grace_period_critical_pods,
            );
        }
        let periods = listed.iter().map(|one| ShutdownPeriod {
            priority: one.priority,
            seconds: one.shutdown_grace_period_seconds,
        });
        Some(Self::sorted(periods.collect()))
    }

    /// Critical pods come last and get their part of the whole time. Parts of seconds do not count.
    fn of_two(total: GoDuration, critical: GoDuration) -> Option<Self> {
        let (total, critical) = (total.to_std()?, critical.to_std()?);
        let usual = total.checked_sub(critical)?;
        let whole = |period: Duration| i64::try_from(period.as_secs()).unwrap_or(i64::MAX);
        let periods = [(DEFAULT_PRIORITY, usual), (SYSTEM_CRITICAL_PRIORITY, critical)];
        let periods = periods.map(|(priority, period)| ShutdownPeriod {
            priority,
            seconds: whole(period),
        });
        (!total.is_zero()).then(|| Self(periods.to_vec()))
    }

    fn sorted(mut periods: Vec<ShutdownPeriod>) -> Self {
        periods.sort_by_key(|period| period.priority);
        Self(periods)
    }

    #[must_use]
    pub fn as_slice(&self) -> &[ShutdownPeriod] {
        &self.0
    }

    /// The time that all groups together may take.
    #[must_use]
    pub fn total(&self) -> Duration {
        let periods = self.0.iter().map(|period| seconds(period.seconds));
        periods.fold(Duration::ZERO, Duration::saturating_add)
    }

    /// All groups, the first one first. A group without pods stays in the list and takes no time.
    #[must_use]
    pub fn plan_groups(&self, pods: &[Arc<Pod>]) -> Vec<ShutdownGroup> {
        let mut groups: Vec<ShutdownGroup> = Vec::with_capacity(self.0.len());
        groups.extend(self.0.iter().map(|period| ShutdownGroup {
            priority: period.priority,
            period: seconds(period.seconds),
            pods: Vec::new(),
        }));
        for pod in pods {
            let index = self.group_of(priority_of(pod));
            let (Some(period), Some(group)) = (self.0.get(index), groups.get_mut(index)) else {
                continue;
            };
            let uid = uid_of(pod);
            // A pod that a newer definition is there for may come twice.
            if !group.pods.iter().any(|known| known.uid == uid) {
                let grace_seconds = grace_of(pod).map_or(period.seconds, |own| own.min(period.seconds));
                group.pods.push(EndingPod { uid, grace_seconds });
            }
        }
        groups
    }

    /// The highest group that does not begin above the priority; below all groups it is the lowest one.
    fn group_of(&self, priority: i32) -> usize {
        let index = self.0.partition_point(|period| period.priority < priority);
        let begins_at = self.0.get(index).map(|period| period.priority);
        if begins_at == Some(priority) {
            index
        } else {
            index.saturating_sub(1)
        }
    }
}

/// The status of a pod that ends because the node shuts down.
#[must_use]
pub fn shutdown_status() -> Eviction {
    Eviction {
        reason: REASON.to_owned(),
        message: MESSAGE.to_owned(),
        disruption: Some(MESSAGE.to_owned()),
    }
}

fn priority_of(pod: &Pod) -> i32 {
    let spec = pod.spec.as_ref();
    spec.and_then(|spec| spec.priority).unwrap_or(DEFAULT_PRIORITY)
}

fn grace_of(pod: &Pod) -> Option<i64> {
    pod.spec.as_ref()?.termination_grace_period_seconds
}

/// Below zero is no time.
fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}
