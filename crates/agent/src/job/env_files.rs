//! Files of volumes that a container's variables are taken from (`fileKeyRef`).
//!
//! Owns reading them. Whoever wrote them may have made links to anywhere, so that they are read inside of their volume only.

use std::path::Path;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod};
use rubelet_lifecycle::configuration::env_file::LIMIT_BYTES;
use rubelet_lifecycle::configuration::environment::{EnvFiles, env_files};
use rubelet_storage::PodLayout;
use rubelet_storage::layout::{EMPTY_DIR, pods_directory};

use super::{PodJob, Stop};

impl PodJob {
    /// What is in the files. A volume that cannot have any is left out, and is an error for whoever needs it.
    pub(super) async fn env_files(&self, container: &Container) -> Result<EnvFiles, Stop> {
        let mut files = EnvFiles::new();
        for key in env_files(container) {
            if !has_empty_dir(&self.pod, &key.volume) {
                continue;
            }
            let layout = PodLayout::new(&pods_directory(&self.shared.settings.root_dir), &self.uid);
            let directory = layout.volume(EMPTY_DIR, &key.volume);
            let reader = Arc::clone(&self.ports().file_reader);
            let read = reader.read_within(&directory, Path::new(&key.path), LIMIT_BYTES);
            let what = format!("file {} of volume {}", key.path, key.volume);
            let content = self.read(what, read).await?;
            files.insert(key, content.map_err(|error| error.message));
        }
        Ok(files)
    }
}

/// The API allows such files in no other kind of volume.
fn has_empty_dir(pod: &Pod, volume: &str) -> bool {
    let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.any(|one| one.name == volume && one.empty_dir.is_some())
}
