//! What follows when a source delivers: pods that are added, changed and removed.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use rubelet_lifecycle::pod_state::{EndCause, Event, PodFacts, PodState, UpdateKind};
use rubelet_lifecycle::standing::{Decision, Standing, StandingEvent, Wait};
use rubelet_lifecycle::status::{is_api_pod, is_static_pod, readiness_is_stale};
use rubelet_model::observation::PodUid;
use rubelet_ports::{PodEvent, PodReport};
use rubelet_resources::admission::Refusal;
use rubelet_resources::admission::capabilities::missing_for_update;

use super::SyncLoop;
use crate::pods::admission::{NodeRead, unsupported_refusal};
use crate::pods::records::PodRecord;
use crate::pods::worker::{is_waiting, uid_of};
use crate::sources::{PodChange, Source, SourceSet};

impl SyncLoop {
    pub(in crate::pods) fn source_delivered(&mut self, mut set: SourceSet) {
        let now = self.now();
        if set.source == Source::File {
            self.manifests.set_files(std::mem::take(&mut set.never_good));
            self.node_waits.set_unusable(std::mem::take(&mut set.unusable));
            self.records.touch_found_at_start();
        }
        if set.source == Source::Api {
            self.set_undecodable(std::mem::take(&mut set.unreadable));
        }
        let merged = self.merger.merge(set, now);
        for duplicate in merged.duplicates {
            let event = PodEvent::warning("FailedValidation", duplicate.message.clone());
            self.record_event(&duplicate.pod, event);
        }
        for change in self.in_order(merged.changes) {
            self.changed(change);
        }
        self.names.set_contested();
        if self.merger.seen_all() && self.startup.set_sources_ready() {
            self.sources_ready();
        }
    }

    fn sources_ready(&mut self) {
        let pods = self.records.desired_len();
        tracing::info!(pods, "Every pod source has delivered");
        self.context.ports.reporter.sources_are_ready();
        // A pod that left its source before could still be delivered by another one.
        let gone = self
            .records
            .select(|record| record.worker().is_some() && record.desired().is_none());
        for uid in gone {
            self.unwanted(&uid);
        }
        self.keep_house();
    }

    /// Pods of the API server that cannot be decoded.
    fn set_undecodable(&mut self, pods: Vec<Arc<Pod>>) {
        let mut known = self.records.select(|record| record.standing().is_undecodable());
        for pod in pods {
            let uid = uid_of(&pod);
            known.retain(|known| *known != uid);
            self.apply(&uid, StandingEvent::Undecodable(pod));
        }
        for uid in known {
            self.apply(&uid, StandingEvent::Decodable);
        }
    }

    /// Adds pods in creation order, after the pods that were admitted before rubelet was started anew: those are reserved
    /// before a new pod can take their place. Every other change keeps its place.
    fn in_order(&self, mut changes: Vec<PodChange>) -> Vec<PodChange> {
        let rank = |change: &PodChange| match change {
            PodChange::Add(pod) => {
                let record = self.records.get(&uid_of(pod));
                let is_new = !record.is_some_and(PodRecord::was_admitted_before);
                Some((is_new, pod.metadata.creation_timestamp.clone()))
            }
            PodChange::Update(_) | PodChange::Delete(_) | PodChange::Reconcile(_) | PodChange::Remove(_) => {
                None
            }
        };
        let places: Vec<usize> = (0..changes.len())
            .filter(|place| rank(&changes[*place]).is_some())
            .collect();
        let mut added: Vec<PodChange> = places.iter().map(|place| changes[*place].clone()).collect();
        added.sort_by_cached_key(rank);
        for (place, change) in places.into_iter().zip(added) {
            changes[place] = change;
        }
        changes
    }

    fn changed(&mut self, change: PodChange) {
        match change {
            PodChange::Add(pod) => {
                let uid = uid_of(&pod);
                if is_static_pod(&pod) {
                    // Made known at once, so that its mirror pod is not taken for an orphan.
                    self.context.ports.reporter.report(PodReport {
                        pod: Arc::clone(&pod),
                        status: Arc::default(),
                        is_finished: false,
                    });
                }
                if self.is_from_a_removed_pod(&pod) {
                    self.records.set_readded(&uid, true);
                }
                self.wanted(&uid, pod, UpdateKind::Create);
            }
            PodChange::Update(pod) | PodChange::Delete(pod) => {
                let uid = uid_of(&pod);
                self.count_shown_start(&uid, &pod);
                self.check_declared_features(&uid, &pod);
                self.wanted(&uid, pod, UpdateKind::Update);
            }
            PodChange::Reconcile(pod) => {
                let uid = uid_of(&pod);
                self.count_shown_start(&uid, &pod);
                self.reconciled(&uid, &pod);
            }
            PodChange::Remove(pod) => self.removed(&uid_of(&pod), pod),
        }
    }

    fn removed(&mut self, uid: &PodUid, pod: Arc<Pod>) {
        self.records.remove_desired(uid);
        let is_listed = self.startup.are_names_known();
        self.apply(uid, StandingEvent::Removed { pod, is_listed });
        if self.records.worker(uid).is_none() {
            self.context.ports.reporter.forget(uid);
        } else if self.startup.are_sources_ready() {
            self.unwanted(uid);
        } else {
            // Another source may still deliver it.
            let state = self.records.standing(uid).life();
            self.admission.note_state(uid, state, false);
        }
        self.records.prune(uid);
    }

