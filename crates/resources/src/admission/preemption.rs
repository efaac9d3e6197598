//! Which pods a critical pod preempts.
//!
//! Owns the choice: BestEffort pods before Burstable before Guaranteed ones; within a class the pod whose requests come
//! nearest to what is missing, so that few pods end. It stops no pod itself.

use k8s_openapi::api::core::v1::Pod;
use rubelet_model::observation::PodUid;
use rubelet_model::pod::{Importance, QosClass};

use super::AdmissionReason;
use super::fit::Shortage;
use crate::allocatable::PODS;
use crate::amounts::{Amounts, CPU, MEMORY};
use crate::demand::{Overhead, PodDemand};
use crate::qos::qos_class;
use crate::rules::Rules;

/// Reason and messages of a preempted pod's event and status.
pub const PREEMPTED_REASON: &str = AdmissionReason::Preempting.as_str();
pub const PREEMPTED_MESSAGE: &str = "Preempted in order to admit critical pod";
pub const DISRUPTION_MESSAGE: &str = "Pod was preempted by Kubelet to accommodate a critical pod.";

/// What decides which pod preempts which.
#[derive(Clone, Debug, PartialEq)]
pub struct Rank {
    pub importance: Importance,
    pub priority: Option<i32>,
    pub class: QosClass,
    /// What comes free when the pod ends.
    pub requests: Amounts,
}

impl Rank {
    pub fn of(pod: &Pod, demand: &PodDemand, rules: &Rules) -> Self {
        Self {
            importance: Importance::of(pod),
            priority: pod.spec.as_ref().and_then(|spec| spec.priority),
            class: qos_class(demand, rules),
            requests: freed(demand, rules),
        }
    }

    /// Whether this pod may preempt the other.
    pub fn may_preempt(&self, other: &Self) -> bool {
        let is_above = matches!((self.priority, other.priority), (Some(own), Some(theirs)) if own > theirs);
        self.importance.is_critical() && !other.importance.is_critical() || is_above
    }

    /// The amount of one resource that comes free.
    fn request(&self, resource: &str) -> i64 {
        match resource {
            PODS => 1,
            CPU => self.requests.milli_value(CPU),
            other => self.requests.value(other),
        }
    }

    /// Whether this pod is the smaller loss of two that are equally near; of equal ones the later is taken.
    fn is_smaller_than(&self, other: &Self) -> bool {
        let pair = |rank: &Self| (rank.request(MEMORY), rank.request(CPU));
        pair(self) <= pair(other)
    }
}

/// Requests as preemption counts them: of the pod as a whole where it has any, whatever the gate's value, and overhead
/// only on top of something.
pub(crate) fn freed(demand: &PodDemand, rules: &Rules) -> Amounts {
    let with_pod_level = Rules {
        pod_level_resources: true,
        ..rules.clone()
    };
    let mut requests = if demand.effective_pod_level(rules).is_some() {
        let pod_alone = PodDemand {
            pod_level: demand.pod_level.clone(),
            ..PodDemand::default()
        };
        pod_alone.requests(rules, Overhead::Excluded)
    } else {
        demand.requests(&with_pod_level, Overhead::Excluded)
    };
    let overhead = demand.overhead.iter().flat_map(Amounts::iter);
    let extra: Amounts = overhead
        .filter(|(name, _)| !requests.is_zero(name))
        .map(|(name, quantity)| (name.to_owned(), quantity.clone()))
        .collect();
    requests.add(&extra);
    requests
}

/// Not enough can be freed; the text is upstream's.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
#[error("no set of running pods found to reclaim resources: {0}")]
pub struct NothingToPreempt(String);

#[derive(Clone, Debug)]
struct Missing(Vec<(String, i64)>);

impl Missing {
    fn without(&self, victims: &[Candidate<'_>]) -> Self {
        let left = self.0.iter().map(|(resource, amount)| {
            let freed = victims.iter().fold(0_i64, |sum, (_, victim)| {
                sum.saturating_add(victim.request(resource))
            });
            (resource.clone(), amount.saturating_sub(freed))
        });
        Self(left.filter(|(_, amount)| *amount > 0).collect())
    }

    /// How far the pod's requests are from what is missing, each resource weighing the same.
    fn distance(&self, victim: &Rank) -> f64 {
        let parts = self.0.iter().map(|(resource, amount)| {
            #[expect(clippy::cast_precision_loss, reason = "the same comparison as upstream's")]
            let (left, amount) = ((amount - victim.request(resource)) as f64, *amount as f64);
            if left > 0.0 { (left / amount).powi(2) } else { 0.0 }
        });
        parts.sum()
    }

    fn text(&self) -> String {
        let parts = self.0.iter();
        let parts: String = parts
            .map(|(resource, amount)| format!("(res: {resource}, q: {amount}), "))
            .collect();
        format!("[{parts}]")
    }
}

type Candidate<'a> = (&'a PodUid, &'a Rank);

/// The pods to preempt so that the new pod fits.
pub fn victims<'a>(
    new_pod: &Rank,
    others: impl Iterator<Item = Candidate<'a>>,
    shortages: &[Shortage],
) -> Result<Vec<PodUid>, NothingToPreempt> {
    let missing = Missing(
        shortages
            .iter()
            .map(|shortage| (shortage.resource.clone(), shortage.missing()))
            .collect(),
    );
    let candidates: Vec<Candidate<'_>> = others.filter(|(_, rank)| new_pod.may_preempt(rank)).collect();
    let of_class = |class: QosClass| -> Vec<Candidate<'_>> {
        let all = candidates.iter().copied();
        all.filter(|(_, rank)| rank.class == class).collect()
    };
    let (best_effort, burstable, guaranteed) = (
        of_class(QosClass::BestEffort),
        of_class(QosClass::Burstable),
        of_class(QosClass::Guaranteed),
    );
    let never_there = missing.without(&candidates);
    if !never_there.0.is_empty() {
        return Err(NothingToPreempt(never_there.text()));
    }
    let after_lower = missing.without(&[&best_effort[..], &burstable].concat());
    let guaranteed = nearest(guaranteed, after_lower)?;
    let after_ends = missing.without(&[&best_effort[..], &guaranteed].concat());
    let burstable = nearest(burstable, after_ends)?;
    let after_all = missing.without(&[&burstable[..], &guaranteed].concat());
    let best_effort = nearest(best_effort, after_all)?;
    let chosen = best_effort.iter().chain(&burstable).chain(&guaranteed);
    Ok(chosen.map(|(uid, _)| (*uid).clone()).collect())
}

/// Takes the nearest pod again and again until nothing is missing.
fn nearest<'a>(
    mut pods: Vec<Candidate<'a>>,
    mut missing: Missing,
) -> Result<Vec<Candidate<'a>>, NothingToPreempt> {
    let mut chosen = Vec::new();
    while !missing.0.is_empty() {
        let mut best: Option<(usize, f64)> = None;
        for (index, (_, rank)) in pods.iter().enumerate() {
            let distance = missing.distance(rank);
            let is_better = best.is_none_or(|(other, nearest)| {
                distance < nearest || distance == nearest && rank.is_smaller_than(pods[other].1)
            });
            if is_better {
                best = Some((index, distance));
            }
        }
        let Some((index, _)) = best else {
            return Err(NothingToPreempt(missing.text()));
        };
        let taken = pods.swap_remove(index);
        missing = missing.without(&[taken]);
        chosen.push(taken);
    }
    Ok(chosen)
}
