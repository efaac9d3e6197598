//! When admission decides, and the pods that have to end for its decisions or on request.

use std::sync::Arc;

use rubelet_lifecycle::pod_state::{EndCause, Event, KillRequest, PodFacts, kill_timeout};
use rubelet_lifecycle::standing::{Decision, Standing, StandingEvent, Wait};
use rubelet_lifecycle::status::Eviction;
use rubelet_model::observation::PodUid;
use rubelet_ports::{Moment, PodEvent};
use rubelet_resources::admission::preemption::{DISRUPTION_MESSAGE, PREEMPTED_MESSAGE, PREEMPTED_REASON};
use rubelet_resources::admission::{NODE_AFFINITY, Refusal};

use super::SyncLoop;
use crate::pods::admission::{NodeRead, Refreshed};
use crate::pods::kill_requests::{EndPod, EndPodError, EndPodReply, Requester};
use crate::pods::records::PodRecord;
use crate::pods::worker::Worker;
use crate::runtime_health::RuntimeHealth;

impl SyncLoop {
    /// Decides about a desired pod that is not managed, and begins it if it may run.
    pub(super) fn admit(&mut self, uid: &PodUid, node: NodeRead<'_>) {
        if let Some(decision) = self.decide(uid, node) {
            self.apply(uid, StandingEvent::Decided(decision));
        }
    }

    pub(super) fn decide(&mut self, uid: &PodUid, node: NodeRead<'_>) -> Option<Decision> {
        let record = self.records.get(uid)?;
        let pod = Arc::clone(record.desired()?);
        let is_listed = self.startup.are_names_known();
        let decision = self.admission.decide(uid, &pod, record, is_listed, node)?;
        if decision != Decision::AwaitRuntime {
            self.records.clear_listed(uid);
        }
        let is_new_wait = decision == Decision::AwaitRoom && !self.records.standing(uid).awaits_room();
        if is_new_wait {
            let terminating = self.admission.terminating();
            let workers = terminating.filter_map(|uid| self.records.worker(uid));
            let names: Vec<&str> = workers.map(Worker::full_name).collect();
            let terminating = names.join(", ");
            tracing::info!(pod = %uid, terminating, "The pod starts when terminating pods have freed what it needs");
        }
        Some(decision)
    }

    /// Decides about pods that waited for the runtime or for room, the oldest first, after the pods that were admitted before
    /// rubelet was started anew.
    pub(super) fn decide_waiting(&mut self) {
        let waiting = self.records.unadmitted().filter(|(_, record)| {
            matches!(record.standing().wait(), Some(Wait::Runtime { .. } | Wait::Room))
        });
        let (earlier, new): (Vec<_>, Vec<_>) = waiting.partition(|(_, record)| record.was_admitted_before());
        let uids = |pods: Vec<(&PodUid, &PodRecord)>| -> Vec<PodUid> {
            pods.into_iter().map(|(uid, _)| uid.clone()).collect()
        };
        let (earlier, new) = (uids(earlier), self.records.by_age(uids(new)));
        for uid in earlier.into_iter().chain(new) {
            self.admit(&uid, NodeRead::Watched);
        }
    }

    /// Room has come free: pods that waited for it begin, and rejected static pods are decided about again. No controller would
    /// create those anew.
    pub(super) fn share_room(&mut self) {
        let ready: Vec<PodUid> = self
            .records
            .preemptors()
            .filter(|(uid, record, victims)| {
                let pod = record.desired().map(AsRef::as_ref);
                self.admission.has_room_for(uid, pod, victims)
            })
            .map(|(uid, ..)| uid.clone())
            .collect();
        for uid in ready {
            self.apply(&uid, StandingEvent::Decided(Decision::Admit));
        }
        let waiting = self.unadmitted(|standing| standing.wait() == Some(&Wait::Room));
        let rejected = self.rejected_static_pods(|refusal| refusal.is_for_now);
        for uid in waiting.into_iter().chain(rejected) {
            self.admit(&uid, NodeRead::Watched);
        }
    }

    fn unadmitted(&self, holds: impl Fn(&Standing) -> bool) -> Vec<PodUid> {
        let found = self.records.unadmitted();
        let found = found.filter(|(_, record)| holds(record.standing()));
        self.records.by_age(found.map(|(uid, _)| uid.clone()).collect())
    }

    fn rejected_static_pods(&self, holds: impl Fn(&Refusal) -> bool) -> Vec<PodUid> {
        self.unadmitted(|standing| match standing {
            Standing::Rejected { rejection, .. } => {
                let is_static = PodFacts::of(&rejection.pod).is_static;
                is_static && !standing.is_managed() && holds(&rejection.refusal)
            }
            Standing::Unclaimed(_) | Standing::Awaits { .. } | Standing::Managed(_) => false,
        })
    }

