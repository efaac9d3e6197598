//! The node's side of volumes behind the port: directories, mounts, files, groups, subPaths.
//!
//! Owns the order in which a list of steps is executed, on one thread of a pool of its own, and the answer when its deadline
//! passes: what hangs on a dead mount costs one thread, and files and other pods go on. What a volume needs is planned elsewhere.

mod directories;
mod failure;
mod host_path;
mod inventory;
pub(crate) mod mount_table;
mod mounting;
mod ownership;
mod payload;
mod sub_path;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use rubelet_model::observation::PodUid;
use rubelet_ports::volume_host::{VolumeAction, VolumeStep};
use rubelet_ports::{
    PodOnDisk, VolumeBatch, VolumeErrorKind, VolumeHostReader, VolumeHostWriter, VolumeStepError,
};

pub use mounting::share;

/// The mount points of a mountinfo text.
#[cfg(feature = "fuzz")]
#[must_use]
pub fn mount_targets(list: &[u8]) -> Vec<PathBuf> {
    let entries = mount_table::parse(list).into_iter();
    entries.map(|entry| entry.target).collect()
}

use crate::blocking::{BlockingPool, PoolError, PoolLimits};
use crate::tree_removal;
use failure::Failure;

/// The list of mounts and directories on the node's own disk are read in milliseconds.
const LIST_DEADLINE: Duration = Duration::from_secs(30);

/// Each pod may lose a thread to a dead mount, and nodes have hundreds of pods.
const STUCK_THREADS: usize = 512;

const LIST_STEP: &str = "list volumes";

/// Volumes on a pool of threads of their own.
#[derive(Clone)]
pub struct HostVolumes {
    pool: BlockingPool,
}

impl HostVolumes {
    #[must_use]
    pub fn new() -> Self {
        Self::with_limits(PoolLimits {
            stuck_threads: STUCK_THREADS,
            ..PoolLimits::default()
        })
    }

    #[must_use]
    pub fn with_limits(limits: PoolLimits) -> Self {
        Self {
            pool: BlockingPool::with_own_files(limits),
        }
    }

    async fn list<T: Send + 'static>(
        &self,
        pods: &Path,
        call: impl FnOnce(&Path) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, VolumeStepError> {
        let owned = pods.to_owned();
        let answer = self.pool.run(pods, LIST_DEADLINE, move || call(&owned)).await;
        let answer =
            answer.unwrap_or_else(|error| Err(Failure::new(kind_of_pool(&error), error.to_string())));
        answer.map_err(|failure| VolumeStepError {
            volume: String::new(),
            step: LIST_STEP,
            path: pods.to_owned(),
            kind: failure.kind,
            message: failure.message,
        })
    }
}

impl Default for HostVolumes {
    fn default() -> Self {
        Self::new()
    }
}

fn kind_of_pool(error: &PoolError) -> VolumeErrorKind {
    match error {
        PoolError::TimedOut(_) | PoolError::StillHangs => VolumeErrorKind::TimedOut,
        PoolError::QueueFull | PoolError::NoThread(_) | PoolError::Panicked(_) => VolumeErrorKind::Other,
    }
}

#[async_trait]
impl VolumeHostReader for HostVolumes {
    async fn pods_on_disk(&self, pods: &Path) -> Result<Vec<PodOnDisk>, VolumeStepError> {
        self.list(pods, inventory::all_pods).await
    }

    async fn pod_on_disk(&self, pods: &Path, uid: &PodUid) -> Result<PodOnDisk, VolumeStepError> {
        let uid = uid.clone();
        self.list(pods, move |pods| inventory::one_pod(pods, &uid)).await
    }
}

#[async_trait]
impl VolumeHostWriter for HostVolumes {
    async fn execute(&self, batch: VolumeBatch) -> Vec<VolumeStepError> {
        if batch.steps.is_empty() {
            return Vec::new();
        }
        let execution = Arc::new(Execution {
            steps: batch.steps,
            end: Instant::now() + batch.deadline,
            progress: Mutex::default(),
        });
        let running = Arc::clone(&execution);
        let call = move || running.run();
        let answer = self.pool.run(&batch.key, batch.deadline, call).await;
        // Logged here: the threads of the pool have nothing to do with where the log goes.
        for warning in &execution.lock().warnings {
            tracing::warn!(key = %batch.key.display(), "{warning}");
        }
        match answer {
            Ok(Outcome::Finished) => execution.lock().errors.clone(),
            Ok(Outcome::BrokenOff) => execution.unfinished(&PoolError::TimedOut(batch.deadline)),
            Err(error) => execution.unfinished(&error),
        }
    }
}

