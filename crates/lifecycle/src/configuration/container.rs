//! The configuration of one container.
//!
//! Owns `ContainerConfig`. Mounts, devices, the image's user and everything random come in as data.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Pod};
use rubelet_resources::amounts::{CPU, MEMORY};
use rubelet_resources::container::{container_resources, overhead_resources, without_overhead};
use rubelet_resources::{PodCgroup, PodDemand};
use rubelet_wire::cri::v1::{
    CdiDevice, ContainerConfig, ContainerMetadata, Device, ImageSpec, KeyValue, LinuxContainerConfig,
    LinuxContainerResources, Mount, Signal, UpdatePodSandboxResourcesRequest, UserNamespace,
};

use crate::allocation::ResourceNumbers;

use super::environment::{EnvFiles, Environment, Sources, environment};
use super::expansion::expand_bytes;
use super::hosts_file;
use super::labels::{container_annotations, container_labels};
use super::log_paths::container_log_path;
use super::namespaces::target;
use super::node::{ConfigurationError, NodeConfiguration};
use super::object_variables::EnvObjects;
use super::security::{ImageUser, check_non_root, container_security_context};
use crate::stop_signal::signal_by_name;

/// What is known besides pod, container and node.
#[derive(Clone, Debug, Default)]
pub struct ContainerInputs {
    /// What the runtime calls the image that was pulled.
    pub image_ref: String,
    pub image_user: ImageUser,
    pub restart_count: u32,
    /// The hash of the container's spec.
    pub hash: u64,
    /// As the runtime reports them for the sandbox.
    pub pod_ips: Vec<String>,
    /// The node's addresses, the primary one first.
    pub host_ips: Vec<IpAddr>,
    pub service_environment: BTreeMap<String, String>,
    /// Volumes; the files below are added.
    pub mounts: Vec<Mount>,
    /// The pod's hosts file on the node.
    pub hosts_file: Option<String>,
    /// The file on the node that takes the termination message.
    pub termination_message_file: Option<String>,
    pub devices: Vec<Device>,
    pub cdi_devices: Vec<CdiDevice>,
    pub device_annotations: BTreeMap<String, String>,
    pub extra_groups: Vec<i64>,
    pub has_exclusive_cpus: bool,
    /// The container whose processes an ephemeral container joins.
    pub target_container_id: Option<String>,
    /// The pod's range of ids when it has a user namespace.
    pub own_users: Option<UserNamespace>,
    /// What `fileKeyRef` variables are taken from.
    pub env_files: EnvFiles,
    /// What `envFrom`, `configMapKeyRef` and `secretKeyRef` are taken from.
    pub env_objects: EnvObjects,
}

/// The configuration of the container in its pod's sandbox.
pub fn container_config(
    pod: &Pod,
    container: &Container,
    node: &NodeConfiguration,
    inputs: &ContainerInputs,
) -> Result<ContainerConfig, ConfigurationError> {
    let demand = PodDemand::read(pod)?;
    let container_demand =
        demand
            .container(&container.name)
            .ok_or_else(|| ConfigurationError::NoContainer {
                container: container.name.clone(),
            })?;
    let sources = Sources {
        pod,
        demand: &demand,
        container_demand,
        node,
        pod_ips: &inputs.pod_ips,
        host_ips: &inputs.host_ips,
        services: &inputs.service_environment,
        files: &inputs.env_files,
        objects: &inputs.env_objects,
    };
    let environment = environment(container, sources)?;
    check_non_root(pod, container, &inputs.image_user)?;
    let mut security = container_security_context(pod, container, node, inputs)?;
    if let (Some(id), Some(options)) = (&inputs.target_container_id, &mut security.namespace_options) {
        target(options, id);
    }
    let exclusive = inputs.has_exclusive_cpus;
    let resources = container_resources(&demand, container_demand, &node.rules, &node.facts, exclusive);
    Ok(ContainerConfig {
        metadata: Some(ContainerMetadata {
            name: container.name.clone(),
            attempt: inputs.restart_count,
        }),
        image: Some(ImageSpec {
            image: inputs.image_ref.clone(),
            user_specified_image: container.image.clone().unwrap_or_default(),
            ..ImageSpec::default()
        }),
        command: expanded(container.command.as_ref(), &environment),
        args: expanded(container.args.as_ref(), &environment),
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: environment.iter().map(key_value).collect(),
        mounts: mounts(pod, container, node, inputs),
        devices: inputs.devices.clone(),
        labels: container_labels(pod, container),
        annotations: container_annotations(
            pod,
            container,
            inputs.hash,
            inputs.restart_count,
            &inputs.device_annotations,
        ),
        log_path: container_log_path(&container.name, inputs.restart_count),
        stdin: container.stdin.unwrap_or(false),
        stdin_once: container.stdin_once.unwrap_or(false),
        tty: container.tty.unwrap_or(false),
        linux: Some(LinuxContainerConfig {
            resources: Some(resources),
            security_context: Some(security),
        }),
        windows: None,
        cdi_devices: inputs.cdi_devices.clone(),
        stop_signal: stop_signal(container, node),
    })
}

