//! Whether a pod may run on this node.
//!
//! Owns the checks, their order, and upstream's reasons and messages. The inputs are the pod, the ledger of admitted pods, the
//! node's settings and its current state; nothing is reserved or stopped here. Not checked yet: topology and devices.
//!
//! A pod is checked as if terminating pods were gone; if it fits only then, it waits for them (decision 0036).

pub mod capabilities;
pub mod fit;
pub mod host_ports;
pub mod ledger;
pub mod need;
pub mod node_match;
pub mod node_view;
pub mod preemption;
pub mod pressure_gate;
pub mod reason;
pub mod sysctls;
pub mod taints;

pub use capabilities::{FeatureTerms, RuntimeFeatures};
pub use ledger::{Holding, Ledger};
pub use need::Allocatable;
pub use node_match::{NODE_AFFINITY, NodeIdentity};
pub use node_view::NodeView;
pub use reason::AdmissionReason;
pub use sysctls::{KernelVersion, SysctlAllowlist};

use k8s_openapi::api::core::v1::Pod;
use rubelet_model::observation::PodUid;

use self::fit::Shortage;
use self::ledger::{Others, Terminating};
use self::preemption::NothingToPreempt;
use crate::demand::{BadQuantity, PodDemand};
use crate::rules::Rules;

const SHUTDOWN_MESSAGE: &str = "Pod was rejected as the node is shutting down.";

/// Why a pod is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// An [`AdmissionReason`], or `OutOf` and the scarce resource.
    pub reason: String,
    pub message: String,
    /// Whether it could be admitted once other pods have ended.
    pub is_for_now: bool,
    /// What is missing, where upstream's message does not name it.
    pub detail: Option<String>,
}

impl Refusal {
    fn new(reason: impl Into<String>, message: impl Into<String>, is_for_now: bool) -> Self {
        Self {
            reason: reason.into(),
            message: message.into(),
            is_for_now,
            detail: None,
        }
    }

    pub(crate) fn for_now(reason: AdmissionReason, message: impl Into<String>) -> Self {
        Self::new(reason, message, true)
    }

    pub(crate) fn for_good(reason: AdmissionReason, message: impl Into<String>) -> Self {
        Self::new(reason, message, false)
    }
}

/// The node's settings that admission depends on.
#[derive(Clone, Debug, Default)]
pub struct NodeTerms {
    pub identity: NodeIdentity,
    pub allocatable: Allocatable,
    pub sysctls: SysctlAllowlist,
    /// Why the host cannot enforce AppArmor profiles, if it cannot.
    pub app_armor_problem: Option<String>,
    pub features: FeatureTerms,
    pub rules: Rules,
}

/// The result of admission.
#[derive(Clone, Debug, PartialEq)]
pub enum Judgement {
    /// Admitted; it holds this from now on.
    Fits(Holding),
    /// It fits once terminating pods have ended. Until then it holds this and does not start.
    Waits(Holding),
    /// Admitted once the victims have ended.
    Preempts {
        holding: Holding,
        victims: Vec<PodUid>,
        /// The first scarce resource.
        scarce: String,
    },
    Refused(Refusal),
    /// Rejected only for the node's labels, which may be out of date here.
    Mislabelled(Refusal),
}

impl NodeTerms {
    /// What the pod holds while it runs.
    pub fn holding(&self, pod: &Pod) -> Result<Holding, BadQuantity> {
        Ok(Holding::of(pod, &PodDemand::read(pod)?, &self.rules))
    }

    /// Whether the resource is a device plugin's that is not registered.
    #[must_use]
    pub fn lacks_devices(&self, name: &str) -> bool {
        need::is_extended(name) && self.allocatable.resources.others.get(name) == Some(&0)
    }

    /// Checks a pod against the admitted pods. The pod itself may be among them.
    pub fn judge(
        &self,
        uid: &PodUid,
        pod: &Pod,
        ledger: &Ledger,
        runtime: RuntimeFeatures,
        view: &NodeView,
    ) -> Judgement {
        let demand = match PodDemand::read(pod) {
            Ok(demand) => demand,
            Err(problem) => {
                return Judgement::Refused(Refusal::for_good(
                    AdmissionReason::UnexpectedAdmissionError,
                    problem.to_string(),
                ));
            }
        };
        let (rules, compares) = (&self.rules, self.features.toleration_comparison);
        let under_pressure = pressure_gate::pressure_refusal(pod, &demand, view.pressure, rules, compares);
        if let Some(refusal) = under_pressure.or_else(|| self.before_room(pod, runtime)) {
            return Judgement::Refused(refusal);
        }
        let holding = Holding::of(pod, &demand, rules);
        let new_pod = NewPod {
            uid,
            pod,
            demand: &demand,
            holding: &holding,
        };
        let others = ledger.beside(uid, &holding, Terminating::Excluded);
        let shortages = self.shortages(&new_pod, &others, view);
        let misfits = self.misfits(pod, &holding, &others, view);
        if let ([], [only]) = (&shortages[..], &misfits[..])
            && only.reason == AdmissionReason::NodeAffinity
        {
            return Judgement::Mislabelled(only.clone());
        }
        let victims = match room((uid, &holding), ledger, &shortages, misfits) {
            Ok(victims) => victims,
            Err(refusal) => return Judgement::Refused(refusal),
        };
        // Checked first, so that no pod is preempted for one that cannot run anyway.
        if let Some(refusal) = self.after_room(pod, &demand, runtime, view) {
            return Judgement::Refused(refusal);
        }
        if !victims.is_empty() {
            let scarce = shortages.first().map(|shortage| shortage.resource.clone());
            return Judgement::Preempts {
                holding,
                victims,
                scarce: scarce.unwrap_or_default(),
            };
        }
        if self.must_wait(&new_pod, ledger, view) {
            Judgement::Waits(holding)
        } else {
            Judgement::Fits(holding)
        }
    }

