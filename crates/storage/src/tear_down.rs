//! What is left of a pod's volumes, and how it is removed.
//!
//! Owns the order: the marker first, so that a crash in between leads to a new set-up and not to half a volume; then binds and
//! mounts, the innermost first; then directories, which are never removed across a mount. It plans from what is on disk and
//! mounted, not from the pod: so it also removes what a killed agent, another kubelet or an earlier version has left.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rubelet_model::observation::PodUid;
use rubelet_model::volume_step::{MountPoint, PodOnDisk, VolumeAction, VolumeStep};

use crate::layout::{self, PodLayout, volume_of_marker};
use crate::set_up::steps;

/// Plugins whose volumes are nothing but a directory and perhaps a mount on it.
const PLAIN_PLUGINS: [&str; 5] = [
    layout::EMPTY_DIR,
    layout::DOWNWARD_API,
    layout::PROJECTED,
    layout::CONFIG_MAP,
    layout::SECRET,
];

/// The steps for one volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeTearDown {
    pub volume: String,
    /// What hangs if this volume hangs.
    pub key: PathBuf,
    pub steps: Vec<VolumeStep>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TearDown {
    pub volumes: Vec<VolumeTearDown>,
    /// The paths of volumes of plugins that are not known: only another kubelet can take them down rightly.
    pub unknown: Vec<PathBuf>,
}

impl TearDown {
    /// Whether nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.volumes.is_empty() && self.unknown.is_empty()
    }
}

/// Plans the removal of everything that a pod's directory has of volumes.
#[must_use]
pub fn plan_tear_down(found: &PodOnDisk, pods: &Path) -> TearDown {
    let layout = PodLayout::new(pods, &found.uid);
    let sub_paths = layout.sub_paths();
    let names = found
        .volumes
        .iter()
        .map(|volume| volume.name.as_str())
        .chain(found.markers.iter().map(|marker| volume_of_marker(marker)))
        .chain(found.sub_paths.iter().map(|sub_path| sub_path.volume.as_str()))
        .chain(
            found
                .mounts
                .iter()
                .filter_map(|mount| bound_volume(mount, &sub_paths)),
        );
    let names: BTreeSet<&str> = names.collect();
    let mut planned = TearDown::default();
    for name in names {
        let volumes = found.volumes.iter().filter(|volume| volume.name == name);
        let (plain, unknown): (Vec<_>, Vec<_>) =
            volumes.partition(|volume| PLAIN_PLUGINS.contains(&volume.plugin.as_str()));
        let unknown = unknown.iter().map(|volume| volume.path.clone());
        let known = planned.unknown.len();
        planned.unknown.extend(unknown);
        let mut actions = Vec::new();
        if planned.unknown.len() == known {
            for marker in found
                .markers
                .iter()
                .filter(|marker| volume_of_marker(marker) == name)
            {
                actions.push(VolumeAction::RemoveTree {
                    path: layout.marker(marker),
                });
            }
        }
        let bound = sub_paths.join(name);
        take_down(&bound, &found.mounts, &mut actions);
        actions.push(VolumeAction::RemoveEmptyDirectory {
            path: sub_paths.clone(),
        });
        let key = plain
            .first()
            .map_or_else(|| bound.clone(), |volume| volume.path.clone());
        for volume in plain {
            take_down(&volume.path, &found.mounts, &mut actions);
        }
        planned.volumes.push(VolumeTearDown {
            volume: name.to_owned(),
            key,
            steps: steps(name, actions),
        });
    }
    planned
}

/// A mounted volume of a plugin that is not known.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnknownVolume {
    pub uid: PodUid,
    /// As upstream names it: `kubernetes.io/csi`.
    pub plugin: String,
    /// The name of the directory: of the persistent volume, or of the pod's volume.
    pub name: String,
}

/// Every mounted volume that only another kubelet can take down, by pod.
#[must_use]
pub fn unknown_volumes(found: &[PodOnDisk], pods: &Path) -> BTreeSet<UnknownVolume> {
    let mut unknown = BTreeSet::new();
    for pod in found {
        let volumes = PodLayout::new(pods, &pod.uid).volumes();
        for mount in &pod.mounts {
            let Ok(below) = mount.path.strip_prefix(&volumes) else {
                continue;
            };
            let mut names = below.components().filter_map(|part| part.as_os_str().to_str());
            let (Some(plugin), Some(name)) = (names.next(), names.next()) else {
                continue;
            };
            if !PLAIN_PLUGINS.contains(&plugin) {
                unknown.insert(UnknownVolume {
                    uid: pod.uid.clone(),
                    plugin: plugin.replace('~', "/"),
                    name: name.to_owned(),
                });
            }
        }
    }
    unknown
}

/// The volume of a bind that is mounted below `volume-subpaths`.
fn bound_volume<'a>(mount: &'a MountPoint, sub_paths: &Path) -> Option<&'a str> {
    let below = mount.path.strip_prefix(sub_paths).ok()?;
    below.components().next()?.as_os_str().to_str()
}

/// Unmounts what is at and below a path, the innermost first, and removes the rest.
fn take_down(path: &Path, mounts: &[MountPoint], actions: &mut Vec<VolumeAction>) {
    // Paths in order have what carries a mount before it.
    let inside: BTreeSet<&Path> = mounts
        .iter()
        .map(|mount| mount.path.as_path())
        .filter(|mounted| mounted.starts_with(path))
        .collect();
    for mounted in inside.into_iter().rev() {
        actions.push(VolumeAction::Unmount {
            target: mounted.to_owned(),
            // What is below the volume's own mount came from containers or is a bind: its filesystem may be dead, and no container
            // of this pod is left to use it.
            lazy: mounted != path,
        });
    }
    actions.push(VolumeAction::RemoveTree {
        path: path.to_owned(),
    });
}
