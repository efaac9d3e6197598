//! Changes of pods' resources while they run: which of them wait, and what becomes of each.
//!
//! Owns the queue of resizes that wait to be judged and the time of the next try. What a resize does to its pod goes into the pod's
//! worker; jobs carry it out and report back. Nothing is judged before every source has delivered and the runtime's first list is
//! known: until then pods that run already are missing in the ledger.
//!
//! ```text
//!  definition ─► queue ─► judge ─► Infeasible: until the pod asks for something else
//!                  ▲        ├────► Deferred: until room comes free, and every three minutes
//!   room, timer ───┘        └────► accepted: allocation, ledger ─► job ─► in progress, error, completed
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rubelet_lifecycle::allocation::Allocation;
use rubelet_lifecycle::pod_state::PodState;
use rubelet_lifecycle::resize::conditions::{DEFERRED, INFEASIBLE};
use rubelet_lifecycle::resize::requested::requested_changes;
use rubelet_lifecycle::resize::{Deferred, PendingResize, Trigger, in_order, infeasible, message};
use rubelet_model::observation::PodUid;
use rubelet_ports::{Moment, PodEvent};
use rubelet_resources::amounts::{CPU, MEMORY};
use rubelet_resources::demand::Overhead;
use rubelet_resources::{PodDemand, Rules};

use super::AgentContext;
use super::admission::{Admission, ResizeJudgement};
use super::records::Records;
use super::startup::Startup;
use super::worker::Worker;
use crate::job::{ResizeReport, ResizeState};
use crate::metrics::priority_bucket;

const RETRY: Duration = Duration::from_secs(3 * 60);
const RETRY_AT_START: Duration = Duration::from_secs(30);

/// What follows for a pod whose resize was judged.
pub(super) enum Judged {
    /// Its status or its resources have changed.
    Look(PodUid),
    /// Pods have to make room for a critical one.
    Preempt {
        uid: PodUid,
        victims: Vec<PodUid>,
        scarce: String,
    },
}

#[derive(Default)]
pub(super) struct Resizes {
    queue: BTreeSet<PodUid>,
    /// What may have made room since the last judgement.
    trigger: Option<Trigger>,
    retry_at: Option<Moment>,
}

impl Resizes {
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// When waiting resizes are judged again without an event.
    pub(super) fn next_retry(&self) -> Option<Moment> {
        self.retry_at.filter(|_| !self.queue.is_empty())
    }

    /// Something may have made room.
    pub(super) fn retry(&mut self, trigger: Trigger) {
        if !self.queue.is_empty() {
            self.trigger.get_or_insert(trigger);
        }
    }

    pub(super) fn timer_fired(&mut self, now: Moment) {
        if self.next_retry().is_some_and(|at| at <= now) {
            self.retry(Trigger::Periodic);
        }
    }

    /// A worker begins with a definition that may ask for other resources than are allocated to the pod.
    pub(super) fn added(&mut self, uid: &PodUid, worker: &Worker) {
        if worker.is_resize_asked() {
            self.queue.insert(uid.clone());
            self.retry(Trigger::PodsAdded);
        }
    }

    /// The worker has a new definition.
    pub(super) fn changed(
        &mut self,
        uid: &PodUid,
        worker: &mut Worker,
        before: &Pod,
        context: &AgentContext,
    ) {
        let asked = Arc::clone(worker.asked());
        if !Allocation::asked(before).differs_from(&asked) {
            return;
        }
        let requested = &context.ports.metrics.resizes.requested;
        for (resource, list, operation) in requested_changes(before, &asked) {
            requested.with_label_values(&[resource, list, operation]).inc();
        }
        if worker.is_resize_asked() {
            self.queue.insert(uid.clone());
            self.retry(Trigger::PodUpdated);
        } else {
            self.queue.remove(uid);
            let waited = worker.resize.clear_pending(context.ports.clock.now());
            observe_wait(waited, "reverted", &asked, context);
        }
    }

    /// Judges every waiting resize, if anything may have made room.
    pub(super) fn judge(
        &mut self,
        records: &mut Records,
        admission: &mut Admission,
        startup: Startup,
        context: &AgentContext,
    ) -> Vec<Judged> {
        let Some(trigger) = self.trigger.take() else {
            return Vec::new();
        };
        let now = context.ports.clock.moment();
        if !startup.are_sources_ready() || !startup.are_names_known() {
            self.retry_at = Some(now.plus(RETRY_AT_START));
            return Vec::new();
        }
        self.retry_at = Some(now.plus(RETRY));
        let mut pending = Vec::new();
        for uid in std::mem::take(&mut self.queue) {
            let is_syncing = matches!(records.standing(&uid).life(), PodState::Syncing { .. });
            // A pod that ends, or waits for its name, is resized no more, or not yet.
            if let Some(worker) = records.worker(&uid).filter(|_| is_syncing) {
                pending.push(pending_resize(&uid, worker, &context.settings.node.rules));
            } else if records.worker(&uid).is_some() {
                self.queue.insert(uid);
            }
        }
        let mut judged = Vec::new();
        for uid in in_order(pending) {
            if let Some(worker) = records.worker_mut(&uid) {
                self.judge_one(&uid, worker, admission, (trigger, context), &mut judged);
            }
        }
        judged
    }

