//! The task that rotates logs: which log is looked at when, and how many at a time.
//!
//! Owns the set of logs: running containers, found by the links that the agent makes for log agents, and by a list in every
//! interval. One task owns it all; work on files runs in futures beside it, at most `max_workers` rotations and as many
//! compressions at a time, and one of each kind per log. A rotation frees its worker before it asks the runtime to reopen the log,
//! so that a runtime that does not answer for one container delays no other.

mod finding;
mod tidying;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{AbortHandle, Aborted, BoxFuture, FutureExt, abortable};
use futures_util::stream::{FuturesUnordered, StreamExt};
use rubelet_ports::{
    Clock, FileReader, FileWriter, Growth, LogFileReader, LogFileWriter, LogThrottle, RuntimeError, Spawner,
    WatchStream, within,
};
use tokio::sync::oneshot;

use crate::containers::{LoggedContainers, RunningContainer};
use crate::rotation::{Log, Rotated, RotationError, Turn, rename_away, reopen, restore_ended};

/// More than a runtime has been seen to write to one log. It sets the pace of looks, so that a log has not doubled when it is found
/// too large.
const MAX_BYTES_PER_SECOND: u64 = 200_000_000;
const MIN_PACE: Duration = Duration::from_millis(5);
const MAX_PACE: Duration = Duration::from_secs(1);
/// Containers whose log path is requested at a time.
const QUESTIONS_IN_FLIGHT: usize = 4;
/// How long a stop waits for rotations that have begun.
const STOP_LIMIT: Duration = Duration::from_secs(5);
const LINKS_DIR_MODE: u32 = 0o755;

#[derive(Clone, Debug)]
pub struct RotationSettings {
    pub max_size_bytes: u64,
    /// At least two: the log and one that was rotated away.
    pub max_files: usize,
    pub max_workers: usize,
    pub monitor_interval: Duration,
    /// Where every container that starts gets a link to its log.
    pub links_dir: PathBuf,
}

#[derive(Clone)]
pub struct RotationPorts {
    pub clock: Arc<dyn Clock>,
    pub spawner: Arc<dyn Spawner>,
    pub containers: Arc<dyn LoggedContainers>,
    pub file_reader: Arc<dyn FileReader>,
    pub file_writer: Arc<dyn FileWriter>,
    pub log_reader: Arc<dyn LogFileReader>,
    pub log_writer: Arc<dyn LogFileWriter>,
}

/// Dropping it ends the rotation. Logs that are already renamed still get their new file.
pub struct RotationHandle {
    stop: oneshot::Sender<()>,
    ended: oneshot::Receiver<()>,
}

impl RotationHandle {
    /// Ends the rotation and waits for that, which takes a few seconds at most.
    pub async fn stop(self) {
        drop(self.stop);
        // Nothing is ever sent: the other side goes with the task.
        let _ = self.ended.await;
    }
}

#[must_use]
pub fn start(ports: RotationPorts, settings: RotationSettings) -> RotationHandle {
    let (stop, stopped) = oneshot::channel();
    let (ending, ended) = oneshot::channel();
    let spawner = Arc::clone(&ports.spawner);
    let rotator = Rotator::new(ports, settings);
    let run = rotator.run(stopped).map(move |()| drop(ending));
    spawner.spawn("log rotation", run.boxed());
    RotationHandle { stop, ended }
}

/// What a log is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// To grow.
    Watched,
    /// For a free worker, or for its rotation to end.
    Due,
    /// For the next interval, after a failure.
    Resting,
}

/// What is being done to the rotated files of a log. Two of these at a time would remove each other's files.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Tidying {
    Nothing,
    Looking {
        /// A rotation has happened meanwhile.
        again: bool,
    },
    Compressing(String),
}

struct Tracked {
    log: Log,
    state: State,
    watch: Option<AbortHandle>,
    tidying: Tidying,
    /// Tidied again in the next interval: a file was still written, or something failed.
    is_untidy: bool,
    throttle: LogThrottle,
}

