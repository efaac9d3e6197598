//! An open log file, read in pieces at given places.
//!
//! Owns the blocking calls: each has a deadline, and a bounded number of them is under way. What the bytes mean is not known
//! here.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

/// How much is read at a time.
const PIECE_BYTES: usize = 64 * 1024;
const CALL_LIMIT: Duration = Duration::from_secs(30);

pub(super) struct LogFile {
    /// Without symlinks.
    path: PathBuf,
    file: Arc<File>,
    identity: (u64, u64),
    calls: Arc<Semaphore>,
}

impl LogFile {
    /// Errors are upstream's texts.
    pub(super) async fn open(path: PathBuf, calls: Arc<Semaphore>) -> Result<Self, String> {
        let asked = path.clone();
        let resolved = call(&calls, move || fs::canonicalize(asked)).await;
        let path = resolved
            .map_err(|error| format!("failed to try resolving symlinks in path {path:?}: {error}"))?;
        let opened = open(path.clone(), &calls).await;
        let (file, identity) =
            opened.map_err(|error| format!("failed to open log file {path:?}: {error}"))?;
        Ok(Self {
            path,
            file: Arc::new(file),
            identity,
            calls,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The bytes from `offset` on, as many as one piece holds; none at the end.
    pub(super) async fn read_at(&self, offset: u64) -> io::Result<Vec<u8>> {
        let file = Arc::clone(&self.file);
        call(&self.calls, move || {
            let mut piece = vec![0; PIECE_BYTES];
            let length = file.read_at(&mut piece, offset)?;
            piece.truncate(length);
            Ok(piece)
        })
        .await
    }

    /// Where the last `lines` complete lines begin. An incomplete line at the end is not counted.
    pub(super) async fn start_of_last(&self, lines: u64) -> io::Result<u64> {
        let file = Arc::clone(&self.file);
        let mut end = call(&self.calls, move || Ok(file.metadata()?.len())).await?;
        let mut seen = 0;
        while end > 0 {
            let start = end.saturating_sub(PIECE_BYTES as u64);
            let file = Arc::clone(&self.file);
            let length = usize::try_from(end - start).unwrap_or(PIECE_BYTES);
            let piece = call(&self.calls, move || {
                let mut piece = vec![0; length];
                let length = file.read_at(&mut piece, start)?;
                piece.truncate(length);
                Ok(piece)
            })
            .await?;
            for (index, _) in piece.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
                if seen == lines {
                    return Ok(start + index as u64 + 1);
                }
                seen += 1;
            }
            end = start;
        }
        Ok(0)
    }

    /// The file that has the path now, if it is another one than this.
    pub(super) async fn successor(&self) -> Option<Self> {
        let path = self.path.clone();
        let found = call(&self.calls, move || fs::metadata(path)).await.ok()?;
        if (found.dev(), found.ino()) == self.identity {
            return None;
        }
        let (file, identity) = open(self.path.clone(), &self.calls).await.ok()?;
        Some(Self {
            path: self.path.clone(),
            file: Arc::new(file),
            identity,
            calls: Arc::clone(&self.calls),
        })
    }
}

async fn open(path: PathBuf, calls: &Arc<Semaphore>) -> io::Result<(File, (u64, u64))> {
    call(calls, move || {
        let file = File::open(path)?;
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(io::Error::other("it is no regular file"));
        }
        Ok((file, (found.dev(), found.ino())))
    })
    .await
}

/// One blocking call. One that hangs keeps its place until the kernel lets it go.
async fn call<T: Send + 'static>(
    calls: &Arc<Semaphore>,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let late = || io::Error::new(io::ErrorKind::TimedOut, "the file system does not answer");
    let result = tokio::time::timeout(CALL_LIMIT, async {
        // The semaphore is never closed.
        let place = Arc::clone(calls).acquire_owned().await.ok();
        tokio::task::spawn_blocking(move || {
            let result = work();
            drop(place);
            result
        })
        .await
    });
    match result.await {
        Ok(Ok(result)) => result,
        Ok(Err(panicked)) => Err(io::Error::other(panicked)),
        Err(_) => Err(late()),
    }
}