/// What became of a list of steps.
enum Outcome {
    Finished,
    /// The deadline has passed.
    BrokenOff,
}

/// What becomes of the volume after a step.
enum Flow {
    NextStep,
    VolumeEnds,
}

/// A list of steps on its way. Its caller may have gone.
struct Execution {
    steps: Vec<VolumeStep>,
    end: Instant,
    progress: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    /// The step that is being executed; the number of steps when all are done.
    at: usize,
    errors: Vec<VolumeStepError>,
    warnings: Vec<String>,
}

impl Execution {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) -> Outcome {
        let mut ended: Option<&str> = None;
        for (index, step) in self.steps.iter().enumerate() {
            self.lock().at = index;
            if ended == Some(&step.volume) {
                continue;
            }
            ended = None;
            if Instant::now() >= self.end {
                return Outcome::BrokenOff;
            }
            match self.execute(&step.action) {
                Ok(Flow::NextStep) => {}
                Ok(Flow::VolumeEnds) => ended = Some(&step.volume),
                Err(failure) => {
                    ended = Some(&step.volume);
                    let error = error_of(step, failure);
                    self.lock().errors.push(error);
                }
            }
        }
        self.lock().at = self.steps.len();
        Outcome::Finished
    }

    fn execute(&self, action: &VolumeAction) -> Result<Flow, Failure> {
        match action {
            VolumeAction::EndIfReady {
                marker,
                directory,
                mounted,
            } => {
                if directories::is_ready(marker, directory, *mounted)? {
                    return Ok(Flow::VolumeEnds);
                }
            }
            VolumeAction::MakeDirectory { path, mode } => directories::make_directory(path, *mode)?,
            VolumeAction::MarkReady { marker } => directories::mark_ready(marker)?,
            VolumeAction::MountTmpfs { target, size_bytes } => mounting::mount_tmpfs(target, *size_bytes)?,
            VolumeAction::MountHugePages {
                target,
                page_size_bytes,
                any_page_size,
            } => mounting::mount_huge_pages(target, *page_size_bytes, *any_page_size)?,
            VolumeAction::CheckHostPath { path, kind } => host_path::check(path, *kind)?,
            VolumeAction::WritePayload {
                target,
                files,
                ownership,
            } => {
                let walked = payload::write(target, files, *ownership, self.end)?;
                self.warn(walked.warning(target));
            }
            VolumeAction::SetOwnership { path, ownership } => {
                let walked = ownership::set(path, *ownership, self.end)?;
                self.warn(walked.warning(path));
            }
            VolumeAction::BindSubPath {
                volume_root,
                relative,
                target,
            } => sub_path::bind(volume_root, relative, target, self.end)?,
            VolumeAction::Unmount { target, lazy } => mounting::unmount_all(target, *lazy)?,
            VolumeAction::RemoveTree { path } => tree_removal::remove_tree(path)?,
            VolumeAction::RemoveEmptyDirectory { path } => directories::remove_empty(path)?,
        }
        Ok(Flow::NextStep)
    }

    fn warn(&self, warning: Option<String>) {
        self.lock().warnings.extend(warning);
    }

    /// The errors so far, and one for each volume that is not known to be finished.
    fn unfinished(&self, error: &PoolError) -> Vec<VolumeStepError> {
        let progress = self.lock();
        let mut errors = progress.errors.clone();
        let kind = kind_of_pool(error);
        for (index, step) in self.steps.iter().enumerate().skip(progress.at) {
            if errors.iter().any(|error| error.volume == step.volume) {
                continue;
            }
            let message = match error {
                PoolError::TimedOut(_) if index == progress.at => {
                    format!("{} {}: {error}", step.action.verb(), step.action.path().display())
                }
                PoolError::TimedOut(_) => format!("not begun: another volume of the pod got {error}"),
                _ => error.to_string(),
            };
            errors.push(error_of(step, Failure::new(kind, message)));
        }
        errors
    }
}

fn error_of(step: &VolumeStep, failure: Failure) -> VolumeStepError {
    VolumeStepError {
        volume: step.volume.clone(),
        step: step.action.verb(),
        path: PathBuf::from(step.action.path()),
        kind: failure.kind,
        message: failure.message,
    }
}
