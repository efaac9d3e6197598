//! What one container gets mounted.
//!
//! Owns the CRI mounts of a container's `volumeMounts`, and the binds of sub paths that have to be made right before the
//! container: later its own pod could change what a path leads to.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, Pod, Volume, VolumeMount};
use rubelet_lifecycle::configuration::expansion::expand;
use rubelet_model::volume_step::{VolumeAction, VolumeStep};
use rubelet_wire::cri::v1::{ImageSpec, Mount, MountPropagation};

use crate::layout::{CONFIG_MAP, DOWNWARD_API, EMPTY_DIR, PROJECTED, PodLayout, SECRET};
use crate::volume::Kind;
use crate::{StorageError, StorageNode};

/// What is known besides pod and container.
#[derive(Clone, Copy)]
pub struct MountInputs<'a> {
    pub layout: &'a PodLayout,
    /// The container's variables, for `subPathExpr`.
    pub environment: &'a BTreeMap<String, String>,
    /// The images of image volumes, by volume.
    pub images: &'a BTreeMap<String, ImageSpec>,
    pub supports_recursive_read_only: bool,
    pub node: &'a StorageNode,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerMounts {
    pub mounts: Vec<Mount>,
    /// Sub paths to bind first.
    pub binds: Vec<VolumeStep>,
}

/// Plans the mounts of a container.
///
/// # Errors
/// When a mount is not possible; the container does not start then.
pub fn plan_mounts(
    pod: &Pod,
    container: &Container,
    inputs: MountInputs<'_>,
) -> Result<ContainerMounts, StorageError> {
    let mut planned = ContainerMounts::default();
    if let Some(device) = container.volume_devices.iter().flatten().next() {
        return Err(StorageError::Device(device.name.clone()));
    }
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let volume = find(pod, container, mount)?;
        let kind = Kind::of(volume)?;
        let sub_path = sub_path(mount, inputs.environment)?;
        let is_read_only = mount.read_only == Some(true) || kind.is_read_only();
        let mut made = Mount {
            container_path: absolute(&mount.mount_path),
            readonly: is_read_only,
            selinux_relabel: kind.is_managed() && inputs.node.is_selinux_enabled,
            propagation: propagation(mount)?.into(),
            recursive_read_only: recursive_read_only(mount, inputs.supports_recursive_read_only)?,
            ..Mount::default()
        };
        if inputs.node.gates.bind_mount_options {
            made.mount_options = mount.bind_mount_options.clone().unwrap_or_default();
        }
        match host_directory(volume, kind, inputs.layout) {
            None => {
                let image = inputs.images.get(&volume.name);
                made.image = Some(image.cloned().ok_or_else(|| no_volume(container, mount))?);
                made.image_sub_path = sub_path;
            }
            Some(directory) if sub_path.is_empty() => made.host_path = text(&directory),
            Some(directory) => {
                let target = inputs.layout.sub_path(&volume.name, &container.name, index);
                made.host_path = text(&target);
                planned.binds.push(VolumeStep {
                    volume: volume.name.clone(),
                    action: VolumeAction::BindSubPath {
                        volume_root: directory,
                        relative: PathBuf::from(sub_path),
                        target,
                    },
                });
            }
        }
        planned.mounts.push(made);
    }
    Ok(planned)
}

fn no_volume(container: &Container, mount: &VolumeMount) -> StorageError {
    StorageError::NoVolume {
        volume: mount.name.clone(),
        container: container.name.clone(),
    }
}

fn find<'a>(pod: &'a Pod, container: &Container, mount: &VolumeMount) -> Result<&'a Volume, StorageError> {
    let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes
        .find(|volume| volume.name == mount.name)
        .ok_or_else(|| no_volume(container, mount))
}

/// Where the volume is on the node; an image is nowhere.
fn host_directory(volume: &Volume, kind: Kind<'_>, layout: &PodLayout) -> Option<PathBuf> {
    match kind {
        Kind::EmptyDir(_) => Some(layout.volume(EMPTY_DIR, &volume.name)),
        Kind::HostPath(source) => Some(PathBuf::from(&source.path)),
        Kind::DownwardApi(_) => Some(layout.volume(DOWNWARD_API, &volume.name)),
        Kind::ConfigMap(_) => Some(layout.volume(CONFIG_MAP, &volume.name)),
        Kind::Secret(_) => Some(layout.volume(SECRET, &volume.name)),
        Kind::Projected(_) => Some(layout.volume(PROJECTED, &volume.name)),
        Kind::Image => None,
    }
}

/// The path below the volume, or nothing.
fn sub_path(mount: &VolumeMount, environment: &BTreeMap<String, String>) -> Result<String, StorageError> {
    let path = match mount.sub_path_expr.as_deref().filter(|text| !text.is_empty()) {
        Some(expression) => expanded(expression, environment)?,
        None => mount.sub_path.clone().unwrap_or_default(),
    };
    if path.starts_with('/') {
        return Err(StorageError::AbsoluteSubPath(path));
    }
    if path.split('/').any(|part| part == "..") {
        return Err(StorageError::SubPathBacksteps(path));
    }
    Ok(path)
}

/// Every variable has to have a value: an empty one would lead to the volume's root.
fn expanded(expression: &str, environment: &BTreeMap<String, String>) -> Result<String, StorageError> {
    let missing = RefCell::new(BTreeSet::new());
    let text = expand(expression, |name| {
        let value = environment.get(name).filter(|value| !value.is_empty());
        if value.is_none() {
            missing.borrow_mut().insert(name.to_owned());
        }
        value.map(String::as_str)
    });
    let missing = missing.into_inner();
    if missing.is_empty() {
        Ok(text)
    } else {
        Err(StorageError::MissingValues(missing.into_iter().collect()))
    }
}

fn propagation(mount: &VolumeMount) -> Result<MountPropagation, StorageError> {
    match mount.mount_propagation.as_deref() {
        None | Some("None") => Ok(MountPropagation::PropagationPrivate),
        Some("HostToContainer") => Ok(MountPropagation::PropagationHostToContainer),
        Some("Bidirectional") => Ok(MountPropagation::PropagationBidirectional),
        Some(other) => Err(StorageError::Propagation(other.to_owned())),
    }
}

fn recursive_read_only(mount: &VolumeMount, is_supported: bool) -> Result<bool, StorageError> {
    let wanted = match mount.recursive_read_only.as_deref() {
        None | Some("Disabled") => return Ok(false),
        Some(wanted) => wanted,
    };
    let name = &mount.name;
    let refuse = |why: String| Err(StorageError::RecursiveReadOnly(why));
    if mount.read_only != Some(true) {
        return refuse(format!(
            "volume {name:?} requested recursive read-only mode, but it is not read-only"
        ));
    }
    if let Some(propagation) = mount.mount_propagation.as_deref().filter(|mode| *mode != "None") {
        return refuse(format!(
            "volume {name:?} requested recursive read-only mode, but it is not compatible with propagation {propagation:?}"
        ));
    }
    match wanted {
        "IfPossible" => Ok(is_supported),
        "Enabled" if is_supported => Ok(true),
        "Enabled" => refuse(format!(
            "volume {name:?} requested recursive read-only mode, but it is not supported by the runtime"
        )),
        other => refuse(format!("unknown recursive read-only mode {other:?}")),
    }
}

fn absolute(path: &str) -> String {
    if path.starts_with('/') {
        path.to_owned()
    } else {
        format!("/{path}")
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