/// Zero is the runtime's default: the image's stop signal.
fn stop_signal(container: &Container, node: &NodeConfiguration) -> i32 {
    let wanted = container
        .lifecycle
        .as_ref()
        .and_then(|hooks| hooks.stop_signal.as_deref());
    let signal = wanted.filter(|_| node.has_stop_signals).and_then(signal_by_name);
    signal.unwrap_or(Signal::RuntimeDefault).into()
}

fn key_value((key, value): (&str, &[u8])) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: value.to_vec(),
    }
}

fn expanded(texts: Option<&Vec<String>>, environment: &Environment) -> Vec<String> {
    // The runtime takes arguments as text only.
    let expand = |text: &String| {
        let bytes = expand_bytes(text, |name| environment.get(name));
        String::from_utf8_lossy(&bytes).into_owned()
    };
    texts.into_iter().flatten().map(expand).collect()
}

fn mounts(
    pod: &Pod,
    container: &Container,
    node: &NodeConfiguration,
    inputs: &ContainerInputs,
) -> Vec<Mount> {
    let file = |host_path: &str, container_path: String| Mount {
        host_path: host_path.to_owned(),
        container_path,
        selinux_relabel: node.is_selinux_enabled,
        ..Mount::default()
    };
    let mut mounts = inputs.mounts.clone();
    if let Some(path) = &inputs.hosts_file
        && hosts_file::is_mounted(pod, container, &inputs.pod_ips)
    {
        mounts.push(file(path, hosts_file::PATH.to_owned()));
    }
    let message_path = container.termination_message_path.as_deref().unwrap_or_default();
    if let Some(path) = &inputs.termination_message_file
        && !message_path.is_empty()
    {
        mounts.push(file(path, absolute(message_path)));
    }
    if let Some(own_users) = &inputs.own_users {
        for mount in &mut mounts {
            mount.uid_mappings.clone_from(&own_users.uids);
            mount.gid_mappings.clone_from(&own_users.gids);
        }
    }
    mounts
}

/// A relative path counts from the container's root.
pub(super) fn absolute(path: &str) -> String {
    if path.starts_with('/') {
        path.to_owned()
    } else {
        format!("/{path}")
    }
}

/// An ephemeral container as a container; its target is kept apart.
pub fn ephemeral_as_container(ephemeral: &EphemeralContainer) -> Container {
    let one = ephemeral.clone();
    Container {
        args: one.args,
        command: one.command,
        env: one.env,
        env_from: one.env_from,
        image: one.image,
        image_pull_policy: one.image_pull_policy,
        lifecycle: one.lifecycle,
        liveness_probe: one.liveness_probe,
        name: one.name,
        ports: one.ports,
        readiness_probe: one.readiness_probe,
        resize_policy: one.resize_policy,
        resources: one.resources,
        restart_policy: one.restart_policy,
        restart_policy_rules: one.restart_policy_rules,
        security_context: one.security_context,
        startup_probe: one.startup_probe,
        stdin: one.stdin,
        stdin_once: one.stdin_once,
        termination_message_path: one.termination_message_path,
        termination_message_policy: one.termination_message_policy,
        tty: one.tty,
        volume_devices: one.volume_devices,
        volume_mounts: one.volume_mounts,
        working_dir: one.working_dir,
    }
}

/// The resources of a container that runs, when it gets these numbers.
pub fn updated_resources(
    pod: &Pod,
    name: &str,
    numbers: &ResourceNumbers,
    node: &NodeConfiguration,
) -> Result<LinuxContainerResources, ConfigurationError> {
    let mut demand = PodDemand::read(pod)?;
    let lists = [&mut demand.containers, &mut demand.init_containers];
    let found = lists.into_iter().flatten().find(|one| one.name == name);
    let Some(container) = found else {
        return Err(ConfigurationError::NoContainer {
            container: name.to_owned(),
        });
    };
    let (requests, limits) = numbers.amounts();
    for (list, numbers) in [
        (&mut container.resources.requests, requests),
        (&mut container.resources.limits, limits),
    ] {
        let others = list.iter().filter(|(name, _)| *name != CPU && *name != MEMORY);
        let others = others.map(|(name, quantity)| (name.to_owned(), quantity.clone()));
        *list = others.chain(numbers).collect();
    }
    let container = container.clone();
    Ok(container_resources(
        &demand,
        &container,
        &node.rules,
        &node.facts,
        false,
    ))
}

/// What the runtime learns of a sandbox whose cgroup gets these values.
pub fn updated_sandbox(
    pod: &Pod,
    sandbox_id: &str,
    cgroup: &PodCgroup,
    node: &NodeConfiguration,
) -> Result<UpdatePodSandboxResourcesRequest, ConfigurationError> {
    let demand = PodDemand::read(pod)?;
    Ok(UpdatePodSandboxResourcesRequest {
        pod_sandbox_id: sandbox_id.to_owned(),
        overhead: Some(overhead_resources(&demand, &node.rules, &node.facts)),
        resources: Some(without_overhead(&demand, cgroup)),
    })
}
