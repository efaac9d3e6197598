//! What follows when a source delivers: pods that are added, changed and removed.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use rubelet_lifecycle::pod_state::{PodFacts, PodState, UpdateKind};
use rubelet_lifecycle::resize::Trigger;
use rubelet_lifecycle::standing::{Decision, Standing, StandingEvent, Wait};
use rubelet_lifecycle::status::{is_api_pod, is_static_pod};
use rubelet_model::observation::PodUid;
use rubelet_ports::{PodEvent, PodReport};
use rubelet_resources::admission::Refusal;
use rubelet_resources::admission::capabilities::missing_for_update;

use super::runtime::{keep_house, unwanted};
use crate::pods::admission::{NodeRead, unsupported_refusal};
use crate::pods::pod_workers::PodWorkers;
use crate::pods::records::PodRecord;
use crate::pods::start_times::ShownStarts;
use crate::pods::worker::uid_of;
use crate::sources::{Merger, PodChange, Source, SourceSet};

/// The sources' sets, and the starts of pods that the API server has shown.
pub(super) struct Sources {
    merger: Merger,
    shown_starts: ShownStarts,
    /// The pods of the API server that cannot be decoded now.
    undecodable: BTreeSet<PodUid>,
}

impl Sources {
    pub(super) fn new(merger: Merger) -> Self {
        Self {
            merger,
            shown_starts: ShownStarts::default(),
            undecodable: BTreeSet::new(),
        }
    }

    pub(super) fn merger(&self) -> &Merger {
        &self.merger
    }

    pub(super) fn delivered(&mut self, mut set: SourceSet, pods: &mut PodWorkers) {
        if set.source == Source::File {
            pods.set_unreadable_files(std::mem::take(&mut set.never_good));
        }
        if set.source == Source::Api {
            self.set_undecodable(std::mem::take(&mut set.unreadable), pods);
        }
        let merged = self.merger.merge(set, pods.now());
        for duplicate in merged.duplicates {
            let event = PodEvent::warning("FailedValidation", duplicate.message.clone());
            pods.record_event(&duplicate.pod, event);
        }
        for change in in_order(merged.changes, pods) {
            self.count_shown_start(&change, pods);
            changed(change, pods);
        }
        pods.set_names_contested();
        if self.merger.seen_all() && pods.set_sources_ready() {
            sources_ready(pods);
            keep_house(pods, &self.merger);
        }
    }

    /// Pods of the API server that cannot be decoded.
    fn set_undecodable(&mut self, undecodable: Vec<Arc<Pod>>, pods: &mut PodWorkers) {
        let uids = undecodable.iter().map(|pod| uid_of(pod)).collect();
        let mut known = std::mem::replace(&mut self.undecodable, uids);
        for pod in undecodable {
            let uid = uid_of(&pod);
            known.remove(&uid);
            pods.apply(&uid, StandingEvent::Undecodable(pod));
        }
        for uid in known {
            pods.apply(&uid, StandingEvent::Decodable);
        }
    }

    fn count_shown_start(&mut self, change: &PodChange, pods: &mut PodWorkers) {
        let pod = match change {
            PodChange::Update(pod) | PodChange::Delete(pod) | PodChange::Reconcile(pod) => pod,
            PodChange::Add(_) | PodChange::Remove(_) => return,
        };
        if let Some(start) = pods.take_shown_start(&uid_of(pod), pod) {
            let metrics = &pods.context().ports.metrics.starts;
            self.shown_starts.count(&start, metrics);
        }
    }
}

fn sources_ready(pods: &mut PodWorkers) {
    let desired = pods.records().desired_len();
    tracing::info!(pods = desired, "Every pod source has delivered");
    pods.context().ports.api.reporter.sources_are_ready();
    // A pod that left its source before could still be delivered by another one.
    let gone = pods
        .records()
        .select(|record| record.worker().is_some() && record.desired().is_none());
    for uid in gone {
        unwanted(&uid, pods);
    }
}

