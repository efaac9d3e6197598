//! Hints that something in a folder or a file has changed, from inotify.
//!
//! Owns one inotify queue per watch. A hint means "look again" and names the entries that it is about, and the removed ones, since a
//! look cannot see that a file was removed and created again. Writing into a file gives its hint when the writer closes it, so that no reader finds half a
//! file; files that appear by link or rename are complete and give theirs at once. For a file its folder is watched, because
//! editors replace files.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::task::{Poll, ready};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::unfold;
use rubelet_ports::{FileError, FileErrorKind, Removal, Touched, WatchHint, WatchStream};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::blocking::BlockingPool;
use crate::file_calls::{failed, refused};
use crate::files::watch_call;

/// New entries that are looked at one by one; more of them are a hint without looking.
const MAX_CREATED: usize = 16;
/// A hint names at most this many entries; a look at the folder shows the rest.
const MAX_NAMES: usize = 4096;
/// How long the second half of a rename may come after the first: the kernel writes them one after the other.
const RENAME_WAIT: Duration = Duration::from_millis(5);

/// The queue, the watched folder, and the only name of interest in it.
struct Watch {
    queue: AsyncFd<OwnedFd>,
    folder: PathBuf,
    only: Option<OsString>,
    /// The folder itself is gone: the error after the last hint.
    ended: Option<&'static str>,
}

enum State {
    Start,
    Watching(Box<Watch>),
    End,
}

/// What a batch of events amounts to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Batch {
    hint: bool,
    /// What the hint is about, but for new entries.
    names: BTreeSet<String>,
    /// It is also about something else.
    has_more: bool,
    created: Vec<OsString>,
    removed: Vec<Removal>,
    /// A rename whose second half is missing yet: its cookie and its place among the removed.
    half_rename: Option<(u32, usize)>,
    /// The folder itself is gone.
    ended: Option<&'static str>,
}