    /// Whether what the runtime has is of another pod of this UID: rubelet has not known one since its start, though every
    /// source had delivered. The garbage collector may be in the middle of it.
    fn is_from_a_removed_pod(&self, pod: &Pod) -> bool {
        let record = self.records.get(&uid_of(pod));
        let is_left = record.is_some_and(|record| {
            let is_dead = record.seen().is_some() && !record.may_live();
            record.worker().is_none() && is_dead && !self.manifests.keep(record, &self.records)
        });
        self.startup.is_complete() && is_left && !is_api_pod(pod)
    }

    /// A source has a pod, new or changed.
    fn wanted(&mut self, uid: &PodUid, pod: Arc<Pod>, kind: UpdateKind) {
        self.records.set_desired(uid, Arc::clone(&pod));
        let is_static = PodFacts::of(&pod).is_static;
        if is_static && let Some(refusal) = unsupported_refusal(&pod, &self.context) {
            return self.reject_unsupported(uid, pod, refusal, kind);
        }
        let standing = self.records.standing(uid);
        if standing.is_managed() {
            if matches!(standing.life(), PodState::Terminating { .. }) && !standing.is_shut_out() {
                self.admission.reserve_stopping(uid, &pod);
            }
            return self.update(uid, kind);
        }
        match standing {
            // The API server has its end; whatever changes of it, it stays the end.
            Standing::Rejected { rejection, .. } if !is_static => {
                let refusal = rejection.refusal.clone();
                self.apply(uid, StandingEvent::Decided(Decision::Reject { pod, refusal }));
            }
            // What it needs is reserved; the definition that it has when it starts counts.
            Standing::Awaits {
                wait: Wait::Preemption { .. },
                ..
            } => {}
            Standing::Unclaimed(_)
            | Standing::Awaits { .. }
            | Standing::Rejected { .. }
            | Standing::Managed(_) => self.admit(uid, NodeRead::Watched),
        }
    }

    /// A static pod asks for something that is not supported. What already runs of it is left alone.
    fn reject_unsupported(&mut self, uid: &PodUid, pod: Arc<Pod>, refusal: Refusal, kind: UpdateKind) {
        let standing = self.records.standing(uid);
        if !standing.is_managed() {
            let is_listed = true;
            let removed = StandingEvent::Removed {
                pod: Arc::clone(&pod),
                is_listed,
            };
            self.apply(uid, removed);
            self.records.set_readded(uid, false);
            return self.apply(uid, StandingEvent::Decided(Decision::Reject { pod, refusal }));
        }
        if standing.life().ending().is_some() {
            // The pod is rejected when the old one is gone.
            return self.update(uid, kind);
        }
        let problem = refusal.message.clone();
        self.record_event(&pod, PodEvent::warning(refusal.reason, refusal.message));
        tracing::warn!(pod = %uid, problem, "The pod's new version is not supported; the last good one goes on");
    }

    /// No source has the pod any more.
    pub(super) fn unwanted(&mut self, uid: &PodUid) {
        let Some(record) = self.records.get(uid) else {
            return;
        };
        let is_waiting = is_waiting(&record.standing().life());
        if is_waiting && record.may_live() {
            // It ran before rubelet started and ends as its definition says.
            self.apply(uid, StandingEvent::Pod(Event::FoundInRuntime));
        } else if !is_waiting || self.startup.is_inspected() {
            self.kill(uid, EndCause::Removed, None);
        }
    }

    /// The API server has another status of the pod, and nothing else is new.
    fn reconciled(&mut self, uid: &PodUid, pod: &Arc<Pod>) {
        self.records.set_desired(uid, Arc::clone(pod));
        let now = self.now();
        let is_ending = self.records.standing(uid).life().ending().is_some();
        let Some(worker) = self.records.worker_mut(uid) else {
            return;
        };
        worker.set_pod(pod, now);
        let is_ended_elsewhere = PodFacts::of(pod).is_terminal && !is_ending;
        if is_ended_elsewhere || readiness_is_stale(pod) {
            self.update(uid, UpdateKind::Update);
        } else {
            self.publish_status(uid);
        }
    }

    /// A change of the pod that needs a feature which this node does not declare.
    fn check_declared_features(&self, uid: &PodUid, pod: &Pod) {
        let old = self.records.desired(uid);
        let missing = old.map_or_else(Vec::new, |old| missing_for_update(old, pod));
        if missing.is_empty() || !self.context.settings.admission.features.declared {
            return;
        }
        let missing = missing.join(", ");
        let message = format!("Pod requires node features that are not available: {missing}");
        self.record_event(pod, PodEvent::warning("FailedNodeDeclaredFeaturesCheck", message));
    }

    fn count_shown_start(&mut self, uid: &PodUid, pod: &Pod) {
        let now = self.now();
        let worker = self.records.worker_mut(uid);
        if let Some(start) = worker.and_then(|worker| worker.start.shown(pod, now)) {
            let metrics = &self.context.ports.metrics.starts;
            self.shown_starts.count(&start, metrics);
        }
    }
}
