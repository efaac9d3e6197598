//! Mounts below mounts: directories that a read-only volume must have, because a container mounts something else below it.
//!
//! Owns which ones; the runtime could not make them on a read-only mount.

use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;

use crate::StorageError;
use crate::volume::mounts_by_container;

/// Relative paths below the volume, parents before children, without those that lie below another volume's mount.
pub(crate) fn nested_directories(pod: &Pod, volume: &str) -> Result<Vec<PathBuf>, StorageError> {
    let mut directories: Vec<PathBuf> = Vec::new();
    for mounts in mounts_by_container(pod) {
        let mut points: Vec<PathBuf> = mounts.iter().map(|mount| cleaned(&mount.mount_path)).collect();
        points.sort();
        let own = mounts.iter().filter(|mount| mount.name == volume);
        for root in own.map(|mount| cleaned(&mount.mount_path)) {
            if root.starts_with("..") {
                return Err(StorageError::MountPoint(root.display().to_string()));
            }
            let mut outermost: Vec<&PathBuf> = Vec::new();
            for point in points
                .iter()
                .filter(|point| point.starts_with(&root) && **point != root)
            {
                if outermost.iter().any(|outer| point.starts_with(outer)) {
                    continue;
                }
                outermost.push(point);
                if let Ok(relative) = point.strip_prefix(&root) {
                    add_with_parents(relative, &mut directories);
                }
            }
        }
    }
    Ok(directories)
}

fn add_with_parents(relative: &Path, directories: &mut Vec<PathBuf>) {
    let mut chain: Vec<&Path> = relative
        .ancestors()
        .filter(|path| !path.as_os_str().is_empty())
        .collect();
    chain.reverse();
    for path in chain {
        if !directories.iter().any(|known| known == path) {
            directories.push(path.to_owned());
        }
    }
}

/// Without `.`, double slashes and backsteps that can be taken.
fn cleaned(path: &str) -> PathBuf {
    let mut cleaned = PathBuf::new();
    for part in Path::new(path).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                let is_name = matches!(cleaned.components().next_back(), Some(Component::Normal(_)));
                if is_name {
                    cleaned.pop();
                } else if !cleaned.has_root() {
                    cleaned.push("..");
                }
            }
            Component::RootDir | Component::Normal(_) | Component::Prefix(_) => cleaned.push(part),
        }
    }
    cleaned
}
