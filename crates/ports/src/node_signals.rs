//! The kernel's figures of memory, filesystems and processes of the whole node.
//!
//! Owns the shape of the edge. Every call has a deadline of the implementation's, because a filesystem may be dead.

use std::path::Path;

use async_trait::async_trait;
use rubelet_model::signals::{FilesystemReading, MemoryReading, ProcessReading};
use thiserror::Error;

/// A reading that could not be taken. The others are not affected.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{what}: {message}")]
pub struct SignalError {
    /// What was looked at: a file or a folder.
    pub what: String,
    pub message: String,
}

impl SignalError {
    #[must_use]
    pub fn new(what: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            message: message.into(),
        }
    }
}

/// Calls that change nothing.
#[async_trait]
pub trait NodeSignals: Send + Sync {
    /// Of everything on the machine.
    async fn memory(&self) -> Result<MemoryReading, SignalError>;

    /// Of a cgroup, by its path below the root; nothing when there is no such cgroup.
    async fn cgroup_memory(&self, cgroup: &str) -> Result<Option<MemoryReading>, SignalError>;

    /// Of the filesystem that a path is on.
    async fn filesystem(&self, path: &Path) -> Result<FilesystemReading, SignalError>;

    async fn processes(&self) -> Result<ProcessReading, SignalError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails to compile when the port can no longer be used as a trait object.
    #[test]
    fn the_port_is_object_safe() {
        fn takes(_: Option<&dyn NodeSignals>) {}
        takes(None);
    }
}
