//! The quality-of-service class of a pod.
//!
//! Owns the classification and its names. What a class means for cgroups is decided elsewhere.

use std::cmp::Ordering;
use std::fmt;

use crate::amounts::{CPU, MEMORY};
use crate::demand::{PodDemand, Requirements};
use crate::rules::Rules;

/// Kubernetes' three classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QosClass {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl QosClass {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }

    pub fn by_name(name: &str) -> Option<Self> {
        [Self::Guaranteed, Self::Burstable, Self::BestEffort]
            .into_iter()
            .find(|class| class.as_str() == name)
    }
}

impl fmt::Display for QosClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The class in the pod's status, or what the spec gives. A recorded word that is no class is not believed.
pub fn qos_class(demand: &PodDemand, rules: &Rules) -> QosClass {
    demand
        .recorded_class
        .as_deref()
        .and_then(QosClass::by_name)
        .unwrap_or_else(|| computed_qos_class(demand, rules))
}

/// The class that the spec gives.
pub fn computed_qos_class(demand: &PodDemand, rules: &Rules) -> QosClass {
    if rules.pod_level_resources {
        let deciding = if rules.empty_pod_level_decides_class {
            demand.pod_level.as_ref()
        } else {
            demand.effective_pod_level(rules)
        };
        if let Some(pod_level) = deciding {
            return class_of(pod_level);
        }
    }
    let mut classes = demand.started_containers().map(|one| class_of(&one.resources));
    let Some(first) = classes.next() else {
        return QosClass::BestEffort;
    };
    if classes.all(|class| class == first) {
        first
    } else {
        QosClass::Burstable
    }
}

fn class_of(resources: &Requirements) -> QosClass {
    let (cpu, memory) = (class_of_one(resources, CPU), class_of_one(resources, MEMORY));
    if cpu == memory { cpu } else { QosClass::Burstable }
}

fn class_of_one(resources: &Requirements, name: &str) -> QosClass {
    let request = resources.requests.quantity(name);
    match request.cmp(&resources.limits.quantity(name)) {
        Ordering::Less | Ordering::Greater => QosClass::Burstable,
        Ordering::Equal if request.is_zero() => QosClass::BestEffort,
        Ordering::Equal => QosClass::Guaranteed,
    }
}
