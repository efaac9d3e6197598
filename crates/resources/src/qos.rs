//! The quality-of-service class of a pod.
//!
//! Owns the classification. What a class means for cgroups is decided elsewhere.

use std::cmp::Ordering;

use rubelet_model::pod::QosClass;

use crate::amounts::{CPU, MEMORY};
use crate::demand::{PodDemand, Requirements};
use crate::rules::Rules;

/// The class in the pod's status, or else the one that the spec gives.
pub fn qos_class(demand: &PodDemand, rules: &Rules) -> QosClass {
    demand
        .recorded_class
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
