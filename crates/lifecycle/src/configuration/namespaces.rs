//! Which kernel namespaces a pod shares with the host or among its containers.
//!
//! Owns the modes of network, PID, IPC and user namespaces.

use k8s_openapi::api::core::v1::PodSpec;
use rubelet_wire::cri::v1::{NamespaceMode, NamespaceOption, UserNamespace};

/// The pod's namespaces; containers get the same, except an ephemeral container with a target. `own_users` is the pod's range of
/// ids when it has a user namespace.
pub fn namespace_options(spec: &PodSpec, own_users: Option<&UserNamespace>) -> NamespaceOption {
    let shared = |with_host: Option<bool>| {
        if with_host == Some(true) {
            NamespaceMode::Node
        } else {
            NamespaceMode::Pod
        }
    };
    let pid = if spec.host_pid == Some(true) {
        NamespaceMode::Node
    } else if spec.share_process_namespace == Some(true) {
        NamespaceMode::Pod
    } else {
        NamespaceMode::Container
    };
    NamespaceOption {
        network: shared(spec.host_network).into(),
        pid: pid.into(),
        ipc: shared(spec.host_ipc).into(),
        target_id: String::new(),
        userns_options: Some(own_users.cloned().unwrap_or_else(|| UserNamespace {
            mode: NamespaceMode::Node.into(),
            uids: Vec::new(),
            gids: Vec::new(),
        })),
    }
}

/// Whether the pod asks for a user namespace (`hostUsers: false`).
#[must_use]
pub fn has_own_users(spec: &PodSpec) -> bool {
    spec.host_users == Some(false)
}

/// An ephemeral container joins the processes of its target, unless all processes are shared anyway.
pub fn target(options: &mut NamespaceOption, container_id: &str) {
    if options.pid == i32::from(NamespaceMode::Container) {
        options.pid = NamespaceMode::Target.into();
        container_id.clone_into(&mut options.target_id);
    }
}
