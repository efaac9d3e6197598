//! Hints that something in a folder or a file has changed, from inotify.
//!
//! Owns one inotify queue per watch. A hint says nothing but "look again". Writing into a file gives its hint when the writer
//! closes it, so that nobody is sent to look at half a file; files that appear by link or rename are complete and give theirs
//! at once. For a file its folder is watched, because editors replace files.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use futures_util::StreamExt as _;
use futures_util::stream::unfold;
use rubelet_ports::{FileError, FileErrorKind, WatchStream};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::blocking::BlockingPool;
use crate::file_calls::{failed, refused};
use crate::files::watch_call;

/// New entries that are looked at one by one; more of them are a hint without looking.
const MAX_CREATED: usize = 16;

/// The queue, the watched folder, and the only name of interest in it.
struct Watch {
    queue: AsyncFd<OwnedFd>,
    folder: PathBuf,
    only: Option<OsString>,
}

enum State {
    Start,
    Watching(Box<Watch>),
    End,
}

/// What a batch of events says.
#[derive(Debug, Default, PartialEq, Eq)]
struct Batch {
    hint: bool,
    created: Vec<OsString>,
    /// The folder itself is gone.
    ended: Option<&'static str>,
}

pub(crate) fn watch(pool: BlockingPool, path: PathBuf) -> WatchStream {
    let first = (State::Start, pool, path);
    let stream = unfold(first, |(state, pool, path)| async move {
        let (item, state) = match state {
            State::Start => match start(&pool, &path).await {
                Ok(watch) => (Ok(()), State::Watching(Box::new(watch))),
                Err(error) => (Err(error), State::End),
            },
            State::Watching(watch) => match next_hint(&pool, &watch, &path).await {
                Ok(()) => (Ok(()), State::Watching(watch)),
                Err(error) => (Err(error), State::End),
            },
            State::End => return None,
        };
        Some((item, (state, pool, path)))
    });
    stream.boxed()
}

async fn start(pool: &BlockingPool, path: &Path) -> Result<Watch, FileError> {
    let (queue, folder, only) = watch_call(pool, path, |path| open_queue(&path)).await?;
    let queue = register(queue).map_err(failed(path, "watch"))?;
    Ok(Watch { queue, folder, only })
}

/// Registers with the runtime's poller, which does not block.
fn register(queue: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    #[expect(
        unsafe_code,
        reason = "the poller asks for a descriptor that stays the same and open; an owned one does"
    )]
    // SAFETY: an `OwnedFd` is open and names one description until it is dropped, and it is never exchanged.
    let registered = unsafe { AsyncFd::register_with_interest(queue, Interest::READABLE) };
    registered.map_err(io::Error::from)
}

fn open_queue(path: &Path) -> Result<(OwnedFd, PathBuf, Option<OsString>), FileError> {
    let metadata = fs::metadata(path).map_err(failed(path, "watch"))?;
    let (folder, only) = match (path.parent(), path.file_name()) {
        (Some(folder), Some(name)) if !metadata.is_dir() => {
            (Path::new(".").join(folder), Some(name.to_owned()))
        }
        _ => (path.to_owned(), None),
    };
    let attempt = |errno: Errno| failed(path, "watch")(errno.into());
    let queue = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(attempt)?;
    let flags = WatchFlags::CREATE
        | WatchFlags::CLOSE_WRITE
        | WatchFlags::ATTRIB
        | WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF
        | WatchFlags::ONLYDIR;
    inotify::add_watch(&queue, &folder, flags).map_err(attempt)?;
    Ok((queue, folder, only))
}

