//! Defaults of one volume: an empty one is an empty directory, files have modes, disks their old habits.

use k8s_openapi::api::core::v1::{ObjectFieldSelector, ResourceFieldSelector, Volume};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use rubelet_config::{FeatureGates, Gate};

use super::round_resources;
use crate::fields::{fill, text};
use crate::image::default_pull_policy;

const DEFAULT_FILE_MODE: i32 = 0o644;
const TOKEN_LIFETIME_SECONDS: i64 = 3600;

pub(super) fn default_volume(volume: &mut Volume, gates: &FeatureGates) {
    if has_no_source(volume) {
        volume.empty_dir = Some(k8s_openapi::api::core::v1::EmptyDirVolumeSource::default());
    }
    if let Some(image) = &mut volume.image
        && gates.enabled(Gate::ImageVolume)
    {
        let policy = default_pull_policy(text(&image.reference));
        fill(&mut image.pull_policy, policy);
    }
    if let Some(source) = &mut volume.host_path {
        source.type_.get_or_insert_default();
    }
    if let Some(source) = &mut volume.secret {
        source.default_mode.get_or_insert(DEFAULT_FILE_MODE);
    }
    if let Some(source) = &mut volume.config_map {
        source.default_mode.get_or_insert(DEFAULT_FILE_MODE);
    }
    if let Some(source) = &mut volume.downward_api {
        source.default_mode.get_or_insert(DEFAULT_FILE_MODE);
        for file in source.items.iter_mut().flatten() {
            default_field_ref(&mut file.field_ref);
            default_resource_ref(&mut file.resource_field_ref);
        }
    }
    default_projected(volume);
    default_disks(volume);
    if let Some(template) = volume
        .ephemeral
        .as_mut()
        .and_then(|source| source.volume_claim_template.as_mut())
    {
        let spec = &mut template.spec;
        spec.volume_mode.get_or_insert_with(|| "Filesystem".to_owned());
        if let Some(resources) = &mut spec.resources {
            round_resources(&mut resources.limits);
            round_resources(&mut resources.requests);
        }
    }
}

pub(super) fn default_field_ref(field: &mut Option<ObjectFieldSelector>) {
    if let Some(selector) = field {
        fill(&mut selector.api_version, "v1");
    }
}

/// A divisor that is not given is written as zero, which means one.
pub(super) fn default_resource_ref(field: &mut Option<ResourceFieldSelector>) {
    if let Some(selector) = field {
        selector
            .divisor
            .get_or_insert_with(|| ApiQuantity("0".to_owned()));
    }
}

fn default_projected(volume: &mut Volume) {
    let Some(projected) = &mut volume.projected else {
        return;
    };
    projected.default_mode.get_or_insert(DEFAULT_FILE_MODE);
    for source in projected.sources.iter_mut().flatten() {
        if let Some(files) = &mut source.downward_api {
            for file in files.items.iter_mut().flatten() {
                default_field_ref(&mut file.field_ref);
                default_resource_ref(&mut file.resource_field_ref);
            }
        }
        if let Some(token) = &mut source.service_account_token {
            token.expiration_seconds.get_or_insert(TOKEN_LIFETIME_SECONDS);
        }
    }
}

fn default_disks(volume: &mut Volume) {
    if let Some(source) = &mut volume.iscsi {
        fill(&mut source.iscsi_interface, "default");
    }
    if let Some(source) = &mut volume.rbd {
        fill(&mut source.pool, "rbd");
        fill(&mut source.user, "admin");
        fill(&mut source.keyring, "/etc/ceph/keyring");
    }
    if let Some(source) = &mut volume.azure_disk {
        source.caching_mode.get_or_insert_with(|| "ReadWrite".to_owned());
        source.fs_type.get_or_insert_with(|| "ext4".to_owned());
        source.read_only.get_or_insert(false);
        source.kind.get_or_insert_with(|| "Shared".to_owned());
    }
    if let Some(source) = &mut volume.scale_io {
        fill(&mut source.storage_mode, "ThinProvisioned");
        fill(&mut source.fs_type, "xfs");
    }
}

fn has_no_source(volume: &Volume) -> bool {
    *volume
        == Volume {
            name: volume.name.clone(),
            ..Volume::default()
        }
}
