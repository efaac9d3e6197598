//! Disks that are as full as a test says.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use rubelet_ports::{DiskReader, DiskSubject, SignalError};
use rubelet_usage::{Devices, DiskUsage, FilesystemFigures};

/// One filesystem, on which only the paths exist that were set.
#[derive(Default)]
pub struct FakeDisk(Mutex<State>);

#[derive(Default)]
struct State {
    filesystem: FilesystemFigures,
    devices: Devices,
    used: BTreeMap<PathBuf, DiskUsage>,
    walked: Vec<PathBuf>,
    hangs: bool,
    /// Directories of which no walk ends.
    slow: BTreeSet<PathBuf>,
    /// Mounts that do not answer within their deadline.
    dead: BTreeSet<PathBuf>,
}

impl FakeDisk {
    pub fn set_filesystem(&self, figures: FilesystemFigures) {
        self.state().filesystem = figures;
    }

    pub fn set_devices(&self, devices: Devices) {
        self.state().devices = devices;
    }

    /// Sets what a file, the files of a directory, or a whole volume takes.
    pub fn set(&self, path: &str, bytes: u64, inodes: u64) {
        self.state()
            .used
            .insert(PathBuf::from(path), DiskUsage { bytes, inodes });
    }

    /// From now on no walk ends.
    pub fn hang(&self) {
        self.state().hangs = true;
    }

    /// No walk through this directory ends.
    pub fn hang_at(&self, path: &str) {
        self.state().slow.insert(PathBuf::from(path));
    }

    /// The filesystem that is mounted here does not answer any more.
    pub fn die(&self, path: &str) {
        self.state().dead.insert(PathBuf::from(path));
    }

    /// The volumes that were walked through since the last time.
    pub fn take_walked(&self) -> Vec<PathBuf> {
        std::mem::take(&mut self.state().walked)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl DiskReader for FakeDisk {
    async fn filesystem(&self, path: &Path) -> Result<FilesystemFigures, SignalError> {
        let state = self.state();
        if state.dead.contains(path) {
            return Err(SignalError::new(
                path.display().to_string(),
                "no answer within 5 s",
            ));
        }
        Ok(state.filesystem)
    }

    async fn devices(&self) -> Result<Devices, SignalError> {
        Ok(self.state().devices.clone())
    }

    async fn measure(&self, subjects: Vec<DiskSubject>) -> Vec<Option<DiskUsage>> {
        let state = self.state();
        let used = subjects.iter().map(|subject| match subject {
            DiskSubject::File(path) | DiskSubject::FilesIn(path) => state.used.get(path).copied(),
        });
        used.collect()
    }

    async fn walk(&self, directory: &Path) -> Result<DiskUsage, SignalError> {
        let (used, hangs) = {
            let mut state = self.state();
            state.walked.push(directory.to_owned());
            let hangs = state.hangs || state.slow.contains(directory);
            (state.used.get(directory).copied(), hangs)
        };
        if hangs {
            std::future::pending::<()>().await;
        }
        used.ok_or_else(|| SignalError::new(directory.display().to_string(), "is not there"))
    }
}
