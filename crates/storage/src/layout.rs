//! Where volumes are on disk, exactly as upstream's kubelet has them, so that either can take over from the other.
//!
//! Owns names and joins of paths, and nothing about what is there.

use std::path::{Path, PathBuf};

use rubelet_model::observation::PodUid;

pub const EMPTY_DIR: &str = "kubernetes.io~empty-dir";
pub const DOWNWARD_API: &str = "kubernetes.io~downward-api";
pub const PROJECTED: &str = "kubernetes.io~projected";
pub const CONFIG_MAP: &str = "kubernetes.io~configmap";
pub const SECRET: &str = "kubernetes.io~secret";

/// The marker of a volume that is made on top of an emptyDir.
const WRAPPED: &str = "wrapped_";

/// The directory of all pods below the root directory.
#[must_use]
pub fn pods_directory(root: &Path) -> PathBuf {
    root.join("pods")
}

/// The paths of one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodLayout {
    directory: PathBuf,
}

impl PodLayout {
    #[must_use]
    pub fn new(pods: &Path, uid: &PodUid) -> Self {
        Self {
            directory: pods.join(uid.as_str()),
        }
    }

    /// `pods/<uid>`
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// `volumes`
    #[must_use]
    pub fn volumes(&self) -> PathBuf {
        self.directory.join("volumes")
    }

    /// `volumes/<plugin>/<name>`
    #[must_use]
    pub fn volume(&self, plugin: &str, name: &str) -> PathBuf {
        self.volumes().join(plugin).join(name)
    }

    /// Where the file `ready` of an emptyDir is.
    #[must_use]
    pub fn marker(&self, name: &str) -> PathBuf {
        self.directory.join("plugins").join(EMPTY_DIR).join(name)
    }

    /// The same of a volume on top of an emptyDir.
    #[must_use]
    pub fn wrapped_marker(&self, name: &str) -> PathBuf {
        self.marker(&format!("{WRAPPED}{name}"))
    }

    /// `volume-subpaths`
    #[must_use]
    pub fn sub_paths(&self) -> PathBuf {
        self.directory.join("volume-subpaths")
    }

    /// Where a container's mount by its place in `volumeMounts` is bound to.
    #[must_use]
    pub fn sub_path(&self, volume: &str, container: &str, index: usize) -> PathBuf {
        self.sub_paths()
            .join(volume)
            .join(container)
            .join(index.to_string())
    }
}

/// The volume that a marker belongs to.
pub(crate) fn volume_of_marker(marker: &str) -> &str {
    marker.strip_prefix(WRAPPED).unwrap_or(marker)
}
