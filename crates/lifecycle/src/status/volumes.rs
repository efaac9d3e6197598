//! Statuses of a container's volume mounts.
//!
//! Owns whether a mount is shown as recursively read-only. It mounts nothing; a request that cannot be honoured fails where the
//! container is configured.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, ImageVolumeStatus, VolumeMount, VolumeMountStatus, VolumeStatus,
};

/// One status per mount of the specification; none when there are no mounts.
pub(super) fn mount_statuses(
    container: &Container,
    runtime_supports: bool,
) -> Option<Vec<VolumeMountStatus>> {
    let mounts = container
        .volume_mounts
        .as_ref()
        .filter(|mounts| !mounts.is_empty())?;
    Some(
        mounts
            .iter()
            .map(|mount| mount_status(mount, runtime_supports))
            .collect(),
    )
}

fn mount_status(mount: &VolumeMount, runtime_supports: bool) -> VolumeMountStatus {
    let read_only = mount.read_only == Some(true);
    VolumeMountStatus {
        name: mount.name.clone(),
        mount_path: mount.mount_path.clone(),
        read_only: read_only.then_some(true),
        recursive_read_only: read_only.then(|| {
            let mode = if is_recursive(mount, runtime_supports) {
                "Enabled"
            } else {
                "Disabled"
            };
            mode.to_owned()
        }),
        volume_status: None,
    }
}

fn is_recursive(mount: &VolumeMount, runtime_supports: bool) -> bool {
    let propagates = mount
        .mount_propagation
        .as_deref()
        .is_some_and(|mode| mode != "None");
    let asked = matches!(
        mount.recursive_read_only.as_deref(),
        Some("IfPossible" | "Enabled")
    );
    asked && !propagates && runtime_supports
}

/// Writes the digests of image volumes, by volume name, where they are known.
pub(super) fn set_image_references(
    mounts: &mut Option<Vec<VolumeMountStatus>>,
    references: Option<&BTreeMap<String, String>>,
) {
    let Some(references) = references else { return };
    for mount in mounts.iter_mut().flatten() {
        if let Some(reference) = references.get(&mount.name) {
            let status: &mut VolumeStatus = mount.volume_status.get_or_insert_default();
            let image: &mut ImageVolumeStatus = status.image.get_or_insert_default();
            image.image_ref.clone_from(reference);
        }
    }
}
