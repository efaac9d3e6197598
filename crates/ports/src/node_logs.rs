//! The node's own logs: the files below one directory, and the journal of its services.
//!
//! Owns the shape of the edge. Nothing outside of the directory can be reached through it, whatever a path or a link names.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use rubelet_model::Timestamp;

use crate::{DirectoryEntry, FileError};

/// What is at a path.
pub enum NodeLog {
    /// Entries by name.
    Directory(Vec<DirectoryEntry>),
    File(NodeLogFile),
}

pub struct NodeLogFile {
    /// When it was opened; it may grow.
    pub size_bytes: u64,
    pub modified: Timestamp,
    pub content: Arc<dyn FileContent>,
}

/// An open file.
#[async_trait]
pub trait FileContent: Send + Sync {
    /// The bytes from a place on, as many as wanted or as there are; none at the end.
    async fn read_at(&self, offset: u64, limit_bytes: usize) -> Result<Vec<u8>, FileError>;
}

#[async_trait]
pub trait NodeLogReader: Send + Sync {
    /// Opens what is at a path relative to the directory of logs; an empty one is the directory itself. Links are followed as
    /// far as they stay below it.
    async fn open(&self, path: &str) -> Result<NodeLog, FileError>;

    /// The names of the units that the journal knows, a line each; nothing where there is no journal.
    async fn journal_units(&self) -> Option<String>;

    /// What the journal's own program prints, in pieces, stderr included. Dropping the stream ends the program; an
    /// error means that it could not be run.
    fn journal(&self, arguments: Vec<String>) -> BoxStream<'static, Result<Vec<u8>, FileError>>;
}
