//! The log lines at start-up about the runtime and about the node itself.

use rubelet_host::cgroup::CgroupVersion;
use rubelet_host::machine::Machine;
use rubelet_wire::cri::v1;

/// The node's view of itself.
pub(crate) fn log_node(
    name: &str,
    machine: &Machine,
    cgroup: CgroupVersion,
    cgroup_driver: &str,
    is_in_cluster: bool,
) {
    let mode = if is_in_cluster { "cluster" } else { "standalone" };
    tracing::info!(
        name,
        mode,
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
