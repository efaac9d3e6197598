//! What is left of volumes on the node: directories by their names, mounts from the kernel's list.
//!
//! Nothing that is mounted is entered or looked at, so that the inventory never hangs on a dead mount below the pods' directory.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rubelet_model::observation::PodUid;
use rubelet_ports::volume_host::{MountPoint, PodOnDisk, SubPathOnDisk, VolumeOnDisk};

use super::failure::{Failure, errno_of, failed};
use super::mount_table::{self, MountEntry};

const EMPTY_DIR_MARKERS: &str = "plugins/kubernetes.io~empty-dir";

/// The mounts below the pods' directory, by pod.
struct Mounts {
    by_pod: BTreeMap<String, Vec<MountPoint>>,
    targets: BTreeSet<PathBuf>,
}

impl Mounts {
    /// Paths come as below `pods`, also where the kernel knows that directory by another name.
    fn below(pods: &Path, list: Vec<MountEntry>) -> io::Result<Self> {
        let mut mounts = Self {
            by_pod: BTreeMap::new(),
            targets: BTreeSet::new(),
        };
        let known = match fs::canonicalize(pods) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(mounts),
            known => known?,
        };
        for mount in list {
            let Ok(relative) = mount.target.strip_prefix(&known) else {
                continue;
            };
            let Some(uid) = relative
                .components()
                .next()
                .and_then(|uid| uid.as_os_str().to_str())
            else {
                continue;
            };
            let path = pods.join(relative);
            mounts.targets.insert(path.clone());
            mounts.by_pod.entry(uid.to_owned()).or_default().push(MountPoint {
                path,
                filesystem: mount.filesystem,
            });
        }
        Ok(mounts)
    }

    /// The names in a directory of the node's own disk, sorted; none of what is mounted upon.
    fn names_in(&self, directory: &Path) -> Result<Vec<String>, Failure> {
        let failed = |error: &io::Error| failed("list", directory)(errno_of(error));
        if self.targets.contains(directory) {
            return Ok(Vec::new());
        }
        let entries = match fs::read_dir(directory) {
            Err(error) if is_absent(&error) => return Ok(Vec::new()),
            entries => entries.map_err(|error| failed(&error))?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let name = entry.map_err(|error| failed(&error))?.file_name();
            names.extend(name.to_str().map(str::to_owned));
        }
        names.sort();
        Ok(names)
    }
}

/// A missing directory has no entries, and neither has a file.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn mounts_below(pods: &Path) -> Result<Mounts, Failure> {
    let list = mount_table::read();
    let mounts = list.and_then(|list| Mounts::below(pods, list));
    mounts.map_err(|error| failed("read the list of mounts below", pods)(errno_of(&error)))
}

/// Every pod with any trace of a volume.
pub(super) fn all_pods(pods: &Path) -> Result<Vec<PodOnDisk>, Failure> {
    let mut mounts = mounts_below(pods)?;
    let mut uids: BTreeSet<String> = mounts.names_in(pods)?.into_iter().collect();
    uids.extend(mounts.by_pod.keys().cloned());
    let mut found = Vec::new();
    for uid in uids {
        let pod = pod_below(pods, uid, &mut mounts)?;
        if !(pod.volumes.is_empty()
            && pod.markers.is_empty()
            && pod.sub_paths.is_empty()
            && pod.mounts.is_empty())
        {
            found.push(pod);
        }
    }
    Ok(found)
}

pub(super) fn one_pod(pods: &Path, uid: &PodUid) -> Result<PodOnDisk, Failure> {
    pod_below(pods, uid.to_string(), &mut mounts_below(pods)?)
}

fn pod_below(pods: &Path, uid: String, mounts: &mut Mounts) -> Result<PodOnDisk, Failure> {
    let directory = pods.join(OsStr::new(&uid));
    let mut volumes = Vec::new();
    let all = directory.join("volumes");
    for plugin in mounts.names_in(&all)? {
        let of_plugin = all.join(&plugin);
        for name in mounts.names_in(&of_plugin)? {
            volumes.push(VolumeOnDisk {
                path: of_plugin.join(&name),
                plugin: plugin.clone(),
                name,
            });
        }
    }
    let mut sub_paths = Vec::new();
    let all = directory.join("volume-subpaths");
    for volume in mounts.names_in(&all)? {
        for container in mounts.names_in(&all.join(&volume))? {
            let of_container = all.join(&volume).join(&container);
            for index in mounts.names_in(&of_container)? {
                sub_paths.push(SubPathOnDisk {
                    volume: volume.clone(),
                    container: container.clone(),
                    path: of_container.join(&index),
                    index,
                });
            }
        }
    }
    Ok(PodOnDisk {
        markers: mounts.names_in(&directory.join(EMPTY_DIR_MARKERS))?,
        mounts: mounts.by_pod.remove(&uid).unwrap_or_default(),
        uid: uid.into(),
        volumes,
        sub_paths,
    })
}
