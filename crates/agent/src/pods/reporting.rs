//! What the API server is told of pods, and what follows from what it says of them.
//!
//! Owns when there is news. Nothing is said of a pod before it was looked at, except that it is wanted; an end is said only when
//! nothing of the pod can run any more, which `Entry::show` sees to.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rubelet_lifecycle::allocation::{INFEASIBLE_EVENT, INFEASIBLE_MESSAGE, infeasible, is_said};
use rubelet_lifecycle::deliberate::{Bug, is_on};
use rubelet_lifecycle::pod_state::{PodFacts, PodState, UpdateKind};
use rubelet_lifecycle::status::{Settling, StatusBase, is_static_pod, readiness_is_stale, settle};
use rubelet_model::observation::PodUid;
use rubelet_ports::{PodEvent, PodReport};
use rubelet_resources::admission::capabilities::missing_for_update;

use super::Pods;
use super::entry::{Entry, Refused};

impl Entry {
    /// What nobody was told yet. `None` when there is no news.
    fn news(&mut self) -> Option<PodReport> {
        let is_finished = matches!(self.state, PodState::Finished { .. });
        // An orphan has no definition, and nobody there knows it. Before the first look there is nothing to say.
        if self.pod.spec.is_none() || (self.derived.is_none() && !is_finished) {
            return None;
        }
        let is_known = self.reported.as_ref().is_some_and(|(status, was_finished)| {
            Arc::ptr_eq(status, &self.shown) && *was_finished == is_finished
        });
        let is_kept_back = is_on(Bug::ReportedOnce) && self.reported.is_some() && !is_finished;
        if is_known || is_kept_back {
            return None;
        }
        self.reported = Some((Arc::clone(&self.shown), is_finished));
        Some(PodReport {
            pod: Arc::clone(&self.pod),
            status: Arc::clone(&self.shown),
            is_finished,
        })
    }

    /// Takes on a new version of the pod, with the resources that it was let in with. The answer is whether it asks for others, and
    /// nobody was told so yet.
    pub(super) fn take_on(&mut self, pod: &Arc<Pod>, now: rubelet_model::Timestamp) -> bool {
        let Some(kept) = self
            .allocation
            .as_ref()
            .and_then(|allocation| allocation.applied(pod))
        else {
            self.pod = Arc::clone(pod);
            self.resize = None;
            return false;
        };
        let generation = pod.metadata.generation;
        self.pod = Arc::new(kept);
        let before = self.resize.as_ref();
        if before.is_some_and(|before| before.observed_generation == generation) {
            return false;
        }
        self.resize = Some(infeasible(pod, now));
        !is_said(pod)
    }
}

impl Pods {
    /// Brings what is shown of the pod up to date and reports it, if it is news.
    pub(super) fn show_and_report(&mut self, uid: &PodUid) {
        let now = self.now();
        let gates = self.shared.settings.status_gates;
        let Some(entry) = self.pods.get_mut(uid) else {
            return;
        };
        let has_changed = entry.show(gates, now);
        if has_changed {
            let durations = &self.shared.ports.metrics.starts.durations;
            entry.start.phase_changed(&entry.shown, now, durations);
        }
        if let Some(report) = entry.news() {
            self.shared.ports.reporter.report(report);
        }
        if has_changed {
            self.log_phase(uid);
        }
    }

    /// A static pod is made known at once, so that its mirror is nobody's orphan.
    pub(super) fn report_wanted(&self, pod: &Arc<Pod>) {
        if !is_static_pod(pod) {
            return;
        }
        self.shared.ports.reporter.report(PodReport {
            pod: Arc::clone(pod),
            status: Arc::default(),
            is_finished: false,
        });
    }

    /// Nothing runs of a pod that was not let in, so that it may go when it is deleted.
    pub(super) fn report_refused(&self, uid: &PodUid) {
        let Some(refused) = self.admission.refused.get(uid) else {
            return;
        };
        self.shared.ports.reporter.report(PodReport {
            pod: Arc::clone(&refused.pod),
            status: Arc::new(self.settled_refusal(refused)),
            is_finished: !is_static_pod(&refused.pod) && !self.may_live(uid),
        });
    }

    fn settled_refusal(&self, refused: &Refused) -> PodStatus {
        let settling = Settling {
            pod: &refused.pod,
            base: StatusBase::of(&refused.pod, None, None),
            force: true,
            gates: self.shared.settings.status_gates,
            // The same refusal is the same status, whenever it is told.
            now: refused.since,
        };
        let mut status = self.refused_status(refused);
        let before = refused.pod.status.clone().unwrap_or_default();
        status.conditions = before.conditions;
        if is_static_pod(&refused.pod) {
            // It may be let in later, and at the API server an end is an end.
            status.phase = Some("Pending".to_owned());
        }
        settle(&settling, status).status
    }

    /// The pod left its source, and nothing of it was ever begun.
    pub(super) fn forget_unbegun(&self, uid: &PodUid) {
        if !self.pods.contains_key(uid) {
            self.shared.ports.reporter.forget(uid);
        }
    }

    /// The API server has another status of the pod, and nothing else is new.
    pub(super) fn reconciled(&mut self, uid: &PodUid, pod: &Arc<Pod>) {
        self.desired.insert(uid.clone(), Arc::clone(pod));
        let now = self.now();
        let Some(entry) = self.pods.get_mut(uid) else {
            return;
        };
        entry.take_on(pod, now);
        let is_ended_by_others = PodFacts::of(pod).is_terminal && entry.state.ending().is_none();
        if is_ended_by_others || readiness_is_stale(pod) {
            self.update(uid, UpdateKind::Update);
        } else {
            self.show_and_report(uid);
        }
    }

    /// A change of the pod that needs a feature which this node does not declare.
    pub(super) fn check_declared_features(&self, uid: &PodUid, pod: &Pod) {
        let old = self.desired.get(uid);
        let missing = old.map_or_else(Vec::new, |old| missing_for_update(old, pod));
        if missing.is_empty() || !self.shared.settings.admission.features.declared {
            return;
        }
        let missing = missing.join(", ");
        let message = format!("Pod requires node features that are not available: {missing}");
        let event = PodEvent::warning("FailedNodeDeclaredFeaturesCheck", message);
        self.shared.ports.events.record(pod, event);
    }

    /// A pod's resources were changed in place.
    pub(super) fn refuse_resize(&self, pod: &Pod) {
        let event = PodEvent::warning(INFEASIBLE_EVENT, INFEASIBLE_MESSAGE);
        self.shared.ports.events.record(pod, event);
    }
}
