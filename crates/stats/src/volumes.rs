//! Which volumes of a pod have statistics, and where they are.
//!
//! Owns what upstream measures of each kind that this node can set up: it walks through what the node itself wrote, and neither through a
//! directory of the host nor through an image.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Pod, Volume};
use rubelet_model::pod::uid_of;
use rubelet_storage::layout::{CONFIG_MAP, DOWNWARD_API, EMPTY_DIR, PROJECTED, PodLayout, SECRET};
use rubelet_usage::summary::ClaimReference;

/// A volume that is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MeasuredVolume {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// Only rubelet writes into it, and then the figures are taken once.
    pub(crate) is_written_once: bool,
    /// It counts for the pod's ephemeral storage.
    pub(crate) is_ephemeral: bool,
    /// Of which claim it is, where it is of one.
    pub(crate) claim: Option<ClaimReference>,
}

pub(crate) fn measured_volumes(pod: &Pod, pods_dir: &Path) -> Vec<MeasuredVolume> {
    let layout = PodLayout::new(pods_dir, &uid_of(pod));
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref());
    volumes
        .unwrap_or_default()
        .iter()
        .filter_map(|volume| {
            let (plugin, is_written_once, is_ephemeral) = kind(volume)?;
            Some(MeasuredVolume {
                name: volume.name.clone(),
                path: layout.volume(plugin, &volume.name),
                is_written_once,
                is_ephemeral,
                claim: claim_of(pod, volume),
            })
        })
        .collect()
}

/// The claim that a volume names, or that was made for it.
fn claim_of(pod: &Pod, volume: &Volume) -> Option<ClaimReference> {
    let name = match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(claim), _) => claim.claim_name.clone(),
        (None, Some(_)) => {
            let pod = pod.metadata.name.as_deref().unwrap_or_default();
            format!("{pod}-{}", volume.name)
        }
        (None, None) => return None,
    };
    Some(ClaimReference {
        name,
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
    })
}

/// The plugin's directory, whether only rubelet writes there, and whether it counts for ephemeral storage.
fn kind(volume: &Volume) -> Option<(&'static str, bool, bool)> {
    if let Some(empty_dir) = &volume.empty_dir {
        let is_on_disk = empty_dir.medium.as_deref().unwrap_or_default().is_empty();
        return Some((EMPTY_DIR, false, is_on_disk));
    }
    if volume.config_map.is_some() {
        return Some((CONFIG_MAP, true, true));
    }
    if volume.secret.is_some() {
        return Some((SECRET, true, false));
    }
    if volume.downward_api.is_some() {
        return Some((DOWNWARD_API, true, false));
    }
    volume.projected.is_some().then_some((PROJECTED, true, false))
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn what_the_node_wrote_is_measured() {
        let pod: Pod = from_value(json!({
            "metadata": { "name": "web", "uid": "u" },
            "spec": { "containers": [], "volumes": [
                { "name": "disk", "emptyDir": {} },
                { "name": "memory", "emptyDir": { "medium": "Memory" } },
                { "name": "map", "configMap": { "name": "m" } },
                { "name": "secret", "secret": { "secretName": "s" } },
                { "name": "api", "downwardAPI": {} },
                { "name": "all", "projected": { "sources": [] } },
                { "name": "host", "hostPath": { "path": "/" } },
                { "name": "image", "image": { "reference": "i" } },
            ] },
        }))
        .unwrap();
        let found = measured_volumes(&pod, Path::new("/pods"));
        let rows: Vec<(&str, &str, bool, bool)> = found
            .iter()
            .map(|volume| {
                let path = volume
                    .path
                    .to_str()
                    .unwrap()
                    .strip_prefix("/pods/u/volumes/")
                    .unwrap();
                (
                    volume.name.as_str(),
                    path,
                    volume.is_written_once,
                    volume.is_ephemeral,
                )
            })
            .collect();
        assert_eq!(
            rows,
            [
                ("disk", "kubernetes.io~empty-dir/disk", false, true),
                ("memory", "kubernetes.io~empty-dir/memory", false, false),
                ("map", "kubernetes.io~configmap/map", true, true),
                ("secret", "kubernetes.io~secret/secret", true, false),
                ("api", "kubernetes.io~downward-api/api", true, false),
                ("all", "kubernetes.io~projected/all", true, false),
            ]
        );
        assert_eq!(measured_volumes(&Pod::default(), Path::new("/pods")), []);
    }

    #[test]
    fn a_claim_is_named_or_made_for_the_pod() {
        let pod: Pod = from_value(json!({
            "metadata": { "name": "web", "namespace": "shop" },
            "spec": { "containers": [], "volumes": [
                { "name": "data", "persistentVolumeClaim": { "claimName": "db" } },
                { "name": "scratch", "ephemeral": { "volumeClaimTemplate": { "spec": {} } } },
                { "name": "disk", "emptyDir": {} },
            ] },
        }))
        .unwrap();
        let volumes = pod.spec.as_ref().unwrap().volumes.as_ref().unwrap();
        let claims: Vec<Option<(String, String)>> = volumes
            .iter()
            .map(|volume| claim_of(&pod, volume).map(|claim| (claim.namespace, claim.name)))
            .collect();
        let claim = |name: &str| Some(("shop".to_owned(), name.to_owned()));
        assert_eq!(claims, [claim("db"), claim("web-scratch"), None]);
    }
}
