//! The node's files behind the port.
//!
//! Owns the deadline of each call and the pool that they run on; the calls themselves are in `file_calls`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use rubelet_ports::{
    DirectoryEntry, FileError, FileErrorKind, FileKind, FileReader, FileWriter, WatchStream,
};

use crate::blocking::{BlockingPool, PoolError, PoolLimits};
use crate::{file_calls, file_watch, tree_removal};

/// Local disks answer in milliseconds; what takes this long is a dead mount.
const CALL_DEADLINE: Duration = Duration::from_secs(30);
/// A tree may be large.
const TREE_DEADLINE: Duration = Duration::from_secs(120);

/// Files on a small pool of threads, with a deadline for every call.
#[derive(Clone)]
pub struct HostFiles {
    pool: BlockingPool,
}

impl HostFiles {
    #[must_use]
    pub fn new() -> Self {
        Self {
            pool: BlockingPool::new(PoolLimits::default()),
        }
    }

    async fn run<T: Send + 'static>(
        &self,
        path: &Path,
        deadline: Duration,
        call: impl FnOnce(PathBuf) -> Result<T, FileError> + Send + 'static,
    ) -> Result<T, FileError> {
        on_pool(&self.pool, path, deadline, call).await
    }
}

impl Default for HostFiles {
    fn default() -> Self {
        Self::new()
    }
}

/// One call on the pool; an error of the pool becomes an error of the path.
pub(crate) async fn on_pool<T: Send + 'static>(
    pool: &BlockingPool,
    path: &Path,
    deadline: Duration,
    call: impl FnOnce(PathBuf) -> Result<T, FileError> + Send + 'static,
) -> Result<T, FileError> {
    let owned = path.to_owned();
    let answer = pool.run(path, deadline, move || call(owned)).await;
    answer.unwrap_or_else(|error| {
        let kind = match error {
            PoolError::TimedOut(_) | PoolError::StillHangs => FileErrorKind::TimedOut,
            PoolError::QueueFull | PoolError::NoThread(_) | PoolError::Panicked(_) => FileErrorKind::Other,
        };
        Err(file_calls::refused(path, kind, error.to_string()))
    })
}

/// A call of the watch, with the deadline that all calls have.
pub(crate) async fn watch_call<T: Send + 'static>(
    pool: &BlockingPool,
    path: &Path,
    call: impl FnOnce(PathBuf) -> Result<T, FileError> + Send + 'static,
) -> Result<T, FileError> {
    on_pool(pool, path, CALL_DEADLINE, call).await
}

#[async_trait]
impl FileReader for HostFiles {
    async fn read(&self, path: &Path, limit_bytes: u64) -> Result<Vec<u8>, FileError> {
        let call = move |path: PathBuf| file_calls::read(&path, limit_bytes);
        self.run(path, CALL_DEADLINE, call).await
    }

    async fn read_at_rest(&self, path: &Path, limit_bytes: u64) -> Result<Option<Vec<u8>>, FileError> {
        let call = move |path: PathBuf| file_calls::read_at_rest(&path, limit_bytes);
        self.run(path, CALL_DEADLINE, call).await
    }

    async fn read_within(
        &self,
        directory: &Path,
        path: &Path,
        limit_bytes: u64,
    ) -> Result<Vec<u8>, FileError> {
        let path = path.to_owned();
        let call = move |directory: PathBuf| file_calls::read_within(&directory, &path, limit_bytes);
        self.run(directory, CALL_DEADLINE, call).await
    }

    async fn read_end(&self, path: &Path, limit_bytes: u64) -> Result<Vec<u8>, FileError> {
        let call = move |path: PathBuf| file_calls::read_end(&path, limit_bytes);
        self.run(path, CALL_DEADLINE, call).await
    }

    async fn read_end_within(
        &self,
        directory: &Path,
        path: &Path,
        limit_bytes: u64,
    ) -> Result<Vec<u8>, FileError> {
        let path = path.to_owned();
        let call = move |directory: PathBuf| file_calls::read_end_within(&directory, &path, limit_bytes);
        self.run(directory, CALL_DEADLINE, call).await
    }

    async fn list(&self, directory: &Path) -> Result<Vec<DirectoryEntry>, FileError> {
        self.run(directory, CALL_DEADLINE, |path| file_calls::list(&path))
            .await
    }

    async fn kind(&self, path: &Path) -> Result<FileKind, FileError> {
        self.run(path, CALL_DEADLINE, |path| file_calls::kind(&path))
            .await
    }

    fn watch(&self, path: &Path) -> WatchStream {
        file_watch::watch(self.pool.clone(), path.to_owned())
    }
}

#[async_trait]
impl FileWriter for HostFiles {
    async fn write(&self, path: &Path, content: &[u8], mode: u32) -> Result<(), FileError> {
        let content = content.to_vec();
        let call = move |path: PathBuf| file_calls::write(&path, &content, mode);
        self.run(path, CALL_DEADLINE, call).await
    }

    async fn write_in_place(&self, path: &Path, content: &[u8], mode: u32) -> Result<(), FileError> {
        let content = content.to_vec();
        let call = move |path: PathBuf| file_calls::write_in_place(&path, &content, mode);
        self.run(path, CALL_DEADLINE, call).await
    }

    async fn create_directory(&self, path: &Path, mode: u32) -> Result<(), FileError> {
        let call = move |path: PathBuf| file_calls::create_directory(&path, mode);
        self.run(path, CALL_DEADLINE, call).await
    }

    async fn link(&self, target: &Path, link: &Path) -> Result<(), FileError> {
        let target = target.to_owned();
        let call = move |link: PathBuf| file_calls::link(&target, &link);
        self.run(link, CALL_DEADLINE, call).await
    }

    async fn remove_file(&self, path: &Path) -> Result<(), FileError> {
        self.run(path, CALL_DEADLINE, |path| file_calls::remove_file(&path))
            .await
    }

    async fn remove_tree(&self, path: &Path) -> Result<(), FileError> {
        self.run(path, TREE_DEADLINE, |path| tree_removal::remove_tree(&path))
            .await
    }
}
