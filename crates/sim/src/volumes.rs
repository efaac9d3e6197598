//! Simulated volumes: the steps of the port on the tree in memory and a table of mounts, with steps that fail or hang.
//!
//! Owns the mount table and the truth of which volume stands. A crash of rubelet ends a list between two steps, as it does on
//! a machine; a power loss takes every mount.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rubelet_model::observation::PodUid;
use rubelet_ports::volume_host::{VolumeAction, VolumeStep};
use rubelet_ports::{
    Clock, MountPoint, PodOnDisk, SubPathOnDisk, VolumeBatch, VolumeErrorKind, VolumeHostReader,
    VolumeHostWriter, VolumeOnDisk, VolumeStepError,
};

use crate::dice::{Dice, SharedDice};
use crate::executor::Executor;
use crate::files::SimFiles;
use crate::history::{Fact, History};
use crate::trace::{Actor, Trace};

const MARKERS: &str = "plugins/kubernetes.io~empty-dir";

/// Shares are per 10,000 steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeFaults {
    pub fails: u64,
    pub hangs: u64,
    /// Paths below which nothing answers.
    pub dead: Option<PathBuf>,
}

impl VolumeFaults {
    #[must_use]
    pub fn roll(dice: &mut Dice) -> Self {
        if dice.percent(50) {
            return Self::default();
        }
        Self {
            fails: dice.between(1, 800),
            hangs: dice.between(0, 60),
            dead: None,
        }
    }
}

struct Inner {
    executor: Executor,
    dice: SharedDice,
    history: History,
    trace: Trace,
    files: SimFiles,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    mounts: Vec<MountPoint>,
    faults: VolumeFaults,
    /// Keys whose batch has not come back after its deadline.
    hung: BTreeSet<PathBuf>,
}

/// A handle; all handles are of one machine.
#[derive(Clone)]
pub struct SimVolumes {
    inner: Arc<Inner>,
}

/// What becomes of the volume after a step.
enum Flow {
    Next,
    Done,
}

/// Why a step failed.
type StepFailure = (VolumeErrorKind, String);

