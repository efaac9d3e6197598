//! The node's edge for volumes: what is mounted and left on disk, and the execution of steps.
//!
//! Owns the shape of the edge and its errors. A list of steps is one call, so that the volumes of a pod cost one hand-over to
//! another thread and not one per system call. Every call has a deadline, because any path may lie on a mount that is dead.

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use rubelet_model::observation::PodUid;
pub use rubelet_model::volume_step::{
    HostPathKind, MountPoint, Ownership, OwnershipPolicy, PayloadFile, PodOnDisk, SubPathOnDisk,
    VolumeAction, VolumeOnDisk, VolumeStep,
};
use thiserror::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VolumeErrorKind {
    NotFound,
    PermissionDenied,
    NoSpace,
    /// Something else than wanted is at the path: the check of a hostPath, a file where a directory is needed.
    WrongKind,
    /// A subPath leads out of its volume.
    Escape,
    /// The mount is in use.
    Busy,
    /// Something is mounted where something was to be removed, or something else than wanted is mounted.
    Mounted,
    /// The filesystem is gone: `ESTALE`, `ENOTCONN`, `EIO`.
    Corrupted,
    /// The kernel cannot do that.
    Unsupported,
    /// No answer within the deadline; the system call may still hang. Also for an earlier call under the same key.
    TimedOut,
    Other,
}

/// Why a volume's list of steps was not finished.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct VolumeStepError {
    /// The volume's name; empty when it is about no single one, as with a mount table that cannot be read.
    pub volume: String,
    /// As [`VolumeAction::verb`].
    pub step: &'static str,
    pub path: PathBuf,
    pub kind: VolumeErrorKind,
    /// A sentence for people, with the path where it helps; [`HostPathKind::mismatch`] for a failed check.
    pub message: String,
}

/// Calls that change nothing. None of them enters, or asks anything of, a filesystem that is mounted below the pods'
/// directory: names come from directories on the node's own disk, the rest from the mount table.
#[async_trait]
pub trait VolumeHostReader: Send + Sync {
    /// Every pod that has a directory below `pods` with any of a volume's traces, by UID.
    async fn pods_on_disk(&self, pods: &Path) -> Result<Vec<PodOnDisk>, VolumeStepError>;

    /// The traces of one pod. A pod without a directory has none.
    async fn pod_on_disk(&self, pods: &Path, uid: &PodUid) -> Result<PodOnDisk, VolumeStepError>;
}

/// A list of steps for one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeBatch {
    /// A batch whose key is that of an earlier one which still hangs past its deadline is refused with
    /// [`VolumeErrorKind::TimedOut`]; so a dead mount costs one thread. Batches with other keys go on.
    pub key: PathBuf,
    /// In order. Steps of one volume stand together.
    pub steps: Vec<VolumeStep>,
    pub deadline: Duration,
}

/// Calls that change something.
#[async_trait]
pub trait VolumeHostWriter: Send + Sync {
    /// Executes all steps on one thread. The answer has one error for each volume that was not finished: all that are not
    /// known to be finished when the deadline has passed, the one that hangs with its step and path. A batch that has begun
    /// stops between two steps once its deadline has passed.
    async fn execute(&self, batch: VolumeBatch) -> Vec<VolumeStepError>;
}
