//! The source of pods in files: a folder of manifests, or one.
//!
//! Owns when to look: after each hint of the watch, and every interval in any case. A look lists the folder and reads what the hints
//! since the last look name; every interval it reads everything, so that no hint can be wrong for long. Only that a file was taken
//! away and is there again no look can see: a hint says so, and then the set without its pod is delivered first. The first hint is
//! followed at once; while hints keep coming the looks get further apart.
//!
//! ```text
//!            hint                       interval over
//! watching ───────► look       watching ─────────────► watch anew ──► hint ──► look
//!     └─ watch ends ► look, watch anew after 1 s, then up to 20 s
//! ```

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rubelet_model::explanation::ManifestExplanation;
use rubelet_ports::{
    Clock, DirectoryEntry, FileError, FileErrorKind, FileKind, FileReader, Moment, Removal, Touched,
    WatchHint,
};
use tokio::sync::mpsc;

use super::file_watch::{ManifestWatch, Wake};
use super::manifests::{Found, Line, Manifests};
use super::{MAX_MANIFEST_BYTES, Source, SourcePorts, SourceSet, SourceSettings};
use crate::settings::FileSource;
use rubelet_ports::LogThrottle;

/// Looks for one set: a file that is taken away during a look makes it worth nothing.
const MAX_LOOKS: usize = 3;
/// An interval of zero would be a busy loop.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

pub(super) struct FileActor {
    path: PathBuf,
    interval: Duration,
    clock: Arc<dyn Clock>,
    files: Arc<dyn FileReader>,
    output: mpsc::Sender<SourceSet>,
    manifests: Manifests,
    sent: Option<Vec<Arc<Pod>>>,
    /// The last set that was sent had everything.
    sent_complete: bool,
    /// Files that were never good, by the last look and by the last set.
    never_good: Vec<PathBuf>,
    sent_never_good: Vec<PathBuf>,
    unusable: Vec<ManifestExplanation>,
    sent_unusable: Vec<ManifestExplanation>,
    /// Pods whose file was taken away since a set was sent. If it is there again, its pod begins anew.
    taken_away: BTreeSet<String>,
    /// What the next look has to read.
    unread: Touched,
    /// Something could not be read at this look, and what it held before is not known either.
    is_in_the_dark: bool,
    /// Editors' copies that were logged.
    copies: BTreeSet<PathBuf>,
    /// The path was a folder when it was last there.
    is_folder: bool,
    /// Of the path itself, and of its watch.
    path_throttle: LogThrottle,
    watch_throttle: LogThrottle,
    look_again: Option<Moment>,
}

impl FileActor {
    pub(super) fn new(
        file: &FileSource,
        settings: &SourceSettings,
        ports: &SourcePorts,
        output: mpsc::Sender<SourceSet>,
    ) -> Self {
        Self {
            // Slashes at the end and doubled ones must not be part of a pod's identity.
            path: file.path.components().collect(),
            interval: file.check_interval.max(MIN_INTERVAL),
            clock: Arc::clone(&ports.clock),
            files: Arc::clone(&ports.files),
            output,
            manifests: Manifests::new(&settings.node_name, Arc::clone(&settings.gates)),
            sent: None,
            sent_complete: false,
            never_good: Vec::new(),
            sent_never_good: Vec::new(),
            unusable: Vec::new(),
            sent_unusable: Vec::new(),
            taken_away: BTreeSet::new(),
            unread: Touched::Anything,
            is_in_the_dark: false,
            copies: BTreeSet::new(),
            is_folder: false,
            path_throttle: LogThrottle::default(),
            watch_throttle: LogThrottle::default(),
            look_again: None,
        }
    }

