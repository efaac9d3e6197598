//! A container that writes numbered lines, and a node that rotates its log.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use flate2::read::GzDecoder;
use futures_util::future::BoxFuture;
use rubelet_fakes::Tasks;
use rubelet_host::{HostClock, HostFiles, HostLogFiles};
use rubelet_logs::{
    LoggedContainers, RotationHandle, RotationPorts, RotationSettings, RunningContainer, start,
};
use rubelet_model::Timestamp;
use rubelet_ports::{
    Clock, DirectoryEntry, FileError, FileKind, FileReader, FileWriter, Growth, LogFileReader, LogFileWriter,
    Moment, RuntimeError, RuntimeErrorKind, WatchStream,
};
use tempfile::TempDir;
use tokio::sync::watch;

pub(crate) const ID: &str = "c0ffee";
pub(crate) const MAX_SIZE_BYTES: u64 = 16 * 1024;
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// How the runtime takes the wish to open a log anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reopening {
    Works,
    Fails,
    /// It is done, and the answer says that it is not.
    AnswerIsLost,
    /// There is no answer, and nothing is done.
    Hangs,
}

/// A container and what the runtime does for it.
pub(crate) struct Container {
    id: &'static str,
    pub(crate) log: PathBuf,
    file: Mutex<File>,
    next_line: Mutex<u64>,
    pub(crate) reopening: Mutex<Reopening>,
    pub(crate) reopened: AtomicUsize,
    pub(crate) runs: Mutex<bool>,
    /// How often everything was listed.
    pub(crate) lists: AtomicUsize,
    /// While it is held, a rename that is done does not return.
    pub(crate) rename_told: tokio::sync::Mutex<()>,
    /// How often the directory of the log was listed.
    pub(crate) looks: AtomicUsize,
    /// While it is held, the first of these lists waits.
    pub(crate) first_look: tokio::sync::Mutex<()>,
    /// Compressions under way, and the most that there were.
    pub(crate) compressions: AtomicUsize,
    pub(crate) most_compressions: AtomicUsize,
    /// While it is held, compressions wait.
    pub(crate) compressing: tokio::sync::Mutex<()>,
}

impl Container {
    fn new(id: &'static str, directory: &Path) -> Arc<Self> {
        fs::create_dir(directory).unwrap();
        let log = directory.join("0.log");
        Arc::new(Self {
            id,
            file: Mutex::new(open(&log)),
            log,
            next_line: Mutex::new(0),
            reopening: Mutex::new(Reopening::Works),
            reopened: AtomicUsize::new(0),
            runs: Mutex::new(true),
            lists: AtomicUsize::new(0),
            rename_told: tokio::sync::Mutex::default(),
            looks: AtomicUsize::new(0),
            first_look: tokio::sync::Mutex::default(),
            compressions: AtomicUsize::new(0),
            most_compressions: AtomicUsize::new(0),
            compressing: tokio::sync::Mutex::default(),
        })
    }

    /// Writes lines until the file has this size.
    pub(crate) fn write_to(&self, size_bytes: u64) {
        let mut next = self.next_line.lock().unwrap();
        loop {
            let mut file = self.file.lock().unwrap();
            if file.metadata().unwrap().len() >= size_bytes {
                return;
            }
            writeln!(
                file,
                "2026-01-01T00:00:00Z stdout F line {:012} {}",
                *next,
                "x".repeat(60)
            )
            .unwrap();
            *next += 1;
        }
    }

    pub(crate) fn lines(&self) -> u64 {
        *self.next_line.lock().unwrap()
    }

