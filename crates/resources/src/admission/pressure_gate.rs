//! Admission while the node is under pressure.
//!
//! Owns the exceptions: critical pods are always admitted, and under memory pressure alone also pods that are not BestEffort
//! and pods that tolerate it.

use k8s_openapi::api::core::v1::{Pod, Taint};
use rubelet_model::Pressure;
use rubelet_model::pod::QosClass;

use super::taints::is_tolerated;
use super::{AdmissionReason, Refusal};
use crate::demand::PodDemand;
use crate::qos::qos_class;
use crate::rules::Rules;

const MEMORY_PRESSURE_TAINT: &str = "node.kubernetes.io/memory-pressure";
const ONLY_MEMORY: Pressure = Pressure {
    memory: true,
    disk: false,
    pid: false,
};

/// Rejects a pod because of the node's pressure.
pub fn pressure_refusal(
    pod: &Pod,
    demand: &PodDemand,
    pressure: Pressure,
    rules: &Rules,
    compares: bool,
) -> Option<Refusal> {
    if pressure == Pressure::default() || demand.importance.is_critical() {
        return None;
    }
    if pressure == ONLY_MEMORY {
        let taint = Taint {
            key: MEMORY_PRESSURE_TAINT.to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        };
        if qos_class(demand, rules) != QosClass::BestEffort || is_tolerated(pod, &taint, compares) {
            return None;
        }
    }
    let Pressure { memory, disk, pid } = pressure;
    let conditions = [
        (memory, "MemoryPressure"),
        (disk, "DiskPressure"),
        (pid, "PIDPressure"),
    ];
    let conditions: Vec<&str> = conditions
        .iter()
        .filter(|(holds, _)| *holds)
        .map(|(_, name)| *name)
        .collect();
    // The blank at the end is upstream's.
    let message = format!("The node had condition: [{}]. ", conditions.join(" "));
    Some(Refusal::for_now(AdmissionReason::Evicted, message))
}
