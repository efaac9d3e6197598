//! The CSI drivers of this node, and the calls to them.
//!
//! Owns the shape of the edge: which drivers are registered and what they can do, typed requests, and how a call fails. When a
//! volume is staged or published, and what a failure means for it, is the caller's. Requests carry credentials in their secrets
//! and contexts: `Debug` shows none of them.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use thiserror::Error;

/// What a registered driver can do on this node; asked once per registration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CsiDriverFacts {
    /// The node's id for this driver.
    pub node_id: String,
    /// `STAGE_UNSTAGE_VOLUME`
    pub stages: bool,
    /// `GET_VOLUME_STATS`
    pub reports_stats: bool,
    /// `EXPAND_VOLUME`
    pub expands: bool,
    /// `SINGLE_NODE_MULTI_WRITER`
    pub single_node_multi_writer: bool,
    /// `VOLUME_MOUNT_GROUP`: the driver applies the group of files.
    pub mounts_with_group: bool,
    /// `GET_VOLUME_HEALTH`
    pub reports_volume_health: bool,
    /// `GET_STORAGE_HEALTH`
    pub reports_storage_health: bool,
}

/// Names and values of a request that may be credentials: only their number is shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Confidential(pub BTreeMap<String, String>);

impl fmt::Debug for Confidential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{} entries]", self.0.len())
    }
}

impl From<BTreeMap<String, String>> for Confidential {
    fn from(entries: BTreeMap<String, String>) -> Self {
        Self(entries)
    }
}

/// Access modes in Kubernetes' words; what a driver gets for one depends on what the driver can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeAccessMode {
    ReadWriteOnce,
    ReadOnlyMany,
    ReadWriteMany,
    ReadWriteOncePod,
}

impl VolumeAccessMode {
    /// As PersistentVolumes spell it.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Some(match name {
            "ReadWriteOnce" => Self::ReadWriteOnce,
            "ReadOnlyMany" => Self::ReadOnlyMany,
            "ReadWriteMany" => Self::ReadWriteMany,
            "ReadWriteOncePod" => Self::ReadWriteOncePod,
            _ => return None,
        })
    }
}

/// How a volume is given to pods.
#[derive(Clone, PartialEq, Eq)]
pub enum VolumeAccessType {
    /// As a device.
    Block,
    /// As a directory.
    Mount {
        /// Empty: the driver chooses.
        fs_type: String,
        /// Mount options; they may hold credentials.
        mount_flags: Vec<String>,
        /// `fsGroup`, for drivers that apply it ([`CsiDriverFacts::mounts_with_group`]).
        volume_mount_group: Option<i64>,
    },
}

impl fmt::Debug for VolumeAccessType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block => f.write_str("Block"),
            Self::Mount {
                fs_type,
                mount_flags,
                volume_mount_group,
            } => f
                .debug_struct("Mount")
                .field("fs_type", fs_type)
                .field("mount_flags", &format_args!("[{} flags]", mount_flags.len()))
                .field("volume_mount_group", volume_mount_group)
                .finish(),
        }
    }
}

/// `NodeStageVolume`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageVolume {
    pub volume_id: String,
    pub publish_context: Confidential,
    pub staging_target_path: PathBuf,
    pub access_type: VolumeAccessType,
    pub access_mode: VolumeAccessMode,
    pub secrets: Confidential,
    pub volume_context: Confidential,
    /// The volume is of an in-tree kind that was translated to this driver: a label of metrics.
    pub is_migrated: bool,
}

/// `NodeUnstageVolume`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnstageVolume {
    pub volume_id: String,
    pub staging_target_path: PathBuf,
}

/// `NodePublishVolume`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishVolume {
    pub volume_id: String,
    pub publish_context: Confidential,
    pub staging_target_path: Option<PathBuf>,
    pub target_path: PathBuf,
    pub access_type: VolumeAccessType,
    pub access_mode: VolumeAccessMode,
    pub is_read_only: bool,
    pub secrets: Confidential,
    pub volume_context: Confidential,
    pub is_migrated: bool,
}

/// `NodeUnpublishVolume`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnpublishVolume {
    pub volume_id: String,
    pub target_path: PathBuf,
}

/// `NodeExpandVolume`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpandVolume {
    pub volume_id: String,
    /// Where it is published, or the device.
    pub volume_path: PathBuf,
    pub staging_target_path: Option<PathBuf>,
    pub required_bytes: i64,
    pub access_type: VolumeAccessType,
    pub access_mode: VolumeAccessMode,
    pub secrets: Confidential,
    pub is_migrated: bool,
}

/// `NodeGetVolumeStats`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeStatsQuestion {
    pub volume_id: String,
    pub volume_path: PathBuf,
    pub staging_target_path: Option<PathBuf>,
    pub is_migrated: bool,
}

/// One unit of a volume's usage, as the driver gives it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CsiUsage {
    pub available: i64,
    pub total: i64,
    pub used: i64,
}

/// At least one of both is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CsiVolumeStats {
    pub bytes: Option<CsiUsage>,
    pub inodes: Option<CsiUsage>,
}

/// What the state of the volume is after a call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CsiErrorKind {
    /// The driver got nothing: the state is what it was before.
    NotCalled,
    /// The driver may have done it, or may still do it.
    Uncertain,
    /// The driver has not done it.
    Final,
}

/// The code of gRPC with which a driver answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CsiCode {
    Cancelled,
    Unknown,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Aborted,
    OutOfRange,
    Unimplemented,
    Internal,
    Unavailable,
    DataLoss,
    Unauthenticated,
}