    async fn reopen(&self) -> Result<(), RuntimeError> {
        let refusal = || {
            Err(RuntimeError::new(
                "ReopenContainerLog",
                "",
                RuntimeErrorKind::Unavailable,
                "on purpose",
            ))
        };
        let way = *self.reopening.lock().unwrap();
        match way {
            Reopening::Fails => return refusal(),
            Reopening::Hangs => return std::future::pending().await,
            Reopening::Works | Reopening::AnswerIsLost => {}
        }
        if !*self.runs.lock().unwrap() {
            return refusal();
        }
        let anew = open(&self.log);
        *self.file.lock().unwrap() = anew;
        self.reopened.fetch_add(1, Ordering::SeqCst);
        if way == Reopening::AnswerIsLost {
            return refusal();
        }
        Ok(())
    }
}

fn open(path: &Path) -> File {
    OpenOptions::new().create(true).append(true).open(path).unwrap()
}

/// A directory of logs with one container.
pub(crate) struct Scene {
    directory: TempDir,
    pub(crate) container: Arc<Container>,
    /// Another one, which does not run at first.
    pub(crate) neighbour: Arc<Container>,
}

impl Scene {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let container = Container::new(ID, &directory.path().join("pod"));
        let neighbour = Container::new("decaf", &directory.path().join("neighbour"));
        *neighbour.runs.lock().unwrap() = false;
        Self {
            directory,
            container,
            neighbour,
        }
    }

    pub(crate) fn settings(&self, max_files: usize, monitor_interval: Duration) -> RotationSettings {
        RotationSettings {
            max_size_bytes: MAX_SIZE_BYTES,
            max_files,
            max_workers: 1,
            monitor_interval,
            links_dir: self.directory.path().join("links"),
        }
    }

    /// What the agent does when a container has started.
    pub(crate) fn link(&self) {
        let links = self.directory.path().join("links");
        fs::create_dir_all(&links).unwrap();
        let link = links.join(format!("web_default_main-{ID}.log"));
        std::os::unix::fs::symlink(&self.container.log, link).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.container.log.with_file_name(name)
    }

    /// The files beside the log, by name.
    pub(crate) fn files(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.container.log.parent().unwrap())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// The numbers of all lines that are left, in the order of files.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        let mut files: BTreeMap<String, String> = BTreeMap::new();
        for name in self.files() {
            let mut text = String::new();
            let mut file = File::open(self.path(&name)).unwrap();
            let order = if let Some(stem) = name.strip_suffix(".gz") {
                GzDecoder::new(file).read_to_string(&mut text).unwrap();
                stem.to_owned()
            } else if name == "0.log" {
                file.read_to_string(&mut text).unwrap();
                "1".to_owned()
            } else {
                file.read_to_string(&mut text).unwrap();
                name
            };
            let earlier = files.insert(order, text);
            assert!(earlier.is_none(), "two forms of one file: {:?}", self.files());
        }
        let number = |line: &str| line.split(' ').nth(4).unwrap().parse().unwrap();
        files.values().flat_map(|text| text.lines().map(number)).collect()
    }

    /// Only the newest rotated file is not compressed, and nothing is half done.
    pub(crate) fn is_tidy(&self) -> bool {
        let files = self.files();
        let plain = files
            .iter()
            .filter(|name| name.starts_with("0.log.") && !name.ends_with(".gz"))
            .count();
        plain <= 1 && files.contains(&"0.log".to_owned())
    }

    /// Nothing was lost among the files that are left, and the last line is there.
    pub(crate) fn check_lines(&self) {
        let numbers = self.numbers();
        let first = *numbers.first().unwrap();
        let expected: Vec<u64> = (first..self.container.lines()).collect();
        assert!(
            numbers == expected,
            "{first} to {:?}, {} of {}",
            numbers.last(),
            numbers.len(),
            expected.len()
        );
    }
}

#[async_trait]
impl LoggedContainers for Container {
    async fn running(&self) -> Result<Vec<RunningContainer>, RuntimeError> {
        self.lists.fetch_add(1, Ordering::SeqCst);
        let container = RunningContainer {
            id: self.id.to_owned(),
            log_path: None,
        };
        Ok(vec![container]
            .into_iter()
            .filter(|_| *self.runs.lock().unwrap())
            .collect())
    }

