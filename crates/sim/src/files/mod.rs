//! Simulated files: the port's calls on a tree in memory, with delays, full disks and file systems that do not answer.
//!
//! Owns the faults and the hints of watches, which may come late or never. The ground truth of what the agent read of the
//! manifests goes into the history.

mod tree;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream;
use rubelet_ports::{
    Clock, DirectoryEntry, FileError, FileErrorKind, FileKind, FileReader, FileWriter, Removal, Touched,
    WatchHint, WatchStream,
};
use tokio::sync::mpsc;

use crate::dice::{Dice, SharedDice};
use crate::executor::{Executor, Group};
use crate::history::{Fact, History};
use crate::trace::{Actor, Trace};
use tree::{Tree, failure};

/// How long the port's implementation waits for a file system.
const FILE_DEADLINE: Duration = Duration::from_secs(10);

/// Shares are per 10,000 calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileFaults {
    pub hangs: u64,
    pub no_space: u64,
    pub hint_is_lost: u64,
    pub hint_delay_ms: u64,
}

impl FileFaults {
    #[must_use]
    pub fn roll(dice: &mut Dice) -> Self {
        if dice.percent(50) {
            return Self::default();
        }
        let mut share = |percent: u64, most: u64| {
            if dice.percent(percent) {
                dice.between(1, most)
            } else {
                0
            }
        };
        Self {
            hangs: share(40, 300),
            no_space: share(40, 2000),
            hint_is_lost: share(50, 5000),
            hint_delay_ms: share(50, 5000),
        }
    }
}

type HintSender = mpsc::UnboundedSender<Result<WatchHint, FileError>>;

struct State {
    tree: Tree,
    faults: FileFaults,
    watches: Vec<(PathBuf, HintSender)>,
    /// Manifests that the agent was told are taken away, since it last listed them.
    told_removed: BTreeSet<String>,
}

struct Inner {
    executor: Executor,
    dice: SharedDice,
    history: History,
    trace: Trace,
    manifests: PathBuf,
    state: Mutex<State>,
}

/// A handle; all handles are of one disk.
#[derive(Clone)]
pub struct SimFiles {
    inner: Arc<Inner>,
}

