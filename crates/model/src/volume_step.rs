//! What has to be done on the node for the volumes of a pod, as data.
//!
//! Owns the steps that the planner (pure) hands to the executor (system calls). Every step can be repeated: one whose effect is
//! there already does nothing, so that a crash between two steps is healed by the same list again.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::observation::PodUid;

/// One step of one volume. When a step fails, the later steps of the same volume are left out; other volumes go on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VolumeStep {
    /// The name of the volume in the pod.
    pub volume: String,
    pub action: VolumeAction,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum VolumeAction {
    /// Ends this volume's list successfully when it was set up before: the marker file `ready` is in `marker`, and `directory`
    /// is there (as a mount point of a tmpfs when `mounted`). So nothing of what the containers changed is changed back.
    EndIfReady {
        marker: PathBuf,
        directory: PathBuf,
        mounted: bool,
    },
    /// Makes a directory, its parents with 0750, and gives it exactly this mode whatever the umask. One that exists keeps its
    /// content and gets the mode; a mount point at `path` is left as it is.
    MakeDirectory { path: PathBuf, mode: u32 },
    /// Makes the marker's directory (0750) and the file `ready` (0644) in it.
    MarkReady { marker: PathBuf },
    /// Mounts a tmpfs at an existing directory, with the default mode of its root, `size=` when given and `noswap` where the kernel
    /// has it. A tmpfs that is mounted there stays as it is; any other mount there is an error.
    MountTmpfs {
        target: PathBuf,
        size_bytes: Option<u64>,
    },
    /// Mounts a hugetlbfs at an existing directory. One that is mounted there stays, if its page size is `page_size_bytes`
    /// (or any, when `any_page_size`).
    MountHugePages {
        target: PathBuf,
        page_size_bytes: u64,
        any_page_size: bool,
    },
    /// Checks that a path of the node has the type the pod asks for, and creates it where that type is one of `…OrCreate`.
    CheckHostPath { path: PathBuf, kind: HostPathKind },
    /// Writes the files of a volume: into a new timestamped directory, then `..data` is switched over by a rename, links for
    /// the visible names are made, names that are gone are removed. Nothing is written when the files are there already.
    WritePayload {
        target: PathBuf,
        /// Sorted by path, without duplicates.
        files: Vec<PayloadFile>,
        /// For the whole volume, before the switch.
        ownership: Option<Ownership>,
    },
    /// Changes group and modes of everything in a volume. Single files that cannot be changed are no error.
    SetOwnership { path: PathBuf, ownership: Ownership },
    /// Opens `relative` below `volume_root` without ever leaving it (symlinks inside are followed, out of it they are an
    /// error), makes the directories that are missing with the mode of the root, and binds what was opened to `target`.
    /// A bind of the same file or directory stays; another one, a broken or a stale one is detached and made anew.
    BindSubPath {
        /// The root itself may be a symlink; it is resolved first.
        volume_root: PathBuf,
        relative: PathBuf,
        target: PathBuf,
    },
    /// Unmounts what is mounted exactly at `target`, all of it when several mounts lie upon each other. Nothing mounted there
    /// is no error. `lazy` detaches a mount whose filesystem does not answer.
    Unmount { target: PathBuf, lazy: bool },
    /// Removes a file or a directory with everything in it. It never crosses a mount: something mounted at or below it is an
    /// error, and then as little as possible has been removed. What is missing is no error.
    RemoveTree { path: PathBuf },
    /// Removes a directory if it is empty; one that is not, or is missing, is no error.
    RemoveEmptyDirectory { path: PathBuf },
}

/// The types of a hostPath volume that are checked. The empty type means no check, and no step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HostPathKind {
    /// Made with 0755 when missing, with its parents.
    DirectoryOrCreate,
    Directory,
    /// Made empty with 0644 when missing; its directory has to be there.
    FileOrCreate,
    File,
    Socket,
    CharDevice,
    BlockDevice,
}

