//! Questions and requests from outside, answered between two events.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use rubelet_model::explanation::{NodeExplanation, PodExplanation};
use rubelet_model::observation::PodUid;
use tokio::sync::oneshot;

use super::garbage::SpaceReply;
use super::kill_requests::{EndPod, EndPodReply};
use crate::observer::TableSizes;
use crate::recorder::Record;

/// A question with where to send the answer.
pub(crate) enum Query {
    Pods(oneshot::Sender<Vec<Arc<Pod>>>),
    Explanations(oneshot::Sender<Vec<PodExplanation>>),
    Node(oneshot::Sender<NodeExplanation>),
    Record(PodUid, oneshot::Sender<Option<Box<Record>>>),
    ActivePods(oneshot::Sender<Option<Vec<Arc<Pod>>>>),
    /// The pods that a shutdown of the node ends.
    PodsToEnd(oneshot::Sender<Vec<Arc<Pod>>>),
    /// Whether any of these runs, or has something left to clean up.
    AnyUnfinished(Vec<PodUid>, oneshot::Sender<bool>),
    /// How many entries each table has.
    Tables(oneshot::Sender<TableSizes>),
    /// Counts everything, for the metrics.
    Census(oneshot::Sender<()>),
    /// Removes dead containers that a node short of disk space can do without.
    MakeSpace(SpaceReply),
    /// Ends a pod; answered when nothing of it runs, or when its time is over.
    EndPod(PodUid, EndPod, EndPodReply),
}
