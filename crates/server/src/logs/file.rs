//! An open log file, read in pieces at given places, and the files that were written after it.
//!
//! Owns the blocking calls: each has a deadline, and a bounded number of them runs at a time. What the bytes mean is not known
//! here. A file is known by its inode: it may be renamed, compressed and removed while it is read, and is read to its end all
//! the same.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use flate2::read::MultiGzDecoder;
use rubelet_lifecycle::log_rotation::LogNames;
use rubelet_ports::FileIdentity;
use tokio::sync::Semaphore;

use super::open::{LogDirectory, identity_of, name_of, resolve};

/// How much is read at a time.
const PIECE_BYTES: usize = 64 * 1024;
const CALL_LIMIT: Duration = Duration::from_secs(30);
/// Files are renamed, compressed and removed while they are looked for; so often the look is repeated.
const LOOKS: usize = 10;
/// What the kernel adds to the name of a file that has none any more.
const DELETED: &str = " (deleted)";

pub(super) struct LogFile {
    log: Arc<Log>,
    content: Content,
    identity: FileIdentity,
    calls: Arc<Semaphore>,
}

/// The name that the newest file of a log has, and where it and the others are.
struct Log {
    directory: LogDirectory,
    /// Without symlinks.
    path: PathBuf,
}

impl Log {
    fn name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }
}

#[derive(Clone)]
enum Content {
    Plain(Arc<File>),
    /// Read from its beginning to its end, once. The stem names the file of the log.
    Compressed {
        decoder: Arc<Mutex<MultiGzDecoder<File>>>,
        stem: String,
    },
}

/// Where a file stands among those of its log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It is the log.
    Newest,
    /// It was rotated away, and has this path.
    RotatedTo(PathBuf),
    /// It was rotated away, and is compressed or removed since: no process writes to it any more.
    Gone,
}

impl LogFile {
    /// Opens the log of this container. Errors are upstream's texts.
    pub(super) async fn open(
        path: PathBuf,
        container_id: String,
        calls: Arc<Semaphore>,
    ) -> Result<Self, String> {
        let asked = path.clone();
        let resolved = call(&calls, move || resolve(&asked, &container_id)).await;
        let (directory, path) = resolved
            .map_err(|error| format!("failed to try resolving symlinks in path {path:?}: {error}"))?;
        let log = Arc::new(Log { directory, path });
        let opening = Arc::clone(&log);
        let opened = call(&calls, move || opening.directory.open(opening.name())).await;
        let (file, identity) =
            opened.map_err(|error| format!("failed to open log file {:?}: {error}", log.path))?;
        Ok(Self {
            log,
            content: Content::Plain(Arc::new(file)),
            identity,
            calls,
        })
    }

    /// The path of the log, without symlinks, whatever name this file has by now.
    pub(super) fn path(&self) -> &Path {
        &self.log.path
    }

    pub(super) fn identity(&self) -> FileIdentity {
        self.identity
    }

    /// The bytes from `offset` on, as many as one piece holds; none at the end. A compressed file gives its bytes in order,
    /// whatever the offset.
    pub(super) async fn read_at(&self, offset: u64) -> io::Result<Vec<u8>> {
        let content = self.content.clone();
        call(&self.calls, move || {
            let mut piece = vec![0; PIECE_BYTES];
            let length = match content {
                Content::Plain(file) => file.read_at(&mut piece, offset)?,
                Content::Compressed { decoder, .. } => decoder
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .read(&mut piece)?,
            };
            piece.truncate(length);
            Ok(piece)
        })
        .await
    }

    /// Where the last `lines` complete lines begin. An incomplete line at the end is not counted.
    pub(super) async fn start_of_last(&self, lines: u64) -> io::Result<u64> {
        let Content::Plain(file) = &self.content else {
            return Ok(0);
        };
        let counted = Arc::clone(file);
        let mut end = call(&self.calls, move || Ok(counted.metadata()?.len())).await?;
        let mut seen = 0;
        while end > 0 {
            let start = end.saturating_sub(PIECE_BYTES as u64);
            let file = Arc::clone(file);
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

    pub(super) async fn place(&self) -> io::Result<Place> {
        let (log, identity, content) = (Arc::clone(&self.log), self.identity, self.content.clone());
        call(&self.calls, move || place(&log, identity, &content)).await
    }

    /// The file that was written after this one, which was rotated away; nothing while the runtime has not made it yet.
    pub(super) async fn successor(&self) -> io::Result<Option<Self>> {
        let (log, identity, content) = (Arc::clone(&self.log), self.identity, self.content.clone());
        let next = call(&self.calls, move || successor(&log, identity, &content)).await?;
        Ok(next.map(|(content, identity)| Self {
            log: Arc::clone(&self.log),
            content,
            identity,
            calls: Arc::clone(&self.calls),
        }))
    }
}

fn place(log: &Log, identity: FileIdentity, content: &Content) -> io::Result<Place> {
    let Content::Plain(file) = content else {
        return Ok(Place::Gone);
    };
    let is_there = |path: &Path| fs::metadata(path).is_ok_and(|found| identity_of(&found) == identity);
    for _ in 0..LOOKS {
        if log
            .directory
            .identity(log.name())
            .is_ok_and(|found| found == identity)
        {
            return Ok(Place::Newest);
        }
        let name = name_of(file)?;
        if name.to_string_lossy().ends_with(DELETED) {
            return Ok(Place::Gone);
        }
        if name != log.path && is_there(&name) {
            return Ok(Place::RotatedTo(name));
        }
    }
    Err(io::Error::other("the file changes its name all the time"))
}

fn successor(
    log: &Log,
    identity: FileIdentity,
    content: &Content,
) -> io::Result<Option<(Content, FileIdentity)>> {
    let Some(log_name) = log.name().to_str() else {
        return Ok(None);
    };
    let own_name = match content {
        Content::Plain(file) => {
            let name = name_of(file)?;
            let name = name
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            name.strip_suffix(DELETED).map_or(name.clone(), str::to_owned)
        }
        Content::Compressed { stem, .. } => format!("{log_name}.{stem}"),
    };
    for _ in 0..LOOKS {
        let present = log.directory.names()?;
        let names = LogNames {
            log: log_name,
            present: &present,
            compressing: None,
        };
        // A log that was removed under its own name is not among the rotated ones.
        let next = names.stem_of(&own_name).and_then(|stem| names.next_after(stem));
        let opened = log
            .directory
            .open(OsStr::new(next.map_or(log_name, |next| next.name)));
        let (file, found) = match opened {
            Ok(opened) => opened,
            // Compressed or removed since the look; a log that is missing is being made.
            Err(error) if error.kind() == io::ErrorKind::NotFound && next.is_some() => continue,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if found == identity {
            return Ok(None);
        }
        // The log itself may have been rotated away between the look and the opening: then it is not the next one, perhaps.
        if next.is_none() && log.directory.names()? != present {
            continue;
        }
        let content = match next {
            Some(next) if next.is_compressed => Content::Compressed {
                decoder: Arc::new(Mutex::new(MultiGzDecoder::new(file))),
                stem: next.stem.to_owned(),
            },
            Some(_) | None => Content::Plain(Arc::new(file)),
        };
        return Ok(Some((content, found)));
    }
    // Rotated all the time: the next look follows soon.
    Ok(None)
}

/// One blocking call. One that hangs keeps its permit until the kernel returns.
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
