//! What files take of the disks that they are on.
//!
//! Owns the shape of the edge. Every call has a deadline of the implementation's, because a filesystem may be dead, and none of
//! them leaves the filesystem that it begins on.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use rubelet_usage::{Devices, DiskUsage, FilesystemFigures};

use crate::SignalError;

/// Something that is measured at once, without a look at what is below.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiskSubject {
    /// A file alone.
    File(PathBuf),
    /// The files that are directly in a directory.
    FilesIn(PathBuf),
}

/// Calls that change nothing.
#[async_trait]
pub trait DiskReader: Send + Sync {
    /// The filesystem that a path is on.
    async fn filesystem(&self, path: &Path) -> Result<FilesystemFigures, SignalError>;

    /// The machine's filesystems and disks. A filesystem that does not answer is left out.
    async fn devices(&self) -> Result<Devices, SignalError>;

    /// An answer for each subject, in their order; `None` for what is not there or cannot be read in time.
    async fn measure(&self, subjects: Vec<DiskSubject>) -> Vec<Option<DiskUsage>>;

    /// A directory with everything below, each file once. It takes as long as there are files, slowly enough to leave the disk to
    /// others.
    async fn walk(&self, directory: &Path) -> Result<DiskUsage, SignalError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails to compile when the port can no longer be used as a trait object.
    #[test]
    fn the_port_is_object_safe() {
        fn takes(_: Option<&dyn DiskReader>) {}
        takes(None);
    }
}