impl CsiCode {
    /// What the code means for the volume, by upstream's rule.
    #[must_use]
    pub fn kind(self) -> CsiErrorKind {
        match self {
            Self::Cancelled
            | Self::DeadlineExceeded
            | Self::Unavailable
            | Self::ResourceExhausted
            | Self::Aborted => CsiErrorKind::Uncertain,
            Self::Unknown
            | Self::InvalidArgument
            | Self::NotFound
            | Self::AlreadyExists
            | Self::PermissionDenied
            | Self::FailedPrecondition
            | Self::OutOfRange
            | Self::Unimplemented
            | Self::Internal
            | Self::DataLoss
            | Self::Unauthenticated => CsiErrorKind::Final,
        }
    }

    /// As Go's gRPC spells it, in messages and labels of metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cancelled => "Canceled",
            Self::Unknown => "Unknown",
            Self::InvalidArgument => "InvalidArgument",
            Self::DeadlineExceeded => "DeadlineExceeded",
            Self::NotFound => "NotFound",
            Self::AlreadyExists => "AlreadyExists",
            Self::PermissionDenied => "PermissionDenied",
            Self::ResourceExhausted => "ResourceExhausted",
            Self::FailedPrecondition => "FailedPrecondition",
            Self::Aborted => "Aborted",
            Self::OutOfRange => "OutOfRange",
            Self::Unimplemented => "Unimplemented",
            Self::Internal => "Internal",
            Self::Unavailable => "Unavailable",
            Self::DataLoss => "DataLoss",
            Self::Unauthenticated => "Unauthenticated",
        }
    }
}

/// A failed call, with upstream's message: `rpc error: code = … desc = …`, or why there was no call.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct CsiError {
    pub kind: CsiErrorKind,
    /// `None`: there was no call.
    pub code: Option<CsiCode>,
    pub message: String,
}

impl CsiError {
    /// The driver was not called.
    #[must_use]
    pub fn not_called(message: impl Into<String>) -> Self {
        Self {
            kind: CsiErrorKind::NotCalled,
            code: None,
            message: message.into(),
        }
    }

    /// The driver answered with a code, or its answer did not come.
    #[must_use]
    pub fn answered(code: CsiCode, description: &str) -> Self {
        Self {
            kind: code.kind(),
            code: Some(code),
            message: format!("rpc error: code = {} desc = {description}", code.name()),
        }
    }

    /// There is no such driver on this node now; [`CsiDrivers::changes`] says when to look again.
    #[must_use]
    pub fn not_registered(driver: &str) -> Self {
        Self::not_called(format!(
            "driver name {driver} not found in the list of registered CSI drivers"
        ))
    }
}

/// An item for each registration and deregistration since the call, with the number of changes so far. Items that are not
/// taken are replaced by later ones. It never ends.
pub type DriverChanges = BoxStream<'static, u64>;

/// The calls to drivers. Each has a deadline of its own; when the future is dropped, the driver may have got the call. None is
/// tried again by itself.
#[async_trait]
pub trait CsiDrivers: Send + Sync {
    /// `None` until the driver is registered.
    fn driver(&self, name: &str) -> Option<CsiDriverFacts>;

    fn changes(&self) -> DriverChanges;

    async fn stage(&self, driver: &str, call: StageVolume) -> Result<(), CsiError>;
    async fn unstage(&self, driver: &str, call: UnstageVolume) -> Result<(), CsiError>;
    async fn publish(&self, driver: &str, call: PublishVolume) -> Result<(), CsiError>;
    async fn unpublish(&self, driver: &str, call: UnpublishVolume) -> Result<(), CsiError>;

    /// The capacity that the driver answers with; zero when it does not know.
    async fn expand(&self, driver: &str, call: ExpandVolume) -> Result<i64, CsiError>;

    async fn stats(&self, driver: &str, call: VolumeStatsQuestion) -> Result<CsiVolumeStats, CsiError>;

    /// Asks how many volumes the driver can attach here, and writes it to the CSINode: for a node whose limit turned out to be
    /// lower.
    async fn refresh_limits(&self, driver: &str) -> Result<(), CsiError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_confidential_is_shown() {
        let secret = || Confidential([("key".to_owned(), "hunter2".to_owned())].into());
        let publish = PublishVolume {
            volume_id: "v1".to_owned(),
            publish_context: secret(),
            staging_target_path: None,
            target_path: "/t".into(),
            access_type: VolumeAccessType::Mount {
                fs_type: "ext4".to_owned(),
                mount_flags: vec!["password=hunter2".to_owned()],
                volume_mount_group: Some(5),
            },
            access_mode: VolumeAccessMode::ReadWriteOnce,
            is_read_only: false,
            secrets: secret(),
            volume_context: secret(),
            is_migrated: false,
        };
        let shown = format!("{publish:?}");
        assert!(!shown.contains("hunter2") && !shown.contains("key"), "{shown}");
        assert!(shown.contains("v1") && shown.contains("ext4"), "{shown}");
    }

    #[test]
    fn codes_say_whether_the_volume_may_be_there() {
        let error = CsiError::answered(CsiCode::Aborted, "busy");
        assert_eq!(error.kind, CsiErrorKind::Uncertain);
        assert_eq!(error.to_string(), "rpc error: code = Aborted desc = busy");
        assert_eq!(CsiCode::Internal.kind(), CsiErrorKind::Final);
        assert_eq!(CsiError::not_registered("d").kind, CsiErrorKind::NotCalled);
    }
}
