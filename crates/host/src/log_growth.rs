//! Waiting until log files grow, for any number of files.
//!
//! Owns one inotify queue and one thread. A watch fires once and is set again only after a look at the file, so that a container
//! that writes without a pause costs one look per pace and not one event per line. The thread blocks on a filesystem that
//! hangs; callers therefore also look at their files themselves from time to time.
//!
//! ```text
//!            event                    pace is over, too small
//!  armed ───────────► due at … ──────────────────────────────► armed
//!                        └── large enough, another file, gone ──► notified
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rubelet_ports::{FileIdentity, Growth};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use tokio::sync::oneshot;

/// How often a file is looked at that cannot be watched.
const UNWATCHED_PACE: Duration = Duration::from_secs(1);
const STACK_BYTES: usize = 256 << 10;

/// Copies share the thread; it ends with the last of them.
#[derive(Clone, Default)]
pub(crate) struct LogGrowth {
    thread: Arc<Mutex<Option<Handle>>>,
}

/// The other end of the thread.
struct Handle {
    inbox: Arc<Inbox>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.inbox.change(|news| news.ended = true);
    }
}

struct Inbox {
    // Held for a few assignments.
    news: Mutex<News>,
    wake: OwnedFd,
}

#[derive(Default)]
struct News {
    next_id: u64,
    begun: Vec<(u64, Growth, oneshot::Sender<()>)>,
    given_up: Vec<u64>,
    ended: bool,
}

impl Inbox {
    fn change<T>(&self, change: impl FnOnce(&mut News) -> T) -> T {
        let changed = change(&mut lock(&self.news));
        // A full counter is readable already, which is all that is wanted.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        changed
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LogGrowth {
    /// What to wait for. Without a thread it is a pause.
    pub(crate) fn wait(&self, growth: Growth) -> Waiting {
        let inbox = self.inbox();
        let (sender, notified) = oneshot::channel();
        let id = inbox.as_ref().map(|inbox| {
            inbox.change(|news| {
                news.next_id += 1;
                news.begun.push((news.next_id, growth, sender));
                news.next_id
            })
        });
        Waiting {
            notified,
            begun: inbox.zip(id),
            pause: None,
        }
    }

    fn inbox(&self) -> Option<Arc<Inbox>> {
        let mut thread = lock(&self.thread);
        if thread.is_none() {
            let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
            let inbox = Arc::new(Inbox {
                news: Mutex::default(),
                wake,
            });
            let watcher = Watcher::new(Arc::clone(&inbox));
            std::thread::Builder::new()
                .name("log-growth".to_owned())
                .stack_size(STACK_BYTES)
                .spawn(move || watcher.run())
                .ok()?;
            *thread = Some(Handle { inbox });
        }
        thread.as_ref().map(|handle| Arc::clone(&handle.inbox))
    }
}

/// Ends when there is news. Dropping it takes the wait back.
pub(crate) struct Waiting {
    notified: oneshot::Receiver<()>,
    begun: Option<(Arc<Inbox>, u64)>,
    /// Instead of a thread.
    pause: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl Future for Waiting {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.begun.is_some() {
            let notified = Pin::new(&mut self.notified).poll(context).map(drop);
            if notified.is_ready() {
                self.begun = None;
            }
            return notified;
        }
        let pause = self
            .pause
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(UNWATCHED_PACE)));
        pause.as_mut().poll(context)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some((inbox, id)) = self.begun.take() {
            inbox.change(|news| news.given_up.push(id));
        }
    }
}

struct Wait {
    path: PathBuf,
    identity: Option<FileIdentity>,
    size_bytes: u64,
    pace: Duration,
    notified: oneshot::Sender<()>,
    watch: Option<i32>,
    looked_at: Instant,
    due: Option<Instant>,
}

impl Wait {
    fn has_news(&self) -> bool {
        let Ok(found) = fs::metadata(&self.path) else {
            return true;
        };
        let identity = FileIdentity {
            device: found.dev(),
            inode: found.ino(),
        };
        found.len() >= self.size_bytes || self.identity.is_some_and(|expected| expected != identity)
    }
}

struct Watcher {
    inbox: Arc<Inbox>,
    queue: Option<OwnedFd>,
    waits: BTreeMap<u64, Wait>,
    /// The waits of each watch; several may be for one file.
    watches: BTreeMap<i32, Vec<u64>>,
}

impl Watcher {
    fn new(inbox: Arc<Inbox>) -> Self {
        Self {
            inbox,
            queue: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok(),
            waits: BTreeMap::new(),
            watches: BTreeMap::new(),
        }
    }

