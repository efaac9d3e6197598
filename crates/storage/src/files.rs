//! The files of a volume: paths, modes, owners and contents, gathered one by one.
//!
//! Owns what a path may look like, that of two files with one path the later counts, and that no file is a directory of
//! another. It writes nothing.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;
use rubelet_model::volume_step::PayloadFile;

use crate::{StorageError, StorageNode};

/// What API defaulting fills in.
const DEFAULT_MODE: i32 = 0o644;
/// What holds a credential is for its owner alone, if there is one.
const OWNERS_MODE: i32 = 0o600;

const MAX_NAME_BYTES: usize = 255;
const MAX_PATH_BYTES: usize = 4096;

/// What all files of a volume have in common.
#[derive(Clone, Copy)]
pub(crate) struct FileDefaults {
    mode: i32,
    /// `None` while the gate is off.
    user: Option<i64>,
    has_item_users: bool,
    /// The user that all containers run as, if they agree.
    fs_user: Option<i64>,
    has_group: bool,
}

/// Who may do what with a file.
#[derive(Clone, Copy)]
pub(crate) struct Access {
    mode: i32,
    user: Option<i64>,
}

impl FileDefaults {
    pub(crate) fn new(mode: Option<i32>, user: Option<i64>, pod: &Pod, node: &StorageNode) -> Self {
        let context = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
        Self {
            mode: mode.unwrap_or(DEFAULT_MODE),
            user: user.filter(|_| node.gates.file_users),
            has_item_users: node.gates.file_users,
            fs_user: common_user(pod),
            has_group: context.is_some_and(|context| context.fs_group.is_some()),
        }
    }

    /// A file that may have a mode and an owner of its own.
    pub(crate) fn item(self, mode: Option<i32>, user: Option<i64>) -> Access {
        Access {
            mode: mode.unwrap_or(self.mode),
            user: user.filter(|_| self.has_item_users).or(self.user),
        }
    }

    /// A token, a key or what goes with them. It belongs to the pod's user whatever the gate; a group gets its right to read
    /// together with the rest of the volume.
    pub(crate) fn credential(self, user: Option<i64>) -> Access {
        let user = self.item(None, user).user.or(self.fs_user);
        let mode = if user.is_some() || self.has_group {
            OWNERS_MODE
        } else {
            self.mode
        };
        Access { mode, user }
    }
}

/// The user of all containers, when every one names the same.
fn common_user(pod: &Pod) -> Option<i64> {
    let spec = pod.spec.as_ref()?;
    let pod_wide = spec
        .security_context
        .as_ref()
        .and_then(|context| context.run_as_user);
    let init = spec.init_containers.iter().flatten();
    let regular = init
        .chain(&spec.containers)
        .map(|one| one.security_context.as_ref());
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let contexts = regular.chain(ephemeral.map(|one| one.security_context.as_ref()));
    let mut users = contexts.map(|context| context.and_then(|context| context.run_as_user).or(pod_wide));
    let first = users.next()??;
    users.all(|user| user == Some(first)).then_some(first)
}

/// The files so far.
#[derive(Default)]
pub(crate) struct Files {
    by_path: BTreeMap<PathBuf, PayloadFile>,
    bad_paths: Vec<StorageError>,
}

impl Files {
    /// Adds a file, or puts it in the place of an earlier one.
    pub(crate) fn put(&mut self, path: &str, access: Access, content: Vec<u8>) {
        let path = match clean(path) {
            Ok(path) => path,
            Err(problem) => return self.bad_paths.push(problem),
        };
        let file = PayloadFile {
            path: path.clone(),
            content,
            // Validation lets no mode through that has other bits.
            mode: u32::try_from(access.mode).unwrap_or_default() & 0o7777,
            owner: access.user.and_then(|user| u32::try_from(user).ok()),
        };
        self.by_path.insert(path, file);
    }

    /// All of them by path. Errors of paths are reported only now: a missing object comes first.
    pub(crate) fn finish(self) -> Result<Vec<PayloadFile>, StorageError> {
        StorageError::all_of(self.bad_paths)?;
        for path in self.by_path.keys() {
            let mut above = path.ancestors().skip(1);
            if let Some(file) = above.find_map(|above| self.by_path.get(above)) {
                return Err(StorageError::FileAsDirectory {
                    file: file.path.clone(),
                    below: path.clone(),
                });
            }
        }
        Ok(self.by_path.into_values().collect())
    }
}

/// A path that stays in its volume and does not hide as one of the volume's own names.
fn clean(path: &str) -> Result<PathBuf, StorageError> {
    let refused = |reason: String| Err(StorageError::FilePath(reason));
    if path.starts_with('/') {
        return refused(format!("must be relative path: {path}"));
    }
    if path.len() > MAX_PATH_BYTES {
        return refused(format!(
            "must be less than or equal to {MAX_PATH_BYTES} characters"
        ));
    }
    let mut cleaned = PathBuf::new();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) if name.len() > MAX_NAME_BYTES => {
                return refused(format!(
                    "filenames must be less than or equal to {MAX_NAME_BYTES} characters"
                ));
            }
            Component::Normal(name) => cleaned.push(name),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return refused(format!("must not contain '..': {path}"));
            }
        }
    }
    if cleaned.as_os_str().is_empty() {
        return refused(format!("must not be empty: {path:?}"));
    }
    if cleaned.as_os_str().as_encoded_bytes().starts_with(b"..") {
        return refused(format!("must not start with '..': {path}"));
    }
    Ok(cleaned)
}
