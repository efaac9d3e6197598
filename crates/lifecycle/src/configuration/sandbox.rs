//! The configuration of a pod's sandbox.
//!
//! Owns `PodSandboxConfig`. The caller creates the log directory and chooses the runtime handler.

use k8s_openapi::api::core::v1::{Pod, PodSpec, SecurityContext};
use rubelet_model::pod::{name_of, namespace_of, uid_text};
use rubelet_resources::cgroup_name::cgroup_parent;
use rubelet_resources::container::{overhead_resources, sandbox_resources};
use rubelet_resources::{PodDemand, qos_class};
use rubelet_wire::cri::v1::security_profile::ProfileType;
use rubelet_wire::cri::v1::{
    Int64Value, LinuxPodSandboxConfig, LinuxSandboxSecurityContext, PodSandboxConfig, PodSandboxMetadata,
    UserNamespace,
};

use super::dns::{DnsWarning, pod_dns};
use super::hostname::{kernel_hostname, pod_hostname};
use super::labels::{sandbox_annotations, sandbox_labels};
use super::log_paths::pod_logs_dir;
use super::namespaces::{has_own_users, namespace_options};
use super::node::{ConfigurationError, NodeConfiguration};
use super::ports::port_mappings;
use super::profiles::profile;
use super::resolv_conf::ResolvConf;
use super::security::{groups_policy, selinux};
use super::sysctls::pod_sysctls;

/// What is known besides pod and node.
#[derive(Clone, Debug, Default)]
pub struct SandboxInputs {
    pub attempt: u32,
    /// From volumes.
    pub extra_groups: Vec<i64>,
    pub has_exclusive_cpus: bool,
    /// The pod's range of ids when it has a user namespace.
    pub own_users: Option<UserNamespace>,
    /// What is in the node's resolver file, if it has one.
    pub resolver: Option<ResolvConf>,
}

/// The configuration, and the warnings that the pod's events show.
#[derive(Clone, Debug, PartialEq)]
pub struct Sandbox {
    pub config: PodSandboxConfig,
    pub warnings: Vec<DnsWarning>,
}

/// The configuration of the pod's sandbox on this node.
pub fn sandbox_config(
    pod: &Pod,
    node: &NodeConfiguration,
    inputs: &SandboxInputs,
) -> Result<Sandbox, ConfigurationError> {
    let spec = pod.spec.as_ref().ok_or(ConfigurationError::NoSpec)?;
    let demand = PodDemand::read(pod)?;
    let hostname = match spec.host_network {
        Some(true) => String::new(),
        Some(false) | None => kernel_hostname(spec, &pod_hostname(pod, &node.cluster_domain)?)?,
    };
    let dns = pod_dns(pod, node, inputs.resolver.as_ref());
    let class = qos_class(&demand, &node.rules);
    let (rules, facts) = (&node.rules, &node.facts);
    let linux = LinuxPodSandboxConfig {
        cgroup_parent: cgroup_parent(
            &node.cgroup_root,
            node.cgroups_per_qos,
            node.cgroup_driver,
            class,
            uid_text(pod),
        )?,
        security_context: Some(security_context(spec, inputs)?),
        sysctls: pod_sysctls(spec, &node.default_pod_sysctls),
        overhead: Some(overhead_resources(&demand, rules, facts)),
        resources: Some(sandbox_resources(
            &demand,
            rules,
            facts,
            inputs.has_exclusive_cpus,
        )),
    };
    let config = PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: name_of(pod).to_owned(),
            uid: uid_text(pod).to_owned(),
            namespace: namespace_of(pod).to_owned(),
            attempt: inputs.attempt,
        }),
        hostname,
        log_directory: pod_logs_dir(&node.pod_logs_dir, pod),
        dns_config: Some(dns.config),
        port_mappings: port_mappings(spec),
        labels: sandbox_labels(pod),
        annotations: sandbox_annotations(pod),
        linux: Some(linux),
        windows: None,
    };
    Ok(Sandbox {
        config,
        warnings: dns.warnings,
    })
}

fn security_context(
    spec: &PodSpec,
    inputs: &SandboxInputs,
) -> Result<LinuxSandboxSecurityContext, ConfigurationError> {
    let mut found = LinuxSandboxSecurityContext {
        privileged: has_privileged_container(spec),
        // The sandbox's own process is confined whatever the pod asks for.
        seccomp: Some(profile(ProfileType::RuntimeDefault, "")),
        ..LinuxSandboxSecurityContext::default()
    };
    // Without a context upstream leaves the namespaces out; a decoded pod always has one.
    let Some(context) = &spec.security_context else {
        return Ok(found);
    };
    if has_own_users(spec) && inputs.own_users.is_none() {
        return Err(ConfigurationError::NoUserIds);
    }
    found.run_as_user = context.run_as_user.map(|value| Int64Value { value });
    found.run_as_group = context.run_as_group.map(|value| Int64Value { value });
    found.namespace_options = Some(namespace_options(spec, inputs.own_users.as_ref()));
    found.supplemental_groups.extend(context.fs_group);
    found.supplemental_groups.extend(&inputs.extra_groups);
    let groups = context.supplemental_groups.iter().flatten();
    found.supplemental_groups.extend(groups);
    found.supplemental_groups_policy = groups_policy(context)?;
    found.selinux_options = context.se_linux_options.as_ref().map(selinux);
    Ok(found)
}

fn has_privileged_container(spec: &PodSpec) -> bool {
    let is_privileged = |context: &Option<SecurityContext>| {
        context.as_ref().and_then(|context| context.privileged) == Some(true)
    };
    let init = spec.init_containers.iter().flatten();
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    spec.containers
        .iter()
        .chain(init)
        .map(|container| &container.security_context)
        .chain(ephemeral.map(|container| &container.security_context))
        .any(is_privileged)
}
