//! What has to be there before the pod's containers start.
//!
//! Owns the steps of each kind of volume and their order. The same plan serves the first start, every look after it, and a
//! restart of the agent: steps whose effect is there do nothing.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::{HostPathVolumeSource, Pod, Volume};
use rubelet_lifecycle::configuration::unsupported_volumes::{needed_plugin, volume_type};
use rubelet_model::volume_step::{HostPathKind, Ownership, OwnershipPolicy, VolumeAction, VolumeStep};

use crate::contents::{KeysOf, Sources, config_map_files, downward_files, projected_files, secret_files};
use crate::empty_dir::{Medium, medium, memory_size};
use crate::files::{FileDefaults, Files};
use crate::layout::{CONFIG_MAP, DOWNWARD_API, EMPTY_DIR, PROJECTED, PodLayout, SECRET};
use crate::nested::nested_directories;
use crate::objects::ObjectAnswers;
use crate::volume::{Kind, used_volumes};
use crate::{StorageError, StorageNode};

const EMPTY_DIR_MODE: u32 = 0o777;
const NESTED_MODE: u32 = 0o755;
/// What the group of a volume adds to its directories.
const SETGID: u32 = 0o2000;

/// One volume of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSetUp {
    pub volume: String,
    /// The path of the node that is looked at, for a hostPath: it may hang, whatever else is well.
    pub host_path: Option<PathBuf>,
    /// Empty when nothing is to be done.
    pub plan: Result<Vec<VolumeStep>, StorageError>,
}

/// All volumes that the pod's containers use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetUp {
    pub volumes: Vec<VolumeSetUp>,
}

/// Plans the volumes of a pod. The answers are those to [`crate::ObjectNeeds::of`] the same pod.
#[must_use]
pub fn plan_set_up(pod: &Pod, node: &StorageNode, layout: &PodLayout, answers: &ObjectAnswers) -> SetUp {
    let planner = Planner {
        pod,
        node,
        layout,
        answers,
    };
    let volumes = used_volumes(pod).map(|volume| {
        let kind = match plugin_missing(pod, volume) {
            Some(error) => Err(error),
            None => Kind::of(volume),
        };
        VolumeSetUp {
            volume: volume.name.clone(),
            host_path: match &kind {
                Ok(Kind::HostPath(source)) => Some(PathBuf::from(&source.path)),
                _ => None,
            },
            plan: kind
                .and_then(|kind| planner.actions(&volume.name, kind))
                .map(|actions| steps(&volume.name, actions)),
        }
    });
    SetUp {
        volumes: volumes.collect(),
    }
}

/// Why the volume cannot be set up, where its kind needs a plugin.
fn plugin_missing(pod: &Pod, volume: &Volume) -> Option<StorageError> {
    let kind = volume_type(volume);
    let reason = needed_plugin(kind)?;
    let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let index = volumes.position(|one| one.name == volume.name)?;
    let field = format!("spec.volumes[{index}].{kind}");
    Some(StorageError::NoPlugin { field, reason })
}

pub(crate) fn steps(volume: &str, actions: Vec<VolumeAction>) -> Vec<VolumeStep> {
    let step = |action| VolumeStep {
        volume: volume.to_owned(),
        action,
    };
    actions.into_iter().map(step).collect()
}

struct Planner<'a> {
    pod: &'a Pod,
    node: &'a StorageNode,
    layout: &'a PodLayout,
    answers: &'a ObjectAnswers,
}

/// Where the files of a volume are kept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kept {
    OnDisk,
    InMemory,
}