enum Done {
    Restored(Result<(), RuntimeError>),
    Listed(Result<Vec<RunningContainer>, RuntimeError>),
    Linked(Vec<String>),
    Identified {
        id: String,
        path: Result<Option<PathBuf>, RuntimeError>,
    },
    Surveyed(Vec<String>),
    Renamed {
        id: String,
        result: Result<Turn, RotationError>,
    },
    Rotated {
        id: String,
        result: Result<Rotated, RotationError>,
    },
    /// What there is to compress among the rotated files of a log.
    Tidied {
        id: String,
        next: Result<Option<String>, RotationError>,
    },
    Compressed {
        id: String,
        result: Result<bool, RotationError>,
    },
}

struct Rotator {
    ports: RotationPorts,
    settings: RotationSettings,
    logs: BTreeMap<String, Tracked>,
    growths: FuturesUnordered<BoxFuture<'static, Result<String, Aborted>>>,
    works: FuturesUnordered<BoxFuture<'static, Done>>,
    /// Containers whose log is not known yet.
    unknown: VecDeque<String>,
    asked: BTreeSet<String>,
    /// Containers that have links and are not looked at, such as those that have ended.
    passed_over: BTreeSet<String>,
    due: VecDeque<String>,
    rotating: usize,
    /// Logs that were renamed and that the runtime is asked to reopen.
    reopening: usize,
    untidy: VecDeque<String>,
    tidying: usize,
    /// Whether the logs of containers that ended while rubelet was down have been restored.
    is_restored: bool,
    is_listing: bool,
    /// A container may have started since the list under way was requested.
    list_again: bool,
    have_links_been_read: bool,
    is_reading_links: bool,
    /// The links have changed since they were read.
    are_links_stale: bool,
    list_throttle: LogThrottle,
}

impl Rotator {
    fn new(ports: RotationPorts, settings: RotationSettings) -> Self {
        Self {
            ports,
            settings,
            logs: BTreeMap::new(),
            growths: FuturesUnordered::new(),
            works: FuturesUnordered::new(),
            unknown: VecDeque::new(),
            asked: BTreeSet::new(),
            passed_over: BTreeSet::new(),
            due: VecDeque::new(),
            rotating: 0,
            reopening: 0,
            untidy: VecDeque::new(),
            tidying: 0,
            is_restored: false,
            is_listing: false,
            list_again: false,
            have_links_been_read: false,
            is_reading_links: false,
            are_links_stale: false,
            list_throttle: LogThrottle::default(),
        }
    }

    async fn run(mut self, stopped: oneshot::Receiver<()>) {
        let mut stopped = pin!(stopped);
        make_links_dir(self.ports.file_writer.as_ref(), &self.settings.links_dir).await;
        let mut links = self.watch_links();
        let mut tick = self.ports.clock.sleep(self.settings.monitor_interval);
        self.list();
        loop {
            self.begin_works();
            // Every arm is cancel-safe: what is not taken stays in its set, and a hint only means "look again".
            tokio::select! {
                biased;
                _ = stopped.as_mut() => break,
                Some(done) = self.works.next(), if !self.works.is_empty() => self.settle(done),
                Some(grown) = self.growths.next(), if !self.growths.is_empty() => {
                    if let Ok(id) = grown {
                        self.grown(id);
                    }
                }
                hint = links.next() => match hint {
                    Some(Ok(_)) => self.are_links_stale = true,
                    // Watched again in the next interval: the directory may not be there yet.
                    Some(Err(_)) | None => links = futures_util::stream::pending().boxed(),
                },
                () = tick.as_mut() => {
                    tick = self.ports.clock.sleep(self.settings.monitor_interval);
                    links = self.watch_links();
                    self.list();
                }
            }
        }
        let clock = Arc::clone(&self.ports.clock);
        if within(clock.as_ref(), STOP_LIMIT, self.finish()).await.is_err() {
            tracing::warn!(
                "Rotated logs are not reopened by the runtime before the stop; the next start reopens them"
            );
        }
    }

