//! The task that rotates logs: which log is looked at when, and how many at a time.
//!
//! Owns the set of logs: running containers, found by the links that the agent makes for log agents, and by a list in every
//! interval. One task owns it all; work on files runs in futures beside it, at most `max_workers` rotations and as many
//! compressions at a time, and one of each kind per log. A rotation frees its worker before it asks the runtime to reopen the log,
//! so that a runtime that does not answer for one container delays no other.

mod discovery;
mod tracked;

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Aborted, BoxFuture, FutureExt, abortable};
use futures_util::stream::{FuturesUnordered, StreamExt};
use rubelet_ports::{
    Clock, FileReader, FileWriter, Growth, LogFileReader, LogFileWriter, LogThrottle, RuntimeError, Spawner,
    WatchStream, within,
};
use tokio::sync::oneshot;

use crate::containers::{LoggedContainers, RunningContainer};
use crate::rotation::{
    Log, Rotated, RotationError, Turn, compress, plan_tidying, rename_away, reopen, restore_ended,
};
use discovery::Discovery;
use tracked::{State, Tracked};

/// More than a runtime has been seen to write to one log. It sets the pace of looks, so that a log has not doubled when it is found
/// too large.
const MAX_BYTES_PER_SECOND: u64 = 200_000_000;
const MIN_PACE: Duration = Duration::from_millis(5);
const MAX_PACE: Duration = Duration::from_secs(1);
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
    discovery: Discovery,
    due: VecDeque<String>,
    rotating: usize,
    /// Logs that were renamed and that the runtime is asked to reopen.
    reopening: usize,
    untidy: VecDeque<String>,
    tidying: usize,
    /// Whether the logs of containers that ended while rubelet was down have been restored.
    is_restored: bool,
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
            discovery: Discovery::default(),
            due: VecDeque::new(),
            rotating: 0,
            reopening: 0,
            untidy: VecDeque::new(),
            tidying: 0,
            is_restored: false,
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
                    Some(Ok(hint)) => {
                        let logs = &self.logs;
                        self.discovery.links_changed(&hint, |id| logs.contains_key(id));
                    }
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
        if !self.discovery.begin_list() {
            return;
        }
        let containers = Arc::clone(&self.ports.containers);
        self.works
            .push(async move { Done::Listed(containers.running().await) }.boxed());
    }

    fn begin_works(&mut self) {
        if self.discovery.begin_reading_links() {
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
        while let Some(id) = self.discovery.begin_request() {
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
        let compressing = tracked.compressing().map(str::to_owned);
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
            Ok(Turn::NotYet) => return self.watch_again(id),
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
            Done::Identified { id, path } => self.identified(id, path.ok().flatten()),
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

    fn watch_again(&mut self, id: &str) {
        if let Some(tracked) = self.logs.get_mut(id) {
            tracked.at_ease();
        }
        self.watch(id, pace(self.settings.max_size_bytes));
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
        tracked.set_watch(Some(handle));
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
                self.watch_again(id);
            }
            Err(error) => {
                if let Some(tracked) = self.logs.get_mut(id) {
                    tracked.complain(&error, self.ports.clock.moment(), "A log cannot be rotated");
                    tracked.state = State::Resting;
                }
            }
        }
    }

    fn begin_tidying(&mut self, id: String) {
        let Some(tracked) = self.logs.get_mut(&id) else {
            return;
        };
        if !tracked.begin_tidying() {
            return;
        }
        let (ports, log) = (self.ports.clone(), tracked.log.clone());
        self.tidying += 1;
        let work = async move {
            let next = plan_tidying(&ports, &log).await;
            Done::Tidied { id, next }
        };
        self.works.push(work.boxed());
    }

    fn tidied(&mut self, id: String, next: Result<Option<String>, RotationError>) {
        let Some(tracked) = self.logs.get_mut(&id) else {
            self.tidying -= 1;
            return;
        };
        let file = match next {
            Ok(Some(file)) => file,
            Ok(None) => {
                self.tidying -= 1;
                if tracked.end_tidying() {
                    self.untidy.push_back(id);
                }
                return;
            }
            Err(error) => {
                self.tidying -= 1;
                tracked.end_tidying();
                tracked.tidy_later();
                let now = self.ports.clock.moment();
                return tracked.complain(&error, now, "Rotated logs cannot be tidied up");
            }
        };
        tracked.begin_compressing(&file);
        let (ports, log) = (self.ports.clone(), tracked.log.clone());
        let work = async move {
            let result = compress(&ports, &log, &file).await;
            Done::Compressed { id, result }
        };
        self.works.push(work.boxed());
    }

    fn compressed(&mut self, id: String, result: Result<bool, RotationError>) {
        self.tidying -= 1;
        let Some(tracked) = self.logs.get_mut(&id) else {
            return;
        };
        tracked.end_tidying();
        match result {
            // There may be more, or a rotation has come meanwhile.
            Ok(true) => self.untidy.push_back(id),
            // A file that is still written is tried again in the next interval.
            Ok(false) => tracked.tidy_later(),
            Err(error) => {
                tracked.tidy_later();
                let now = self.ports.clock.moment();
                tracked.complain(&error, now, "A rotated log cannot be compressed");
            }
        }
    }

    fn listed(&mut self, listed: Result<Vec<RunningContainer>, RuntimeError>) {
        if self.discovery.end_list() {
            self.list();
        }
        let running: BTreeMap<String, Option<PathBuf>> = match listed {
            Ok(running) => running
                .into_iter()
                .map(|container| (container.id, container.log_path))
                .collect(),
            Err(error) => {
                let now = self.ports.clock.moment();
                if self.list_throttle.is_due(&error.to_string(), now) {
                    tracing::warn!(%error, "Logs are not rotated: the containers cannot be listed");
                }
                return;
            }
        };
        self.list_throttle.end();
        self.logs.retain(|id, tracked| {
            let stays = running.contains_key(id) || tracked.is_worked_on();
            if !stays {
                tracked.set_watch(None);
            }
            stays
        });
        for (id, tracked) in &mut self.logs {
            if tracked.take_untidy() {
                self.untidy.push_back(id.clone());
            }
        }
        self.survey();
        for (id, log_path) in running {
            self.discovery.is_running(&id);
            if self.logs.contains_key(&id) {
                continue;
            }
            match log_path {
                Some(path) => self.track(id, path),
                None => self.discovery.want_path(id),
            }
        }
    }

    /// Looks at every log, also at those that are watched, in case a watch failed.
    fn survey(&mut self) {
        let of = |state: State| {
            let logs = self.logs.values().filter(move |tracked| tracked.state == state);
            logs.map(|tracked| tracked.log.clone()).collect::<Vec<Log>>()
        };
        let (files, resting) = (of(State::Watched), of(State::Resting));
        for log in resting {
            // A failed rotation is tried again at once if the log is still too large.
            self.watch(&log.id, Duration::ZERO);
        }
        if files.is_empty() {
            return;
        }
        let (reader, max_size_bytes) = (Arc::clone(&self.ports.log_reader), self.settings.max_size_bytes);
        let survey = async move {
            let mut large = Vec::new();
            for log in files {
                // A log whose size cannot be read is rotated: that logs the error.
                if !matches!(reader.size(&log.path).await, Ok(size) if size < max_size_bytes) {
                    large.push(log.id);
                }
            }
            Done::Surveyed(large)
        };
        self.works.push(survey.boxed());
    }

    fn linked(&mut self, names: &[String]) {
        let logs = &self.logs;
        if self
            .discovery
            .end_reading_links(names, |id| logs.contains_key(id))
        {
            self.list();
        }
    }

    fn identified(&mut self, id: String, path: Option<PathBuf>) {
        self.discovery.end_request(&id, path.is_some());
        if let Some(path) = path
            && !self.logs.contains_key(&id)
        {
            self.track(id, path);
        }
    }

    fn track(&mut self, id: String, path: PathBuf) {
        self.logs.insert(id.clone(), Tracked::new(id.clone(), path));
        self.watch(&id, Duration::ZERO);
        self.untidy.push_back(id);
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
