//! The volumes of pods on this machine.

use std::sync::Arc;

use anyhow::{Context, Result};
use rubelet_agent::AgentSettings;
use rubelet_config::gates::Gate;
use rubelet_config::settings::Settings;
use rubelet_host::HostVolumes;
use rubelet_ports::{HostIps, PodObjects};
use rubelet_storage::{StorageGates, StorageNode};
use rubelet_volumes::{Volumes, VolumesMetrics, VolumesPorts, VolumesSettings};

use crate::edges::Edges;

pub(crate) fn volumes(
    settings: &Settings,
    agent: &AgentSettings,
    edges: &Edges,
    objects: Option<Arc<dyn PodObjects>>,
    host_ips: Arc<dyn HostIps>,
) -> Result<Volumes> {
    if let Err(error) = rubelet_host::volumes::share(&agent.root_dir) {
        tracing::warn!(
            root_dir = %agent.root_dir.display(), %error,
            "Mounts below the root directory are not shared: containers do not see those that come later"
        );
    }
    let gates = settings.gates();
    let host = Arc::new(HostVolumes::new());
    let ports = VolumesPorts {
        clock: edges.clock.clone(),
        spawner: edges.spawner.clone(),
        events: edges.events.clone(),
        reader: host.clone(),
        writer: host,
        objects,
        host_ips,
        metrics: VolumesMetrics::register(&edges.registries.node).context("register metrics of volumes")?,
    };
    let node = &agent.node;
    let settings = VolumesSettings {
        root_dir: agent.root_dir.clone(),
        node: StorageNode {
            rules: node.rules.clone(),
            facts: node.facts.clone(),
            host_ips: Vec::new(),
            is_selinux_enabled: node.is_selinux_enabled,
            gates: StorageGates {
                empty_dir_mode: gates.enabled(Gate::EmptyDirVolumeMode),
                file_users: gates.enabled(Gate::AtomicWriteVolumeUserFields),
                bind_mount_options: gates.enabled(Gate::VolumeBindMountOptions),
            },
        },
    };
    Ok(Volumes::new(ports, settings))
}