    pub(in crate::pods) fn node_refreshed(&mut self, refreshed: &Refreshed) {
        let answered = self.admission.take_refreshed(refreshed);
        for uid in self.records.by_age(answered) {
            if matches!(self.records.standing(&uid).wait(), Some(Wait::NodeRefresh { .. })) {
                self.admit(&uid, NodeRead::Fresh(refreshed.node.as_deref()));
            }
        }
    }

    /// The Node object changed: its labels may be what a rejected static pod needs.
    pub(in crate::pods) fn node_changed(&mut self) {
        for uid in self.rejected_static_pods(|refusal| refusal.reason == NODE_AFFINITY) {
            // The object that was just seen is the newest.
            self.admit(&uid, NodeRead::Fresh(None));
        }
    }

    pub(in crate::pods) fn health_changed(&mut self, health: &RuntimeHealth) {
        self.node_waits.set_health(health, self.now());
        if health.runtime_problem.is_some() {
            return;
        }
        self.decide_waiting();
        // What failed meanwhile is tried again at once.
        let workers = self.records.workers();
        let failed: Vec<PodUid> = workers
            .filter(|(uid, worker)| self.wakes.contains(uid) && worker.waits.last_error().is_some())
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in failed {
            self.look_again(&uid);
        }
    }

    /// Ends the pods that have to make room for a critical one.
    pub(super) fn preempt(
        &mut self,
        uid: &PodUid,
        victims: Vec<PodUid>,
        scarce: &str,
    ) -> Vec<(PodUid, StandingEvent)> {
        let mut events = Vec::new();
        for victim in victims {
            tracing::info!(pod = %victim, preemptor = %uid, "The pod has to make room for a critical one");
            let status = Eviction {
                reason: PREEMPTED_REASON.to_owned(),
                message: PREEMPTED_MESSAGE.to_owned(),
                disruption: Some(DISRUPTION_MESSAGE.to_owned()),
            };
            let Some(worker) = self.records.worker_mut(&victim) else {
                self.kills.count_preemption(scarce);
                match self.rejection_of_unstarted(&victim, status, true) {
                    Some(event) => events.push((victim, event)),
                    None => self.admission.release(&victim),
                }
                continue;
            };
            worker.eviction = Some(status);
            let event = PodEvent::warning(PREEMPTED_REASON, PREEMPTED_MESSAGE);
            self.context.ports.events.record(worker.pod(), event);
            let until = self.kill_deadline(&victim, None);
            let scarce = scarce.to_owned();
            self.kills.add(&victim, until, Requester::Preemption { scarce });
            self.admission.preempted(&victim, until);
            let request = KillRequest {
                cause: EndCause::Evicted,
                grace_seconds: None,
            };
            events.push((victim, StandingEvent::Pod(Event::Kill(request))));
        }
        events
    }

    /// A pod that has not started ends by being rejected: for now, so that it can start when there is room, or for good. `None` when no
    /// source has it.
    fn rejection_of_unstarted(
        &self,
        uid: &PodUid,
        status: Eviction,
        is_for_now: bool,
    ) -> Option<StandingEvent> {
        let refusal = Refusal {
            reason: status.reason,
            message: status.message,
            is_for_now,
            detail: None,
        };
        let pod = Arc::clone(self.records.desired(uid)?);
        Some(StandingEvent::Decided(Decision::Reject { pod, refusal }))
    }

    /// Until when a kill is waited for, by the grace period that is asked for or the pod's own.
    fn kill_deadline(&self, uid: &PodUid, grace_seconds: Option<i64>) -> Moment {
        let worker = self.records.worker(uid);
        let own = worker.and_then(|worker| worker.pod().spec.as_ref()?.termination_grace_period_seconds);
        let grace_seconds = grace_seconds.or(own).unwrap_or_default();
        self.moment().plus(kill_timeout(grace_seconds))
    }

    /// Ends a pod on request of the agent's handle.
    pub(super) fn end_pod(&mut self, uid: &PodUid, request: EndPod, reply: EndPodReply) {
        let EndPod {
            reason,
            grace_seconds,
        } = request;
        let cause = reason.cause();
        let state = self.records.standing(uid).life();
        let until = self.kill_deadline(uid, grace_seconds);
        let Some(worker) = self.records.worker_mut(uid) else {
            let is_rejected = self.records.standing(uid).rejection().is_some();
            let rejection = self.rejection_of_unstarted(uid, reason.into_status(), false);
            // The caller may have stopped waiting.
            let _ = reply.send(rejection.as_ref().map(|_| ()).ok_or(EndPodError::UnknownPod));
            if let Some(event) = rejection.filter(|_| !is_rejected) {
                self.apply(uid, event);
            }
            return;
        };
        if state.may_run() && worker.eviction.is_none() {
            worker.eviction = Some(reason.into_status());
        }
        self.kills.add(uid, until, Requester::Handle(reply));
        self.kill(uid, cause, grace_seconds);
    }
}