/// Adds pods in creation order, after the pods that were admitted before rubelet was started anew: those are reserved
/// before a new pod can take their place. Every other change keeps its place.
fn in_order(mut changes: Vec<PodChange>, pods: &PodWorkers) -> Vec<PodChange> {
    let rank = |change: &PodChange| match change {
        PodChange::Add(pod) => {
            let record = pods.records().get(&uid_of(pod));
            let is_new = !record.is_some_and(PodRecord::was_admitted_before);
            Some((is_new, pod.metadata.creation_timestamp.clone()))
        }
        PodChange::Update(_) | PodChange::Delete(_) | PodChange::Reconcile(_) | PodChange::Remove(_) => None,
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

fn changed(change: PodChange, pods: &mut PodWorkers) {
    match change {
        PodChange::Add(pod) => {
            let uid = uid_of(&pod);
            if is_static_pod(&pod) {
                // Made known at once, so that its mirror pod is not taken for an orphan.
                pods.context().ports.api.reporter.report(PodReport {
                    pod: Arc::clone(&pod),
                    status: Arc::default(),
                    is_finished: false,
                });
            }
            if is_from_a_removed_pod(&pod, pods) {
                pods.set_readded(&uid, true);
            }
            wanted(&uid, pod, UpdateKind::Create, pods);
        }
        PodChange::Update(pod) | PodChange::Delete(pod) => {
            let uid = uid_of(&pod);
            check_declared_features(&uid, &pod, pods);
            let kind = if is_first_definition(&uid, &pod, pods) {
                UpdateKind::Create
            } else {
                UpdateKind::Update
            };
            wanted(&uid, pod, kind, pods);
        }
        PodChange::Reconcile(pod) => {
            let uid = uid_of(&pod);
            pods.reconciled(&uid, &pod);
        }
        PodChange::Remove(pod) => removed(&uid_of(&pod), pod, pods),
    }
}

fn removed(uid: &PodUid, pod: Arc<Pod>, pods: &mut PodWorkers) {
    pods.remove_desired(uid);
    pods.retry_resizes(Trigger::PodsRemoved);
    let is_listed = pods.startup().are_names_known();
    pods.apply(uid, StandingEvent::Removed { pod, is_listed });
    if pods.records().worker(uid).is_none() {
        pods.context().ports.api.reporter.forget(uid);
    } else if pods.startup().are_sources_ready() {
        unwanted(uid, pods);
    } else {
        // Another source may still deliver it.
        pods.note_undesired(uid);
    }
    pods.prune(uid);
}

/// Whether what the runtime has is of another pod of this UID: rubelet has not known one since its start, though every
/// source had delivered. The garbage collector may be in the middle of it.
fn is_from_a_removed_pod(pod: &Pod, pods: &PodWorkers) -> bool {
    let record = pods.records().get(&uid_of(pod));
    let is_left = record.is_some_and(|record| {
        let is_dead = record.seen().is_some() && !record.may_live();
        record.worker().is_none() && is_dead && !pods.manifests().keep(record, pods.records())
    });
    pods.startup().is_complete() && is_left && !is_api_pod(pod)
}

/// Whether the pod was terminated while its object could not be decoded. What its status has to say follows from the definition, so
/// that it begins again with that one, and ends at once.
fn is_first_definition(uid: &PodUid, pod: &Pod, pods: &PodWorkers) -> bool {
    let has_containers = |pod: &Pod| pod.spec.as_ref().is_some_and(|spec| !spec.containers.is_empty());
    let worker = pods.records().worker(uid);
    let was_undecodable =
        worker.is_some_and(|worker| is_api_pod(worker.pod()) && !has_containers(worker.pod()));
    was_undecodable && has_containers(pod)
}

/// A source has a pod, new or changed.
fn wanted(uid: &PodUid, pod: Arc<Pod>, kind: UpdateKind, pods: &mut PodWorkers) {
    pods.set_desired(uid, Arc::clone(&pod));
    let is_static = PodFacts::of(&pod).is_static;
    if is_static && let Some(refusal) = unsupported_refusal(&pod, pods.context()) {
        return reject_unsupported(uid, pod, refusal, kind, pods);
    }
    let standing = pods.records().standing(uid);
    if standing.is_managed() {
        if matches!(standing.life(), PodState::Terminating { .. }) && !standing.is_shut_out() {
            pods.reserve_stopping(uid, &pod);
        }
        return pods.update(uid, kind);
    }
    match standing {
        // The API server has its end; whatever changes of it, it stays the end.
        Standing::Rejected { rejection, .. } if !is_static => {
            let refusal = rejection.refusal.clone();
            pods.apply(uid, StandingEvent::Decided(Decision::Reject { pod, refusal }));
        }
        // What it needs is reserved; the definition that it has when it starts counts.
        Standing::Awaits {
            wait: Wait::Preemption { .. },
            ..
        } => {}
        Standing::Unclaimed(_)
        | Standing::Awaits { .. }
        | Standing::Rejected { .. }
        | Standing::Managed(_) => pods.admit(uid, NodeRead::Watched),
    }
}

/// A static pod asks for something that is not supported. What already runs of it is left alone.
fn reject_unsupported(
    uid: &PodUid,
    pod: Arc<Pod>,
    refusal: Refusal,
    kind: UpdateKind,
    pods: &mut PodWorkers,
) {
    let standing = pods.records().standing(uid);
    if !standing.is_managed() {
        let is_listed = true;
        let removed = StandingEvent::Removed {
            pod: Arc::clone(&pod),
            is_listed,
        };
        pods.apply(uid, removed);
        pods.set_readded(uid, false);
        return pods.apply(uid, StandingEvent::Decided(Decision::Reject { pod, refusal }));
    }
    if standing.life().ending().is_some() {
        // The pod is rejected when the old one is gone.
        return pods.update(uid, kind);
    }
    let problem = refusal.message.clone();
    pods.record_event(&pod, PodEvent::warning(refusal.reason, refusal.message));
    tracing::warn!(pod = %uid, problem, "The pod's new version is not supported; the last good one goes on");
}

/// A change of the pod that needs a feature which this node does not declare.
fn check_declared_features(uid: &PodUid, pod: &Pod, pods: &PodWorkers) {
    let old = pods.records().desired(uid);
    let terms = pods.context().settings.admission.features;
    let missing = old.map_or_else(Vec::new, |old| missing_for_update(old, pod, terms));
    if missing.is_empty() || !terms.declared {
        return;
    }
    let missing = missing.join(", ");
    let message = format!("Pod requires node features that are not available: {missing}");
    pods.record_event(pod, PodEvent::warning("FailedNodeDeclaredFeaturesCheck", message));
}