impl SimFiles {
    #[must_use]
    pub fn new(
        executor: &Executor,
        dice: SharedDice,
        history: History,
        trace: Trace,
        manifests: &Path,
    ) -> Self {
        let files = Self {
            inner: Arc::new(Inner {
                executor: executor.clone(),
                dice,
                history,
                trace,
                manifests: manifests.to_owned(),
                state: Mutex::new(State {
                    tree: Tree::default(),
                    faults: FileFaults::default(),
                    watches: Vec::new(),
                    told_removed: BTreeSet::new(),
                }),
            }),
        };
        files.make_directory(manifests);
        files
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // One thread runs a simulation; the lock only makes handles shareable.
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_faults(&self, faults: FileFaults) {
        self.lock().faults = faults;
    }

    /// What somebody else than rubelet does: no delay, no fault, on the disk for sure.
    pub fn make_directory(&self, path: &Path) {
        let made = self.lock().tree.create_directory(path);
        debug_assert!(made.is_ok(), "{made:?}");
    }

    pub fn place(&self, path: &Path, content: &[u8]) {
        let placed = self.lock().tree.write(path, content);
        debug_assert!(placed.is_ok(), "{placed:?}");
        self.hint(path, false);
    }

    pub fn take_away(&self, path: &Path) {
        {
            let mut state = self.lock();
            state.tree.remove_tree(path);
            state.tree.forget_durably(path);
        }
        self.hint(path, true);
    }

    /// A log file or another file that the runtime makes; false when its directory is missing.
    #[must_use]
    pub fn touch(&self, path: &Path) -> bool {
        let mut state = self.lock();
        state.tree.exists(path) || state.tree.write_in_place(path, b"").is_ok()
    }

    #[must_use]
    pub fn content(&self, path: &Path) -> Option<Vec<u8>> {
        let state = self.lock();
        state.tree.content(path).ok().map(|content| content.to_vec())
    }

    #[must_use]
    pub fn exists(&self, path: &Path) -> bool {
        self.lock().tree.exists(path)
    }

    /// Everything below a directory.
    #[must_use]
    pub fn paths_below(&self, directory: &Path) -> Vec<PathBuf> {
        self.lock().tree.paths_below(directory).cloned().collect()
    }

    pub fn lose_power(&self) {
        let inner = self.inner.clone();
        inner.dice.with(|dice| self.lock().tree.lose_power(dice));
        let mut state = self.lock();
        state.watches.clear();
        state.told_removed.clear();
    }

    /// Tells the watches of a path and of its directory, as reliably as the faults allow.
    fn hint(&self, path: &Path, is_removed: bool) {
        let (targets, faults) = {
            let mut state = self.lock();
            state.watches.retain(|(_, sender)| !sender.is_closed());
            let targets: Vec<(bool, HintSender)> = state
                .watches
                .iter()
                .filter(|(watched, _)| path == watched || path.parent() == Some(watched))
                .map(|(watched, sender)| (path != watched, sender.clone()))
                .collect();
            (targets, state.faults)
        };
        let name = path.file_name().and_then(|name| name.to_str());
        for (is_in_folder, sender) in targets {
            let removed = name.filter(|_| is_removed && is_in_folder).map(|name| Removal {
                name: name.to_owned(),
                renamed_to: None,
            });
            let touched = name
                .filter(|_| is_in_folder)
                .map(|name| BTreeSet::from([name.to_owned()]));
            let hint = WatchHint {
                removed: removed.into_iter().collect(),
                touched: touched.map_or(Touched::Anything, Touched::Names),
            };
            let (is_lost, delay) = self.inner.dice.with(|dice| {
                (
                    dice.per_myriad(faults.hint_is_lost),
                    dice.millis(0, faults.hint_delay_ms),
                )
            });
            if is_lost {
                continue;
            }
            let pause = self.inner.executor.sleep(delay);
            let later = async move {
                pause.await;
                // A watch that nobody listens to any more gets no hints.
                let _ = sender.send(Ok(hint));
            };
            self.inner
                .executor
                .spawn(Group::World, "file hint", Box::pin(later));
        }
    }

    fn say(&self, text: String) {
        self.inner
            .trace
            .say(self.inner.executor.elapsed(), Actor::Files, text);
    }

    /// The delay and the faults of one call.
    async fn reach(&self, path: &Path, writes: bool) -> Result<(), FileError> {
        let faults = self.lock().faults;
        let (delay, hangs, is_full) = self.inner.dice.with(|dice| {
            (
                dice.millis(0, 2),
                dice.per_myriad(faults.hangs),
                writes && dice.per_myriad(faults.no_space),
            )
        });
        if hangs {
            self.inner.executor.sleep(FILE_DEADLINE).await;
            self.say(format!("{} does not answer", path.display()));
            return Err(failure(
                path,
                FileErrorKind::TimedOut,
                "the file system does not answer",
            ));
        }
        self.inner.executor.sleep(delay).await;
        if is_full {
            self.say(format!("no space for {}", path.display()));
            return Err(failure(path, FileErrorKind::NoSpace, "no space left on device"));
        }
        Ok(())
    }

    fn learn(&self, fact: Fact) {
        self.inner.history.add(self.inner.executor.elapsed(), fact);
    }

    /// A folder that is not there has no manifests; any other error tells nothing. A manifest that was taken away and is there
    /// again is a new one: it is known when it is read.
    fn learn_listing(&self, entries: &Result<Vec<DirectoryEntry>, FileError>) {
        match entries {
            Ok(entries) => {
                let removed = std::mem::take(&mut self.lock().told_removed);
                let names = entries.iter().map(|entry| entry.name.clone());
                let names = names.filter(|name| !removed.contains(name)).collect();
                self.learn(Fact::Listed { names });
            }
            Err(error) if error.is_not_found() => self.learn(Fact::Listed { names: Vec::new() }),
            Err(_) => {}
        }
    }

    fn read_now(&self, path: &Path) -> Result<Vec<u8>, FileError> {
        let content = self.lock().tree.content(path)?;
        if path.parent() == Some(&self.inner.manifests) {
            self.learn(Fact::ManifestRead {
                path: path.to_owned(),
                content: Arc::clone(&content),
            });
        }
        Ok(content.to_vec())
    }
}

#[async_trait]
impl FileReader for SimFiles {
    async fn read(&self, path: &Path, limit_bytes: u64) -> Result<Vec<u8>, FileError> {
        self.reach(path, false).await?;
        let content = self.read_now(path)?;
        if content.len() as u64 > limit_bytes {
            return Err(failure(path, FileErrorKind::TooLarge, "too large"));
        }
        Ok(content)
    }

