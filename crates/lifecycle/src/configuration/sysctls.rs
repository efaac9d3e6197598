//! Kernel parameters of a pod.
//!
//! Owns the merge of the node's defaults with the pod's own. Which ones are allowed is decided at admission.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PodSpec;
use rubelet_model::names::normalize_sysctl;

const IPC: [&str; 8] = [
    "kernel.msgmax",
    "kernel.msgmnb",
    "kernel.msgmni",
    "kernel.sem",
    "kernel.shmall",
    "kernel.shmmax",
    "kernel.shmmni",
    "kernel.shm_rmid_forced",
];

/// The pod's parameters over the node's defaults; names with dots.
pub fn pod_sysctls(spec: &PodSpec, defaults: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let defaults = defaults
        .iter()
        .map(|(name, value)| (normalize_sysctl(name), value.clone()))
        .filter(|(name, _)| has_own_value(spec, name));
    let mut sysctls: BTreeMap<String, String> = defaults.collect();
    let own = spec
        .security_context
        .iter()
        .filter_map(|context| context.sysctls.as_ref());
    for sysctl in own.flatten() {
        sysctls.insert(normalize_sysctl(&sysctl.name), sysctl.value.clone());
    }
    sysctls
}

/// A default must not change the host's value.
fn has_own_value(spec: &PodSpec, name: &str) -> bool {
    if IPC.contains(&name) || name.starts_with("fs.mqueue.") {
        return spec.host_ipc != Some(true);
    }
    if name.starts_with("user.") {
        return spec.host_users == Some(false);
    }
    let of_network = name.starts_with("net.") || name == "kernel.domainname";
    of_network && spec.host_network != Some(true)
}