    /// Completes rotations that have begun. Everything else may stop at any step.
    async fn finish(&mut self) {
        while self.rotating + self.reopening > 0 {
            match self.works.next().await {
                Some(done @ (Done::Renamed { .. } | Done::Rotated { .. })) => self.settle(done),
                Some(_) => {}
                None => return,
            }
        }
    }

    fn watch_links(&self) -> WatchStream {
        self.ports.file_reader.watch(&self.settings.links_dir)
    }

    fn list(&mut self) {
        if !std::mem::replace(&mut self.is_restored, true) {
            let ports = self.ports.clone();
            self.works
                .push(async move { Done::Restored(restore_ended(&ports).await) }.boxed());
        }
        if std::mem::replace(&mut self.is_listing, true) {
            self.list_again = true;
            return;
        }
        let containers = Arc::clone(&self.ports.containers);
        self.works
            .push(async move { Done::Listed(containers.running().await) }.boxed());
    }

    fn begin_works(&mut self) {
        if self.are_links_stale && !self.is_reading_links {
            (self.are_links_stale, self.is_reading_links) = (false, true);
            let (files, directory) = (
                Arc::clone(&self.ports.file_reader),
                self.settings.links_dir.clone(),
            );
            let read = async move {
                let entries = files.list(&directory).await.unwrap_or_default();
                Done::Linked(entries.into_iter().map(|entry| entry.name).collect())
            };
            self.works.push(read.boxed());
        }
        while self.asked.len() < QUESTIONS_IN_FLIGHT
            && let Some(id) = self.unknown.pop_front()
        {
            if !self.asked.insert(id.clone()) {
                continue;
            }
            let containers = Arc::clone(&self.ports.containers);
            let ask = async move {
                let path = containers.log_path(&id).await;
                Done::Identified { id, path }
            };
            self.works.push(ask.boxed());
        }
        while self.rotating < self.settings.max_workers
            && let Some(id) = self.due.pop_front()
        {
            self.begin_rotation(&id);
        }
        while self.tidying < self.settings.max_workers
            && let Some(id) = self.untidy.pop_front()
        {
            self.begin_tidying(id);
        }
    }

    fn begin_rotation(&mut self, id: &str) {
        let Some(tracked) = self.logs.get(id) else { return };
        let (ports, log) = (self.ports.clone(), tracked.log.clone());
        let compressing = match &tracked.tidying {
            Tidying::Compressing(file) => Some(file.clone()),
            Tidying::Nothing | Tidying::Looking { .. } => None,
        };
        let (size, files) = (self.settings.max_size_bytes, self.settings.max_files);
        self.rotating += 1;
        let work = async move {
            let result = rename_away(&ports, &log, size, files, compressing.as_deref()).await;
            Done::Renamed { id: log.id, result }
        };
        self.works.push(work.boxed());
    }

    fn renamed(&mut self, id: &str, result: Result<Turn, RotationError>) {
        self.rotating -= 1;
        let away = match result {
            Ok(Turn::NotYet) => {
                self.at_ease(id);
                return self.watch(id, self.pace());
            }
            Ok(Turn::Reopen(away)) => away,
            Err(error) => return self.rotated(id, Err(error)),
        };
        let Some(tracked) = self.logs.get(id) else { return };
        let (ports, log) = (self.ports.clone(), tracked.log.clone());
        self.reopening += 1;
        let work = async move {
            let result = reopen(&ports, &log, away.as_deref()).await;
            Done::Rotated { id: log.id, result }
        };
        self.works.push(work.boxed());
    }

