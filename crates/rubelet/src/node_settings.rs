//! The settings of the Node object, from flags, configuration and the machine.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Taint;
use rubelet_agent::AgentSettings;
use rubelet_config::gates::Gate;
use rubelet_config::settings::Settings;
use rubelet_host::cgroup::CgroupVersion;
use rubelet_host::node_facts::{NodeFacts, device_plugin_resources};
use rubelet_node::status::parse_node_ips;
use rubelet_node::{
    AddressSettings, DeclaredFeatureGates, MachineFacts, NodeSettings, RegistrationSettings,
    ReportingSettings,
};

use crate::admission;
use crate::agent::{NodeFound, std_duration};

pub(crate) fn of(settings: &Settings, found: &NodeFound<'_>, agent: &AgentSettings) -> Result<NodeSettings> {
    let (configuration, gates) = (settings.configuration(), settings.gates());
    Ok(NodeSettings {
        node_name: found.name.to_owned(),
        kubelet_version: settings.reported_version().to_owned(),
        server_port: configuration.port,
        registration: registration(settings, agent),
        addresses: addresses(settings, found)?,
        machine: machine(settings, found, agent)?,
        reporting: ReportingSettings {
            update_frequency: std_duration(configuration.node_status_update_frequency),
            report_frequency: std_duration(configuration.node_status_report_frequency),
            // Below zero is no limit.
            max_images: usize::try_from(configuration.node_status_max_images.unwrap_or(50)).ok(),
            lease_duration_seconds: configuration.node_lease_duration_seconds,
        },
        declared: DeclaredFeatureGates {
            restart_all_containers: gates.enabled(Gate::RestartAllContainersOnContainerExits),
            user_namespaces_host_network: gates.enabled(Gate::UserNamespacesHostNetworkSupport),
            volume_bind_mount_options: gates.enabled(Gate::VolumeBindMountOptions),
            extend_websockets: gates.enabled(Gate::ExtendWebSocketsToKubelet),
            pod_level_resize: gates.enabled(Gate::InPlacePodLevelResourcesVerticalScaling),
            init_container_resize: gates.enabled(Gate::InPlacePodVerticalScalingInitContainers),
        },
        counts_ephemeral_storage: configuration.local_storage_capacity_isolation.unwrap_or(true),
        is_cgroup_v1: found.cgroup == CgroupVersion::V1,
    })
}

fn registration(settings: &Settings, agent: &AgentSettings) -> RegistrationSettings {
    let configuration = settings.configuration();
    RegistrationSettings {
        is_wanted: configuration.register_node.unwrap_or(true),
        labels: settings.flags().node_labels.clone(),
        taints: configuration.register_with_taints.iter().map(taint).collect(),
        provider_id: configuration.provider_id.clone(),
        controller_attach_detach: configuration.enable_controller_attach_detach.unwrap_or(true),
        get_on_exists_only: settings.gates().enabled(Gate::KubeletRegistrationGetOnExistsOnly),
        reset_extended_resources: device_plugin_resources(&agent.root_dir).is_none(),
    }
}

fn taint(configured: &rubelet_config::kubelet_configuration::Taint) -> Taint {
    Taint {
        effect: configured.effect.clone(),
        key: configured.key.clone(),
        time_added: None,
        value: Some(configured.value.clone()).filter(|value| !value.is_empty()),
    }
}

fn addresses(settings: &Settings, found: &NodeFound<'_>) -> Result<AddressSettings> {
    let flags = settings.flags();
    let (node_ips, odd) = parse_node_ips(&flags.node_ip).context("read --node-ip")?;
    for text in odd {
        tracing::warn!(text, "A part of --node-ip is not an IP address and is ignored");
    }
    Ok(AddressSettings {
        node_ips,
        hostname: found.name.to_owned(),
        external_cloud_provider: flags.cloud_provider == "external",
    })
}

fn machine(settings: &Settings, found: &NodeFound<'_>, agent: &AgentSettings) -> Result<MachineFacts> {
    let facts = NodeFacts::read();
    let machine = found.machine;
    let resources = admission::node_resources(settings, found, &agent.root_dir)?;
    Ok(MachineFacts {
        machine_id: facts.machine_id,
        system_uuid: facts.system_uuid,
        boot_id: machine.boot_id.clone(),
        kernel_version: machine.kernel_version.clone(),
        os_image: facts.os_image,
        architecture: machine.architecture.clone(),
        swap_bytes: machine.swap_bytes,
        is_in_user_namespace: settings
            .gates()
            .enabled(Gate::KubeletInUserNamespace)
            .then_some(facts.is_in_user_namespace),
        capacity: resources.capacity,
        allocatable: resources.allocatable,
    })
}
