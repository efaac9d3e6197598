//! Volumes: there before a container is made, gone only after the last one ended, and not before all sources delivered.

use super::{Checker, rules};

impl Checker {
    /// A container is about to be made: the volumes of the pod's own that it mounts have to stand.
    pub(super) fn check_volumes(&mut self, uid: &str, container: &str) {
        let Some(pod) = self.truth.version(uid).cloned() else {
            return;
        };
        let volumes = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.volumes.as_deref())
            .unwrap_or_default();
        // What the node has, or the runtime mounts, needs nothing of ours.
        let own: Vec<&str> = volumes
            .iter()
            .filter(|volume| volume.host_path.is_none() && volume.image.is_none())
            .map(|volume| volume.name.as_str())
            .collect();
        let mounts = rules::find(&pod, container).and_then(|container| container.volume_mounts.as_deref());
        let standing = self.truth.pod(uid).volumes.clone();
        for mount in mounts.unwrap_or_default() {
            if own.contains(&mount.name.as_str()) && !standing.contains(&mount.name) {
                self.violate(format!(
                    "CreateContainer {container} of {uid} without its volume {}",
                    mount.name
                ));
            }
        }
    }

    pub(super) fn volume_gone(&mut self, uid: &str, volume: &str) {
        self.truth.pod(uid).volumes.remove(volume);
        self.check_sources(uid, &format!("removal of volume {volume}"));
        let running = self.truth.running(uid).next().map(|running| running.name.clone());
        if let Some(name) = running {
            self.violate(format!(
                "volume {volume} of {uid} is taken down while {name} runs"
            ));
        }
    }
}
