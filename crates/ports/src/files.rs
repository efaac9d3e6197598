//! Files of the node, as far as pods have some: manifests, logs, pod directories.
//!
//! Owns the shape of the edge and its errors. Every call has a deadline, because a file may lie on a mount that is dead; it is
//! the implementation's, and passing it is [`FileErrorKind::TimedOut`]. Removing what is not there is no error.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use thiserror::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileErrorKind {
    NotFound,
    PermissionDenied,
    /// Larger than the caller wants to read.
    TooLarge,
    /// The filesystem is full, or a quota is.
    NoSpace,
    /// Not the kind of thing that the call is for, e.g. a directory where a file is wanted.
    WrongKind,
    /// Something else is mounted below; nothing is removed across a mount.
    Mounted,
    /// The filesystem does not answer.
    TimedOut,
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}: {message}", path.display())]
pub struct FileError {
    pub path: PathBuf,
    pub kind: FileErrorKind,
    pub message: String,
}

impl FileError {
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.kind == FileErrorKind::NotFound
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileKind {
    File,
    Directory,
    Symlink,
    /// A socket, a device, a pipe.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirectoryEntry {
    pub name: String,
    /// Of the entry itself: a symlink is a symlink.
    pub kind: FileKind,
}

/// A name that was taken out of a watched folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Removal {
    pub name: String,
    /// The name that it got instead, in the same folder. Without one it was deleted or moved elsewhere.
    pub renamed_to: Option<String>,
}

/// Something in a watched place may have changed: look again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchHint {
    /// What was taken away since the last hint, as far as that is known; it may be there again. A file that another one was
    /// renamed over is not taken away.
    pub removed: Vec<Removal>,
    /// Where it may have happened.
    pub touched: Touched,
}

/// The names in a watched folder at which something may have happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Touched {
    #[default]
    Anything,
    Names(BTreeSet<String>),
}

impl Touched {
    #[must_use]
    pub fn nothing() -> Self {
        Self::Names(BTreeSet::new())
    }

    #[must_use]
    pub fn is_nothing(&self) -> bool {
        matches!(self, Self::Names(names) if names.is_empty())
    }

    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        match self {
            Self::Anything => true,
            Self::Names(names) => names.contains(name),
        }
    }

    pub fn add(&mut self, more: Self) {
        match (&mut *self, more) {
            (Self::Names(names), Self::Names(more)) => names.extend(more),
            (Self::Anything, _) => {}
            (Self::Names(_), Self::Anything) => *self = Self::Anything,
        }
    }
}

/// Hints. The stream ends after an error.
pub type WatchStream = BoxStream<'static, Result<WatchHint, FileError>>;

/// Calls that change nothing. All follow symlinks in `path`, except where documented.
#[async_trait]
pub trait FileReader: Send + Sync {
    /// The whole file, which may have up to `limit_bytes`.
    async fn read(&self, path: &Path, limit_bytes: u64) -> Result<Vec<u8>, FileError>;

    /// As [`Self::read`], but `None` when a process has the file open for writing just now, as far as the node can see:
    /// the content may be incomplete then.
    async fn read_at_rest(&self, path: &Path, limit_bytes: u64) -> Result<Option<Vec<u8>>, FileError> {
        self.read(path, limit_bytes).await.map(Some)
    }

    /// As [`Self::read`], for a file below a directory whose content is not trusted: links are not followed out of it.
    async fn read_within(
        &self,
        directory: &Path,
        path: &Path,
        limit_bytes: u64,
    ) -> Result<Vec<u8>, FileError>;

    /// The last `limit_bytes` of a file, or all of it.
    async fn read_end(&self, path: &Path, limit_bytes: u64) -> Result<Vec<u8>, FileError>;

    /// As [`Self::read_end`], for a file below a directory whose content is not trusted. The default is for files without links.
    async fn read_end_within(
        &self,
        directory: &Path,
        path: &Path,
        limit_bytes: u64,
    ) -> Result<Vec<u8>, FileError> {
        self.read_end(&directory.join(path), limit_bytes).await
    }

    /// Entries by name; names that are no text are left out.
    async fn list(&self, directory: &Path) -> Result<Vec<DirectoryEntry>, FileError>;

    /// What a path leads to.
    async fn kind(&self, path: &Path) -> Result<FileKind, FileError>;

    /// Watches a directory or a file. It returns at once; a path that cannot be watched is the stream's first item. The
    /// first hint comes once the watch stands, so that a caller that reads after each hint misses nothing.
    fn watch(&self, path: &Path) -> WatchStream;
}

/// Calls that change something.
#[async_trait]
pub trait FileWriter: Send + Sync {
    /// Writes a file by way of a temporary one: a reader sees the old content or the new, also after a power loss.
    async fn write(&self, path: &Path, content: &[u8], mode: u32) -> Result<(), FileError>;

    /// Replaces a file's content in place, so that who has it mounted sees it. It creates the file when it is missing, and
    /// the mode is set whatever the umask.
    async fn write_in_place(&self, path: &Path, content: &[u8], mode: u32) -> Result<(), FileError>;

    /// Makes a directory and its parents. One that exists is left as it is.
    async fn create_directory(&self, path: &Path, mode: u32) -> Result<(), FileError>;

    /// Makes `link` point to `target`, whatever it was before.
    async fn link(&self, target: &Path, link: &Path) -> Result<(), FileError>;

    /// Removes a file or a symlink itself.
    async fn remove_file(&self, path: &Path) -> Result<(), FileError>;

    /// Removes a directory with everything in it, and nothing when something else is mounted below.
    async fn remove_tree(&self, path: &Path) -> Result<(), FileError>;
}
