//! A node whose memory, disks and pods a test sets, behind all the ports that evictions use.
//!
//! What a pod uses is taken from the node: memory comes back when the pod has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use prometheus::Registry;
use rubelet_eviction::{
    EvictionHandle, EvictionMetrics, EvictionPorts, EvictionSettings, PressurePlaces, PressureWatch,
    SignalPorts, start,
};
use rubelet_fakes::{NodeEvents, PodEvents, Tasks, TokioClock};
use rubelet_model::observation::PodUid;
use rubelet_model::pod::Importance;
use rubelet_model::signals::{FilesystemReading, MemoryReading, ProcessReading};
use rubelet_model::{Pressure, Timestamp};
use rubelet_ports::{
    Aged, Clock, ContainerUsage, EvictionFailure, FreedImages, ImageReader, MemoryAlarm, MemoryMark, Moment,
    NoAnswer, NoPodUsage, NodeSignals, PodEviction, PodEvictor, PodStorageReader, PodUsage, PodUsageReader,
    RuntimeError, RuntimeErrorKind, SignalError, StorageQuestion, UnusedImages, UsageExtent, VolumeUsage,
};
use rubelet_resources::Rules;
use rubelet_resources::eviction::LocalStorageRules;
use rubelet_resources::pressure::{PressureSettings, ThresholdTexts};
use rubelet_usage::DiskUsage;
use rubelet_wire::cri::v1;
use serde_json::{Value, from_value, json};
use tokio::sync::{Notify, watch};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;
pub(crate) const ROOT: &str = "/var/lib/kubelet";
pub(crate) const IMAGES: &str = "/var/lib/containerd";

/// A pod and what it uses.
#[derive(Clone, Debug, Default)]
pub(crate) struct SimplePod {
    pub(crate) pod: Arc<Pod>,
    pub(crate) memory_bytes: u64,
    pub(crate) processes: u64,
    pub(crate) disk: DiskUsage,
    pub(crate) is_running: bool,
    /// How long its end takes; `None` for ever.
    pub(crate) ends_in: Option<Duration>,
}

pub(crate) struct State {
    pub(crate) available_memory: u64,
    pub(crate) disks: BTreeMap<PathBuf, Result<FilesystemReading, SignalError>>,
    pub(crate) runtime: Result<v1::ImageFsInfoResponse, RuntimeErrorKind>,
    pub(crate) rounds: usize,
    pub(crate) places: BTreeSet<PathBuf>,
    pub(crate) pods: BTreeMap<String, SimplePod>,
    /// What happened, in its order.
    pub(crate) story: Vec<String>,
    /// What the removal of images and of dead containers frees on each disk.
    pub(crate) freed_by_images: u64,
    pub(crate) freed_by_containers: u64,
    /// How long a removal takes, at the end of which the disk is freed.
    pub(crate) removal_takes: Duration,
    /// Whether what pods use can be read.
    pub(crate) is_usage_known: bool,
    /// The last figures that were given are given once more.
    pub(crate) stale_answers: usize,
    /// How often pods were measured for their limits.
    pub(crate) measured: usize,
    /// Pods whose end was asked for, with when.
    ending: BTreeMap<String, Duration>,
    /// How many rounds there were when the last pod ended.
    rounds_at_last_end: usize,
    /// What must never happen, and did.
    pub(crate) violations: Vec<String>,
    last_usage: Vec<PodUsage>,
}

#[derive(Clone)]
pub(crate) struct Node {
    state: Arc<Mutex<State>>,
    pub(crate) clock: TokioClock,
    pub(crate) events: Arc<PodEvents>,
    pub(crate) node_events: Arc<NodeEvents>,
    pub(crate) registry: Registry,
    pub(crate) alarm: Arc<Alarm>,
}

/// A kernel that gives a hint when a test wants it.
#[derive(Default)]
pub(crate) struct Alarm {
    pub(crate) marks: Mutex<Vec<MemoryMark>>,
    pub(crate) bell: Notify,
}

#[async_trait]
impl MemoryAlarm for Alarm {
    async fn set(&self, marks: Vec<MemoryMark>) -> Result<(), SignalError> {
        *self.marks.lock().unwrap() = marks;
        Ok(())
    }

    async fn rings(&self) {
        self.bell.notified().await;
    }
}

pub(crate) fn disk(device: u64, available_bytes: u64) -> FilesystemReading {
    FilesystemReading {
        device,
        capacity_bytes: 100 * GIB,
        available_bytes,
        inodes: 1000,
        inodes_free: 900,
    }
}

