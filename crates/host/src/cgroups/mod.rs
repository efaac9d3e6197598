//! The machine's cgroups behind the port: both versions of the kernel's trees, with or without systemd above them.
//!
//! Owns the deadline of each call and the pool that they run on. All files of one cgroup are written in one call, so that a pod
//! waits for one thread once. It decides no name and no value.

mod layout;
mod processes;
mod removal;
mod systemd;
mod tree;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rubelet_model::cgroup::{CgroupPlace, CgroupValues, FilePlace};
use rubelet_ports::{
    CgroupError, CgroupErrorKind, CgroupReader, CgroupWriter, OwnProcess, ProcessCgroupReader,
    ProcessCgroupWriter,
};

use crate::blocking::{BlockingPool, PoolError, PoolLimits};
pub use layout::{Layout, LayoutError};
pub use processes::own_cgroup;
pub use systemd::{Systemd, SystemdError};

/// The kernel answers in milliseconds; under load it may take a second.
const CALL_DEADLINE: Duration = Duration::from_secs(10);
const PROC: &str = "/proc";

/// The machine's cgroups.
#[derive(Clone)]
pub struct HostCgroups {
    layout: Arc<Layout>,
    pool: BlockingPool,
    systemd: Option<Arc<Systemd>>,
}

impl HostCgroups {
    /// With systemd where that owns the tree.
    #[must_use]
    pub fn new(layout: Layout, systemd: Option<Systemd>) -> Self {
        Self {
            layout: Arc::new(layout),
            pool: BlockingPool::new(PoolLimits::default()),
            systemd: systemd.map(Arc::new),
        }
    }

    async fn run<T: Send + 'static>(
        &self,
        path: &str,
        call: impl FnOnce(&Layout, &str) -> Result<T, CgroupError> + Send + 'static,
    ) -> Result<T, CgroupError> {
        if !path.starts_with('/') || path.split('/').any(|part| part == "..") {
            return Err(CgroupError::new(
                path,
                CgroupErrorKind::Other,
                "is no path of a cgroup",
            ));
        }
        let (layout, owned) = (Arc::clone(&self.layout), path.to_owned());
        let call = move || call(&layout, &owned);
        let answer = self.pool.run(Path::new(path), CALL_DEADLINE, call).await;
        answer.unwrap_or_else(|error| {
            let kind = match error {
                PoolError::TimedOut(_) | PoolError::StillHangs => CgroupErrorKind::TimedOut,
                PoolError::QueueFull | PoolError::NoThread(_) | PoolError::Panicked(_) => {
                    CgroupErrorKind::Other
                }
            };
            Err(CgroupError::new(path, kind, error.to_string()))
        })
    }

    /// Units first: systemd makes and removes what it knows of.
    async fn with_unit(
        &self,
        path: &str,
        call: impl AsyncFnOnce(&Systemd) -> Result<(), SystemdError>,
    ) -> Result<(), CgroupError> {
        let Some(systemd) = &self.systemd else {
            return Ok(());
        };
        call(systemd).await.map_err(|error| {
            let kind = match error {
                SystemdError::TimedOut { .. } => CgroupErrorKind::TimedOut,
                SystemdError::Unreachable(_) | SystemdError::Refused { .. } => CgroupErrorKind::Other,
            };
            CgroupError::new(path, kind, error.to_string())
        })
    }
}

#[async_trait]
impl CgroupReader for HostCgroups {
    async fn check(&self, path: &str) -> Result<(), CgroupError> {
        self.run(path, |layout, path| {
            let missing = layout.missing_parts(path);
            if missing.is_empty() {
                return Ok(());
            }
            let message = format!("some of it is missing: {}", missing.join(", "));
            Err(CgroupError::new(path, CgroupErrorKind::NotFound, message))
        })
        .await
    }

