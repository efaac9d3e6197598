//! Answers to questions from outside.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use super::SyncLoop;
use crate::observer::TableSizes;
use crate::pods::explain::Explainer;
use crate::pods::query::Query;
use crate::pods::statuses::status_of_rejected;
use crate::pods::worker::Worker;
use crate::pods::{active_pods, census, qos_class_of};

impl SyncLoop {
    fn explainer(&self) -> Explainer<'_> {
        Explainer {
            context: &self.context,
            records: &self.records,
            admission: &self.admission,
            names: &self.names,
            manifests: &self.manifests,
            garbage: &self.garbage,
            startup: self.startup,
        }
    }

    pub(in crate::pods) fn answer(&mut self, query: Query) {
        // The caller may have stopped waiting.
        match query {
            Query::Pods(reply) => {
                let _ = reply.send(self.views());
            }
            Query::Explanations(reply) => {
                let _ = reply.send(self.explainer().explanations());
            }
            Query::Node(reply) => {
                let explanation = self.node_waits.explain(&self.explainer(), &self.merger);
                let _ = reply.send(explanation);
            }
            Query::ActivePods(reply) => {
                let active = || active_pods::active_pods(&self.records);
                let _ = reply.send(self.startup.is_complete().then(active));
            }
            Query::Record(uid, reply) => {
                let gates = self.context.settings.status_gates.restart;
                let worker = self.records.worker(&uid);
                let record = worker.map(|worker| worker.recorder.record(worker.pod(), gates));
                let _ = reply.send(record.map(Box::new));
            }
            Query::Tables(reply) => {
                let _ = reply.send(self.table_sizes());
            }
            Query::Census(reply) => {
                let mirrors = self.context.mirrors.borrow().count();
                let census = census::take(&self.records, mirrors);
                self.context.ports.metrics.census.show(&census);
                let _ = reply.send(());
            }
            Query::EndPod(uid, request, reply) => self.end_pod(&uid, request, reply),
        }
    }

    fn table_sizes(&self) -> TableSizes {
        let mut sizes = vec![
            ("pods.wakes", self.wakes.len()),
            ("pods.names", self.names.len()),
            ("pods.kill_requests", self.kills.len()),
            ("pods.stuck_sandboxes", self.garbage.stuck().len()),
        ];
        sizes.extend(self.records.table_sizes());
        sizes.extend(self.admission.table_sizes());
        sizes
    }

    /// The desired pods with their statuses.
    fn views(&mut self) -> Vec<Arc<Pod>> {
        let context = &self.context;
        let pods = self.records.desired_mut().map(|(pod, standing, worker)| {
            if let Some(rejection) = standing.rejection() {
                let class = qos_class_of(&rejection.pod, context);
                let mut pod = pod.as_ref().clone();
                pod.status = Some(status_of_rejected(rejection, class));
                return Arc::new(pod);
            }
            worker.map_or_else(|| Arc::clone(pod), Worker::view)
        });
        pods.collect()
    }
}