pub(crate) fn usage(path: &str) -> v1::FilesystemUsage {
    v1::FilesystemUsage {
        fs_id: Some(v1::FilesystemIdentifier {
            mountpoint: path.to_owned(),
        }),
        ..v1::FilesystemUsage::default()
    }
}

pub(crate) fn places() -> PressurePlaces {
    PressurePlaces {
        root_dir: PathBuf::from(ROOT),
        pods_cgroup: Some("/kubepods".to_owned()),
    }
}

/// Hard thresholds.
pub(crate) fn settings(hard: &[(&str, &str)]) -> PressureSettings {
    settings_of(hard, &[], &[], &[])
}

pub(crate) fn settings_of(
    hard: &[(&str, &str)],
    soft: &[(&str, &str)],
    grace: &[(&str, &str)],
    reclaim: &[(&str, &str)],
) -> PressureSettings {
    let map = |list: &[(&str, &str)]| -> BTreeMap<String, String> {
        list.iter()
            .map(|(signal, value)| ((*signal).to_owned(), (*value).to_owned()))
            .collect()
    };
    let texts = ThresholdTexts {
        hard: &map(hard),
        soft: &map(soft),
        soft_grace: &map(grace),
        minimum_reclaim: &map(reclaim),
        are_pods_enforced: true,
    };
    let (thresholds, overridden) = texts.read().unwrap();
    PressureSettings {
        thresholds,
        transition_period: Duration::from_secs(300),
        huge_page_bytes: 0,
        overridden,
    }
}

impl SimplePod {
    pub(crate) fn new(name: &str, spec: &Value) -> Self {
        let mut spec = spec.clone();
        let has_containers = spec.get("containers").is_some();
        if !has_containers {
            spec["containers"] = json!([{"name": "main"}]);
        }
        let metadata = json!({"name": name, "namespace": "ns", "uid": name});
        Self {
            pod: Arc::new(from_value(json!({"metadata": metadata, "spec": spec})).unwrap()),
            is_running: true,
            processes: 1,
            ends_in: Some(Duration::ZERO),
            ..Self::default()
        }
    }

    pub(crate) fn using_memory(mut self, bytes: u64) -> Self {
        self.memory_bytes = bytes;
        self
    }

    pub(crate) fn using_disk(mut self, bytes: u64, inodes: u64) -> Self {
        self.disk = DiskUsage { bytes, inodes };
        self
    }

    fn name(&self) -> String {
        self.pod.metadata.name.clone().unwrap_or_default()
    }

    fn usage(&self, now: Timestamp) -> PodUsage {
        let aged = |value: u64| Some(Aged::new(value, now, now));
        let nothing = Aged::new(DiskUsage::default(), now, now);
        let name = self.name();
        PodUsage {
            uid: PodUid::from(name.as_str()),
            namespace: "ns".to_owned(),
            name,
            working_set_bytes: aged(self.memory_bytes),
            processes: aged(self.processes),
            ephemeral_storage: Some(Aged::new(self.disk, now, now)),
            containers: vec![ContainerUsage {
                name: "main".to_owned(),
                working_set_bytes: aged(self.memory_bytes),
                writable_layer: Some(nothing),
                logs: Some(Aged::new(self.disk, now, now)),
            }],
            volumes: vec![VolumeUsage {
                name: "scratch".to_owned(),
                used: Aged::new(self.disk, now, now),
            }],
        }
    }
}

impl State {
    /// A pod is evicted because the node is short of something.
    fn judge(&mut self, uid: &str, now: Duration) {
        let pod = &self.pods[uid].pod;
        if Importance::of(pod).is_critical() {
            self.violations.push(format!("{uid} is critical"));
        }
        for (other, since) in &self.ending {
            let still_runs = self.pods.get(other).is_some_and(|other| other.is_running);
            if still_runs && now - *since < Duration::from_mins(2) {
                self.violations
                    .push(format!("{uid} is evicted while {other} still runs"));
            }
        }
        if self.rounds == self.rounds_at_last_end && !self.story.is_empty() {
            self.violations
                .push(format!("{uid} is evicted on a reading from before the last end"));
        }
        self.ending.insert(uid.to_owned(), now);
    }
}