    /// Whether terminating pods hold what an admitted pod needs.
    pub fn waits_for_terminating(&self, uid: &PodUid, pod: &Pod, ledger: &Ledger, view: &NodeView) -> bool {
        PodDemand::read(pod).is_ok_and(|demand| {
            let new_pod = NewPod {
                uid,
                pod,
                demand: &demand,
                holding: &Holding::of(pod, &demand, &self.rules),
            };
            self.must_wait(&new_pod, ledger, view)
        })
    }

    /// What is short for the pod, terminating pods counted; `None` when it fits beside all of them.
    #[must_use]
    pub fn shortage(&self, uid: &PodUid, pod: &Pod, ledger: &Ledger, view: &NodeView) -> Option<String> {
        let demand = PodDemand::read(pod).ok()?;
        let holding = Holding::of(pod, &demand, &self.rules);
        let new_pod = NewPod {
            uid,
            pod,
            demand: &demand,
            holding: &holding,
        };
        let others = ledger.beside(uid, &holding, Terminating::Counted);
        let first = self.shortages(&new_pod, &others, view).into_iter().next();
        first.map(|shortage| shortage.message())
    }

    fn must_wait(&self, new_pod: &NewPod<'_>, ledger: &Ledger, view: &NodeView) -> bool {
        if ledger.terminating().next().is_none() {
            return false;
        }
        let others = ledger.beside(new_pod.uid, new_pod.holding, Terminating::Counted);
        let is_port_held = fit::port_refusal(&new_pod.holding.ports, &others).is_some();
        is_port_held || !self.shortages(new_pod, &others, view).is_empty()
    }

    fn before_room(&self, pod: &Pod, runtime: RuntimeFeatures) -> Option<Refusal> {
        self.sysctls
            .check(pod)
            .or_else(|| node_match::os_refusal(pod))
            .or_else(|| capabilities::groups_refusal(pod, runtime))
    }

    fn after_room(
        &self,
        pod: &Pod,
        demand: &PodDemand,
        runtime: RuntimeFeatures,
        view: &NodeView,
    ) -> Option<Refusal> {
        capabilities::app_armor_refusal(pod, self.app_armor_problem.as_deref())
            .or_else(|| capabilities::pod_level_refusal(demand, &self.rules))
            .or_else(|| capabilities::features_refusal(pod, self.features, runtime))
            .or_else(|| shutdown_refusal(view))
    }

    fn shortages(&self, new_pod: &NewPod<'_>, others: &Others, view: &NodeView) -> Vec<Shortage> {
        let allocatable = view.allocatable(&self.allocatable);
        let known = need::without_unknown(new_pod.pod, new_pod.demand, &allocatable);
        fit::shortages(&need::Need::of_pod(&known, &self.rules), others, &allocatable)
    }

    /// All reasons against the pod but resources, in upstream's order.
    fn misfits(&self, pod: &Pod, holding: &Holding, others: &Others, view: &NodeView) -> Vec<Refusal> {
        let labels = view.labels.as_ref();
        let mut found = self.identity.refusals(pod, labels);
        found.extend(fit::port_refusal(&holding.ports, others));
        let compares = self.features.toleration_comparison;
        found.extend(taints::taint_refusal(pod, &view.taints, compares));
        found
    }
}

/// A static pod is tried again when the shutdown is cancelled.
fn shutdown_refusal(view: &NodeView) -> Option<Refusal> {
    let refusal = || Refusal::for_now(AdmissionReason::NodeShutdown, SHUTDOWN_MESSAGE);
    view.is_shutting_down.then(refusal)
}

/// A pod under admission, with what was read from it.
#[derive(Clone, Copy)]
struct NewPod<'a> {
    uid: &'a PodUid,
    pod: &'a Pod,
    demand: &'a PodDemand,
    holding: &'a Holding,
}

/// The pods to preempt, if any; the error is why the pod does not fit.
fn room(
    (uid, holding): (&PodUid, &Holding),
    ledger: &Ledger,
    shortages: &[Shortage],
    misfits: Vec<Refusal>,
) -> Result<Vec<PodUid>, Refusal> {
    let is_critical = holding.rank.importance.is_critical();
    match (shortages.first(), misfits.into_iter().next()) {
        (None, None) => Ok(Vec::new()),
        // A critical pod is never rejected for resources alone, so they do not become its message.
        (Some(shortage), _) if !is_critical => Err(shortage.refusal()),
        (_, Some(misfit)) => Err(misfit),
        (Some(_), None) => {
            let neighbours = ledger
                .neighbours(uid, holding, Terminating::Excluded)
                .map(|(uid, other)| (uid, &other.rank));
            preemption::victims(&holding.rank, neighbours, shortages)
                .map_err(|error| preemption_failed(shortages, &error))
        }
    }
}

/// Upstream's message for a critical pod hides what is short; the detail names it.
fn preemption_failed(shortages: &[Shortage], error: &NothingToPreempt) -> Refusal {
    let message = format!(
        "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to preempt: {error}"
    );
    let details: Vec<String> = shortages.iter().map(Shortage::message).collect();
    Refusal {
        detail: Some(details.join("; ")),
        ..Refusal::for_now(AdmissionReason::UnexpectedAdmissionError, message)
    }
}
