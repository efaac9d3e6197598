//! The volumes of a pod by kind, and which of them are used.
//!
//! Owns what is read from a pod's `volumes`. A volume that no container mounts is not set up, as upstream.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    ClusterTrustBundleProjection, ConfigMapProjection, ConfigMapVolumeSource, DownwardAPIProjection,
    DownwardAPIVolumeSource, EmptyDirVolumeSource, HostPathVolumeSource, Pod, PodCertificateProjection,
    ProjectedVolumeSource, SecretProjection, SecretVolumeSource, ServiceAccountTokenProjection, Volume,
    VolumeDevice, VolumeMount, VolumeProjection,
};
use rubelet_lifecycle::configuration::unsupported_volumes::volume_type;

use crate::StorageError;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind<'a> {
    EmptyDir(&'a EmptyDirVolumeSource),
    HostPath(&'a HostPathVolumeSource),
    DownwardApi(&'a DownwardAPIVolumeSource),
    ConfigMap(&'a ConfigMapVolumeSource),
    Secret(&'a SecretVolumeSource),
    Projected(&'a ProjectedVolumeSource),
    Image,
}

impl<'a> Kind<'a> {
    pub(crate) fn of(volume: &'a Volume) -> Result<Self, StorageError> {
        let kinds = [
            volume.empty_dir.as_ref().map(Kind::EmptyDir),
            volume.host_path.as_ref().map(Kind::HostPath),
            volume.downward_api.as_ref().map(Kind::DownwardApi),
            volume.config_map.as_ref().map(Kind::ConfigMap),
            volume.secret.as_ref().map(Kind::Secret),
            volume.projected.as_ref().map(Kind::Projected),
            volume.image.as_ref().map(|_| Kind::Image),
        ];
        kinds.into_iter().flatten().next().ok_or_else(|| {
            let kind = volume_type(volume);
            StorageError::NotSupported { kind }
        })
    }

    /// Whether every mount of it is read-only.
    pub(crate) fn is_read_only(&self) -> bool {
        match self {
            Self::DownwardApi(_)
            | Self::ConfigMap(_)
            | Self::Secret(_)
            | Self::Projected(_)
            | Self::Image => true,
            Self::EmptyDir(_) | Self::HostPath(_) => false,
        }
    }

    /// Whether its files belong to the pod alone and get its SELinux label.
    pub(crate) fn is_managed(&self) -> bool {
        match self {
            Self::EmptyDir(_)
            | Self::DownwardApi(_)
            | Self::ConfigMap(_)
            | Self::Secret(_)
            | Self::Projected(_) => true,
            Self::HostPath(_) | Self::Image => false,
        }
    }
}

/// One source of a projected volume.
#[derive(Clone, Copy)]
pub(crate) enum ProjectedSource<'a> {
    Secret(&'a SecretProjection),
    ConfigMap(&'a ConfigMapProjection),
    Downward(&'a DownwardAPIProjection),
    Token(&'a ServiceAccountTokenProjection),
    Bundle(&'a ClusterTrustBundleProjection),
    Certificate(&'a PodCertificateProjection),
}

impl<'a> ProjectedSource<'a> {
    /// Nothing for a kind that is not known here.
    pub(crate) fn of(projection: &'a VolumeProjection) -> Option<Self> {
        let kinds = [
            projection.secret.as_ref().map(Self::Secret),
            projection.config_map.as_ref().map(Self::ConfigMap),
            projection.downward_api.as_ref().map(Self::Downward),
            projection.service_account_token.as_ref().map(Self::Token),
            projection.cluster_trust_bundle.as_ref().map(Self::Bundle),
            projection.pod_certificate.as_ref().map(Self::Certificate),
        ];
        kinds.into_iter().flatten().next()
    }
}

/// What a container has of volumes.
type Uses<'a> = (Option<&'a Vec<VolumeMount>>, Option<&'a Vec<VolumeDevice>>);

fn containers(pod: &Pod) -> impl Iterator<Item = Uses<'_>> {
    pod.spec.iter().flat_map(|spec| {
        let init = spec.init_containers.iter().flatten();
        let regular = init.chain(&spec.containers);
        let regular = regular.map(|one| (one.volume_mounts.as_ref(), one.volume_devices.as_ref()));
        let ephemeral = spec.ephemeral_containers.iter().flatten();
        let ephemeral = ephemeral.map(|one| (one.volume_mounts.as_ref(), one.volume_devices.as_ref()));
        regular.chain(ephemeral)
    })
}

/// The mounts of every container, container by container.
pub(crate) fn mounts_by_container(pod: &Pod) -> impl Iterator<Item = &[VolumeMount]> {
    containers(pod).map(|(mounts, _)| mounts.map(Vec::as_slice).unwrap_or_default())
}

/// The volumes that any container mounts or has as a device, in the pod's order.
pub(crate) fn used_volumes(pod: &Pod) -> impl Iterator<Item = &Volume> {
    let names: BTreeSet<&str> = containers(pod)
        .flat_map(|(mounts, devices)| {
            let mounts = mounts.into_iter().flatten().map(|mount| mount.name.as_str());
            mounts.chain(devices.into_iter().flatten().map(|device| device.name.as_str()))
        })
        .collect();
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter(move |volume| names.contains(volume.name.as_str()))
}

/// Whether the pod has any volume to set up. Most static pods have none, and then nothing is to be asked of the node.
#[must_use]
pub fn uses_volumes(pod: &Pod) -> bool {
    used_volumes(pod).next().is_some()
}

/// A volume whose content is an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageVolume {
    pub volume: String,
    pub reference: String,
    pub pull_policy: Option<String>,
}

/// The image volumes among those that the container of this name mounts.
#[must_use]
pub fn image_volumes(pod: &Pod, mounts: &[VolumeMount]) -> Vec<ImageVolume> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let is_mounted = |name: &str| mounts.iter().any(|mount| mount.name == name);
    volumes
        .filter(|volume| is_mounted(&volume.name))
        .filter_map(|volume| {
            let image = volume.image.as_ref()?;
            Some(ImageVolume {
                volume: volume.name.clone(),
                reference: image.reference.clone().unwrap_or_default(),
                pull_policy: image.pull_policy.clone(),
            })
        })
        .collect()
}