    async fn children(&self, path: &str) -> Result<BTreeSet<String>, CgroupError> {
        self.run(path, |layout, path| {
            let mut names = BTreeSet::new();
            for directory in layout.directories(path) {
                let children = removal::children(&directory).map_err(|error| {
                    let message = format!("list {}: {error}", directory.display());
                    CgroupError::new(path, CgroupErrorKind::Other, message)
                })?;
                let own = children.iter().filter_map(|child| child.file_name()?.to_str());
                names.extend(own.map(str::to_owned));
            }
            Ok(names)
        })
        .await
    }

    async fn read(&self, path: &str, files: &[FilePlace]) -> Result<Vec<Option<String>>, CgroupError> {
        let files = files.to_vec();
        self.run(path, move |layout, path| {
            files
                .iter()
                .map(|place| tree::read_file(layout, path, *place))
                .collect()
        })
        .await
    }
}

#[async_trait]
impl CgroupWriter for HostCgroups {
    async fn create(&self, cgroup: CgroupValues) -> Result<Vec<String>, CgroupError> {
        let path = cgroup.path.clone();
        let unit = cgroup.unit.clone();
        if let Some(unit) = &unit {
            self.with_unit(&path, async |systemd| systemd.start_slice(unit).await)
                .await?;
        }
        let mut problems = Vec::new();
        if self.systemd.is_some() {
            self.run(&path, tree::make).await?;
        }
        if let Some(unit) = &unit {
            let set = self.with_unit(&path, async |systemd| systemd.set_properties(unit).await);
            problems.extend(set.await.err().map(|error| error.message));
        }
        let written = self.run(&path, move |layout, path| {
            tree::make(layout, path)?;
            Ok(tree::write_values(layout, &cgroup))
        });
        problems.extend(written.await?);
        Ok(problems)
    }

    async fn update(&self, cgroup: CgroupValues) -> Result<(), CgroupError> {
        let path = cgroup.path.clone();
        let unit = match &cgroup.unit {
            Some(unit) => {
                self.with_unit(&path, async |systemd| systemd.set_properties(unit).await)
                    .await
            }
            None => Ok(()),
        };
        let problems = self
            .run(&path, move |layout, _| Ok(tree::write_values(layout, &cgroup)))
            .await?;
        unit?;
        if problems.is_empty() {
            return Ok(());
        }
        Err(CgroupError::new(
            path,
            CgroupErrorKind::Other,
            problems.join("; "),
        ))
    }

    async fn remove(&self, place: CgroupPlace) -> Result<(), CgroupError> {
        let path = place.path;
        let is_there = self
            .run(&path, |layout, path| {
                Ok(layout.directories(path).any(|directory| directory.exists()))
            })
            .await?;
        if !is_there {
            return Ok(());
        }
        // Leftovers go before the unit: systemd would leave processes of a slice alone.
        let removed = self.run(&path, removal::remove).await;
        if let Some(unit) = place.unit {
            self.with_unit(&path, async |systemd| systemd.stop_slice(&unit).await)
                .await?;
            // What systemd does not know of, or made again meanwhile.
            return self.run(&path, removal::remove).await;
        }
        removed
    }
}

#[async_trait]
impl ProcessCgroupReader for HostCgroups {
    async fn own_process(&self) -> Result<OwnProcess, CgroupError> {
        self.run("/", |_, path| {
            processes::own_process(Path::new(PROC))
                .map_err(|error| unreadable(path, "find the cgroup of this process", &error))
        })
        .await
    }

    async fn processes_in_root(&self) -> Result<Vec<u32>, CgroupError> {
        self.run("/", |layout, path| {
            processes::in_root(layout, Path::new(PROC))
                .map_err(|error| unreadable(path, "list the processes in the root cgroup", &error))
        })
        .await
    }
}

fn unreadable(path: &str, what: &str, error: &std::io::Error) -> CgroupError {
    CgroupError::new(path, CgroupErrorKind::Other, format!("{what}: {error}"))
}

#[async_trait]
impl ProcessCgroupWriter for HostCgroups {
    async fn move_processes(&self, path: &str, processes: Vec<u32>) -> Result<(), CgroupError> {
        let call = move |layout: &Layout, path: &str| processes::move_into(layout, path, &processes);
        self.run(path, call).await
    }
}