impl SimVolumes {
    #[must_use]
    pub fn new(
        executor: &Executor,
        dice: SharedDice,
        history: History,
        trace: Trace,
        files: SimFiles,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                executor: executor.clone(),
                dice,
                history,
                trace,
                files,
                state: Mutex::default(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // One thread runs a simulation; the lock only makes handles shareable.
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_faults(&self, faults: VolumeFaults) {
        let mut state = self.lock();
        state.hung.clear();
        state.faults = faults;
    }

    /// The machine goes off: what was mounted is not any more, and what it held is gone.
    pub fn lose_power(&self) {
        let mounts = std::mem::take(&mut self.lock().mounts);
        for mount in mounts {
            self.empty(&mount.path);
        }
    }

    /// What is mounted, as text.
    #[must_use]
    pub fn leftovers(&self) -> Vec<String> {
        let state = self.lock();
        state
            .mounts
            .iter()
            .map(|mount| format!("mounted: {}", mount.path.display()))
            .collect()
    }

    fn say(&self, text: String) {
        self.inner
            .trace
            .say(self.inner.executor.elapsed(), Actor::Files, text);
    }

    fn learn(&self, fact: Fact) {
        self.inner.history.add(self.inner.executor.elapsed(), fact);
    }

    fn empty(&self, path: &Path) {
        for inside in self.inner.files.paths_below(path) {
            self.inner.files.take_away(&inside);
        }
    }

    fn is_mounted(&self, path: &Path) -> bool {
        self.lock().mounts.iter().any(|mount| mount.path == path)
    }

    fn mount(&self, path: &Path, filesystem: &str) -> Result<Flow, StepFailure> {
        if !self.inner.files.exists(path) {
            return Err((
                VolumeErrorKind::NotFound,
                format!("{} does not exist", path.display()),
            ));
        }
        if !self.is_mounted(path) {
            let mount = MountPoint {
                path: path.to_owned(),
                filesystem: filesystem.to_owned(),
            };
            self.lock().mounts.push(mount);
        }
        Ok(Flow::Next)
    }

    fn apply(&self, action: &VolumeAction) -> Result<Flow, StepFailure> {
        let files = &self.inner.files;
        match action {
            VolumeAction::EndIfReady {
                marker,
                directory,
                mounted,
            } => {
                let is_there = files.exists(&marker.join("ready")) && files.exists(directory);
                if is_there && (!mounted || self.is_mounted(directory)) {
                    return Ok(Flow::Done);
                }
            }
            VolumeAction::MakeDirectory { path, .. } => files.make_directory(path),
            VolumeAction::MarkReady { marker } => {
                files.make_directory(marker);
                files.place(&marker.join("ready"), b"");
            }
            VolumeAction::MountTmpfs { target, .. } => return self.mount(target, "tmpfs"),
            VolumeAction::MountHugePages { target, .. } => return self.mount(target, "hugetlbfs"),
            VolumeAction::CheckHostPath { path, kind } => {
                let creates = matches!(kind, rubelet_ports::volume_host::HostPathKind::DirectoryOrCreate);
                if !files.exists(path) && creates {
                    files.make_directory(path);
                }
                if !files.exists(path) {
                    let problem = format!("path {path:?} does not exist");
                    return Err((VolumeErrorKind::WrongKind, kind.mismatch(path, Err(&problem))));
                }
            }
            VolumeAction::WritePayload {
                target, files: list, ..
            } => {
                for file in list {
                    let path = target.join(&file.path);
                    if let Some(parent) = path.parent() {
                        files.make_directory(parent);
                    }
                    files.place(&path, &file.content);
                }
            }
            VolumeAction::SetOwnership { .. } => {}
            VolumeAction::BindSubPath {
                volume_root, target, ..
            } => {
                files.make_directory(volume_root);
                files.make_directory(target);
                return self.mount(target, "bind");
            }
            VolumeAction::Unmount { target, .. } => {
                if self.is_mounted(target) {
                    self.lock().mounts.retain(|mount| mount.path != *target);
                    self.empty(target);
                }
            }
            VolumeAction::RemoveTree { path } => {
                if self
                    .lock()
                    .mounts
                    .iter()
                    .any(|mount| mount.path.starts_with(path))
                {
                    let problem = format!("something is mounted below {}", path.display());
                    return Err((VolumeErrorKind::Mounted, problem));
                }
                files.take_away(path);
            }
            VolumeAction::RemoveEmptyDirectory { path } => {
                if files.paths_below(path).is_empty() {
                    files.take_away(path);
                }
            }
        }
        Ok(Flow::Next)
    }

    /// The volume that a path in a pod's directory belongs to: `<uid>/volumes/<plugin>/<name>`, or the marker of an emptyDir in
    /// `<uid>/plugins/<plugin>/<name>`.
    fn volume_of(path: &Path) -> Option<(String, String)> {
        let mut parts = path
            .components()
            .rev()
            .filter_map(|part| part.as_os_str().to_str());
        let (name, _plugin, folder, uid) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        ["volumes", "plugins"]
            .contains(&folder)
            .then(|| (uid.to_owned(), name.to_owned()))
    }

    /// A volume stands after its last step, and is gone with the first one of its end.
    fn tell(&self, step: &VolumeStep, flow: &Flow) {
        let Some((uid, volume)) = Self::volume_of(step.action.path()) else {
            return;
        };
        let fact = match (&step.action, flow) {
            (VolumeAction::Unmount { .. } | VolumeAction::RemoveTree { .. }, _) => {
                Fact::VolumeGone { uid, volume }
            }
            (VolumeAction::MarkReady { .. } | VolumeAction::WritePayload { .. }, _) | (_, Flow::Done) => {
                Fact::VolumeStands { uid, volume }
            }
            _ => return,
        };
        self.learn(fact);
    }

    /// Executes one step, or says how it failed.
    async fn step(&self, step: &VolumeStep, left: Duration) -> Result<Flow, StepFailure> {
        let faults = self.lock().faults.clone();
        let (delay, hangs, fails) = self.inner.dice.with(|dice| {
            (
                dice.millis(0, 1),
                dice.per_myriad(faults.hangs),
                dice.per_myriad(faults.fails),
            )
        });
        let path = step.action.path();
        if hangs || faults.dead.is_some_and(|dead| path.starts_with(dead)) {
            self.inner.executor.sleep(left).await;
            self.say(format!(
                "{} {} does not answer",
                step.action.verb(),
                path.display()
            ));
            return Err((VolumeErrorKind::TimedOut, "no answer".to_owned()));
        }
        self.inner.executor.sleep(delay).await;
        if fails {
            self.say(format!("{} {} fails", step.action.verb(), path.display()));
            return Err((VolumeErrorKind::Other, "input/output error".to_owned()));
        }
        let flow = self.apply(&step.action)?;
        self.tell(step, &flow);
        Ok(flow)
    }
}

#[async_trait]
impl VolumeHostWriter for SimVolumes {
    async fn execute(&self, batch: VolumeBatch) -> Vec<VolumeStepError> {
        let error = |step: &VolumeStep, (kind, message): StepFailure| VolumeStepError {
            volume: step.volume.clone(),
            step: step.action.verb(),
            path: step.action.path().to_owned(),
            kind,
            message,
        };
        let mut errors: Vec<VolumeStepError> = Vec::new();
        let mut finished: BTreeSet<&str> = BTreeSet::new();
        let end = self.inner.executor.elapsed() + batch.deadline;
        let mut is_late = self.lock().hung.contains(&batch.key);
        for step in &batch.steps {
            let name = step.volume.as_str();
            if finished.contains(name) {
                continue;
            }
            let left = end.saturating_sub(self.inner.executor.elapsed());
            let result = if is_late {
                Err((VolumeErrorKind::TimedOut, "no answer".to_owned()))
            } else {
                self.step(step, left).await
            };
            match result {
                Ok(Flow::Next) => {}
                Ok(Flow::Done) => {
                    finished.insert(name);
                }
                Err(failure) => {
                    if failure.0 == VolumeErrorKind::TimedOut && !is_late {
                        is_late = true;
                        let is_dead = self.lock().faults.dead.is_some();
                        if is_dead {
                            self.lock().hung.insert(batch.key.clone());
                        }
                    }
                    errors.push(error(step, failure));
                    finished.insert(name);
                }
            }
        }
        errors
    }
}

#[async_trait]
impl VolumeHostReader for SimVolumes {
    async fn pods_on_disk(&self, pods: &Path) -> Result<Vec<PodOnDisk>, VolumeStepError> {
        let uids: BTreeSet<PodUid> = self
            .inner
            .files
            .paths_below(pods)
            .iter()
            .filter_map(|path| {
                path.strip_prefix(pods)
                    .ok()?
                    .components()
                    .next()?
                    .as_os_str()
                    .to_str()
            })
            .map(PodUid::from)
            .collect();
        let mut found = Vec::new();
        for uid in uids {
            found.push(self.pod_on_disk(pods, &uid).await?);
        }
        Ok(found)
    }

    async fn pod_on_disk(&self, pods: &Path, uid: &PodUid) -> Result<PodOnDisk, VolumeStepError> {
        let delay = self.inner.dice.with(|dice| dice.millis(0, 2));
        self.inner.executor.sleep(delay).await;
        let pod = pods.join(uid.as_str());
        let mut found = PodOnDisk {
            uid: uid.clone(),
            volumes: Vec::new(),
            markers: Vec::new(),
            sub_paths: Vec::new(),
            mounts: self
                .lock()
                .mounts
                .iter()
                .filter(|mount| mount.path.starts_with(&pod))
                .cloned()
                .collect(),
        };
        for path in self.inner.files.paths_below(&pod) {
            let Ok(relative) = path.strip_prefix(&pod) else {
                continue;
            };
            let parts: Vec<&str> = relative.iter().filter_map(|part| part.to_str()).collect();
            match parts.as_slice() {
                ["volumes", plugin, name] => found.volumes.push(VolumeOnDisk {
                    plugin: (*plugin).to_owned(),
                    name: (*name).to_owned(),
                    path: path.clone(),
                }),
                ["volume-subpaths", volume, container, index] => found.sub_paths.push(SubPathOnDisk {
                    volume: (*volume).to_owned(),
                    container: (*container).to_owned(),
                    index: (*index).to_owned(),
                    path: path.clone(),
                }),
                [_, _, name] if relative.starts_with(MARKERS) => found.markers.push((*name).to_owned()),
                _ => {}
            }
        }
        Ok(found)
    }
}