    async fn ended(&self) -> Result<Vec<PathBuf>, RuntimeError> {
        let runs = *self.runs.lock().unwrap();
        Ok(if runs { Vec::new() } else { vec![self.log.clone()] })
    }

    async fn log_path(&self, id: &str) -> Result<Option<PathBuf>, RuntimeError> {
        let is_it = id == self.id && *self.runs.lock().unwrap();
        Ok(is_it.then(|| self.log.clone()))
    }

    async fn reopen(&self, id: &str) -> Result<(), RuntimeError> {
        assert_eq!(id, self.id);
        Container::reopen(self).await
    }
}

/// Where a process is killed: at which of its steps that change something, and on which side of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kill {
    pub(crate) step: usize,
    pub(crate) after: bool,
}

/// Real files, until it is killed.
#[derive(Clone)]
struct Edges {
    files: HostFiles,
    logs: HostLogFiles,
    containers: [Arc<Container>; 2],
    kill: Option<Kill>,
    steps: Arc<AtomicUsize>,
    killed: watch::Sender<bool>,
}

impl Edges {
    /// Does a step, or comes to an end before or after it.
    async fn step<T>(&self, step: impl Future<Output = T> + Send) -> T {
        let number = self.steps.fetch_add(1, Ordering::SeqCst);
        let kill = self.kill.filter(|kill| kill.step == number);
        if kill.is_some_and(|kill| !kill.after) {
            self.killed.send_replace(true);
            return std::future::pending().await;
        }
        let result = step.await;
        if kill.is_some() {
            self.killed.send_replace(true);
            return std::future::pending().await;
        }
        result
    }
}

#[async_trait]
impl FileReader for Edges {
    async fn read(&self, path: &Path, limit_bytes: u64) -> Result<Vec<u8>, FileError> {
        self.files.read(path, limit_bytes).await
    }

    async fn read_within(&self, directory: &Path, path: &Path, limit: u64) -> Result<Vec<u8>, FileError> {
        self.files.read_within(directory, path, limit).await
    }

    async fn read_end(&self, path: &Path, limit_bytes: u64) -> Result<Vec<u8>, FileError> {
        self.files.read_end(path, limit_bytes).await
    }

    async fn list(&self, directory: &Path) -> Result<Vec<DirectoryEntry>, FileError> {
        let container = &self.containers[0];
        if Some(directory) == container.log.parent() && container.looks.fetch_add(1, Ordering::SeqCst) == 0 {
            drop(container.first_look.lock().await);
        }
        self.files.list(directory).await
    }

    async fn kind(&self, path: &Path) -> Result<FileKind, FileError> {
        self.files.kind(path).await
    }

    fn watch(&self, path: &Path) -> WatchStream {
        self.files.watch(path)
    }
}

#[async_trait]
impl FileWriter for Edges {
    async fn write(&self, path: &Path, content: &[u8], mode: u32) -> Result<(), FileError> {
        self.files.write(path, content, mode).await
    }

    async fn write_in_place(&self, path: &Path, content: &[u8], mode: u32) -> Result<(), FileError> {
        self.files.write_in_place(path, content, mode).await
    }

    async fn create_directory(&self, path: &Path, mode: u32) -> Result<(), FileError> {
        self.files.create_directory(path, mode).await
    }

    async fn link(&self, target: &Path, link: &Path) -> Result<(), FileError> {
        self.files.link(target, link).await
    }

    async fn remove_file(&self, path: &Path) -> Result<(), FileError> {
        self.step(self.files.remove_file(path)).await
    }

    async fn remove_tree(&self, path: &Path) -> Result<(), FileError> {
        self.files.remove_tree(path).await
    }
}

#[async_trait]
impl LogFileReader for Edges {
    async fn size(&self, path: &Path) -> Result<u64, FileError> {
        self.logs.size(path).await
    }

    async fn is_written(&self, path: &Path) -> Result<bool, FileError> {
        self.logs.is_written(path).await
    }