impl HostPathKind {
    /// The message when something else is at the path. `found` is the type that is there, with the API's name (`Directory`, `File`,
    /// `Socket`, `CharDevice`, `BlockDevice`), or why the type is not known: `path "…" does not exist`.
    #[must_use]
    pub fn mismatch(self, path: &Path, found: Result<&str, &str>) -> String {
        let noun = match self {
            Self::DirectoryOrCreate | Self::Directory => "directory",
            Self::FileOrCreate | Self::File => "file",
            Self::Socket => "socket file",
            Self::CharDevice => "character device",
            Self::BlockDevice => "block device",
        };
        let path = path.display();
        match found {
            Ok(found) => format!("hostPath type check failed: {path} is not a {noun}, it's a {found}"),
            Err(problem) => {
                format!(
                    "hostPath type check failed, {path} is not a {noun}, unable to determine its type: {problem}"
                )
            }
        }
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub struct PayloadFile {
    /// Relative, clean, without `..` at its beginning.
    pub path: PathBuf,
    pub content: Vec<u8>,
    /// Exactly, whatever the umask.
    pub mode: u32,
    /// The owner of the file; root when none is given.
    pub owner: Option<u32>,
}

// Contents may be secret, so they never show.
impl fmt::Debug for PayloadFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("PayloadFile")
            .field("path", &self.path)
            .field("bytes", &self.content.len())
            .field("mode", &format_args!("{:o}", self.mode))
            .field("owner", &self.owner)
            .finish()
    }
}

/// The group that a volume belongs to. Everything in it gets the group and `g+rw` (`g+r` when read-only, for the owner too),
/// directories `g+x` and setgid as well. Modes of symlinks stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ownership {
    pub group: u32,
    pub policy: OwnershipPolicy,
    pub read_only: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OwnershipPolicy {
    Always,
    /// Nothing is done when the root directory has group and modes already.
    OnRootMismatch,
}

impl VolumeAction {
    /// What the step does, for people: "mount tmpfs".
    #[must_use]
    pub fn verb(&self) -> &'static str {
        match self {
            Self::EndIfReady { .. } => "look whether it is ready",
            Self::MakeDirectory { .. } => "make directory",
            Self::MarkReady { .. } => "mark as ready",
            Self::MountTmpfs { .. } => "mount tmpfs",
            Self::MountHugePages { .. } => "mount hugetlbfs",
            Self::CheckHostPath { .. } => "check hostPath",
            Self::WritePayload { .. } => "write files",
            Self::SetOwnership { .. } => "set group",
            Self::BindSubPath { .. } => "bind subPath",
            Self::Unmount { .. } => "unmount",
            Self::RemoveTree { .. } | Self::RemoveEmptyDirectory { .. } => "remove",
        }
    }

    /// The path that the step changes or looks at.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::EndIfReady { directory: path, .. }
            | Self::MakeDirectory { path, .. }
            | Self::MarkReady { marker: path }
            | Self::MountTmpfs { target: path, .. }
            | Self::MountHugePages { target: path, .. }
            | Self::CheckHostPath { path, .. }
            | Self::WritePayload { target: path, .. }
            | Self::SetOwnership { path, .. }
            | Self::BindSubPath { target: path, .. }
            | Self::Unmount { target: path, .. }
            | Self::RemoveTree { path }
            | Self::RemoveEmptyDirectory { path } => path,
        }
    }
}

/// A line of the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPoint {
    pub path: PathBuf,
    /// `tmpfs`, `hugetlbfs`, `ext4`, …
    pub filesystem: String,
}

/// What a pod's directory holds of volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodOnDisk {
    pub uid: PodUid,
    /// `volumes/<plugin>/<name>`.
    pub volumes: Vec<VolumeOnDisk>,
    /// Names in `plugins/kubernetes.io~empty-dir`: the markers of volumes that were set up.
    pub markers: Vec<String>,
    /// `volume-subpaths/<volume>/<container>/<index>`.
    pub sub_paths: Vec<SubPathOnDisk>,
    /// Mounts at or below the pod's directory, in the order of mounting.
    pub mounts: Vec<MountPoint>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VolumeOnDisk {
    /// As the directory is called: `kubernetes.io~empty-dir`.
    pub plugin: String,
    pub name: String,
    pub path: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SubPathOnDisk {
    pub volume: String,
    pub container: String,
    pub index: String,
    pub path: PathBuf,
}