pub(crate) fn watch(pool: BlockingPool, path: PathBuf) -> WatchStream {
    let first = (State::Start, pool, path);
    let stream = unfold(first, |(state, pool, path)| async move {
        let (item, state) = match state {
            State::Start => match start(&pool, &path).await {
                Ok(watch) => (Ok(WatchHint::default()), State::Watching(Box::new(watch))),
                Err(error) => (Err(error), State::End),
            },
            State::Watching(mut watch) => match next_hint(&pool, &mut watch, &path).await {
                Ok(hint) => (Ok(hint), State::Watching(watch)),
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
    Ok(Watch {
        queue,
        folder,
        only,
        ended: None,
    })
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
async fn next_hint(pool: &BlockingPool, watch: &mut Watch, path: &Path) -> Result<WatchHint, FileError> {
    loop {
        if let Some(what) = watch.ended {
            return Err(refused(path, FileErrorKind::NotFound, what));
        }
        let mut batch = Batch::default();
        read_events(watch, &mut batch)
            .await
            .map_err(failed(path, "watch"))?;
        if batch.half_rename.is_some() {
            // Not in time: then it was moved to another folder.
            let rest = tokio::time::timeout(RENAME_WAIT, read_events(watch, &mut batch)).await;
            rest.unwrap_or(Ok(())).map_err(failed(path, "watch"))?;
        }
        watch.ended = batch.ended;
        if batch.hint || batch.created.len() > MAX_CREATED {
            return Ok(batch.into_hint(watch.only.is_some()));
        }
        let created = batch.created.clone();
        if !created.is_empty() && any_complete(pool, watch, created).await {
            return Ok(batch.into_hint(watch.only.is_some()));
        }
    }
}

/// Reads all events that are there, and waits while there are none. Every poll reads the queue itself, so that a caller that polls
/// once gets all events so far, also those that the poller has not seen yet.
async fn read_events(watch: &Watch, batch: &mut Batch) -> io::Result<()> {
    poll_fn(|context| {
        loop {
            match drain(watch.queue.get_ref(), watch.only.as_deref(), batch) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read),
            }
            ready!(watch.queue.poll_read_ready(context))?.clear_ready();
        }
    })
    .await
}

/// Reads all events that are there; that there are none is an error.
fn drain(queue: &OwnedFd, only: Option<&OsStr>, batch: &mut Batch) -> io::Result<()> {
    let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
    let mut reader = inotify::Reader::new(queue, &mut buffer);
    let mut any = false;
    loop {
        match reader.next() {
            Ok(event) => {
                any = true;
                let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
                batch.add(event.events(), event.cookie(), name, only);
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if any => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
}

impl Batch {
    fn add(&mut self, flags: ReadFlags, cookie: u32, name: Option<&OsStr>, only: Option<&OsStr>) {
        if flags.contains(ReadFlags::MOVED_TO) {
            self.complete_rename(cookie, name);
        }
        if flags.contains(ReadFlags::MOVE_SELF) {
            self.ended = Some("the watched folder was moved away");
        } else if flags.contains(ReadFlags::UNMOUNT) {
            self.ended = Some("the watched folder was unmounted");
        } else if flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::IGNORED) {
            self.ended.get_or_insert("the watched folder was removed");
        } else if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            (self.hint, self.has_more) = (true, true);
        } else if only.is_some() && name.is_some() && name != only {
            // Another file in the folder of the watched one.
        } else if let (true, Some(name)) = (flags.contains(ReadFlags::CREATE), name) {
            if self.created.len() <= MAX_CREATED {
                self.created.push(name.to_owned());
            }
        } else {
            self.hint = true;
            match name {
                Some(name) => self.names.extend(name.to_str().map(str::to_owned)),
                None => self.has_more = true,
            }
            if flags.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
                self.taken_away(flags.contains(ReadFlags::MOVED_FROM).then_some(cookie), name);
            }
        }
    }

    fn into_hint(self, is_of_file: bool) -> WatchHint {
        let created = self.created.iter().filter_map(|name| name.to_str());
        let mut names = self.names;
        names.extend(created.map(str::to_owned));
        let is_known = !is_of_file && !self.has_more && self.created.len() <= MAX_CREATED;
        let is_all = is_known && names.len() <= MAX_NAMES;
        WatchHint {
            removed: self.removed,
            touched: if is_all {
                Touched::Names(names)
            } else {
                Touched::Anything
            },
        }
    }

    /// Names that are no text are no manifests and are left out, as they are in lists.
    fn taken_away(&mut self, rename: Option<u32>, name: Option<&OsStr>) {
        let Some(name) = name.and_then(OsStr::to_str) else {
            return;
        };
        if self.removed.len() < MAX_NAMES {
            let half = rename.map(|cookie| (cookie, self.removed.len()));
            self.half_rename = half.or(self.half_rename);
            self.removed.push(Removal {
                name: name.to_owned(),
                renamed_to: None,
            });
        }
    }

    fn complete_rename(&mut self, cookie: u32, name: Option<&OsStr>) {
        if let Some((_, place)) = self.half_rename.take_if(|(half, _)| *half == cookie)
            && let Some(removal) = self.removed.get_mut(place)
        {
            removal.renamed_to = name.and_then(OsStr::to_str).map(str::to_owned);
        }
    }
}

/// Whether one of the new entries is complete, and not a file that is still being written. Such a file gives its hint when it is
/// closed.
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
    // Where the look fails here, the receiver of the hint looks.
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
                batch.add(flags, 0, name.map(OsStr::new), only.map(OsStr::new));
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
        check(ReadFlags::DELETE, Some("b"), Some("a"), nothing);
        check(ReadFlags::ATTRIB, None, None, hint);
        check(ReadFlags::DELETE_SELF, None, None, end);
        check(ReadFlags::MOVE_SELF, None, Some("a"), end);
        check(ReadFlags::UNMOUNT, None, None, end);
        check(ReadFlags::IGNORED, None, None, end);
        check(ReadFlags::QUEUE_OVERFLOW, None, Some("a"), hint);
    }

    #[test]
    fn a_hint_names_what_it_is_about() {
        let check = |events: &[(ReadFlags, Option<&str>)], only: Option<&str>, expected: Option<&[&str]>| {
            let mut batch = Batch::default();
            for (flags, name) in events {
                batch.add(*flags, 0, name.map(OsStr::new), only.map(OsStr::new));
            }
            let expected = expected.map_or(Touched::Anything, |names| {
                Touched::Names(names.iter().map(|name| (*name).to_owned()).collect())
            });
            assert_eq!(batch.into_hint(only.is_some()).touched, expected, "{events:?}");
        };
        let (written, created, gone) = (ReadFlags::CLOSE_WRITE, ReadFlags::CREATE, ReadFlags::DELETE);
        check(&[(written, Some("a"))], None, Some(&["a"]));
        check(
            &[(gone, Some("a")), (written, Some("b")), (created, Some("c"))],
            None,
            Some(&["a", "b", "c"]),
        );
        check(
            &[
                (ReadFlags::MOVED_FROM, Some("a")),
                (ReadFlags::MOVED_TO, Some("b")),
            ],
            None,
            Some(&["a", "b"]),
        );
        check(&[(written, Some("a"))], Some("a"), None);
        // Of the folder itself.
        check(&[(written, Some("a")), (ReadFlags::ATTRIB, None)], None, None);
        check(
            &[(written, Some("a")), (ReadFlags::QUEUE_OVERFLOW, None)],
            None,
            None,
        );
        let many: Vec<String> = (0..=MAX_CREATED).map(|number| number.to_string()).collect();
        let many: Vec<_> = many.iter().map(|name| (created, Some(name.as_str()))).collect();
        check(&many, None, None);
    }

    #[test]
    fn what_is_taken_away_is_named() {
        let check =
            |events: &[(ReadFlags, u32, &str)], only: Option<&str>, expected: &[(&str, Option<&str>)]| {
                let mut batch = Batch::default();
                for (flags, cookie, name) in events {
                    batch.add(*flags, *cookie, Some(OsStr::new(name)), only.map(OsStr::new));
                }
                let got: Vec<_> = batch
                    .removed
                    .iter()
                    .map(|removal| (removal.name.as_str(), removal.renamed_to.as_deref()))
                    .collect();
                assert_eq!(got, expected, "{events:?}");
            };
        let (gone, from, to) = (ReadFlags::DELETE, ReadFlags::MOVED_FROM, ReadFlags::MOVED_TO);
        let written = ReadFlags::CLOSE_WRITE;
        check(&[(written, 0, "a")], None, &[]);
        check(&[(gone, 0, "a"), (written, 0, "a")], None, &[("a", None)]);
        check(&[(to, 1, "a")], None, &[]);
        check(&[(from, 1, "a")], None, &[("a", None)]);
        check(&[(from, 1, "a"), (to, 1, "a~")], None, &[("a", Some("a~"))]);
        check(&[(from, 1, "a"), (to, 1, "a~")], Some("a"), &[("a", Some("a~"))]);
        check(&[(from, 1, "a"), (to, 2, "b")], None, &[("a", None)]);
        check(
            &[(from, 1, ".new"), (to, 1, "a"), (gone, 0, "b")],
            None,
            &[(".new", Some("a")), ("b", None)],
        );
    }
}
