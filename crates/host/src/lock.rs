//! The lock file: one agent per node, and the signal by which a new agent makes this one exit.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Why the lock could not be taken or watched.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("cannot open the lock file {path}")]
    Open { path: PathBuf, source: io::Error },
    #[error("cannot lock {path}")]
    Lock { path: PathBuf, source: io::Error },
    #[error("cannot watch the lock file {path}")]
    Watch { path: PathBuf, source: io::Error },
}

/// A lock held as long as the value lives.
#[derive(Debug)]
pub struct LockFile {
    path: PathBuf,
    _file: File,
}

impl LockFile {
    /// Takes the lock. While another process holds it, calls `waiting` once and waits.
    pub fn acquire(path: &Path, waiting: impl FnOnce()) -> Result<Self, LockError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(|source| LockError::Open {
                path: path.to_owned(),
                source,
            })?;
        let failed = |errno: Errno| LockError::Lock {
            path: path.to_owned(),
            source: errno.into(),
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                waiting();
                retry(|| flock(&file, FlockOperation::LockExclusive)).map_err(failed)?;
            }
            Err(errno) => return Err(failed(errno)),
        }
        Ok(Self {
            path: path.to_owned(),
            _file: file,
        })
    }

    /// Starts to watch for other processes that open or delete the file.
    pub fn watch_contention(&self) -> Result<Contention, LockError> {
        let failed = |errno: Errno| LockError::Watch {
            path: self.path.clone(),
            source: errno.into(),
        };
        let queue = inotify::init(CreateFlags::CLOEXEC).map_err(failed)?;
        inotify::add_watch(&queue, &self.path, WatchFlags::OPEN | WatchFlags::DELETE_SELF).map_err(failed)?;
        Ok(Contention {
            queue,
            path: self.path.clone(),
        })
    }
}

/// A watch on the lock file.
#[derive(Debug)]
pub struct Contention {
    queue: OwnedFd,
    path: PathBuf,
}

impl Contention {
    /// Blocks until another process opens or deletes the lock file; call it on a thread of its own.
    pub fn wait(&self) -> Result<(), LockError> {
        let mut buffer = [MaybeUninit::<u8>::uninit(); 512];
        let mut reader = inotify::Reader::new(&self.queue, &mut buffer);
        retry(|| reader.next().map(|_| ())).map_err(|errno| LockError::Watch {
            path: self.path.clone(),
            source: errno.into(),
        })
    }
}

fn retry(mut call: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_second_waits_for_the_first_and_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = LockFile::acquire(&path, || panic!("the lock is free")).unwrap();
        let (waiting, waits) = channel();
        let (got, done) = channel();
        let second_path = path.clone();
        let second = std::thread::spawn(move || {
            let lock = LockFile::acquire(&second_path, || waiting.send(()).unwrap());
            got.send(lock.is_ok()).unwrap();
        });
        waits.recv_timeout(Duration::from_secs(10)).unwrap();
        assert!(done.try_recv().is_err(), "the lock is held");
        drop(first);
        assert!(done.recv_timeout(Duration::from_secs(10)).unwrap());
        second.join().unwrap();
    }

    #[test]
    fn contention_is_seen_when_somebody_opens_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let lock = LockFile::acquire(&path, || ()).unwrap();
        let contention = lock.watch_contention().unwrap();
        let (sender, seen) = channel();
        let watcher = std::thread::spawn(move || sender.send(contention.wait().is_ok()).unwrap());
        assert!(seen.try_recv().is_err());
        File::open(&path).unwrap();
        assert!(seen.recv_timeout(Duration::from_secs(10)).unwrap());
        watcher.join().unwrap();
    }

    #[test]
    fn an_impossible_path_is_named() {
        let error = LockFile::acquire(Path::new("/nonexistent/lock"), || ()).unwrap_err();
        assert_eq!(error.to_string(), "cannot open the lock file /nonexistent/lock");
    }
}
