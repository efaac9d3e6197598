//! Volumes of pods as plans: what has to be set up before containers start, what a container gets mounted, and what is taken
//! down in the end.
//!
//! Owns the kinds of volumes, their rules and the layout on disk, which is upstream's. Plans are lists of
//! [`rubelet_model::volume_step::VolumeStep`]; executing them is the host adapter's part. It must not touch files, mounts, the
//! API server or the clock: what is on disk, and the objects that volumes show, come in as data.

mod contents;
mod empty_dir;
mod files;
pub mod layout;
mod mounts;
mod nested;
mod objects;
mod set_up;
mod tear_down;
mod volume;

use std::net::IpAddr;
use std::path::PathBuf;

use rubelet_resources::{NodeFacts, Rules};

pub use layout::PodLayout;
pub use mounts::{ContainerMounts, MountInputs, plan_mounts};
pub use objects::{
    Absence, Answer, BundleNeed, CertificateNeed, Credentials, ObjectAnswers, ObjectNeeds, TokenNeed,
};
pub use set_up::{SetUp, VolumeSetUp, plan_set_up};
pub use tear_down::{TearDown, UnknownVolume, VolumeTearDown, plan_tear_down, unknown_volumes};
pub use volume::{ImageVolume, image_volumes, uses_volumes};

/// The node, as far as volumes see it.
#[derive(Clone, Debug)]
pub struct StorageNode {
    pub rules: Rules,
    /// What pods may use of memory is the limit of what they keep in it.
    pub facts: NodeFacts,
    /// The node's addresses, the primary one first.
    pub host_ips: Vec<IpAddr>,
    pub is_selinux_enabled: bool,
    pub gates: StorageGates,
}

/// Gates that change what a volume is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StorageGates {
    /// `EmptyDirVolumeMode`
    pub empty_dir_mode: bool,
    /// `AtomicWriteVolumeUserFields`
    pub file_users: bool,
    /// `VolumeBindMountOptions`
    pub bind_mount_options: bool,
}

/// Why a volume cannot be set up or mounted. The texts are upstream's where it has some, because users search for them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StorageError {
    #[error("{kind} volumes are not supported yet")]
    NotSupported { kind: &'static str },
    #[error("{field}: {reason}")]
    NoPlugin { field: String, reason: &'static str },
    #[error("unknown storage medium {0:?}")]
    Medium(String),
    #[error("medium: {0} can't be used if container requests multiple huge page sizes")]
    ManyPageSizes(String),
    #[error("medium {0}: hugePages storage requested, but there is no resource request for huge pages")]
    NoHugePages(String),
    #[error("invalid HostPath `{path}`: must not contain '..'")]
    HostPathBacksteps { path: String },
    #[error("{0} is an invalid volume type")]
    HostPathType(String),
    #[error(transparent)]
    Quantity(#[from] rubelet_resources::BadQuantity),
    #[error("sizeLimit {0:?} is not a quantity")]
    SizeLimit(String),
    #[error("file {path:?}: {problem}")]
    File {
        path: String,
        problem: rubelet_lifecycle::configuration::downward::DownwardError,
    },
    #[error("invalid path: {0}")]
    FilePath(String),
    #[error("invalid path: {} cannot be both a file and the directory of {}", .file.display(), .below.display())]
    FileAsDirectory { file: PathBuf, below: PathBuf },
    /// The error of the API server or of the cache of its objects.
    #[error("{0}")]
    Object(String),
    #[error("configmap references non-existent config key: {0}")]
    NoConfigKey(String),
    #[error("references non-existent secret key: {0}")]
    NoSecretKey(String),
    #[error("ClusterTrustBundle projection requires either name or signerName to be set")]
    BundleNobody,
    /// Each with its own text.
    #[error("[{}]", texts(.0).join(", "))]
    Several(Vec<StorageError>),
    #[error("invalid container mount point {0}")]
    MountPoint(String),
    #[error("cannot find volume {volume:?} to mount into container {container:?}")]
    NoVolume { volume: String, container: String },
    #[error("missing value for {}", .0.join(", "))]
    MissingValues(Vec<String>),
    #[error("error SubPath `{0}` must not be an absolute path")]
    AbsoluteSubPath(String),
    #[error("unable to provision SubPath `{0}`: must not contain '..'")]
    SubPathBacksteps(String),
    #[error("invalid MountPropagation mode: {0:?}")]
    Propagation(String),
    #[error("failed to resolve recursive read-only mode: {0}")]
    RecursiveReadOnly(String),
    #[error("volume {0:?} is a block device, which is not supported yet")]
    Device(String),
}

fn texts(errors: &[StorageError]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

impl StorageError {
    /// All problems as one error, without duplicates.
    ///
    /// # Errors
    /// When there is any.
    pub(crate) fn all_of(problems: Vec<Self>) -> Result<(), Self> {
        let mut all: Vec<Self> = Vec::new();
        for problem in problems {
            let parts = match problem {
                Self::Several(parts) => parts,
                one => vec![one],
            };
            for part in parts {
                if !texts(&all).contains(&part.to_string()) {
                    all.push(part);
                }
            }
        }
        match all.len() {
            0 => Ok(()),
            1 => Err(all.remove(0)),
            _ => Err(Self::Several(all)),
        }
    }
}