    /// Runs until the receiver of the sets is gone.
    pub(super) async fn run(mut self) {
        let mut watch = ManifestWatch::new(self.files.watch(&self.path));
        let mut next_relist = self.clock.moment().plus(self.interval);
        loop {
            let touched = match self.wake(&mut watch, next_relist).await {
                Wake::NobodyListens => return,
                Wake::Hint(WatchHint { removed, touched }) => {
                    watch.stood(self.clock.moment());
                    self.note_removals(removed);
                    touched
                }
                Wake::WatchEnded(error) => {
                    self.watch_ended(&mut watch, error);
                    Touched::Anything
                }
                Wake::Timer if self.timer(&mut watch, next_relist) => Touched::Anything,
                Wake::Timer => continue,
            };
            let reads_all = touched == Touched::Anything;
            self.unread.add(touched);
            if !self.look_and_send(&mut watch).await {
                return;
            }
            let now = self.clock.moment();
            if reads_all {
                next_relist = now.plus(self.interval);
            }
            watch.looked(now);
        }
    }

    /// Waits for the next reason to do something. Each arm may be dropped: the stream keeps its events, timers are made anew.
    async fn wake(&self, watch: &mut ManifestWatch, next_relist: Moment) -> Wake {
        let now = self.clock.moment();
        let times = [Some(next_relist), self.look_again, watch.retry_at()];
        let timer = times.into_iter().flatten().min().unwrap_or(next_relist);
        tokio::select! {
            biased;
            () = self.output.closed() => Wake::NobodyListens,
            wake = watch.next(self.clock.as_ref()) => wake,
            () = self.clock.sleep(timer.since(now)) => Wake::Timer,
        }
    }

    /// Whether the time has come to look. A watch that stands is made anew with each relist: the path may lead elsewhere by
    /// now, and its first hint brings the look.
    fn timer(&mut self, watch: &mut ManifestWatch, next_relist: Moment) -> bool {
        let now = self.clock.moment();
        if watch.retry_at().is_some_and(|at| at <= now) {
            watch.renew(self.files.watch(&self.path), now);
        }
        let is_relist = next_relist <= now;
        if is_relist && watch.stands() {
            // The old one may know something that no look can see.
            let removed = watch.take_ready();
            self.note_removals(removed);
            watch.renew(self.files.watch(&self.path), now);
            return false;
        }
        is_relist || self.look_again.is_some_and(|at| at <= now)
    }

    fn watch_ended(&mut self, watch: &mut ManifestWatch, error: Option<FileError>) {
        let now = self.clock.moment();
        // A path that is not there is looked for every second; the look tells of it.
        let is_missing = error.as_ref().is_some_and(FileError::is_not_found);
        watch.ended(now, is_missing);
        let problem = error.map_or_else(|| "the watch has ended".to_owned(), |error| error.message);
        if !is_missing && self.watch_throttle.is_due(&problem, now) {
            tracing::warn!(
                path = %self.path.display(),
                problem,
                "cannot watch the static pod path; changes are noticed when it is read again, every {} s",
                self.interval.as_secs_f64()
            );
        }
    }

    /// Files that were taken away say nothing any more, whatever is in their place by now. An editor that only moves a file to
    /// its backup writes it again.
    fn note_removals(&mut self, removed: Vec<Removal>) -> bool {
        let mut any = false;
        for removal in removed {
            let new_name = removal.renamed_to.as_deref();
            if new_name.and_then(original_of_backup) == Some(&removal.name) {
                continue;
            }
            let path = match self.is_folder {
                true => self.path.join(&removal.name),
                false => self.path.clone(),
            };
            if let Some(uid) = self.manifests.taken_away(&path) {
                self.taken_away.insert(uid);
                any = true;
            }
        }
        any
    }

