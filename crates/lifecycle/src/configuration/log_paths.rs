//! Where a pod's logs are.
//!
//! Owns the path scheme that log agents read.

use k8s_openapi::api::core::v1::Pod;
use rubelet_model::pod::{name_of, namespace_of, uid_text};

/// `<logs>/<namespace>_<name>_<uid>`
pub fn pod_logs_dir(logs_dir: &str, pod: &Pod) -> String {
    let pod = [namespace_of(pod), name_of(pod), uid_text(pod)].join("_");
    format!("{}/{pod}", logs_dir.trim_end_matches('/'))
}

pub fn container_logs_dir(logs_dir: &str, pod: &Pod, container: &str) -> String {
    format!("{}/{container}", pod_logs_dir(logs_dir, pod))
}

/// The log file below the pod's directory.
pub fn container_log_path(container: &str, restart_count: u32) -> String {
    format!("{container}/{restart_count}.log")
}

/// The pod that a log directory belongs to; directories of old versions are the uid alone.
pub fn uid_of_logs_dir(name: &str) -> &str {
    name.rsplit('_').next().unwrap_or(name)
}