    fn settle(&mut self, done: Done) {
        match done {
            Done::Listed(listed) => self.listed(listed),
            Done::Linked(names) => self.linked(&names),
            Done::Identified { id, path } => self.identified(id, path),
            Done::Surveyed(large) => {
                for id in large {
                    self.grown(id);
                }
            }
            Done::Restored(result) => self.is_restored = result.is_ok(),
            Done::Renamed { id, result } => self.renamed(&id, result),
            Done::Rotated { id, result } => {
                self.reopening -= 1;
                self.rotated(&id, result);
            }
            Done::Tidied { id, next } => self.tidied(id, next),
            Done::Compressed { id, result } => self.compressed(id, result),
        }
    }

    fn pace(&self) -> Duration {
        pace(self.settings.max_size_bytes)
    }

    /// Waits for a log to grow, after a pause.
    fn watch(&mut self, id: &str, pause: Duration) {
        let Some(tracked) = self.logs.get_mut(id) else {
            return;
        };
        tracked.state = State::Watched;
        let growth = Growth {
            path: tracked.log.path.clone(),
            identity: None,
            size_bytes: self.settings.max_size_bytes,
            pace: pace(self.settings.max_size_bytes),
        };
        let (ports, id) = (self.ports.clone(), id.to_owned());
        let wait = async move {
            if !pause.is_zero() {
                ports.clock.sleep(pause).await;
            }
            ports.log_reader.growth(growth).await;
            id
        };
        let (wait, handle) = abortable(wait);
        if let Some(earlier) = tracked.watch.replace(handle) {
            earlier.abort();
        }
        self.growths.push(wait.boxed());
    }

    fn grown(&mut self, id: String) {
        let Some(tracked) = self.logs.get_mut(&id) else {
            return;
        };
        if tracked.state == State::Watched {
            tracked.state = State::Due;
            self.due.push_back(id);
        }
    }

    fn rotated(&mut self, id: &str, result: Result<Rotated, RotationError>) {
        match result {
            Ok(rotated) => {
                if rotated == Rotated::Away {
                    self.untidy.push_back(id.to_owned());
                }
                self.at_ease(id);
                self.watch(id, self.pace());
            }
            Err(error) => {
                self.complain(id, &error, "A log cannot be rotated");
                if let Some(tracked) = self.logs.get_mut(id) {
                    tracked.state = State::Resting;
                }
            }
        }
    }

    fn complain(&mut self, id: &str, error: &RotationError, what: &'static str) {
        let Some(tracked) = self.logs.get_mut(id) else {
            return;
        };
        let now = self.ports.clock.moment();
        if tracked.throttle.is_due(&error.to_string(), now) {
            let path = tracked.log.path.display();
            tracing::warn!(container = id, log = %path, %error, "{what}");
        }
    }

    fn at_ease(&mut self, id: &str) {
        if let Some(tracked) = self.logs.get_mut(id)
            && tracked.throttle.end()
        {
            tracing::info!(container = id, "The log is rotated again");
        }
    }
}

/// On a new node the directory does not exist yet, and only an existing one can be watched.
async fn make_links_dir(files: &dyn FileWriter, directory: &Path) {
    if let Err(error) = files.create_directory(directory, LINKS_DIR_MODE).await {
        tracing::warn!(%error, "The directory of container log links cannot be made; new containers are found once per interval only");
    }
}

/// How often a log that is being written has to be looked at, and how long it is left alone after a rotation.
fn pace(max_size_bytes: u64) -> Duration {
    let micros = u128::from(max_size_bytes) * 1_000_000 / u128::from(MAX_BYTES_PER_SECOND);
    Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)).clamp(MIN_PACE, MAX_PACE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_logs_are_looked_at_less_often() {
        let check = |size: u64, millis: u64| assert_eq!(pace(size), Duration::from_millis(millis), "{size}");
        check(0, 5);
        check(10_000_000, 50);
        check(100_000_000, 500);
        check(u64::MAX, 1000);
    }
}
