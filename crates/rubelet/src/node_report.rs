//! What the log says at start-up about the runtime and about the node itself, and later about every change.

use rubelet_host::cgroup::CgroupVersion;
use rubelet_host::machine::Machine;
use rubelet_ports::RuntimeError;
use rubelet_wire::cri::v1;

/// The node's view of itself.
pub(crate) fn log_node(name: &str, machine: &Machine, cgroup: CgroupVersion, cgroup_driver: &str) {
    tracing::info!(
        name,
        mode = "standalone",
        os_image = machine.os_image,
        kernel = machine.kernel_version,
        architecture = machine.architecture,
        processors = machine.processors,
        memory_bytes = machine.memory_bytes,
        swap_bytes = machine.swap_bytes,
        machine_id = machine.machine_id,
        boot_id = machine.boot_id,
        cgroup_version = %cgroup,
        cgroup_driver,
        "Node"
    );
}

/// The runtime behind the endpoint.
pub(crate) fn log_runtime(endpoint: &str, version: &v1::VersionResponse) {
    tracing::info!(
        name = version.runtime_name,
        version = version.runtime_version,
        api_version = version.runtime_api_version,
        endpoint,
        "Container runtime"
    );
}

/// One condition of the runtime, comparable so that only changes are logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) kind: String,
    pub(crate) status: bool,
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// The conditions of a status answer. A runtime that does not answer is not ready.
pub(crate) fn conditions(answer: Result<v1::StatusResponse, RuntimeError>) -> Vec<Condition> {
    match answer {
        Ok(answer) => answer
            .status
            .map(|status| status.conditions)
            .unwrap_or_default()
            .into_iter()
            .map(condition)
            .collect(),
        Err(error) => vec![Condition {
            kind: "RuntimeReady".to_owned(),
            status: false,
            reason: "RuntimeNotAnswering".to_owned(),
            message: error.to_string(),
        }],
    }
}

fn condition(condition: v1::RuntimeCondition) -> Condition {
    Condition {
        kind: condition.r#type,
        status: condition.status,
        reason: condition.reason,
        message: condition.message,
    }
}

/// Logs the conditions that are new or have changed.
pub(crate) fn log_changes(before: &[Condition], now: &[Condition]) {
    for condition in now.iter().filter(|condition| !before.contains(condition)) {
        let Condition {
            kind,
            status,
            reason,
            message,
        } = condition;
        if *status {
            tracing::info!(r#type = kind, status, "Runtime condition");
        } else {
            tracing::warn!(r#type = kind, status, reason, message, "Runtime condition");
        }
    }
}
