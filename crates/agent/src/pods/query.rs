//! Questions from outside, answered between two events.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use rubelet_model::explanation::{NodeExplanation, PodExplanation};
use rubelet_model::observation::PodUid;
use tokio::sync::oneshot;

use super::Pods;
use crate::observer::TableSizes;
use crate::recorder::Record;

/// A question with where to send the answer.
pub(crate) enum Query {
    Pods(oneshot::Sender<Vec<Arc<Pod>>>),
    Explanations(oneshot::Sender<Vec<PodExplanation>>),
    Node(oneshot::Sender<NodeExplanation>),
    Record(PodUid, oneshot::Sender<Option<Box<Record>>>),
    ToRun(oneshot::Sender<Option<Vec<Arc<Pod>>>>),
    /// How many entries each table has.
    Tables(oneshot::Sender<TableSizes>),
    /// Counts everything, for the metrics.
    Census(oneshot::Sender<()>),
}

impl Pods {
    pub(super) fn answer(&mut self, query: Query) {
        // Whoever asked may be gone by now.
        match query {
            Query::Pods(reply) => {
                let _ = reply.send(self.views());
            }
            Query::Explanations(reply) => {
                let _ = reply.send(self.explanations());
            }
            Query::Node(reply) => {
                let _ = reply.send(self.node_explanation());
            }
            Query::ToRun(reply) => {
                let _ = reply.send(self.pods_to_run());
            }
            Query::Record(uid, reply) => {
                let gates = self.shared.settings.status_gates.restart;
                let entry = self.pods.get(&uid);
                let record = entry.map(|entry| entry.recorder.record(&entry.pod, gates));
                let _ = reply.send(record.map(Box::new));
            }
            Query::Tables(reply) => {
                let _ = reply.send(self.table_sizes());
            }
            Query::Census(reply) => {
                self.shared.ports.metrics.census.show(&self.census());
                let _ = reply.send(());
            }
        }
    }

    fn table_sizes(&self) -> TableSizes {
        let mut sizes = vec![
            ("pods.desired", self.desired.len()),
            ("pods.pods", self.pods.len()),
            ("pods.seen", self.seen.len()),
            ("pods.unseen", self.unseen.len()),
            ("pods.unreadable", self.unreadable.len()),
            ("pods.wakes", self.wakes.len()),
            ("pods.names", self.names.len()),
            ("pods.stuck_sandboxes", self.stuck_sandboxes.borrow().len()),
        ];
        sizes.extend(self.admission.table_sizes());
        sizes
    }

    /// The desired pods with their statuses.
    fn views(&mut self) -> Vec<Arc<Pod>> {
        let mut views = Vec::with_capacity(self.desired.len());
        for (uid, pod) in &self.desired {
            let view = if let Some(refused) = self.admission.refused.get(uid) {
                let mut pod = pod.as_ref().clone();
                pod.status = Some(self.refused_status(refused));
                Arc::new(pod)
            } else if let Some(entry) = self.pods.get_mut(uid) {
                entry.view()
            } else {
                Arc::clone(pod)
            };
            views.push(view);
        }
        views
    }
}