    fn judge_one(
        &mut self,
        uid: &PodUid,
        worker: &mut Worker,
        admission: &mut Admission,
        (trigger, context): (Trigger, &AgentContext),
        judged: &mut Vec<Judged>,
    ) {
        let pod = Arc::clone(worker.asked());
        let now = context.ports.clock.now();
        let Some(allocation) = worker.allocation().filter(|one| one.differs_from(&pod)) else {
            let waited = worker.resize.clear_pending(now);
            observe_wait(waited, "reverted", &pod, context);
            judged.push(Judged::Look(uid.clone()));
            return;
        };
        let (settings, metrics) = (&context.settings, &context.ports.metrics.resizes);
        let (terms, node) = (settings.resize, &settings.node);
        let refused = infeasible(&pod, allocation, terms, &node.rules, &node.facts);
        let (reason, text) = if let Some(refused) = refused {
            metrics.infeasible.with_label_values(&[refused.detail]).inc();
            (INFEASIBLE, refused.message)
        } else {
            match admission.judge_resize(uid, &pod) {
                ResizeJudgement::Fits => {
                    let waited = accept(uid, worker, context);
                    if waited.is_some() {
                        let accepted = &metrics.deferred_accepted;
                        accepted.with_label_values(&[trigger.as_str()]).inc();
                    }
                    observe_wait(waited, "accepted", &pod, context);
                    judged.push(Judged::Look(uid.clone()));
                    return;
                }
                ResizeJudgement::Deferred(text) => (DEFERRED, text),
                ResizeJudgement::Preempts {
                    victims,
                    scarce,
                    message,
                } => {
                    let uid = uid.clone();
                    judged.push(Judged::Preempt { uid, victims, scarce });
                    (DEFERRED, message)
                }
            }
        };
        if reason == DEFERRED {
            self.queue.insert(uid.clone());
        }
        let generation = pod.metadata.generation;
        if worker.resize.set_pending(reason, &text, generation, now) {
            let event = if reason == DEFERRED {
                message::DEFERRED_EVENT
            } else {
                message::INFEASIBLE_EVENT
            };
            let event = PodEvent::warning(event, message::pending(&pod, reason, &text));
            context.ports.events.record(&pod, event);
            judged.push(Judged::Look(uid.clone()));
        }
    }

    /// A job has seen how far the resize of its pod is.
    pub(super) fn reported(
        &mut self,
        uid: &PodUid,
        worker: &mut Worker,
        admission: &mut Admission,
        (report, context): (&ResizeReport, &AgentContext),
    ) {
        // The job worked with an older allocation: what it has seen means nothing for this one.
        if report.number != worker.allocation_number() {
            return;
        }
        let pod = Arc::clone(worker.pod());
        let (now, generation) = (context.ports.clock.now(), pod.metadata.generation);
        let events = &context.ports.events;
        match &report.state {
            ResizeState::InProgress => worker.resize.set_in_progress(generation, now),
            ResizeState::Failed(problem) => {
                if worker.resize.fail(problem, generation, now) {
                    let text = message::failed(&pod, worker.resize.generation(), problem);
                    events.record(&pod, PodEvent::warning(message::ERROR_EVENT, text));
                }
            }
            ResizeState::Settled => {
                if let Some(generation) = worker.resize.complete() {
                    let text = message::completed(&pod, generation);
                    events.record(&pod, PodEvent::normal(message::COMPLETED_EVENT, text));
                }
                if admission.settle(uid, &pod) {
                    self.retry(Trigger::PodResized);
                }
            }
        }
    }

    /// The pod has ended: nothing of it waits any more.
    pub(super) fn ended(&mut self, uid: &PodUid, worker: &mut Worker, context: &AgentContext) {
        self.queue.remove(uid);
        if worker.resize.is_empty() {
            return;
        }
        let waited = worker.resize.clear_pending(context.ports.clock.now());
        let pod = Arc::clone(worker.pod());
        observe_wait(waited, "terminated", &pod, context);
        worker.resize.complete();
    }
}

/// The pod gets what it asks for.
fn accept(uid: &PodUid, worker: &mut Worker, context: &AgentContext) -> Deferred {
    let now = context.ports.clock.now();
    let pod = Arc::clone(worker.asked());
    let generation = pod.metadata.generation;
    let waited = worker.resize.clear_pending(now);
    worker.allocate(Allocation::asked(&pod));
    if let Some(allocation) = worker.allocation() {
        context.resources.allocated.set(uid, allocation.clone());
    }
    worker.resize.begin(generation, now);
    let event = PodEvent::normal(message::STARTED_EVENT, message::started(&pod, generation));
    context.ports.events.record(&pod, event);
    waited
}

fn observe_wait(waited: Deferred, resolution: &str, pod: &Pod, context: &AgentContext) {
    if let Some(waited) = waited {
        let durations = &context.ports.metrics.resizes.deferred_durations;
        let labels = [resolution, bucket_of(pod)];
        durations.with_label_values(&labels).observe(waited.as_secs_f64());
    }
}

/// The range of the pod's priority.
pub(super) fn bucket_of(pod: &Pod) -> &'static str {
    priority_bucket(pod.spec.as_ref().and_then(|spec| spec.priority))
}

fn pending_resize(uid: &PodUid, worker: &Worker, rules: &Rules) -> PendingResize {
    let (asked, allocated) = (worker.asked(), worker.pod());
    let of = |pod: &Pod, name: &str| {
        let demand = PodDemand::read(pod).ok()?;
        Some(demand.requests(rules, Overhead::Included).quantity(name))
    };
    let is_more = |name: &str| of(asked, name) > of(allocated, name);
    PendingResize {
        uid: uid.clone(),
        is_increasing: is_more(CPU) || is_more(MEMORY),
        priority: asked
            .spec
            .as_ref()
            .and_then(|spec| spec.priority)
            .unwrap_or_default(),
        is_guaranteed: worker.qos_class() == "Guaranteed",
        since: worker.resize.pending_since(),
    }
}