    fn run(mut self) {
        while self.take_news() {
            self.look(Instant::now());
            self.sleep();
            self.take_events();
        }
    }

    /// Takes over new and cancelled waits; false when the last [`LogGrowth`] is dropped.
    fn take_news(&mut self) -> bool {
        let _ = rustix::io::read(&self.inbox.wake, &mut [0_u8; 8]);
        let (begun, given_up, ended) = {
            let mut news = lock(&self.inbox.news);
            (
                std::mem::take(&mut news.begun),
                std::mem::take(&mut news.given_up),
                news.ended,
            )
        };
        let now = Instant::now();
        for (id, growth, notified) in begun {
            let wait = Wait {
                path: growth.path,
                identity: growth.identity,
                size_bytes: growth.size_bytes,
                pace: growth.pace,
                notified,
                watch: None,
                looked_at: now,
                due: Some(now),
            };
            self.waits.insert(id, wait);
        }
        for id in given_up {
            self.forget(id);
        }
        !ended
    }

    fn forget(&mut self, id: u64) -> Option<Wait> {
        let wait = self.waits.remove(&id)?;
        if let Some(watch) = wait.watch
            && let Some(waiting) = self.watches.get_mut(&watch)
        {
            waiting.retain(|other| *other != id);
            if waiting.is_empty() {
                self.watches.remove(&watch);
                if let Some(queue) = &self.queue {
                    // One that has fired meanwhile is gone already.
                    let _ = inotify::remove_watch(queue, watch);
                }
            }
        }
        Some(wait)
    }

    /// Looks at the files that are due. The watch is set before the look, so that nothing falls in between.
    fn look(&mut self, now: Instant) {
        let due: Vec<u64> = self
            .waits
            .iter()
            .filter(|(_, wait)| wait.due.is_some_and(|due| due <= now))
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            let is_watched = self.arm(id);
            let Some(wait) = self.waits.get_mut(&id) else {
                continue;
            };
            if wait.has_news() {
                if let Some(wait) = self.forget(id) {
                    // The waiting caller may be gone.
                    let _ = wait.notified.send(());
                }
                continue;
            }
            wait.looked_at = now;
            wait.due = (!is_watched).then(|| now + wait.pace.max(UNWATCHED_PACE));
        }
    }

    fn arm(&mut self, id: u64) -> bool {
        let (Some(queue), Some(wait)) = (&self.queue, self.waits.get_mut(&id)) else {
            return false;
        };
        if wait.watch.is_some() {
            return true;
        }
        let flags = WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::MOVE_SELF
            | WatchFlags::DELETE_SELF
            | WatchFlags::ONESHOT;
        let Ok(watch) = inotify::add_watch(queue, &wait.path, flags) else {
            return false;
        };
        wait.watch = Some(watch);
        self.watches.entry(watch).or_default().push(id);
        true
    }

    /// Until news, an event, or the next look.
    fn sleep(&self) {
        let now = Instant::now();
        let next = self.waits.values().filter_map(|wait| wait.due).min();
        let limit = next.map(|due| {
            let left = due.saturating_duration_since(now);
            Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                // Rounded up: a sleep that ends early would make the loop spin.
                tv_nsec: i64::from(left.subsec_nanos()) + i64::from(left.subsec_nanos() < 999_999_999),
            }
        });
        let mut descriptors = vec![PollFd::from_borrowed_fd(self.inbox.wake.as_fd(), PollFlags::IN)];
        descriptors.extend(
            self.queue
                .as_ref()
                .map(|queue| PollFd::from_borrowed_fd(queue.as_fd(), PollFlags::IN)),
        );
        // An interrupted sleep only means to look at everything once more.
        let _ = poll(&mut descriptors, limit.as_ref());
    }

    fn take_events(&mut self) {
        let Some(queue) = &self.queue else { return };
        let now = Instant::now();
        let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
        let mut reader = inotify::Reader::new(queue, &mut buffer);
        loop {
            match reader.next() {
                Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => {
                    for wait in self.waits.values_mut() {
                        wait.watch = None;
                        wait.due = Some(now);
                    }
                    self.watches.clear();
                }
                Ok(event) => {
                    for id in self.watches.remove(&event.wd()).unwrap_or_default() {
                        if let Some(wait) = self.waits.get_mut(&id) {
                            wait.watch = None;
                            wait.due = Some(now.max(wait.looked_at + wait.pace));
                        }
                    }
                }
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }
}
