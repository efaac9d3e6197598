//! Routes what the agent hears to the handlers of each kind of input.
//!
//! Owns the order in which things happen, and what only the inputs need: the sources' sets and the node's waits. Pods change through
//! [`PodWorkers`] alone; the files beside this one hold the handlers of one kind of input each.

mod queries;
mod runtime;
mod sources;
mod waiting;

use std::sync::Arc;

use rubelet_lifecycle::resize::Trigger;
use rubelet_lifecycle::standing::{Decision, StandingEvent, Wait};
use rubelet_model::observation::PodUid;
use rubelet_ports::Moment;
use rubelet_resources::admission::{AdmissionReason, NODE_AFFINITY};

use self::sources::Sources;
use super::admission::{NodeRead, Refreshed};
use super::jobs::JobDone;
use super::node_waits::NodeWaits;
use super::pod_workers::PodWorkers;
use super::query::Query;
use super::{AgentContext, Answers};
use crate::job::Progress;
use crate::observer::Sighting;
use crate::runtime_health::RuntimeHealth;
use crate::sources::{Merger, Source, SourceSet};
use crate::supervisor::Supervisor;

pub(super) struct SyncLoop {
    pods: PodWorkers,
    sources: Sources,
    node_waits: NodeWaits,
}

impl SyncLoop {
    pub(in crate::pods) fn new(
        context: &Arc<AgentContext>,
        supervisor: Supervisor,
        merger: Merger,
    ) -> (Self, Answers) {
        let are_sources_ready = merger.seen_all();
        let (pods, answers) = PodWorkers::new(context, supervisor, are_sources_ready);
        if are_sources_ready {
            context.ports.api.reporter.sources_are_ready();
        }
        let sync_loop = Self {
            pods,
            sources: Sources::new(merger),
            node_waits: NodeWaits::new(context.ports.clock.now()),
        };
        (sync_loop, answers)
    }

    /// Does what events have left for the end of the turn. The answer is when the next timer fires.
    pub(in crate::pods) fn settle(&mut self) -> Option<Moment> {
        if self.pods.take_room_freed() {
            self.share_room();
            self.pods.retry_resizes(Trigger::PodTerminated);
        }
        self.pods.judge_resizes();
        if self.pods.take_names_contested() {
            runtime::end_replaced_pods(&mut self.pods, self.sources.merger());
        }
        self.pods.publish_fates();
        self.pods.next_timer()
    }

    /// Room has come free: pods that waited for it begin, and rejected static pods are decided about again. No controller would
    /// create those anew.
    fn share_room(&mut self) {
        for uid in waiting::with_room(self.pods.records(), self.pods.admission()) {
            self.pods.apply(&uid, StandingEvent::Decided(Decision::Admit));
        }
        let records = self.pods.records();
        let waiting = waiting::unadmitted(records, |standing| standing.wait() == Some(&Wait::Room));
        let rejected = waiting::rejected_static_pods(records, |refusal| refusal.is_for_now);
        for uid in waiting.into_iter().chain(rejected) {
            self.pods.admit(&uid, NodeRead::Watched);
        }
    }

    pub(in crate::pods) fn source_delivered(&mut self, mut set: SourceSet) {
        if set.source == Source::File {
            self.node_waits.set_unusable(std::mem::take(&mut set.unusable));
        }
        self.sources.delivered(set, &mut self.pods);
    }

    pub(in crate::pods) fn runtime_event(&mut self, event: Sighting) {
        runtime::runtime_event(event, &mut self.pods, self.sources.merger());
    }

    pub(in crate::pods) fn keep_house(&mut self) {
        runtime::keep_house(&mut self.pods, self.sources.merger());
    }

    pub(in crate::pods) fn job_progressed(&mut self, progress: Progress) {
        self.pods.job_progressed(progress);
    }

    pub(in crate::pods) fn job_done(&mut self, done: JobDone) {
        self.pods.job_done(done);
    }

    pub(in crate::pods) fn probe_changed(&mut self, uid: &PodUid) {
        self.pods.probe_changed(uid);
    }

    pub(in crate::pods) fn objects_changed(&mut self, uid: &PodUid) {
        self.pods.objects_changed(uid);
    }

    pub(in crate::pods) fn timer_fired(&mut self) {
        self.pods.timer_fired();
    }

    pub(in crate::pods) fn node_refreshed(&mut self, refreshed: &Refreshed) {
        let answered = self.pods.take_refreshed(refreshed);
        for uid in self.pods.records().by_age(answered) {
            let wait = self.pods.records().standing(&uid).wait();
            if matches!(wait, Some(Wait::NodeRefresh { .. })) {
                self.pods.admit(&uid, NodeRead::Fresh(refreshed.node.as_deref()));
            }
        }
    }

    /// The Node object changed: its labels may be what a rejected static pod needs.
    pub(in crate::pods) fn node_changed(&mut self) {
        let records = self.pods.records();
        for uid in waiting::rejected_static_pods(records, |refusal| refusal.reason == NODE_AFFINITY) {
            // The object that was just seen is the newest.
            self.pods.admit(&uid, NodeRead::Fresh(None));
        }
    }

    /// A shutdown of the machine begins or is cancelled: static pods that were rejected because of it are decided about again. No
    /// controller would create those anew.
    pub(in crate::pods) fn shutdown_changed(&mut self) {
        let reason = AdmissionReason::NodeShutdown;
        let records = self.pods.records();
        for uid in waiting::rejected_static_pods(records, |refusal| refusal.reason == reason) {
            self.pods.admit(&uid, NodeRead::Watched);
        }
    }

    pub(in crate::pods) fn health_changed(&mut self, health: &RuntimeHealth) {
        self.node_waits.set_health(health, self.pods.now());
        if health.runtime_problem.is_some() {
            return;
        }
        waiting::decide(&mut self.pods);
        // What failed meanwhile is tried again at once.
        for uid in waiting::failed(&self.pods) {
            self.pods.look_again(&uid);
        }
    }

    pub(in crate::pods) fn answer(&mut self, query: Query) {
        match query {
            Query::EndPod(uid, request, reply) => self.pods.end_pod(&uid, request, reply),
            // The caller may have stopped waiting.
            Query::Pods(reply) => {
                let _ = reply.send(self.pods.views());
            }
            Query::Node(reply) => {
                let explainer = self.pods.explainer();
                let _ = reply.send(self.node_waits.explain(&explainer, self.sources.merger()));
            }
            query => queries::answer(query, &self.pods),
        }
    }
}
