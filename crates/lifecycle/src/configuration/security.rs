//! A container's security context for the runtime, from the container's and the pod's fields.
//!
//! Owns precedence, the check of `runAsNonRoot`, and the masked paths.

use k8s_openapi::api::core::v1::{Container, Pod, PodSecurityContext, SELinuxOptions, SecurityContext};
use rubelet_wire::cri::v1::{
    Capability, Int64Value, LinuxContainerSecurityContext, SeLinuxOption, SupplementalGroupsPolicy,
};

use super::container::ContainerInputs;
use super::namespaces::namespace_options;
use super::node::{ConfigurationError, NodeConfiguration};
use super::profiles::{app_armor, seccomp};
use crate::plan::pod_text;

const MASKED_PATHS: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
const READ_ONLY_PATHS: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];
const MAX_USER_ID: i64 = i32::MAX as i64;

/// The user that the image runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageUser {
    Id(i64),
    Name(String),
}

impl Default for ImageUser {
    /// An image without a user runs as root.
    fn default() -> Self {
        Self::Id(0)
    }
}

/// The container's fields over the pod's.
pub fn effective_security_context(pod: &Pod, container: &Container) -> SecurityContext {
    let mut context = container.security_context.clone().unwrap_or_default();
    if let Some(pod_wide) = pod_context(pod) {
        context.se_linux_options = context
            .se_linux_options
            .or_else(|| pod_wide.se_linux_options.clone());
        context.run_as_user = context.run_as_user.or(pod_wide.run_as_user);
        context.run_as_group = context.run_as_group.or(pod_wide.run_as_group);
        context.run_as_non_root = context.run_as_non_root.or(pod_wide.run_as_non_root);
    }
    context
}

fn pod_context(pod: &Pod) -> Option<&PodSecurityContext> {
    pod.spec.as_ref()?.security_context.as_ref()
}

/// Refuses a container that must not be root and is, or might be.
pub fn check_non_root(pod: &Pod, container: &Container, user: &ImageUser) -> Result<(), ConfigurationError> {
    let context = effective_security_context(pod, container);
    if context.run_as_non_root != Some(true) {
        return Ok(());
    }
    // The texts are upstream's: users search for them.
    let problem = match (context.run_as_user, user) {
        (Some(0), _) => "container's runAsUser breaks non-root policy".to_owned(),
        (None, ImageUser::Name(name)) => format!(
            "container has runAsNonRoot and image has non-numeric user ({name}), cannot verify user is non-root"
        ),
        (None, ImageUser::Id(0)) => "container has runAsNonRoot and image will run as root".to_owned(),
        (None, ImageUser::Id(id)) if !(0..=MAX_USER_ID).contains(id) => format!(
            "container has runAsNonRoot and image has an invalid user id ({id}). (Must be 1-({MAX_USER_ID})): \
             must be between 0 and {MAX_USER_ID}, inclusive"
        ),
        (Some(_), _) | (None, ImageUser::Id(_)) => return Ok(()),
    };
    Err(ConfigurationError::RunsAsRoot {
        problem,
        pod: pod_text(pod),
        container: container.name.clone(),
    })
}

pub(super) fn selinux(options: &SELinuxOptions) -> SeLinuxOption {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    SeLinuxOption {
        user: text(&options.user),
        role: text(&options.role),
        r#type: text(&options.type_),
        level: text(&options.level),
    }
}

pub(super) fn groups_policy(context: &PodSecurityContext) -> Result<i32, ConfigurationError> {
    let policy = match context.supplemental_groups_policy.as_deref() {
        None | Some("Merge") => SupplementalGroupsPolicy::Merge,
        Some("Strict") => SupplementalGroupsPolicy::Strict,
        Some(other) => return Err(ConfigurationError::SupplementalGroupsPolicy(other.to_owned())),
    };
    Ok(policy.into())
}

/// The security context as a CRI message.
pub fn container_security_context(
    pod: &Pod,
    container: &Container,
    node: &NodeConfiguration,
    inputs: &ContainerInputs,
) -> Result<LinuxContainerSecurityContext, ConfigurationError> {
    let spec = pod.spec.as_ref().ok_or(ConfigurationError::NoSpec)?;
    let context = effective_security_context(pod, container);
    let mut found = LinuxContainerSecurityContext {
        capabilities: context.capabilities.as_ref().map(|wanted| Capability {
            add_capabilities: wanted.add.clone().unwrap_or_default(),
            drop_capabilities: wanted.drop.clone().unwrap_or_default(),
            add_ambient_capabilities: Vec::new(),
        }),
        privileged: context.privileged.unwrap_or(false),
        namespace_options: Some(namespace_options(spec, inputs.own_users.as_ref())),
        selinux_options: context.se_linux_options.as_ref().map(selinux),
        run_as_user: context.run_as_user.map(|value| Int64Value { value }),
        run_as_group: context.run_as_group.map(|value| Int64Value { value }),
        readonly_rootfs: context.read_only_root_filesystem.unwrap_or(false),
        no_new_privs: context.allow_privilege_escalation == Some(false),
        seccomp: Some(seccomp(pod, container, node)?),
        ..LinuxContainerSecurityContext::default()
    };
    if let Some((profile, text)) = app_armor(pod, container)? {
        found.apparmor = Some(profile);
        #[expect(deprecated, reason = "runtimes before CRI's profile message read the text")]
        let old_field = &mut found.apparmor_profile;
        *old_field = text;
    }
    if found.run_as_user.is_none() {
        match &inputs.image_user {
            ImageUser::Id(value) => found.run_as_user = Some(Int64Value { value: *value }),
            ImageUser::Name(name) => found.run_as_username.clone_from(name),
        }
    }
    if let Some(pod_wide) = pod_context(pod) {
        found.supplemental_groups.extend(pod_wide.fs_group);
        let groups = pod_wide.supplemental_groups.iter().flatten();
        found.supplemental_groups.extend(groups);
        found.supplemental_groups_policy = groups_policy(pod_wide)?;
    }
    found.supplemental_groups.extend(&inputs.extra_groups);
    if context.proc_mount.as_deref() != Some("Unmasked") {
        let masked = MASKED_PATHS.into_iter().map(str::to_owned);
        found.masked_paths = masked
            .chain(node.thermal_throttle_paths.iter().cloned())
            .collect();
        found.readonly_paths = READ_ONLY_PATHS.map(str::to_owned).to_vec();
    }
    Ok(found)
}
