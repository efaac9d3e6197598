//! Volumes that another kubelet has mounted and whose plugins rubelet does not have.
//!
//! Owns the refusal to start on them. A pod with such a volume could neither restart a container nor be deleted, and the operator
//! would notice it only then; before rubelet has changed anything, upstream's kubelet can still take the node back.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail};
use rubelet_config::settings::Settings;
use rubelet_host::HostVolumes;
use rubelet_model::observation::PodUid;
use rubelet_ports::{RuntimeReader, VolumeHostReader as _};
use rubelet_storage::layout::pods_directory;
use rubelet_storage::{UnknownVolume, unknown_volumes};

/// Fails where such volumes are mounted, unless the file of `--rubelet-config` allows them.
pub(crate) async fn refuse(settings: &Settings, runtime: &dyn RuntimeReader) -> Result<()> {
    let root = &settings.flags().root_dir;
    let pods = pods_directory(root);
    let found = HostVolumes::new().pods_on_disk(&pods).await;
    let found = found.context("look for mounted volumes below the root directory")?;
    let unknown = unknown_volumes(&found, &pods);
    if unknown.is_empty() {
        return Ok(());
    }
    let listed = listed(&unknown, &names(runtime).await);
    if settings.rubelet().allow_unknown_volumes {
        tracing::warn!(
            root_dir = %root.display(), volumes = listed,
            "Volumes are mounted whose plugins rubelet does not have: their pods go on, but start no container again and end only \
             when the volumes have been unmounted"
        );
        return Ok(());
    }
    bail!(refusal(root, &listed));
}

fn refusal(root: &Path, listed: &str) -> String {
    format!(
        "volumes are mounted below {} whose plugins rubelet does not have: {listed}. Drain the node with upstream's kubelet first. \
         Or set allowUnknownVolumes: true in the file of --rubelet-config: then these pods go on, but start no container again and \
         end only when their volumes have been unmounted",
        root.display()
    )
}

/// `namespace/name` of the pods that the runtime knows. For others the message has the UID only.
async fn names(runtime: &dyn RuntimeReader) -> BTreeMap<PodUid, String> {
    let sandboxes = runtime.list_pod_sandboxes(None).await.unwrap_or_default();
    let metadata = sandboxes.into_iter().filter_map(|sandbox| sandbox.metadata);
    metadata
        .map(|pod| (PodUid::new(pod.uid), format!("{}/{}", pod.namespace, pod.name)))
        .collect()
}

fn listed(unknown: &BTreeSet<UnknownVolume>, names: &BTreeMap<PodUid, String>) -> String {
    let texts = unknown.iter().map(|volume| {
        let UnknownVolume { uid, plugin, name } = volume;
        let pod = names.get(uid).map_or_else(
            || format!("pod with uid {uid}"),
            |pod| format!("pod {pod} (uid {uid})"),
        );
        format!("{pod}: volume {name} of {plugin}")
    });
    texts.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_volumes_and_the_way_out_are_named() {
        let volume = |uid: &str, name: &str| UnknownVolume {
            uid: PodUid::new(uid.to_owned()),
            plugin: "kubernetes.io/csi".to_owned(),
            name: name.to_owned(),
        };
        let unknown = BTreeSet::from([volume("u1", "pvc-1"), volume("u2", "pvc-2")]);
        let names = BTreeMap::from([(PodUid::new("u1".to_owned()), "shop/db-0".to_owned())]);
        let text = refusal(Path::new("/var/lib/kubelet"), &listed(&unknown, &names));
        for part in [
            "below /var/lib/kubelet",
            "pod shop/db-0 (uid u1): volume pvc-1 of kubernetes.io/csi; pod with uid u2: volume pvc-2 of kubernetes.io/csi",
            "allowUnknownVolumes: true in the file of --rubelet-config",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
