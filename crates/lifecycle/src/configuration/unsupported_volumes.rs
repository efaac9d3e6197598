//! The kinds of volumes that this node does not support yet.
//!
//! Owns the names of all volume kinds and which of them need a plugin. `storage` sets up the others; ConfigMap, Secret and all sources
//! of a projected volume except `downwardAPI` only for pods from the API server.

use k8s_openapi::api::core::v1::{Pod, Volume, VolumeProjection};

use super::unsupported::{Provider, Unsupported};

const PLUGINS: &str = "volumes of this type are not supported yet";
const API_OBJECTS: &str = "volumes of this type need an API server, and the pod does not come from one";
/// Upstream has no driver for it any more.
const GIT_REPO: &str =
    "gitRepo volumes have been removed; clone the repository in an init container into an emptyDir";

/// The field that names a volume's kind, such as `configMap`.
#[must_use]
pub fn volume_type(volume: &Volume) -> &'static str {
    let types = [
        ("emptyDir", volume.empty_dir.is_some()),
        ("hostPath", volume.host_path.is_some()),
        ("downwardAPI", volume.downward_api.is_some()),
        ("projected", volume.projected.is_some()),
        ("image", volume.image.is_some()),
        ("configMap", volume.config_map.is_some()),
        ("secret", volume.secret.is_some()),
        ("persistentVolumeClaim", volume.persistent_volume_claim.is_some()),
        ("ephemeral", volume.ephemeral.is_some()),
        ("csi", volume.csi.is_some()),
        ("nfs", volume.nfs.is_some()),
        ("iscsi", volume.iscsi.is_some()),
        ("fc", volume.fc.is_some()),
        ("flexVolume", volume.flex_volume.is_some()),
        ("gitRepo", volume.git_repo.is_some()),
        ("awsElasticBlockStore", volume.aws_elastic_block_store.is_some()),
        ("azureDisk", volume.azure_disk.is_some()),
        ("azureFile", volume.azure_file.is_some()),
        ("cephfs", volume.cephfs.is_some()),
        ("cinder", volume.cinder.is_some()),
        ("flocker", volume.flocker.is_some()),
        ("gcePersistentDisk", volume.gce_persistent_disk.is_some()),
        ("glusterfs", volume.glusterfs.is_some()),
        ("photonPersistentDisk", volume.photon_persistent_disk.is_some()),
        ("portworxVolume", volume.portworx_volume.is_some()),
        ("quobyte", volume.quobyte.is_some()),
        ("rbd", volume.rbd.is_some()),
        ("scaleIO", volume.scale_io.is_some()),
        ("storageos", volume.storageos.is_some()),
        ("vsphereVolume", volume.vsphere_volume.is_some()),
    ];
    let found = types.into_iter().find(|(_, is_set)| *is_set);
    found.map_or("emptyDir", |(name, _)| name)
}

/// The same of a source of a projected volume.
#[must_use]
pub fn projection_type(projection: &VolumeProjection) -> &'static str {
    let types = [
        ("downwardAPI", projection.downward_api.is_some()),
        ("configMap", projection.config_map.is_some()),
        ("secret", projection.secret.is_some()),
        ("serviceAccountToken", projection.service_account_token.is_some()),
        ("clusterTrustBundle", projection.cluster_trust_bundle.is_some()),
        ("podCertificate", projection.pod_certificate.is_some()),
    ];
    let found = types.into_iter().find(|(_, is_set)| *is_set);
    found.map_or("empty", |(name, _)| name)
}

/// Every volume that cannot be set up. A volume that no container uses is left out, because it is never set up.
pub(super) fn unsupported_volumes(pod: &Pod, has_api: bool) -> Vec<Unsupported> {
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    let mounts = spec.init_containers.iter().flatten().chain(&spec.containers);
    let mounts = mounts.flat_map(|one| one.volume_mounts.iter().flatten());
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let mounts: Vec<&str> = mounts
        .chain(ephemeral.flat_map(|one| one.volume_mounts.iter().flatten()))
        .map(|mount| mount.name.as_str())
        .collect();
    let mut found = Vec::new();
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        if !mounts.contains(&volume.name.as_str()) {
            continue;
        }
        let kind = volume_type(volume);
        let field = format!("spec.volumes[{index}].{kind}");
        match kind {
            "projected" if !has_api => found.extend(unsupported_projections(volume, &field)),
            "configMap" | "secret" if !has_api => found.push(needs_api(field)),
            _ => found.extend(needed_plugin(kind).map(|reason| Unsupported {
                field,
                reason,
                provider: Some(Provider::VolumePlugin),
            })),
        }
    }
    found
}

/// Why volumes of this kind cannot be set up, for kinds that need a plugin which this node does not have.
#[must_use]
pub fn needed_plugin(kind: &str) -> Option<&'static str> {
    match kind {
        "emptyDir" | "hostPath" | "downwardAPI" | "image" | "projected" | "configMap" | "secret" => None,
        "gitRepo" => Some(GIT_REPO),
        _ => Some(PLUGINS),
    }
}

/// The pod without the volumes that need a plugin; `None` when it has no such volume. Where another kubelet started the pod, those
/// volumes stay mounted as that kubelet left them.
#[must_use]
pub fn without_plugin_volumes(pod: &Pod) -> Option<Pod> {
    let needs_plugin = |volume: &Volume| needed_plugin(volume_type(volume)).is_some();
    let volumes = pod.spec.as_ref()?.volumes.as_ref()?;
    if !volumes.iter().any(needs_plugin) {
        return None;
    }
    let mut pod = pod.clone();
    let volumes = pod.spec.as_mut().and_then(|spec| spec.volumes.as_mut())?;
    volumes.retain(|volume| !needs_plugin(volume));
    Some(pod)
}

fn needs_api(field: String) -> Unsupported {
    Unsupported {
        field,
        reason: API_OBJECTS,
        provider: None,
    }
}

fn unsupported_projections(volume: &Volume, field: &str) -> Vec<Unsupported> {
    let sources = volume
        .projected
        .iter()
        .flat_map(|source| source.sources.iter().flatten());
    sources
        .enumerate()
        .filter(|(_, source)| source.downward_api.is_none())
        .map(|(index, source)| needs_api(format!("{field}.sources[{index}].{}", projection_type(source))))
        .collect()
}
