//! Whether a file is still the one that was read.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

/// What of a file changes when it is written or replaced. Links are followed: certificates are replaced by moving a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    inode: u64,
    length_bytes: u64,
    modified: Option<SystemTime>,
}

impl Stamp {
    /// `None` when there is no such file, or none that can be seen.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Self {
            inode: metadata.ino(),
            length_bytes: metadata.len(),
            modified: metadata.modified().ok(),
        })
    }
}
