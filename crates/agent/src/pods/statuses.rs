//! The status of one pod on its way from a job to the API server.
//!
//! Owns the three forms that exist at the same time: computed by a job, published (a terminal phase waits until nothing runs), and
//! last reported. A pod without a computed status is not reported before its end.

use std::sync::{Arc, Weak};

use k8s_openapi::api::core::v1::{Pod, PodCondition, PodStatus};
use rubelet_lifecycle::deliberate::{Bug, is_on};
use rubelet_lifecycle::standing::Rejection;
use rubelet_lifecycle::status::{
    Settling, StatusBase, StatusGates, is_api_pod, is_static_pod, published_status, rejected_status,
    reported_status, settle, with_resize,
};
use rubelet_model::Timestamp;
use rubelet_model::pod::is_terminal;
use rubelet_ports::{PodEvent, PodReport};

use super::explain::is_ready;
use super::{AgentContext, qos_class_of};

/// What a published status was made from. The same again gives the same.
struct MadeFrom {
    computed: Arc<PodStatus>,
    pod: Arc<Pod>,
    resize: Vec<PodCondition>,
    may_run: bool,
}

impl MadeFrom {
    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.computed, &other.computed)
            && Arc::ptr_eq(&self.pod, &other.pod)
            && self.resize == other.resize
            && self.may_run == other.may_run
    }
}

/// The pod with its published status, and what it was made from. It costs no memory once no reader has it any more.
struct View {
    pod: Arc<Pod>,
    status: Arc<PodStatus>,
    view: Weak<Pod>,
}

impl View {
    fn of(&self, pod: &Arc<Pod>, status: &Arc<PodStatus>) -> Option<Arc<Pod>> {
        let is_same = Arc::ptr_eq(&self.pod, pod) && Arc::ptr_eq(&self.status, status);
        self.view.upgrade().filter(|_| is_same)
    }
}

/// The statuses of one pod.
pub(super) struct Statuses {
    computed: Option<Arc<PodStatus>>,
    published: Arc<PodStatus>,
    made_from: Option<MadeFrom>,
    last_view: Option<View>,
    /// What was last reported, and whether as finished.
    reported: Option<(Arc<PodStatus>, bool)>,
}

impl Statuses {
    /// Begins with the status that the API server has.
    pub(super) fn of(pod: &Pod) -> Self {
        Self {
            computed: None,
            published: Arc::new(pod.status.clone().unwrap_or_default()),
            made_from: None,
            last_view: None,
            reported: None,
        }
    }

    pub(super) fn computed(&self) -> Option<&Arc<PodStatus>> {
        self.computed.as_ref()
    }

    pub(super) fn published(&self) -> &Arc<PodStatus> {
        &self.published
    }

    /// Whether the pod has ended, as far as jobs have seen.
    pub(super) fn has_ended(&self) -> bool {
        self.computed.as_ref().is_some_and(|status| is_terminal(status))
    }

    pub(super) fn set_computed(&mut self, status: Arc<PodStatus>) {
        self.computed = Some(status);
    }

    /// Publishes the computed status with the conditions of a resize. The answer is whether the phase or the readiness changed.
    pub(super) fn publish(
        &mut self,
        (pod, resize): (&Arc<Pod>, Vec<PodCondition>),
        may_run: bool,
        gates: StatusGates,
        now: Timestamp,
    ) -> bool {
        let Some(computed) = &self.computed else {
            return false;
        };
        let from = MadeFrom {
            computed: Arc::clone(computed),
            pod: Arc::clone(pod),
            resize,
            may_run,
        };
        if self.made_from.as_ref().is_some_and(|last| last.is_same(&from)) {
            return false;
        }
        let shown = with_resize(computed, &from.resize);
        let published = if is_api_pod(pod) {
            reported_status(pod, &self.published, &shown, may_run, gates, now)
        } else {
            published_status(pod, &self.published, &shown, may_run, gates, now)
        };
        let summary = |status: &PodStatus| (status.phase.clone(), is_ready(status));
        let has_changed = summary(&published) != summary(&self.published);
        // An equal status stays the same value, so that readers need not compare it again.
        if published != *self.published {
            self.published = Arc::new(published);
        }
        self.made_from = Some(from);
        has_changed
    }