    /// Looks, and sends the set if it has changed. False when the receiver is gone.
    async fn look_and_send(&mut self, watch: &mut ManifestWatch) -> bool {
        if watch.stands() && self.watch_throttle.end() {
            tracing::info!(path = %self.path.display(), "the static pod path is watched again");
        }
        let mut pods = None;
        for _ in 0..MAX_LOOKS {
            // What happened before the look is seen by it, so that its hint needs no look of its own.
            let removed = watch.take_ready();
            self.note_removals(removed);
            let touched = std::mem::replace(&mut watch.touched, Touched::nothing());
            self.unread.add(touched);
            pods = self.look(watch).await;
            let removed = watch.take_ready();
            if !self.note_removals(removed) {
                break;
            }
        }
        let Some(pods) = pods else {
            return true;
        };
        let is_same = self.sent.as_ref().is_some_and(|sent| {
            sent.len() == pods.len() && sent.iter().zip(&pods).all(|(a, b)| Arc::ptr_eq(a, b))
        });
        let is_complete = !self.is_in_the_dark;
        let is_known = is_complete == self.sent_complete
            && self.never_good == self.sent_never_good
            && self.unusable == self.sent_unusable;
        if is_same && is_known {
            return true;
        }
        let taken_away = std::mem::take(&mut self.taken_away);
        let ends = |pod: &Arc<Pod>| {
            pod.metadata
                .uid
                .as_ref()
                .is_some_and(|uid| taken_away.contains(uid))
        };
        let was_sent = |pod: &Arc<Pod>| {
            self.sent
                .iter()
                .flatten()
                .any(|sent| sent.metadata.uid == pod.metadata.uid)
        };
        if pods.iter().any(|pod| ends(pod) && was_sent(pod)) {
            let rest = pods.iter().filter(|pod| !ends(pod)).cloned().collect();
            if !self.send(rest, is_complete).await {
                return false;
            }
        }
        self.sent = Some(pods.clone());
        self.sent_complete = is_complete;
        self.sent_never_good.clone_from(&self.never_good);
        self.sent_unusable.clone_from(&self.unusable);
        self.send(pods, is_complete).await
    }

    async fn send(&self, pods: Vec<Arc<Pod>>, is_complete: bool) -> bool {
        let set = SourceSet {
            source: Source::File,
            pods,
            is_complete,
            never_good: self.never_good.clone(),
            unusable: self.unusable.clone(),
            unreadable: Vec::new(),
        };
        self.output.send(set).await.is_ok()
    }

    /// The pods that the files want now, or nothing when that cannot be said.
    async fn look(&mut self, watch: &mut ManifestWatch) -> Option<Vec<Arc<Pod>>> {
        let mut backups = BTreeSet::new();
        if self.is_in_the_dark {
            self.unread = Touched::Anything;
        }
        self.is_in_the_dark = false;
        let unread = std::mem::replace(&mut self.unread, Touched::nothing());
        match self.read_all(&unread, &mut backups).await {
            Ok(()) => {
                self.path_throttle.end();
            }
            Err(error) if error.is_not_found() => {
                self.missing(&error, watch, &mut backups).await;
            }
            Err(error) => {
                self.unread = Touched::Anything;
                if self.path_throttle.is_due(&error.message, self.clock.moment()) {
                    tracing::error!(
                        path = %self.path.display(),
                        problem = error.message,
                        "cannot read the static pod path; its pods stay as they are"
                    );
                }
                self.look_again = None;
                return None;
            }
        }
        let outcome = self.manifests.finish(&backups, self.clock.moment());
        self.look_again = outcome.look_again;
        outcome.lines.iter().for_each(log);
        self.never_good = outcome.never_good;
        self.unusable = outcome.unusable;
        // Whatever is missing in the first set counts as not wanted, and its containers are stopped: so that set waits for
        // files that are being written.
        let is_too_early = self.sent.is_none() && outcome.is_unsettled;
        (!is_too_early).then_some(outcome.pods)
    }

    /// Observes every manifest, and finds the paths that have an editor's backup beside them. A manifest that was not touched since it was
    /// read is as it was.
    async fn read_all(&mut self, unread: &Touched, backups: &mut BTreeSet<PathBuf>) -> Result<(), FileError> {
        let path = self.path.clone();
        let mut file = path.join("manifest");
        let kind = self.files.kind(&path).await?;
        self.is_folder = kind == FileKind::Directory;
        match kind {
            FileKind::Directory => {
                let mut copies = BTreeSet::new();
                for entry in self.files.list(&path).await? {
                    if entry.name.starts_with('.') {
                        continue;
                    }
                    if let Some(original) = original_of_backup(&entry.name) {
                        backups.insert(path.join(original));
                        copies.insert(path.join(&entry.name));
                        continue;
                    }
                    file.set_file_name(&entry.name);
                    // What a link leads to may change without a hint.
                    let may_differ = entry.kind != FileKind::File || unread.has(&entry.name);
                    if may_differ || !self.manifests.keep(&file) {
                        self.read_entry(&file, &entry).await?;
                    }
                }
                for copy in copies.difference(&self.copies) {
                    tracing::info!(file = %copy.display(), "an editor's copy by its name; it is not read as a manifest");
                }
                self.copies = copies;
                Ok(())
            }
            FileKind::File => self.read_manifest(&path).await,
            FileKind::Symlink | FileKind::Other => Err(FileError {
                path,
                kind: FileErrorKind::WrongKind,
                message: "neither a folder nor a file".to_owned(),
            }),
        }
    }

