//! The resources that admitted pods hold: read and written by every admission.
//!
//! Owns the holdings of all admitted pods that have not ended. One task owns the ledger, so that a check and the reservation
//! that follows from it are one step. It does not decide about admission.
//!
//! Static pods that follow each other under one name never run at the same time. They count as one, with the most that any
//! of them needs: otherwise an edited pod would not fit beside its old version.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use rubelet_model::observation::PodUid;
use rubelet_model::pod::{full_name_of, is_static_pod};

use super::host_ports::{HostPort, host_ports};
use super::need::Need;
use super::preemption::Rank;
use crate::demand::PodDemand;
use crate::rules::Rules;

/// What one pod holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Holding {
    /// `name_namespace`
    pub full_name: String,
    /// Whether a pod of the same name may replace it before it has ended.
    pub is_static: bool,
    pub need: Need,
    pub ports: Vec<HostPort>,
    pub rank: Rank,
}

impl Holding {
    pub fn of(pod: &Pod, demand: &PodDemand, rules: &Rules) -> Self {
        Self {
            full_name: full_name_of(pod),
            is_static: is_static_pod(pod),
            need: Need::of_pod(demand, rules),
            ports: host_ports(pod),
            rank: Rank::of(pod, demand, rules),
        }
    }
}

/// What the other pods hold when a pod is admitted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Others {
    pub need: Need,
    pub pods: i64,
    pub ports: Vec<HostPort>,
}

/// Whether pods that terminate count among the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terminating {
    Counted,
    Excluded,
}

/// The holdings of all admitted pods.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    holdings: BTreeMap<PodUid, Holding>,
    /// Those of them that terminate: their holdings become free by themselves.
    terminating: BTreeSet<PodUid>,
}

impl Ledger {
    /// Reserves the pod's resources, whether or not they are free: a running pod holds them anyway.
    pub fn reserve(&mut self, uid: PodUid, holding: Holding) {
        self.holdings.insert(uid, holding);
    }

    /// Releases the pod's resources. Returns whether it held any.
    pub fn release(&mut self, uid: &PodUid) -> bool {
        self.terminating.remove(uid);
        self.holdings.remove(uid).is_some()
    }

    /// A new pod waits for this pod's resources instead of being rejected.
    pub fn set_terminating(&mut self, uid: &PodUid) {
        if self.contains(uid) {
            self.terminating.insert(uid.clone());
        }
    }

    /// New pods no longer wait for this pod. Returns whether it was terminating.
    pub fn unset_terminating(&mut self, uid: &PodUid) -> bool {
        self.terminating.remove(uid)
    }

    pub fn terminating(&self) -> impl Iterator<Item = &PodUid> {
        self.terminating.iter()
    }

    pub fn contains(&self, uid: &PodUid) -> bool {
        self.holdings.contains_key(uid)
    }

    pub fn holdings(&self) -> impl Iterator<Item = (&PodUid, &Holding)> {
        self.holdings.iter()
    }

    /// What all pods hold.
    pub fn total(&self) -> Others {
        sum(self.holdings.values())
    }

    /// What the pods hold that the new pod would run beside.
    pub fn beside(&self, uid: &PodUid, new_pod: &Holding, terminating: Terminating) -> Others {
        let neighbours = self.neighbours(uid, new_pod, terminating);
        sum(neighbours.map(|(_, holding)| holding))
    }

    /// The pods that the new pod would run beside.
    pub fn neighbours<'a>(
        &'a self,
        uid: &'a PodUid,
        new_pod: &'a Holding,
        terminating: Terminating,
    ) -> impl Iterator<Item = (&'a PodUid, &'a Holding)> {
        self.holdings.iter().filter(move |(other, holding)| {
            let precedes = holding.is_static && new_pod.is_static && holding.full_name == new_pod.full_name;
            let is_excluded = terminating == Terminating::Excluded && self.terminating.contains(*other);
            *other != uid && !precedes && !is_excluded
        })
    }
}

fn sum<'a>(holdings: impl Iterator<Item = &'a Holding>) -> Others {
    let mut others = Others::default();
    let mut by_name: BTreeMap<&str, Need> = BTreeMap::new();
    for holding in holdings {
        others.ports.extend(holding.ports.iter().cloned());
        if holding.is_static {
            let most = by_name.entry(&holding.full_name).or_insert_with(|| {
                others.pods += 1;
                Need::default()
            });
            most.raise_to(&holding.need);
        } else {
            others.pods += 1;
            others.need.add(&holding.need);
        }
    }
    for need in by_name.values() {
        others.need.add(need);
    }
    others
}
