//! Log files of containers, which the runtime writes: waiting until they grow, and rotating them.
//!
//! Owns the shape of the edge. When a file is too large and which name it gets is decided elsewhere.

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;

use crate::FileError;

/// Which file it is, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileIdentity {
    pub device: u64,
    pub inode: u64,
}

/// What is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Growth {
    pub path: PathBuf,
    /// The file that should have this path; any other is news, too.
    pub identity: Option<FileIdentity>,
    /// From this size on the file is of interest.
    pub size_bytes: u64,
    /// A file that is written all the time is looked at no more often than this.
    pub pace: Duration,
}

/// Calls that change nothing.
#[async_trait]
pub trait LogFileReader: Send + Sync {
    /// The size of what the path leads to.
    async fn size(&self, path: &Path) -> Result<u64, FileError>;

    /// Whether any process has the file open for writing, as far as the node can see.
    async fn is_written(&self, path: &Path) -> Result<bool, FileError>;

    /// Ends once the file is as large as that, is another file, or cannot be looked at; and perhaps for no reason: the
    /// caller checks the file itself, and also checks now and then without a notification.
    fn growth(&self, growth: Growth) -> BoxFuture<'static, ()>;
}

/// Calls that change something.
#[async_trait]
pub trait LogFileWriter: Send + Sync {
    /// Gives a file another name on the same filesystem, unless that name is taken: then nothing happens and it
    /// returns false.
    async fn rename_to_free(&self, from: &Path, to: &Path) -> Result<bool, FileError>;

    /// Replaces a file by `<path>.gz`, by way of `<path>.tmp`. After a crash at any point the file is there, or its
    /// compressed form is there completely, or both are. A file that goes meanwhile leaves nothing. While a process has the file open
    /// for writing it stays as it is and the call returns false.
    async fn compress(&self, path: &Path) -> Result<bool, FileError>;
}