    /// The report that is due, if the published status was not reported yet.
    pub(super) fn take_report(&mut self, pod: &Arc<Pod>, is_finished: bool) -> Option<PodReport> {
        // An orphan has no definition, and the API server does not know it. Before the first look there is nothing to report.
        if pod.spec.is_none() || (self.computed.is_none() && !is_finished) {
            return None;
        }
        let is_known = self.reported.as_ref().is_some_and(|(status, was_finished)| {
            Arc::ptr_eq(status, &self.published) && *was_finished == is_finished
        });
        let is_kept_back = is_on(Bug::ReportedOnce) && self.reported.is_some() && !is_finished;
        if is_known || is_kept_back {
            return None;
        }
        self.reported = Some((Arc::clone(&self.published), is_finished));
        Some(PodReport {
            pod: Arc::clone(pod),
            status: Arc::clone(&self.published),
            is_finished,
        })
    }

    /// The pod as readers see it. While a reader has the last view and nothing changed since, it is that one.
    pub(super) fn view(&mut self, pod: &Arc<Pod>) -> Arc<Pod> {
        let known = self.last_view.as_ref();
        if let Some(view) = known.and_then(|last| last.of(pod, &self.published)) {
            return view;
        }
        let view = Arc::new(Pod {
            metadata: pod.metadata.clone(),
            spec: pod.spec.clone(),
            status: Some(PodStatus::clone(&self.published)),
        });
        self.last_view = Some(View {
            pod: Arc::clone(pod),
            status: Arc::clone(&self.published),
            view: Arc::downgrade(&view),
        });
        view
    }
}

/// The status of a rejected pod on the node.
pub(super) fn status_of_rejected(rejection: &Rejection, qos_class: &str) -> PodStatus {
    rejected_status(qos_class, &rejection.refusal.reason, &rejection.refusal.message)
}

/// Records the event of a rejection, and counts it.
pub(super) fn record_rejection(rejection: &Rejection, context: &AgentContext) {
    let refusal = &rejection.refusal;
    let event = PodEvent::warning(refusal.reason.clone(), refusal.message.clone());
    context.ports.events.record(&rejection.pod, event);
    context.ports.metrics.admission.rejected(&refusal.reason);
}

/// Reports a rejected pod to the API server.
pub(super) fn report_rejection(rejection: &Rejection, may_live: bool, context: &AgentContext) {
    let class = qos_class_of(&rejection.pod, context);
    let report = report_of_rejected(rejection, class, context.settings.status_gates, may_live);
    context.ports.api.reporter.report(report);
}

/// The status of a rejected pod as the API server gets it.
fn report_of_rejected(
    rejection: &Rejection,
    qos_class: &str,
    gates: StatusGates,
    may_live: bool,
) -> PodReport {
    let pod = &rejection.pod;
    let settling = Settling {
        pod,
        base: StatusBase::of(pod, None, None),
        force: true,
        gates,
        // The same rejection gives the same status, whenever it is reported.
        now: rejection.since,
    };
    let mut status = status_of_rejected(rejection, qos_class);
    status.conditions = pod.status.clone().unwrap_or_default().conditions;
    if is_static_pod(pod) {
        // It may be admitted later, and at the API server a terminal phase is final.
        status.phase = Some("Pending".to_owned());
    }
    PodReport {
        pod: Arc::clone(pod),
        status: Arc::new(settle(&settling, status).status),
        // Nothing runs of a pod that was not admitted, so that it may go when it is deleted.
        is_finished: !is_static_pod(pod) && !may_live,
    }
}