impl Planner<'_> {
    fn actions(&self, name: &str, kind: Kind<'_>) -> Result<Vec<VolumeAction>, StorageError> {
        match kind {
            Kind::EmptyDir(source) => {
                let medium = medium(source, self.pod, self.node)?;
                let mode = source.mode.filter(|_| self.node.gates.empty_dir_mode);
                let mode = mode.and_then(|mode| u32::try_from(mode).ok());
                Ok(self.empty_dir(name, medium, mode.unwrap_or(EMPTY_DIR_MODE)))
            }
            Kind::HostPath(source) => host_path(source),
            Kind::DownwardApi(source) => {
                let items = source.items.as_deref().unwrap_or_default();
                let defaults = self.defaults(source.default_mode, source.default_user);
                let add = |files: &mut Files| downward_files(items, defaults, self.sources(), files);
                self.written(DOWNWARD_API, name, Kept::InMemory, add)
            }
            Kind::ConfigMap(source) => {
                let keys = KeysOf {
                    name: &source.name,
                    items: source.items.as_ref(),
                    optional: source.optional,
                };
                let defaults = self.defaults(source.default_mode, source.default_user);
                let add = |files: &mut Files| config_map_files(keys, defaults, self.sources(), files);
                self.written(CONFIG_MAP, name, Kept::OnDisk, add)
            }
            Kind::Secret(source) => {
                let keys = KeysOf {
                    name: source.secret_name.as_deref().unwrap_or_default(),
                    items: source.items.as_ref(),
                    optional: source.optional,
                };
                let defaults = self.defaults(source.default_mode, source.default_user);
                let add = |files: &mut Files| secret_files(keys, defaults, self.sources(), files);
                self.written(SECRET, name, Kept::InMemory, add)
            }
            Kind::Projected(source) => {
                let defaults = self.defaults(source.default_mode, source.default_user);
                let add = |files: &mut Files| projected_files(name, source, defaults, self.sources(), files);
                self.written(PROJECTED, name, Kept::InMemory, add)
            }
            // The runtime mounts it.
            Kind::Image => Ok(Vec::new()),
        }
    }

    fn sources(&self) -> Sources<'_> {
        Sources {
            pod: self.pod,
            node: self.node,
            answers: self.answers,
        }
    }

    fn defaults(&self, mode: Option<i32>, user: Option<i64>) -> FileDefaults {
        FileDefaults::new(mode, user, self.pod, self.node)
    }

    fn empty_dir(&self, name: &str, medium: Medium, mode: u32) -> Vec<VolumeAction> {
        let directory = self.layout.volume(EMPTY_DIR, name);
        let marker = self.layout.marker(name);
        let end_if_ready = |mounted| VolumeAction::EndIfReady {
            marker: marker.clone(),
            directory: directory.clone(),
            mounted,
        };
        let make = VolumeAction::MakeDirectory {
            path: directory.clone(),
            mode,
        };
        let target = directory.clone();
        let mut actions = match medium {
            Medium::Disk => vec![end_if_ready(false), make],
            Medium::Memory { size_bytes } => vec![
                end_if_ready(true),
                make,
                VolumeAction::MountTmpfs { target, size_bytes },
            ],
            Medium::HugePages {
                page_size_bytes,
                any_page_size,
            } => vec![
                make,
                VolumeAction::MountHugePages {
                    target,
                    page_size_bytes,
                    any_page_size,
                },
            ],
        };
        if let Some(ownership) = self.ownership(false) {
            actions.push(VolumeAction::SetOwnership {
                path: directory,
                ownership,
            });
        }
        actions.push(VolumeAction::MarkReady { marker });
        actions
    }

    /// Files that are switched over at once when they change.
    fn written(
        &self,
        plugin: &str,
        name: &str,
        kept: Kept,
        add: impl FnOnce(&mut Files) -> Result<(), StorageError>,
    ) -> Result<Vec<VolumeAction>, StorageError> {
        let mut files = Files::default();
        add(&mut files)?;
        let files = files.finish()?;
        let directory = self.layout.volume(plugin, name);
        let ownership = self.ownership(true);
        // So that directories that have their group keep what it added.
        let with_group = |mode: u32| mode | ownership.map_or(0, |_| SETGID);
        let make = |path: PathBuf, mode: u32| VolumeAction::MakeDirectory { path, mode };
        let mut actions = match kept {
            Kept::OnDisk => vec![make(directory.clone(), with_group(EMPTY_DIR_MODE))],
            Kept::InMemory => vec![
                make(directory.clone(), EMPTY_DIR_MODE),
                VolumeAction::MountTmpfs {
                    target: directory.clone(),
                    size_bytes: memory_size(self.pod, self.node, None)?,
                },
            ],
        };
        actions.push(VolumeAction::MarkReady {
            marker: self.layout.wrapped_marker(name),
        });
        for nested in nested_directories(self.pod, name)? {
            actions.push(make(directory.join(nested), with_group(NESTED_MODE)));
        }
        actions.push(VolumeAction::WritePayload {
            target: directory,
            files,
            ownership,
        });
        Ok(actions)
    }

    /// The group of the pod's volumes. Volumes of these kinds are always changed as a whole, whatever the pod's policy, as
    /// upstream: they are empty or small.
    fn ownership(&self, read_only: bool) -> Option<Ownership> {
        let context = self.pod.spec.as_ref()?.security_context.as_ref()?;
        Some(Ownership {
            group: u32::try_from(context.fs_group?).ok()?,
            policy: OwnershipPolicy::Always,
            read_only,
        })
    }
}

fn host_path(source: &HostPathVolumeSource) -> Result<Vec<VolumeAction>, StorageError> {
    if source.path.split('/').any(|part| part == "..") {
        return Err(StorageError::HostPathBacksteps {
            path: source.path.clone(),
        });
    }
    let kind = match source.type_.as_deref().unwrap_or_default() {
        "" => return Ok(Vec::new()),
        "DirectoryOrCreate" => HostPathKind::DirectoryOrCreate,
        "Directory" => HostPathKind::Directory,
        "FileOrCreate" => HostPathKind::FileOrCreate,
        "File" => HostPathKind::File,
        "Socket" => HostPathKind::Socket,
        "CharDevice" => HostPathKind::CharDevice,
        "BlockDevice" => HostPathKind::BlockDevice,
        other => return Err(StorageError::HostPathType(other.to_owned())),
    };
    Ok(vec![VolumeAction::CheckHostPath {
        path: PathBuf::from(&source.path),
        kind,
    }])
}