    fn growth(&self, growth: Growth) -> BoxFuture<'static, ()> {
        self.logs.growth(growth)
    }
}

#[async_trait]
impl LogFileWriter for Edges {
    async fn rename_to_free(&self, from: &Path, to: &Path) -> Result<bool, FileError> {
        let renamed = self.step(self.logs.rename_to_free(from, to)).await;
        drop(self.containers[0].rename_told.lock().await);
        renamed
    }

    async fn compress(&self, path: &Path) -> Result<bool, FileError> {
        let container = &self.containers[0];
        let now = container.compressions.fetch_add(1, Ordering::SeqCst) + 1;
        container.most_compressions.fetch_max(now, Ordering::SeqCst);
        drop(container.compressing.lock().await);
        let compressed = self.step(self.logs.compress(path)).await;
        container.compressions.fetch_sub(1, Ordering::SeqCst);
        compressed
    }
}

#[async_trait]
impl LoggedContainers for Edges {
    async fn running(&self) -> Result<Vec<RunningContainer>, RuntimeError> {
        let [container, neighbour] = &self.containers;
        let mut running = container.running().await?;
        running.extend(neighbour.running().await?);
        Ok(running)
    }

    async fn ended(&self) -> Result<Vec<PathBuf>, RuntimeError> {
        self.containers[0].ended().await
    }

    async fn log_path(&self, id: &str) -> Result<Option<PathBuf>, RuntimeError> {
        match self.containers.iter().find(|one| one.id == id) {
            Some(container) => container.log_path(id).await,
            None => Ok(None),
        }
    }

    async fn reopen(&self, id: &str) -> Result<(), RuntimeError> {
        let container = self.containers.iter().find(|one| one.id == id).unwrap();
        self.step(LoggedContainers::reopen(container.as_ref(), id)).await
    }
}

/// The real time, and who paused for how long.
#[derive(Default)]
struct NotingClock {
    clock: HostClock,
    pauses: Mutex<Vec<Duration>>,
}

impl Clock for NotingClock {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn moment(&self) -> Moment {
        self.clock.moment()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.pauses.lock().unwrap().push(duration);
        self.clock.sleep(duration)
    }
}

/// A process that rotates logs.
pub(crate) struct Process {
    handle: RotationHandle,
    clock: Arc<NotingClock>,
    tasks: Arc<Tasks>,
    killed: watch::Receiver<bool>,
}

impl Process {
    pub(crate) fn start(scene: &Scene, settings: RotationSettings, kill: Option<Kill>) -> Self {
        let (killed, receiver) = watch::channel(false);
        let edges = Arc::new(Edges {
            files: HostFiles::new(),
            logs: HostLogFiles::new(),
            containers: [Arc::clone(&scene.container), Arc::clone(&scene.neighbour)],
            kill,
            steps: Arc::default(),
            killed,
        });
        let tasks = Arc::new(Tasks::default());
        let clock = Arc::new(NotingClock::default());
        let ports = RotationPorts {
            clock: clock.clone(),
            spawner: tasks.clone(),
            containers: edges.clone(),
            file_reader: edges.clone(),
            file_writer: edges.clone(),
            log_reader: edges.clone(),
            log_writer: edges,
        };
        Self {
            handle: start(ports, settings),
            clock,
            tasks,
            killed: receiver,
        }
    }

    /// How long it has paused each time.
    pub(crate) fn pauses(&self) -> Vec<Duration> {
        self.clock.pauses.lock().unwrap().clone()
    }

    pub(crate) fn is_killed(&self) -> bool {
        *self.killed.borrow()
    }

    pub(crate) async fn stop(self) {
        self.handle.stop().await;
    }

    pub(crate) fn cut_off(self) {
        self.tasks.end();
    }
}

/// Waits for a state.
pub(crate) async fn wait_for(what: &str, mut state: impl FnMut() -> bool) {
    let start = Instant::now();
    while !state() {
        assert!(start.elapsed() < DEADLINE, "not within {DEADLINE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