    /// Nobody makes links in the simulation.
    async fn read_within(
        &self,
        directory: &Path,
        path: &Path,
        limit_bytes: u64,
    ) -> Result<Vec<u8>, FileError> {
        self.read(&directory.join(path), limit_bytes).await
    }

    async fn read_end(&self, path: &Path, limit_bytes: u64) -> Result<Vec<u8>, FileError> {
        self.reach(path, false).await?;
        let content = self.read_now(path)?;
        let limit = usize::try_from(limit_bytes).unwrap_or(usize::MAX);
        Ok(content[content.len().saturating_sub(limit)..].to_vec())
    }

    async fn list(&self, directory: &Path) -> Result<Vec<DirectoryEntry>, FileError> {
        self.reach(directory, false).await?;
        let entries = self.lock().tree.list(directory);
        if directory == self.inner.manifests {
            self.learn_listing(&entries);
        }
        entries
    }

    async fn kind(&self, path: &Path) -> Result<FileKind, FileError> {
        self.reach(path, false).await?;
        let kind = self.lock().tree.kind(path);
        if let (Err(error), true) = (&kind, path == self.inner.manifests) {
            self.learn_listing(&Err(error.clone()));
        }
        kind
    }

    fn watch(&self, path: &Path) -> WatchStream {
        let (sender, receiver) = mpsc::unbounded_channel();
        {
            let mut state = self.lock();
            if state.tree.exists(path) {
                // The first hint says that the watch stands. Sending cannot fail, the receiver is here.
                let _ = sender.send(Ok(WatchHint::default()));
                state.watches.push((path.to_owned(), sender));
            } else {
                let _ = sender.send(Err(failure(path, FileErrorKind::NotFound, "nothing to watch")));
            }
        }
        let files = (path == self.inner.manifests).then(|| self.clone());
        Box::pin(stream::unfold(
            (receiver, files),
            |(mut receiver, files)| async move {
                let hint = receiver.recv().await?;
                if let (Some(files), Ok(hint)) = (&files, &hint) {
                    let names = hint.removed.iter().map(|removal| removal.name.clone());
                    files.lock().told_removed.extend(names);
                }
                Some((hint, (receiver, files)))
            },
        ))
    }
}

#[async_trait]
impl FileWriter for SimFiles {
    async fn write(&self, path: &Path, content: &[u8], _mode: u32) -> Result<(), FileError> {
        self.reach(path, true).await?;
        self.lock().tree.write(path, content)
    }

    async fn write_in_place(&self, path: &Path, content: &[u8], _mode: u32) -> Result<(), FileError> {
        self.reach(path, true).await?;
        self.lock().tree.write_in_place(path, content)
    }

    async fn create_directory(&self, path: &Path, _mode: u32) -> Result<(), FileError> {
        self.reach(path, true).await?;
        self.lock().tree.create_directory(path)
    }

    async fn link(&self, target: &Path, link: &Path) -> Result<(), FileError> {
        self.reach(link, true).await?;
        self.lock().tree.link(target, link)
    }

    async fn remove_file(&self, path: &Path) -> Result<(), FileError> {
        self.reach(path, false).await?;
        self.lock().tree.remove_file(path)?;
        Ok(())
    }

    async fn remove_tree(&self, path: &Path) -> Result<(), FileError> {
        self.reach(path, false).await?;
        if self.lock().tree.remove_tree(path) {
            self.say(format!("removed {}", path.display()));
            self.learn(Fact::TreeRemoved {
                path: path.to_owned(),
            });
        }
        Ok(())
    }
}