impl Node {
    pub(crate) fn new() -> Self {
        let disks = [(ROOT, disk(1, 50 * GIB)), (IMAGES, disk(2, 50 * GIB))];
        let state = State {
            available_memory: GIB,
            disks: disks.map(|(path, disk)| (PathBuf::from(path), Ok(disk))).into(),
            runtime: Ok(v1::ImageFsInfoResponse {
                image_filesystems: vec![usage(IMAGES)],
                container_filesystems: vec![usage(IMAGES)],
            }),
            rounds: 0,
            places: BTreeSet::new(),
            pods: BTreeMap::new(),
            story: Vec::new(),
            freed_by_images: 0,
            freed_by_containers: 0,
            removal_takes: Duration::from_secs(1),
            is_usage_known: true,
            stale_answers: 0,
            measured: 0,
            ending: BTreeMap::new(),
            rounds_at_last_end: 0,
            violations: Vec::new(),
            last_usage: Vec::new(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            clock: TokioClock::new(Timestamp::from_unix_seconds(1_000_000)),
            events: Arc::default(),
            node_events: Arc::default(),
            registry: Registry::new(),
            alarm: Arc::default(),
        }
    }

    /// A node with everything on one filesystem.
    pub(crate) fn with_one_disk(available_bytes: u64) -> Self {
        let node = Self::new();
        node.set_disk(ROOT, Ok(disk(1, available_bytes)));
        node.set_disk(IMAGES, Ok(disk(1, available_bytes)));
        node
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn set_disk(&self, path: &str, reading: Result<FilesystemReading, SignalError>) {
        self.state().disks.insert(PathBuf::from(path), reading);
    }

    pub(crate) fn add(&self, pod: SimplePod) {
        self.state().pods.insert(pod.name(), pod);
    }

    pub(crate) fn signal_ports(&self) -> SignalPorts {
        SignalPorts {
            clock: Arc::new(self.clock),
            signals: Arc::new(self.clone()),
            images: Arc::new(self.clone()),
            alarm: self.alarm.clone(),
        }
    }

    pub(crate) fn say(&self, text: impl Into<String>) {
        self.state().story.push(text.into());
    }

    pub(crate) fn start(&self, settings: PressureSettings) -> Running {
        let (sender, pressure) = watch::channel(None);
        let (rounds, handle) = PressureWatch::new(self.signal_ports(), settings, places(), sender);
        tokio::spawn(rounds.run());
        let ports = EvictionPorts {
            clock: Arc::new(self.clock),
            spawner: Arc::new(Tasks::default()),
            pods: Arc::new(self.clone()),
            usage: Arc::new(self.clone()),
            storage: Arc::new(self.clone()),
            images: Arc::new(self.clone()),
            events: self.events.clone(),
            node_events: self.node_events.clone(),
            metrics: EvictionMetrics::register(&self.registry).unwrap(),
        };
        let settings = EvictionSettings {
            rules: Rules::default(),
            most_grace_seconds: 60,
            local_storage: Some(LocalStorageRules::default()),
        };
        Running {
            evictions: start(ports, settings, handle),
            _pressure: pressure,
        }
    }

    /// Waits until the story of the node has as many lines as expected, and no more follow.
    pub(crate) async fn tells(&self, expected: &[&str]) {
        for _ in 0..600 {
            if self.state().story.len() >= expected.len() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(self.state().story, expected);
    }

    fn free(&self, bytes: u64) {
        for reading in self.state().disks.values_mut().flatten() {
            reading.available_bytes += bytes;
        }
    }
}

pub(crate) struct Running {
    pub(crate) evictions: EvictionHandle,
    _pressure: watch::Receiver<Option<Pressure>>,
}

#[async_trait]
impl NodeSignals for Node {
    async fn memory(&self) -> Result<MemoryReading, SignalError> {
        let mut state = self.state();
        state.rounds += 1;
        let used: u64 = state.pods.values().map(|pod| pod.memory_bytes).sum();
        let available = state.available_memory.saturating_sub(used);
        Ok(MemoryReading {
            limit_bytes: Some(4 * GIB),
            usage_bytes: 4 * GIB - available,
            inactive_file_bytes: 0,
        })
    }

    async fn cgroup_memory(&self, cgroup: &str) -> Result<Option<MemoryReading>, SignalError> {
        assert_eq!(cgroup, "/kubepods");
        Ok(None)
    }

    async fn filesystem(&self, path: &Path) -> Result<FilesystemReading, SignalError> {
        let mut state = self.state();
        state.places.insert(path.to_owned());
        let used: u64 = state.pods.values().map(|pod| pod.disk.bytes).sum();
        let inodes: u64 = state.pods.values().map(|pod| pod.disk.inodes).sum();
        let mut reading = state.disks[path].clone()?;
        if reading.device == 1 {
            reading.available_bytes = reading.available_bytes.saturating_sub(used);
            reading.inodes_free = reading.inodes_free.saturating_sub(inodes);
        }
        Ok(reading)
    }

    async fn processes(&self) -> Result<ProcessReading, SignalError> {
        let of_pods: u64 = self.state().pods.values().map(|pod| pod.processes).sum();
        Ok(ProcessReading {
            most: 1000,
            running: 10 + of_pods,
        })
    }
}

#[async_trait]
impl ImageReader for Node {
    async fn list_images(&self, _: Option<v1::ImageFilter>) -> Result<Vec<v1::Image>, RuntimeError> {
        unreachable!("images are not asked for")
    }

    async fn image_status(&self, _: v1::ImageSpec, _: bool) -> Result<v1::ImageStatusResponse, RuntimeError> {
        unreachable!("images are not asked for")
    }

    async fn image_fs_info(&self) -> Result<v1::ImageFsInfoResponse, RuntimeError> {
        let runtime = self.state().runtime.clone();
        runtime.map_err(|kind| {
            RuntimeError::new("ImageFsInfo", "unix:///run/c.sock", kind, "the runtime is away")
        })
    }
}

#[async_trait]
impl PodUsageReader for Node {
    async fn usage_of_pods(&self, _: UsageExtent) -> Result<Vec<PodUsage>, NoPodUsage> {
        let now = self.clock.now();
        let mut state = self.state();
        if !state.is_usage_known {
            return Err(NoPodUsage("the runtime does not list its pods".to_owned()));
        }
        if state.stale_answers > 0 {
            state.stale_answers -= 1;
            return Ok(state.last_usage.clone());
        }
        let running = state.pods.values().filter(|pod| pod.is_running);
        let usage: Vec<PodUsage> = running.map(|pod| pod.usage(now)).collect();
        state.last_usage.clone_from(&usage);
        Ok(usage)
    }
}

#[async_trait]
impl PodStorageReader for Node {
    async fn storage_of(&self, question: StorageQuestion) -> Result<Vec<PodUsage>, NoPodUsage> {
        let now = self.clock.now();
        let mut state = self.state();
        state.measured += question.pods.len();
        let asked = |pod: &&SimplePod| pod.is_running && question.pods.contains(&pod.pod);
        let running = state.pods.values().filter(asked);
        Ok(running.map(|pod| pod.usage(now)).collect())
    }
}

#[async_trait]
impl PodEvictor for Node {
    async fn pods(&self) -> Result<Vec<Arc<Pod>>, NoAnswer> {
        Ok(self
            .state()
            .pods
            .values()
            .map(|pod| Arc::clone(&pod.pod))
            .collect())
    }

    async fn evict(&self, uid: &PodUid, eviction: PodEviction) -> Result<(), EvictionFailure> {
        let now = self.clock.moment().since(Moment::default());
        if eviction.disruption.is_some() {
            self.state().judge(uid.as_str(), now);
        }
        let ends_in = self.state().pods[uid.as_str()].ends_in;
        self.say(format!("evict {uid} with {} s", eviction.grace_seconds));
        let Some(ends_in) = ends_in else {
            self.clock.sleep(Duration::from_secs(10)).await;
            return Err(EvictionFailure::TimedOut);
        };
        self.clock.sleep(ends_in).await;
        {
            let mut state = self.state();
            state.pods.remove(uid.as_str());
            state.ending.remove(uid.as_str());
            state.rounds_at_last_end = state.rounds;
        }
        self.say(format!("{uid} has ended"));
        Ok(())
    }

    async fn is_unfinished(&self, uid: &PodUid) -> bool {
        self.state().pods.contains_key(uid.as_str())
    }

    async fn remove_dead_containers(&self) -> Result<usize, String> {
        self.say("remove dead containers");
        let takes = self.state().removal_takes;
        self.clock.sleep(takes).await;
        let freed = self.state().freed_by_containers;
        self.free(freed);
        Ok(0)
    }
}

#[async_trait]
impl UnusedImages for Node {
    async fn remove_unused(&self) -> Result<FreedImages, String> {
        self.say("remove unused images");
        let takes = self.state().removal_takes;
        self.clock.sleep(takes).await;
        let freed = self.state().freed_by_images;
        self.free(freed);
        Ok(FreedImages::default())
    }
}
