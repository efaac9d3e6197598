//! Probing the containers of pods.
//!
//! Owns the calls between the agent and the prober: the agent passes each pod that it syncs and reads the probes' results;
//! the prober names the pods whose results changed. No call waits, so that a pod without probes loses no time here.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::BoxStream;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rubelet_model::observation::{PodObservation, PodUid, ProbeResults};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProbeKind {
    /// Holds back the others until the container has started.
    Startup,
    /// Decides whether the container gets traffic.
    Readiness,
    /// Decides whether the container is restarted.
    Liveness,
}

impl ProbeKind {
    /// The name in events and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Readiness => "Readiness",
            Self::Liveness => "Liveness",
        }
    }
}

/// A pod as the agent sees it now.
#[derive(Clone, Copy)]
pub struct ProbedPod<'a> {
    pub pod: &'a Arc<Pod>,
    pub observation: &'a PodObservation,
    /// Where its containers are reached; empty is this machine.
    pub ip: &'a str,
    /// The last published status of the pod: a container that has started in it is not held back.
    pub last_status: Option<&'a PodStatus>,
}

/// The results of a pod's probes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeReading {
    pub results: ProbeResults,
    /// Names of containers whose startup probe is being run or will be.
    pub startup: BTreeSet<String>,
    /// Names of containers whose readiness probe is being run or will be.
    pub readiness: BTreeSet<String>,
}

pub trait Prober: Send + Sync {
    /// Sets what is to be probed, and reads the results. A container that is seen for the first time has its initial
    /// results at once. A pod without probes costs nothing.
    fn show(&self, seen: ProbedPod<'_>) -> ProbeReading;

    /// What is known of a pod that was shown before.
    fn read(&self, uid: &PodUid) -> ProbeReading;

    /// Runs the readiness probes of these containers now, instead of at their time.
    fn probe_now(&self, uid: &PodUid, containers: &[String]);

    /// The pod ends: startup and liveness probes stop and count as passed, readiness probes go on until the containers end.
    fn end(&self, uid: &PodUid);

    /// Nothing of the pod runs any more.
    fn forget(&self, uid: &PodUid);

    /// Pods whose results changed. There is one such stream; a second one takes the pods away from the first.
    fn changes(&self) -> BoxStream<'static, PodUid>;
}

/// What one probe has done since it began.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeFigures {
    pub kind: ProbeKind,
    pub container: String,
    pub pod: String,
    pub namespace: String,
    pub pod_uid: PodUid,
    pub successful: u64,
    pub failed: u64,
    /// How long successful probes took: how many took at most so long, with the limits of [`ProbeFigures::LIMITS_SECONDS`].
    pub within: [u64; ProbeFigures::LIMITS_SECONDS.len()],
    /// The sum of those times.
    pub took: Duration,
}

impl ProbeFigures {
    /// The usual limits of durations in metrics.
    pub const LIMITS_SECONDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
}

pub trait ProbeFiguresReader: Send + Sync {
    /// Of every probe that is being run, by pod, container and kind.
    fn figures(&self) -> Vec<ProbeFigures>;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails to compile when a half can no longer be used as a trait object.
    #[test]
    fn the_halves_are_object_safe() {
        fn takes(_: Option<&dyn Prober>, _: Option<&dyn ProbeFiguresReader>) {}
        takes(None, None);
    }
}
