//! Which objects of the API a pod needs. A static pod runs without the API, so it may need none.

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, Pod, PodSpec, Volume, VolumeProjection};

use rubelet_model::pod::volume_secrets;

use crate::fields::{list, text};

/// A volume whose source is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownSource {
    pub volume: String,
}

/// The first kind of API object that the pod refers to, in upstream's order and with its name.
pub fn api_reference(pod: &Pod) -> Result<Option<&'static str>, UnknownSource> {
    let Some(spec) = &pod.spec else { return Ok(None) };
    if !text(&spec.service_account_name).is_empty() {
        return Ok(Some("serviceaccounts"));
    }
    if needs_secret(spec) {
        return Ok(Some("secrets"));
    }
    if needs_config_map(spec) {
        return Ok(Some("configmaps"));
    }
    if !list(&spec.resource_claims).is_empty() {
        return Ok(Some("resourceclaims"));
    }
    for volume in list(&spec.volumes) {
        if let Some(found) = volume_reference(volume)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn environment(spec: &PodSpec) -> impl Iterator<Item = (&[EnvFromSource], &[EnvVar])> {
    let plain = list(&spec.init_containers)
        .iter()
        .chain(&spec.containers)
        .map(|container| (list(&container.env_from), list(&container.env)));
    let ephemeral = list(&spec.ephemeral_containers)
        .iter()
        .map(|container| (list(&container.env_from), list(&container.env)));
    plain.chain(ephemeral)
}

fn needs_secret(spec: &PodSpec) -> bool {
    let named = |name: &str| !name.is_empty();
    list(&spec.image_pull_secrets)
        .iter()
        .any(|secret| named(&secret.name))
        || environment(spec).any(|(from, variables)| {
            from.iter().any(|source| {
                source
                    .secret_ref
                    .as_ref()
                    .is_some_and(|secret| named(&secret.name))
            }) || variables.iter().any(|variable| {
                let source = variable.value_from.as_ref();
                let key = source.and_then(|source| source.secret_key_ref.as_ref());
                key.is_some_and(|key| named(&key.name))
            })
        })
        || list(&spec.volumes).iter().any(volume_needs_secret)
}

fn volume_needs_secret(volume: &Volume) -> bool {
    volume_secrets(volume).iter().any(|name| !name.is_empty())
}

fn needs_config_map(spec: &PodSpec) -> bool {
    let named = |name: &str| !name.is_empty();
    environment(spec).any(|(from, variables)| {
        from.iter()
            .any(|source| source.config_map_ref.as_ref().is_some_and(|map| named(&map.name)))
            || variables.iter().any(|variable| {
                let source = variable.value_from.as_ref();
                let key = source.and_then(|source| source.config_map_key_ref.as_ref());
                key.is_some_and(|key| named(&key.name))
            })
    }) || list(&spec.volumes)
        .iter()
        .any(|volume| match (&volume.projected, &volume.config_map) {
            (Some(projected), _) => list(&projected.sources)
                .iter()
                .any(|source| source.config_map.as_ref().is_some_and(|map| named(&map.name))),
            (None, Some(map)) => named(&map.name),
            (None, None) => false,
        })
}

fn is_local(volume: &Volume) -> bool {
    volume.aws_elastic_block_store.is_some()
        || volume.azure_disk.is_some()
        || volume.cephfs.is_some()
        || volume.cinder.is_some()
        || volume.downward_api.is_some()
        || volume.empty_dir.is_some()
        || volume.fc.is_some()
        || volume.flex_volume.is_some()
        || volume.flocker.is_some()
        || volume.gce_persistent_disk.is_some()
        || volume.git_repo.is_some()
        || volume.host_path.is_some()
        || volume.image.is_some()
        || volume.iscsi.is_some()
        || volume.nfs.is_some()
        || volume.photon_persistent_disk.is_some()
        || volume.portworx_volume.is_some()
        || volume.quobyte.is_some()
        || volume.rbd.is_some()
        || volume.scale_io.is_some()
        || volume.storageos.is_some()
        || volume.vsphere_volume.is_some()
}

fn volume_reference(volume: &Volume) -> Result<Option<&'static str>, UnknownSource> {
    if is_local(volume) {
        return Ok(None);
    }
    let unknown = || UnknownSource {
        volume: volume.name.clone(),
    };
    let found = if volume.config_map.is_some() {
        "configmaps (via configmap volumes)"
    } else if volume.secret.is_some() {
        "secrets (via secret volumes)"
    } else if volume.csi.is_some() {
        "csidrivers (via CSI volumes)"
    } else if volume.glusterfs.is_some() {
        "endpoints (via glusterFS volumes)"
    } else if volume.persistent_volume_claim.is_some() {
        "persistentvolumeclaims"
    } else if volume.ephemeral.is_some() {
        "persistentvolumeclaims (via ephemeral volumes)"
    } else if volume.azure_file.is_some() {
        "secrets (via azureFile volumes)"
    } else if let Some(projected) = &volume.projected {
        for source in list(&projected.sources) {
            match projection_reference(source) {
                Some("") => {}
                Some(found) => return Ok(Some(found)),
                None => return Err(unknown()),
            }
        }
        return Ok(None);
    } else {
        return Err(unknown());
    };
    Ok(Some(found))
}

/// Empty for what needs no API object, `None` for an unknown source.
fn projection_reference(source: &VolumeProjection) -> Option<&'static str> {
    if source.config_map.is_some() {
        Some("configmaps (via projected volumes)")
    } else if source.secret.is_some() {
        Some("secrets (via projected volumes)")
    } else if source.service_account_token.is_some() {
        Some("serviceaccounts (via projected volumes)")
    } else if source.cluster_trust_bundle.is_some() {
        Some("clustertrustbundles")
    } else if source.pod_certificate.is_some() {
        Some("podcertificates")
    } else {
        source.downward_api.is_some().then_some("")
    }
}
