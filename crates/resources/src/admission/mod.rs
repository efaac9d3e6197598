//! Whether a pod may run on this node.
//!
//! Owns the checks, their order, and upstream's reasons and words. Everything is decided from the pod, from the ledger of those
//! who are in, from the node's terms and from how the node is just now; nothing is reserved or ended here. What is not judged
//! yet: topology and devices, shutdown; each comes with its part of the node.
//!
//! A pod is judged as if the pods that terminate were gone; if it fits only then, it waits for them (decision 0036).

pub mod capabilities;
pub mod fit;
pub mod host_ports;
pub mod ledger;
pub mod need;
pub mod node_match;
pub mod node_view;
pub mod preemption;
pub mod pressure_gate;
pub mod sysctls;
pub mod taints;

pub use capabilities::{FeatureTerms, RuntimeFeatures};
pub use ledger::{Holding, Ledger};
pub use need::Allocatable;
pub use node_match::{NODE_AFFINITY, NodeIdentity};
pub use node_view::NodeView;
pub use sysctls::{KernelVersion, SysctlAllowlist};

use k8s_openapi::api::core::v1::Pod;
use rubelet_model::observation::PodUid;

use self::fit::Shortage;
use self::ledger::{Others, Terminating};
use self::preemption::NobodyToPreempt;
use crate::demand::{BadQuantity, PodDemand};
use crate::importance::{API_SOURCE, SOURCE_ANNOTATION};
use crate::rules::Rules;

const UNEXPECTED: &str = "UnexpectedAdmissionError";

/// Why a pod is not let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub reason: String,
    pub message: String,
    /// Whether it could be let in when others have ended.
    pub is_for_now: bool,
    /// What is missing, where upstream's message does not say it.
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

    pub(crate) fn for_now(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(reason, message, true)
    }

    pub(crate) fn for_good(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(reason, message, false)
    }
}

/// What pods of this node are judged by.
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

/// What becomes of a pod that comes.
#[derive(Clone, Debug, PartialEq)]
pub enum Judgement {
    /// It is let in and holds this from now on.
    Fits(Holding),
    /// It fits once pods that terminate have ended. Until then it holds this and does not start.
    Waits(Holding),
    /// It is let in when these have ended.
    Preempts {
        holding: Holding,
        victims: Vec<PodUid>,
        /// The first resource that there is not enough of.
        scarce: String,
    },
    Refused(Refusal),
    /// Nothing but the node's labels speaks against it, and they may be newer than what is known of them.
    Mislabelled(Refusal),
}

pub(crate) fn is_static(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    let source = annotations.and_then(|all| all.get(SOURCE_ANNOTATION));
    source.is_some_and(|source| source != API_SOURCE)
}

impl NodeTerms {
    /// What the pod holds when it runs, whoever let it in.
    pub fn holding(&self, pod: &Pod) -> Result<Holding, BadQuantity> {
        Ok(Holding::of(pod, &PodDemand::read(pod)?, &self.rules))
    }

    /// Whether the resource is a device plugin's that is not registered.
    #[must_use]
    pub fn lacks_devices(&self, name: &str) -> bool {
        need::is_extended(name) && self.allocatable.resources.others.get(name) == Some(&0)
    }