/// Waits for events that mean something.
async fn next_hint(pool: &BlockingPool, watch: &Watch, path: &Path) -> Result<(), FileError> {
    loop {
        let mut ready = watch.queue.readable().await.map_err(failed(path, "watch"))?;
        let read = ready.try_io(|queue| drain(queue.get_ref(), watch.only.as_deref()));
        let batch = match read {
            Ok(batch) => batch.map_err(failed(path, "watch"))?,
            // The poller was wrong.
            Err(_) => continue,
        };
        if let Some(what) = batch.ended {
            return Err(refused(path, FileErrorKind::NotFound, what));
        }
        if batch.hint || batch.created.len() > MAX_CREATED {
            return Ok(());
        }
        if !batch.created.is_empty() && any_complete(pool, watch, batch.created).await {
            return Ok(());
        }
    }
}

/// Reads all events that are there.
fn drain(queue: &OwnedFd, only: Option<&OsStr>) -> io::Result<Batch> {
    let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
    let mut reader = inotify::Reader::new(queue, &mut buffer);
    let mut batch = Batch::default();
    let mut any = false;
    loop {
        match reader.next() {
            Ok(event) => {
                any = true;
                let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
                batch.add(event.events(), name, only);
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if any => return Ok(batch),
            Err(errno) => return Err(errno.into()),
        }
    }
}

impl Batch {
    fn add(&mut self, flags: ReadFlags, name: Option<&OsStr>, only: Option<&OsStr>) {
        if flags.contains(ReadFlags::MOVE_SELF) {
            self.ended = Some("the watched folder was moved away");
        } else if flags.contains(ReadFlags::UNMOUNT) {
            self.ended = Some("the watched folder was unmounted");
        } else if flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::IGNORED) {
            self.ended.get_or_insert("the watched folder was removed");
        } else if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            self.hint = true;
        } else if only.is_some() && name.is_some() && name != only {
            // Somebody else's file in the folder of the watched one.
        } else if let (true, Some(name)) = (flags.contains(ReadFlags::CREATE), name) {
            if self.created.len() <= MAX_CREATED {
                self.created.push(name.to_owned());
            }
        } else {
            self.hint = true;
        }
    }
}

/// Whether one of the new entries is more than a file that somebody has just begun to write. Such a file gives its hint when
/// it is closed.
async fn any_complete(pool: &BlockingPool, watch: &Watch, created: Vec<OsString>) -> bool {
    let looked = watch_call(pool, &watch.folder, move |folder| {
        Ok(created
            .into_iter()
            .any(|name| match fs::symlink_metadata(folder.join(name)) {
                Ok(metadata) => !metadata.is_file() || metadata.nlink() > 1 || metadata.len() > 0,
                // Gone again: that is an event of its own.
                Err(_) => false,
            }))
    });
    // What cannot be looked at here is looked at by whoever gets the hint.
    looked.await.unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_become_hints_and_ends() {
        let check =
            |flags: ReadFlags, name: Option<&str>, only: Option<&str>, expected: (bool, usize, bool)| {
                let mut batch = Batch::default();
                batch.add(flags, name.map(OsStr::new), only.map(OsStr::new));
                let got = (batch.hint, batch.created.len(), batch.ended.is_some());
                assert_eq!(got, expected, "{flags:?} {name:?} {only:?}");
            };
        let (hint, look, end, nothing) = (
            (true, 0, false),
            (false, 1, false),
            (false, 0, true),
            (false, 0, false),
        );
        check(ReadFlags::CLOSE_WRITE, Some("a"), None, hint);
        check(ReadFlags::MOVED_TO, Some("a"), Some("a"), hint);
        check(ReadFlags::MOVED_TO, Some("b"), Some("a"), nothing);
        check(ReadFlags::CREATE, Some("a"), None, look);
        check(ReadFlags::CREATE, Some("b"), Some("a"), nothing);
        check(ReadFlags::DELETE, Some("a"), None, hint);
        check(ReadFlags::ATTRIB, None, None, hint);
        check(ReadFlags::DELETE_SELF, None, None, end);
        check(ReadFlags::MOVE_SELF, None, Some("a"), end);
        check(ReadFlags::UNMOUNT, None, None, end);
        check(ReadFlags::IGNORED, None, None, end);
        check(ReadFlags::QUEUE_OVERFLOW, None, Some("a"), hint);
    }
}
