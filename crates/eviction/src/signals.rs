//! Reading the signals of one round.
//!
//! Owns which reading stands for which filesystem. A reading that fails affects no other, and is logged when its failure is a new one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join4};
use rubelet_model::signals::FilesystemReading;
use rubelet_ports::{Clock, ImageReader, MemoryAlarm, NodeSignals, SignalError, within};
use rubelet_resources::pressure::Readings;
use rubelet_wire::cri::v1;

/// What the runtime may take to name its filesystems.
const RUNTIME_LIMIT: Duration = Duration::from_secs(10);

/// The edges, each behind its port.
#[derive(Clone)]
pub struct SignalPorts {
    pub clock: Arc<dyn Clock>,
    pub signals: Arc<dyn NodeSignals>,
    pub images: Arc<dyn ImageReader>,
    pub alarm: Arc<dyn MemoryAlarm>,
}

/// What is looked at, beside the machine as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PressurePlaces {
    /// `--root-dir`, on the filesystem that is called nodefs.
    pub root_dir: PathBuf,
    /// The cgroup of all pods, such as `/kubepods`; `None` where pods have none.
    pub pods_cgroup: Option<String>,
}

pub(crate) struct SignalReader {
    ports: SignalPorts,
    places: PressurePlaces,
    /// Readings that failed in the last round, and why.
    problems: BTreeMap<&'static str, String>,
}

impl SignalReader {
    pub(crate) fn new(ports: SignalPorts, places: PressurePlaces) -> Self {
        Self {
            ports,
            places,
            problems: BTreeMap::new(),
        }
    }

    pub(crate) async fn read(&mut self) -> Readings {
        let signals = &self.ports.signals;
        let pods = async {
            match &self.places.pods_cgroup {
                Some(cgroup) => signals.cgroup_memory(cgroup).await,
                None => Ok(None),
            }
        };
        let machine = join4(
            signals.memory(),
            pods,
            signals.filesystem(&self.places.root_dir),
            signals.processes(),
        );
        let ((memory, pods_memory, node_filesystem, processes), (images, containers)) =
            join(machine, self.read_runtime()).await;
        Readings {
            memory: self.noted("memory", memory),
            pods_memory: self.noted("memory of pods", pods_memory).flatten(),
            node_filesystem: self.noted("nodefs", node_filesystem),
            image_filesystem: self.noted("imagefs", images),
            container_filesystem: self.noted("containerfs", containers).flatten(),
            processes: self.noted("processes", processes),
        }
    }

    /// Where the runtime keeps images and containers, and what is left there.
    async fn read_runtime(
        &self,
    ) -> (
        Result<FilesystemReading, SignalError>,
        Result<Option<FilesystemReading>, SignalError>,
    ) {
        let asked = self.ports.images.image_fs_info();
        let answer = match within(self.ports.clock.as_ref(), RUNTIME_LIMIT, asked).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return (Err(of_runtime(error.to_string())), Ok(None)),
            Err(elapsed) => return (Err(of_runtime(elapsed.to_string())), Ok(None)),
        };
        // As for upstream, the first one counts.
        let Some(images) = mount_point(&answer.image_filesystems) else {
            return (
                Err(of_runtime("it names no filesystem of images".to_owned())),
                Ok(None),
            );
        };
        let containers = mount_point(&answer.container_filesystems).filter(|path| *path != images);
        let containers = async {
            match containers {
                Some(path) => self.ports.signals.filesystem(path).await.map(Some),
                None => Ok(None),
            }
        };
        join(self.ports.signals.filesystem(images), containers).await
    }

    /// Keeps the reading; a failure is logged when it is another one than before.
    fn noted<T>(&mut self, what: &'static str, reading: Result<T, SignalError>) -> Option<T> {
        match reading {
            Ok(reading) => {
                if self.problems.remove(what).is_some() {
                    tracing::info!(what, "What is left can be read again");
                }
                Some(reading)
            }
            Err(error) => {
                let error = error.to_string();
                if self.problems.get(what) != Some(&error) {
                    tracing::warn!(
                        what,
                        error,
                        "What is left cannot be read; its thresholds stay as they are"
                    );
                    self.problems.insert(what, error);
                }
                None
            }
        }
    }
}

fn of_runtime(message: String) -> SignalError {
    SignalError::new("ask the runtime for its filesystems", message)
}

fn mount_point(filesystems: &[v1::FilesystemUsage]) -> Option<&Path> {
    let first = filesystems.first()?.fs_id.as_ref()?;
    (!first.mountpoint.is_empty()).then(|| Path::new(&first.mountpoint))
}