    async fn read_entry(&mut self, path: &Path, entry: &DirectoryEntry) -> Result<(), FileError> {
        let kind = match entry.kind {
            FileKind::Symlink => match self.files.kind(path).await {
                Ok(kind) => kind,
                Err(error) => return self.unreadable(path, error),
            },
            kind => kind,
        };
        let unusable = match kind {
            FileKind::File => return self.read_manifest(path).await,
            FileKind::Directory => "a folder; manifests are not looked for in folders below",
            FileKind::Symlink | FileKind::Other => "neither a folder nor a file",
        };
        let found = Found::Unusable(unusable.to_owned());
        self.manifests.observe(path, found, self.clock.moment());
        Ok(())
    }

    async fn read_manifest(&mut self, path: &Path) -> Result<(), FileError> {
        let read = match self.manifests.is_written_for_long(path, self.clock.moment()) {
            false => self.files.read_at_rest(path, MAX_MANIFEST_BYTES).await,
            true => self.files.read(path, MAX_MANIFEST_BYTES).await.map(Some),
        };
        match read {
            Ok(content) => {
                let found = content.map_or(Found::Unfinished, Found::Content);
                self.manifests.observe(path, found, self.clock.moment());
                Ok(())
            }
            Err(error) => self.unreadable(path, error),
        }
    }

    /// A file that has gone since it was listed is not there; any other trouble is the file's own.
    fn unreadable(&mut self, path: &Path, error: FileError) -> Result<(), FileError> {
        if !error.is_not_found() {
            // A file system that does not answer hides what the file wants; a file without read permission wants nothing.
            let may_hold_a_pod = matches!(error.kind, FileErrorKind::TimedOut | FileErrorKind::Other);
            self.is_in_the_dark |= may_hold_a_pod && !self.manifests.has_pod(path);
            let found = Found::Unusable(error.message);
            self.manifests.observe(path, found, self.clock.moment());
        }
        Ok(())
    }

    /// The path is not there: no pods, unless an editor has only moved it to its backup.
    async fn missing(
        &mut self,
        error: &FileError,
        watch: &mut ManifestWatch,
        backups: &mut BTreeSet<PathBuf>,
    ) {
        let mut backup = OsString::from(&self.path);
        backup.push("~");
        let backup = PathBuf::from(backup);
        if matches!(self.files.kind(&backup).await, Ok(FileKind::File)) {
            backups.insert(self.path.clone());
        }
        if self.path_throttle.is_due(&error.message, self.clock.moment()) {
            tracing::warn!(
                path = %self.path.display(),
                "the static pod path does not exist: no static pods until it does"
            );
        }
        // The watch of a folder that is gone may not have noticed, when a process still has the folder open.
        if watch.stands() && self.is_folder {
            watch.ended(self.clock.moment(), true);
        }
    }
}

fn log(line: &Line) {
    let file = line.path.display();
    if line.is_trouble {
        tracing::error!(%file, problem = line.text, "the manifest cannot be used");
    } else {
        tracing::info!(%file, "{}", line.text);
    }
}

/// The file that an editor has kept this copy of. Editors leave such names behind; a second pod from them is never meant.
fn original_of_backup(name: &str) -> Option<&str> {
    name.strip_suffix('~')
        .or_else(|| name.strip_prefix('#')?.strip_suffix('#'))
        .filter(|original| !original.is_empty())
}
