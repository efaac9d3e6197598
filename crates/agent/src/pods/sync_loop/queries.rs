//! Answers to questions that change nothing.

use rubelet_model::observation::PodUid;

use crate::pods::pod_workers::PodWorkers;
use crate::pods::query::Query;
use crate::pods::{active_pods, census};

pub(super) fn answer(query: Query, pods: &PodWorkers) {
    let (context, records) = (pods.context(), pods.records());
    // The caller may have stopped waiting.
    match query {
        Query::Explanations(reply) => {
            let _ = reply.send(pods.explainer().explanations());
        }
        Query::ActivePods(reply) => {
            let active = || active_pods::active_pods(records);
            let _ = reply.send(pods.startup().is_complete().then(active));
        }
        Query::PodsToEnd(reply) => {
            let _ = reply.send(active_pods::active_pods(records));
        }
        Query::AnyUnfinished(uids, reply) => {
            let is_unfinished = |uid: &PodUid| active_pods::is_unfinished(records, uid);
            let _ = reply.send(uids.iter().any(is_unfinished));
        }
        Query::Record(uid, reply) => {
            let gates = context.settings.status_gates.restart;
            let worker = records.worker(&uid);
            let record = worker.map(|worker| worker.recorder.record(worker.pod(), gates));
            let _ = reply.send(record.map(Box::new));
        }
        Query::MakeSpace(reply) => pods.make_space(reply),
        Query::Tables(reply) => {
            let _ = reply.send(pods.table_sizes());
        }
        Query::Census(reply) => {
            let mirrors = context.mirrors.borrow().count();
            let census = census::take(records, mirrors);
            context.ports.metrics.census.show(&census);
            context.ports.metrics.resizes.show(&census);
            let _ = reply.send(());
        }
        Query::Pods(_) | Query::Node(_) | Query::EndPod(..) => {}
    }
}
