//! The cgroup values of the reserved resources and of all pods together.
//!
//! Owns the reading of `systemReserved`, `kubeReserved` and `enforceNodeAllocatable`, and the values of `kubepods` and of the
//! reserved cgroups. Thresholds of eviction do not count here: they lower what is scheduled, not what is enforced.

use std::collections::BTreeMap;

use rubelet_model::Quantity;

use crate::amounts::{Amounts, CPU, EPHEMERAL_STORAGE, MEMORY};
use crate::cpu::shares_of_milli_cpu;
use crate::huge_pages::limits_by_size;
use crate::memory_qos::MIN;
use crate::pod_cgroup::PodCgroup;
use crate::rules::{NodeFacts, Rules};

/// Process ids as a resource, which only the node knows.
pub const PIDS: &str = "pid";

/// A reservation that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadReservation {
    #[error("{setting}: cannot reserve {resource:?}; only cpu, memory, ephemeral-storage and pid")]
    Unknown { setting: &'static str, resource: String },
    #[error("{setting}: {text:?} is no quantity of {resource}")]
    NoQuantity {
        setting: &'static str,
        resource: String,
        text: String,
    },
    #[error("{setting}: the quantity of {resource} is below zero")]
    Negative { setting: &'static str, resource: String },
}

/// What the node keeps for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservation {
    /// `systemReserved`
    pub system: Amounts,
    /// `kubeReserved`
    pub kube: Amounts,
}

impl Reservation {
    pub fn read(
        system: &BTreeMap<String, String>,
        kube: &BTreeMap<String, String>,
    ) -> Result<Self, BadReservation> {
        Ok(Self {
            system: read("systemReserved", system)?,
            kube: read("kubeReserved", kube)?,
        })
    }

    /// What is left of the capacity, never below zero.
    pub fn allocatable(&self, capacity: &Amounts) -> Amounts {
        let left = capacity.iter().map(|(name, whole)| {
            let mut left = whole.clone();
            left.sub(&self.system.quantity(name));
            left.sub(&self.kube.quantity(name));
            let left = if left.signum() < 0 {
                Quantity::default()
            } else {
                left
            };
            (name.to_owned(), left)
        });
        left.collect()
    }
}

fn read(setting: &'static str, list: &BTreeMap<String, String>) -> Result<Amounts, BadReservation> {
    let amount = |(name, text): (&String, &String)| {
        let resource = name.clone();
        if ![CPU, MEMORY, EPHEMERAL_STORAGE, PIDS].contains(&name.as_str()) {
            return Err(BadReservation::Unknown { setting, resource });
        }
        let Ok(quantity) = text.parse::<Quantity>() else {
            let text = text.clone();
            return Err(BadReservation::NoQuantity {
                setting,
                resource,
                text,
            });
        };
        if quantity.signum() < 0 {
            return Err(BadReservation::Negative { setting, resource });
        }
        Ok((resource, quantity))
    };
    list.iter().map(amount).collect()
}

/// What of a list of amounts is enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enforced {
    All,
    /// Only what slows down and does not kill: processor time.
    Compressible,
}

/// `enforceNodeAllocatable`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Enforcement {
    pub pods: bool,
    pub system: Option<Enforced>,
    pub kube: Option<Enforced>,
}

impl Enforcement {
    /// Validation has refused unknown values.
    pub fn read(values: &[String]) -> Self {
        let has = |name: &str| values.iter().any(|one| one == name);
        let reserved = |name: &str| {
            if has(name) {
                Some(Enforced::All)
            } else {
                has(&format!("{name}-compressible")).then_some(Enforced::Compressible)
            }
        };
        Self {
            pods: has("pods"),
            system: reserved("system-reserved"),
            kube: reserved("kube-reserved"),
        }
    }
}

fn amounts_cgroup(amounts: &Amounts, enforced: Enforced) -> PodCgroup {
    let mut cgroup = PodCgroup {
        cpu_shares: amounts.get(CPU).map(|cpu| shares_of_milli_cpu(cpu.milli_value())),
        ..PodCgroup::default()
    };
    if enforced == Enforced::All {
        cgroup.memory_bytes = amounts.get(MEMORY).map(Quantity::value);
        cgroup.pids = amounts.get(PIDS).map(Quantity::value);
        cgroup.huge_page_limits = limits_by_size(amounts);
    }
    cgroup
}

/// `kubepods`. Even when nothing is enforced it gets the node's capacity: a cgroup starts with a tiny share of the processors.
pub fn kubepods(capacity: &Amounts, reservation: &Reservation, enforcement: Enforcement) -> PodCgroup {
    let amounts = if enforcement.pods {
        reservation.allocatable(capacity)
    } else {
        capacity.clone()
    };
    amounts_cgroup(&amounts, Enforced::All)
}

/// A cgroup that the reserved amounts are enforced on.
pub fn reserved(reserved: &Amounts, enforced: Enforced, rules: &Rules, facts: &NodeFacts) -> PodCgroup {
    let mut cgroup = amounts_cgroup(reserved, enforced);
    if let (true, Some(bytes)) = (rules.enforces_memory_qos(facts), cgroup.memory_bytes) {
        cgroup.unified.insert(MIN.to_owned(), bytes.to_string());
    }
    cgroup
}
