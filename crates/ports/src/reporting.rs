//! Reporting pods to the API server, as the agent needs it.
//!
//! Owns the reports and not their delivery: order, retries, mirror pods and the final delete are behind it. A report
//! never waits and never fails; of one pod only the newest report counts.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rubelet_model::observation::PodUid;

use crate::api::Change;

/// The node's report of a pod.
#[derive(Clone, Debug)]
pub struct PodReport {
    /// As its source gives it: an API pod with its UID, or a static pod, whose status goes to its mirror.
    pub pod: Arc<Pod>,
    /// Without a phase nothing is known of the pod yet but that it is wanted: its mirror may be made, its status stays as it is.
    /// Without a phase it only makes the pod known.
    pub status: Arc<PodStatus>,
    /// Nothing of the pod is left on the node: an API pod that is being deleted may go.
    pub is_finished: bool,
}

pub trait PodReporter: Send + Sync {
    /// A pod's state is this now. Static pods are reported as soon as they are known, so that their mirrors can be made.
    fn report(&self, report: PodReport);

    /// The pod left its source and the node has nothing of it any more.
    fn forget(&self, uid: &PodUid);

    /// The changes of this node's pods at the API server, mirror pods included.
    fn api_pods(&self, change: &Change<Pod>);

    /// How many pods in the API have a status that was not delivered yet.
    fn undelivered(&self) -> usize;

    /// Every source has delivered: a mirror without a reported static pod is an orphan from now on.
    fn sources_are_ready(&self);
}

/// Drops the reports of a node without an API server.
#[derive(Clone, Copy, Debug)]
pub struct NoReporter;

impl PodReporter for NoReporter {
    fn report(&self, _: PodReport) {}
    fn forget(&self, _: &PodUid) {}
    fn api_pods(&self, _: &Change<Pod>) {}
    fn undelivered(&self) -> usize {
        0
    }
    fn sources_are_ready(&self) {}
}
