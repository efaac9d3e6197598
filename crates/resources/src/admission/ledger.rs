//! Who holds what of the node: the one book that every admission reads and writes.
//!
//! Owns the holdings of all pods that were let in and have not ended. One owner keeps it, so that nobody can come between a
//! check and the reservation that follows from it. It must not decide who is let in.
//!
//! Static pods that follow each other under one name never run at the same time. They count as one, with the most that any
//! of them needs: otherwise an edited pod would stand in its own way.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use rubelet_model::observation::PodUid;

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
    /// Whether others may follow under the same name before it has ended.
    pub is_static: bool,
    pub need: Need,
    pub ports: Vec<HostPort>,
    pub rank: Rank,
}

impl Holding {
    pub fn of(pod: &Pod, demand: &PodDemand, rules: &Rules) -> Self {
        let metadata = &pod.metadata;
        let part = |text: &Option<String>| text.clone().unwrap_or_default();
        Self {
            full_name: format!("{}_{}", part(&metadata.name), part(&metadata.namespace)),
            is_static: super::is_static(pod),
            need: Need::of_pod(demand, rules),
            ports: host_ports(pod),
            rank: Rank::of(pod, demand, rules),
        }
    }
}

/// What a pod finds when it comes.
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

/// The book.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    holdings: BTreeMap<PodUid, Holding>,
    /// Those of them that terminate: what they hold comes free without anything else happening.
    terminating: BTreeSet<PodUid>,
}

impl Ledger {
    /// Books a pod, whether or not there is room: what runs, holds.
    pub fn reserve(&mut self, uid: PodUid, holding: Holding) {
        self.holdings.insert(uid, holding);
    }

    /// Gives back what the pod held. The answer is whether it held anything.
    pub fn release(&mut self, uid: &PodUid) -> bool {
        self.terminating.remove(uid);
        self.holdings.remove(uid).is_some()
    }

    /// A newcomer waits for what this pod holds, instead of being refused.
    pub fn set_terminating(&mut self, uid: &PodUid) {
        if self.contains(uid) {
            self.terminating.insert(uid.clone());
        }
    }

    /// No newcomer waits for this pod any more. The answer is whether any did.
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

    /// What everybody holds.
    pub fn total(&self) -> Others {
        sum(self.holdings.values())
    }

    /// What the pods hold that the newcomer would run beside.
    pub fn beside(&self, uid: &PodUid, newcomer: &Holding, terminating: Terminating) -> Others {
        let neighbours = self.neighbours(uid, newcomer, terminating);
        sum(neighbours.map(|(_, holding)| holding))
    }

    /// The pods that the newcomer would run beside.
    pub fn neighbours<'a>(
        &'a self,
        uid: &'a PodUid,
        newcomer: &'a Holding,
        terminating: Terminating,
    ) -> impl Iterator<Item = (&'a PodUid, &'a Holding)> {
        self.holdings.iter().filter(move |(other, holding)| {
            let precedes = holding.is_static && newcomer.is_static && holding.full_name == newcomer.full_name;
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
