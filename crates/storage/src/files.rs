//! The files of downwardAPI and projected volumes.
//!
//! Owns paths, modes and contents. It writes nothing.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, Pod, ProjectedVolumeSource};
use rubelet_lifecycle::configuration::downward::{Addresses, field_value, resource_value};
use rubelet_lifecycle::configuration::unsupported_volumes::projection_type;
use rubelet_model::volume_step::PayloadFile;
use rubelet_resources::{ContainerDemand, PodDemand};

use crate::{StorageError, StorageNode};

/// What API defaulting fills in.
const DEFAULT_MODE: i32 = 0o644;

/// What all files of a volume have in common.
#[derive(Clone, Copy)]
pub(crate) struct FileDefaults {
    pub(crate) mode: Option<i32>,
    pub(crate) user: Option<i64>,
}

/// What the contents are taken from.
#[derive(Clone, Copy)]
pub(crate) struct FileSources<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) node: &'a StorageNode,
}

type Files = BTreeMap<PathBuf, PayloadFile>;

pub(crate) fn downward_files(
    items: &[DownwardAPIVolumeFile],
    defaults: FileDefaults,
    sources: FileSources<'_>,
) -> Result<Vec<PayloadFile>, StorageError> {
    let mut files = Files::new();
    collect(items, defaults, sources, &mut files)?;
    Ok(files.into_values().collect())
}

/// The files of all sources; of two with the same path the later counts.
pub(crate) fn projected_files(
    source: &ProjectedVolumeSource,
    sources: FileSources<'_>,
) -> Result<Vec<PayloadFile>, StorageError> {
    let defaults = FileDefaults {
        mode: source.default_mode,
        user: source.default_user,
    };
    let mut files = Files::new();
    for projection in source.sources.iter().flatten() {
        let Some(downward) = &projection.downward_api else {
            let kind = projection_type(projection);
            return Err(StorageError::NotSupported { kind });
        };
        let items = downward.items.as_deref().unwrap_or_default();
        collect(items, defaults, sources, &mut files)?;
    }
    Ok(files.into_values().collect())
}

fn collect(
    items: &[DownwardAPIVolumeFile],
    defaults: FileDefaults,
    sources: FileSources<'_>,
    files: &mut Files,
) -> Result<(), StorageError> {
    for item in items {
        let path = clean(&item.path)?;
        let mode = item.mode.or(defaults.mode).unwrap_or(DEFAULT_MODE);
        let user = item
            .user
            .or(defaults.user)
            .filter(|_| sources.node.gates.file_users);
        let file = PayloadFile {
            path: path.clone(),
            content: content(item, sources)?.into_bytes(),
            // Validation lets no mode through that has other bits.
            mode: u32::try_from(mode).unwrap_or_default() & 0o7777,
            owner: user.and_then(|user| u32::try_from(user).ok()),
        };
        files.insert(path, file);
    }
    Ok(())
}

fn content(item: &DownwardAPIVolumeFile, sources: FileSources<'_>) -> Result<String, StorageError> {
    let FileSources { pod, node } = sources;
    let value = if let Some(selector) = &item.field_ref {
        let addresses = Addresses {
            pod_ips: &[],
            node_ips: &node.node_ips,
        };
        field_value(selector, pod, addresses)
    } else if let Some(selector) = &item.resource_field_ref {
        let demand = PodDemand::read(pod)?;
        // Files always name their container.
        let nobody = ContainerDemand::default();
        resource_value(selector, &demand, &nobody, &node.rules, &node.facts.allocatable)
    } else {
        Ok(String::new())
    };
    value.map_err(|problem| StorageError::File {
        path: item.path.clone(),
        problem,
    })
}

/// A path that stays in its volume and does not hide as one of the volume's own names.
fn clean(path: &str) -> Result<PathBuf, StorageError> {
    let bad = || StorageError::FilePath(path.to_owned());
    let mut cleaned = PathBuf::new();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => cleaned.push(name),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return Err(bad()),
        }
    }
    let is_hidden = path.starts_with("..");
    if cleaned.as_os_str().is_empty() || is_hidden {
        return Err(bad());
    }
    Ok(cleaned)
}
