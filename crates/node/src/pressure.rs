//! Watches whether the node runs short of memory, disk, inodes or processes.
//!
//! Owns the rounds: every ten seconds all signals are read, `rubelet_resources::pressure` compares them with the thresholds, and a
//! watch passes the result to the node's conditions and to admission. A reading that fails affects no other. Nothing is
//! reclaimed here, and the event of a crossed threshold notes that.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join4};
use rubelet_model::Pressure;
use rubelet_model::signals::FilesystemReading;
use rubelet_ports::{
    Clock, EventType, ImageReader, Moment, NodeEvent, NodeEventRecorder, NodeSignals, SignalError, within,
};
use rubelet_resources::pressure::{Crossing, Findings, PressureSettings, PressureState, Readings, step};
use rubelet_wire::cri::v1;
use tokio::sync::watch;

/// As often as upstream.
const ROUND_INTERVAL: Duration = Duration::from_secs(10);
/// What the runtime may take to name its filesystems.
const RUNTIME_LIMIT: Duration = Duration::from_secs(10);
const EVENT_REASON: &str = "EvictionThresholdMet";

/// The edges, each behind its port.
#[derive(Clone)]
pub struct PressurePorts {
    pub clock: Arc<dyn Clock>,
    pub signals: Arc<dyn NodeSignals>,
    pub images: Arc<dyn ImageReader>,
    pub events: Arc<dyn NodeEventRecorder>,
}

/// What is looked at, beside the machine as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PressurePlaces {
    /// `--root-dir`, on the filesystem that is called nodefs.
    pub root_dir: PathBuf,
    /// The cgroup of all pods, such as `/kubepods`; `None` where pods have none.
    pub pods_cgroup: Option<String>,
}

/// Runs until no receiver is left. The watch has nothing until the first round is over.
pub async fn watch_pressure(
    ports: PressurePorts,
    settings: PressureSettings,
    places: PressurePlaces,
    pressure: watch::Sender<Option<Pressure>>,
) {
    for signal in &settings.overridden {
        tracing::warn!(%signal, "This eviction threshold does not count: it follows from those of nodefs or imagefs");
    }
    if settings.thresholds.is_empty() {
        tracing::info!("No eviction thresholds are set: the node is never under pressure");
        pressure.send_replace(Some(Pressure::default()));
        return pressure.closed().await;
    }
    let mut rounds = Rounds {
        ports,
        settings,
        places,
        state: PressureState::default(),
        problems: BTreeMap::new(),
    };
    while !pressure.is_closed() {
        let findings = rounds.next().await;
        let changed = pressure.send_if_modified(|known| {
            let is_new = *known != Some(findings.pressure);
            *known = Some(findings.pressure);
            is_new
        });
        if changed {
            let Pressure { memory, disk, pid } = findings.pressure;
            tracing::info!(memory, disk, pid, "Pressure on the node");
        }
        rounds.ports.clock.sleep(ROUND_INTERVAL).await;
    }
}

struct Rounds {
    ports: PressurePorts,
    settings: PressureSettings,
    places: PressurePlaces,
    state: PressureState,
    /// Readings that failed in the last round, and why.
    problems: BTreeMap<&'static str, String>,
}

impl Rounds {
    async fn next(&mut self) -> Findings {
        let readings = self.read().await;
        let now = self.ports.clock.moment().since(Moment::default());
        let state = std::mem::take(&mut self.state);
        let (state, findings) = step(&self.settings, state, &readings, now);
        self.state = state;
        for crossing in &findings.crossed {
            self.record(crossing);
        }
        for key in &findings.left {
            tracing::info!(signal = %key.signal, "An eviction threshold is not crossed any more");
        }
        findings
    }

    fn record(&self, crossing: &Crossing) {
        let resource = crossing.key.signal.resource();
        tracing::warn!(%crossing, "An eviction threshold is crossed; nothing is reclaimed or evicted yet");
        self.ports.events.record_node(NodeEvent {
            event_type: EventType::Warning,
            reason: EVENT_REASON.into(),
            message: format!(
                "{crossing}. The node reports pressure; rubelet does not reclaim {resource} or evict pods yet"
            ),
            node_uid: None,
        });
    }

    async fn read(&mut self) -> Readings {
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