    /// Judges a pod beside those who are in. The pod itself may be among them.
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
                return Judgement::Refused(Refusal::for_good(UNEXPECTED, problem.to_string()));
            }
        };
        let (rules, compares) = (&self.rules, self.features.toleration_comparison);
        let under_pressure = pressure_gate::pressure_refusal(pod, &demand, view.pressure, rules, compares);
        if let Some(refusal) = under_pressure.or_else(|| self.before_room(pod, runtime)) {
            return Judgement::Refused(refusal);
        }
        let holding = Holding::of(pod, &demand, rules);
        let newcomer = Newcomer {
            uid,
            pod,
            demand: &demand,
            holding: &holding,
        };
        let others = ledger.beside(uid, &holding, Terminating::Excluded);
        let shortages = self.shortages(&newcomer, &others, view);
        let misfits = self.misfits(pod, &holding, &others, view);
        if let ([], [only]) = (&shortages[..], &misfits[..])
            && only.reason == NODE_AFFINITY
        {
            return Judgement::Mislabelled(only.clone());
        }
        let victims = match room((uid, &holding), ledger, &shortages, misfits) {
            Ok(victims) => victims,
            Err(refusal) => return Judgement::Refused(refusal),
        };
        // Asked before anybody has to end for a pod that cannot run anyway.
        if let Some(refusal) = self.after_room(pod, &demand, runtime) {
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
        if self.must_wait(&newcomer, ledger, view) {
            Judgement::Waits(holding)
        } else {
            Judgement::Fits(holding)
        }
    }

    /// Whether pods that terminate hold what an admitted pod needs.
    pub fn waits_for_terminating(&self, uid: &PodUid, pod: &Pod, ledger: &Ledger, view: &NodeView) -> bool {
        PodDemand::read(pod).is_ok_and(|demand| {
            let newcomer = Newcomer {
                uid,
                pod,
                demand: &demand,
                holding: &Holding::of(pod, &demand, &self.rules),
            };
            self.must_wait(&newcomer, ledger, view)
        })
    }

    fn must_wait(&self, newcomer: &Newcomer<'_>, ledger: &Ledger, view: &NodeView) -> bool {
        if ledger.terminating().next().is_none() {
            return false;
        }
        let others = ledger.beside(newcomer.uid, newcomer.holding, Terminating::Counted);
        let is_port_held = fit::port_refusal(&newcomer.holding.ports, &others).is_some();
        is_port_held || !self.shortages(newcomer, &others, view).is_empty()
    }

    fn before_room(&self, pod: &Pod, runtime: RuntimeFeatures) -> Option<Refusal> {
        self.sysctls
            .check(pod)
            .or_else(|| node_match::os_refusal(pod))
            .or_else(|| capabilities::groups_refusal(pod, runtime))
    }

    fn after_room(&self, pod: &Pod, demand: &PodDemand, runtime: RuntimeFeatures) -> Option<Refusal> {
        capabilities::app_armor_refusal(pod, self.app_armor_problem.as_deref())
            .or_else(|| capabilities::pod_level_refusal(demand, &self.rules))
            .or_else(|| capabilities::features_refusal(pod, self.features, runtime))
    }

    fn shortages(&self, newcomer: &Newcomer<'_>, others: &Others, view: &NodeView) -> Vec<Shortage> {
        let allocatable = view.allocatable(&self.allocatable);
        let known = need::without_unknown(newcomer.pod, newcomer.demand, &allocatable);
        fit::shortages(&need::Need::of_pod(&known, &self.rules), others, &allocatable)
    }

    /// Everything beside resources that speaks against the pod, in upstream's order.
    fn misfits(&self, pod: &Pod, holding: &Holding, others: &Others, view: &NodeView) -> Vec<Refusal> {
        let labels = view.labels.as_ref();
        let mut found = self.identity.refusals(pod, labels);
        found.extend(fit::port_refusal(&holding.ports, others));
        let compares = self.features.toleration_comparison;
        found.extend(taints::taint_refusal(pod, &view.taints, compares));
        found
    }
}

/// A pod that is judged, with what was read from it.
#[derive(Clone, Copy)]
struct Newcomer<'a> {
    uid: &'a PodUid,
    pod: &'a Pod,
    demand: &'a PodDemand,
    holding: &'a Holding,
}

/// Who has to make room, if anybody; the error is why there is none.
fn room(
    (uid, holding): (&PodUid, &Holding),
    ledger: &Ledger,
    shortages: &[Shortage],
    misfits: Vec<Refusal>,
) -> Result<Vec<PodUid>, Refusal> {
    let is_critical = holding.rank.importance.is_critical();
    match (shortages.first(), misfits.into_iter().next()) {
        (None, None) => Ok(Vec::new()),
        // A critical pod never fails for resources alone, so that they are not what it is told.
        (Some(shortage), _) if !is_critical => Err(shortage.refusal()),
        (_, Some(misfit)) => Err(misfit),
        (Some(_), None) => {
            let neighbours = ledger
                .neighbours(uid, holding, Terminating::Excluded)
                .map(|(uid, other)| (uid, &other.rank));
            preemption::victims(&holding.rank, neighbours, shortages)
                .map_err(|nobody| nobody_makes_room(shortages, &nobody))
        }
    }
}

/// Upstream's words for a critical pod hide what is short; the detail says it.
fn nobody_makes_room(shortages: &[Shortage], nobody: &NobodyToPreempt) -> Refusal {
    let message = format!(
        "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to preempt: {nobody}"
    );
    let details: Vec<String> = shortages.iter().map(Shortage::message).collect();
    Refusal {
        detail: Some(details.join("; ")),
        ..Refusal::for_now(UNEXPECTED, message)
    }
}
