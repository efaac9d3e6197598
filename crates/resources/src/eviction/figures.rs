//! What a pod uses, as far as evictions depend on it.
//!
//! Owns the sums over its containers and volumes. What could not be read is missing and counts as nothing, as for upstream.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod, Volume};
use rubelet_usage::DiskUsage;

use super::rank::DiskParts;

const MEMORY_MEDIUM: &str = "Memory";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodFigures {
    pub working_set_bytes: Option<u64>,
    pub processes: Option<u64>,
    /// Writable layers, logs, volumes that count for the pod, and its files beside them.
    pub ephemeral_storage_bytes: Option<u64>,
    pub containers: Vec<ContainerFigures>,
    pub volumes: Vec<VolumeFigures>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerFigures {
    pub name: String,
    pub working_set_bytes: Option<u64>,
    pub writable_layer: Option<DiskUsage>,
    pub logs: Option<DiskUsage>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeFigures {
    pub name: String,
    pub used: DiskUsage,
}

impl PodFigures {
    /// What the named parts of the pod take of a disk.
    #[must_use]
    pub fn disk(&self, pod: &Pod, parts: DiskParts) -> DiskUsage {
        let of_containers = self.containers.iter().flat_map(|container| {
            let layer = container.writable_layer.filter(|_| parts.writable_layers);
            let logs = container.logs.filter(|_| parts.logs);
            [layer, logs]
        });
        let local = local_volumes(pod);
        let of_volumes = self.volumes.iter().filter_map(|volume| {
            let counts = parts.local_volumes && local.contains(volume.name.as_str());
            counts.then_some(volume.used)
        });
        let all = of_containers.flatten().chain(of_volumes);
        all.fold(DiskUsage::default(), DiskUsage::plus)
    }

    pub(super) fn volume(&self, name: &str) -> Option<DiskUsage> {
        let volume = self.volumes.iter().find(|volume| volume.name == name);
        volume.map(|volume| volume.used)
    }
}

/// The volumes that take local disk.
fn local_volumes(pod: &Pod) -> BTreeSet<&str> {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref());
    let local = volumes
        .unwrap_or_default()
        .iter()
        .filter(|volume| is_local(volume));
    local.map(|volume| volume.name.as_str()).collect()
}

fn is_local(volume: &Volume) -> bool {
    let is_empty_dir_on_disk = volume
        .empty_dir
        .as_ref()
        .is_some_and(|empty_dir| empty_dir.medium.as_deref() != Some(MEMORY_MEDIUM));
    is_empty_dir_on_disk
        || volume.host_path.is_some()
        || volume.config_map.is_some()
        || volume.git_repo.is_some()
}
