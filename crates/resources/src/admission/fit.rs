//! Whether a pod fits beside the others: number of pods, resources, host ports.
//!
//! Owns the comparison and upstream's messages. All shortages are found, because preemption has to make room for each of
//! them; the first one becomes the message.

use super::host_ports::HostPort;
use super::ledger::Others;
use super::need::{Allocatable, Need};
use super::{AdmissionReason, Refusal};
use crate::allocatable::PODS;
use crate::amounts::{CPU, EPHEMERAL_STORAGE, MEMORY};

/// One resource of which too little is free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    pub resource: String,
    pub requested: i64,
    pub used: i64,
    pub capacity: i64,
}

impl Shortage {
    /// What has to come free.
    pub fn missing(&self) -> i64 {
        self.requested - (self.capacity - self.used)
    }

    pub fn message(&self) -> String {
        let Self {
            resource,
            requested,
            used,
            capacity,
        } = self;
        format!(
            "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
        )
    }

    pub fn refusal(&self) -> Refusal {
        Refusal::new(format!("OutOf{}", self.resource), self.message(), true)
    }
}

/// Everything that is short, in upstream's order.
pub fn shortages(need: &Need, others: &Others, allocatable: &Allocatable) -> Vec<Shortage> {
    let mut found = Vec::new();
    if others.pods + 1 > allocatable.pods {
        found.push(Shortage {
            resource: PODS.to_owned(),
            requested: 1,
            used: others.pods,
            capacity: allocatable.pods,
        });
    }
    if need.is_nothing() {
        return found;
    }
    let (used, there) = (&others.need, &allocatable.resources);
    let mut check = |resource: &str, requested: i64, used: i64, capacity: i64| {
        if requested > 0 && requested > capacity - used {
            found.push(Shortage {
                resource: resource.to_owned(),
                requested,
                used,
                capacity,
            });
        }
    };
    check(CPU, need.milli_cpu, used.milli_cpu, there.milli_cpu);
    check(MEMORY, need.memory_bytes, used.memory_bytes, there.memory_bytes);
    check(
        EPHEMERAL_STORAGE,
        need.ephemeral_storage_bytes,
        used.ephemeral_storage_bytes,
        there.ephemeral_storage_bytes,
    );
    for (name, requested) in &need.others {
        check(name, *requested, used.other(name), there.other(name));
    }
    found
}

/// Rejects a pod whose host port another pod holds.
pub fn port_refusal(wanted: &[HostPort], others: &Others) -> Option<Refusal> {
    let is_taken = |port: &HostPort| others.ports.iter().any(|held| held.conflicts_with(port));
    wanted.iter().any(is_taken).then(|| {
        Refusal::for_now(
            AdmissionReason::NodePorts,
            "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
        )
    })
}
