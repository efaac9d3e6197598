//! A node to take statistics of.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use prometheus::Registry;
use rubelet_fakes::{FakeDisk, FakeUsage, ManualClock, Tasks};
use rubelet_model::Timestamp;
use rubelet_model::signals::{FilesystemReading, MemoryReading, ProcessReading};
use rubelet_ports::{
    Clock, EventStream, ImageReader, NoAnswer, NodeSignals, PodsToRun, RuntimeError, RuntimeErrorKind,
    RuntimeReader, SignalError,
};
use rubelet_resources::cgroup_name::CgroupDriver;
use rubelet_stats::{
    CgroupPlaces, MachineNames, PodSource, Statistics, StatisticsMetrics, StatisticsPorts,
    StatisticsSettings, StoragePlaces, SystemCgroup,
};
use rubelet_wire::cri::v1;

/// When the test begins: an hour after the machine.
pub(crate) const START: Timestamp = Timestamp::from_unix_seconds(3600);

pub(crate) struct Node {
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) usage: Arc<FakeUsage>,
    pub(crate) disk: Arc<FakeDisk>,
    pub(crate) pods: Arc<Pods>,
    pub(crate) statistics: Statistics,
    pub(crate) registry: Registry,
}

impl Node {
    pub(crate) fn new() -> Self {
        Self::counted_by(PodSource::Cgroups)
    }

    /// The kernel or the runtime counts what pods use.
    pub(crate) fn counted_by(source: PodSource) -> Self {
        let clock = Arc::new(ManualClock::new(START));
        let runtime = Arc::new(Runtime::default());
        let usage = Arc::new(FakeUsage::new(clock.clone()));
        let disk = Arc::new(FakeDisk::default());
        let pods = Arc::new(Pods::default());
        let registry = Registry::new();
        let ports = StatisticsPorts {
            clock: clock.clone(),
            spawner: Arc::new(Tasks::default()),
            runtime: runtime.clone(),
            images: runtime.clone(),
            usage: usage.clone(),
            signals: Arc::new(Signals),
            disk: disk.clone(),
            pods: pods.clone(),
            metrics: StatisticsMetrics::register(&registry).unwrap(),
        };
        let settings = StatisticsSettings {
            node_name: "node-a".to_owned(),
            places: CgroupPlaces {
                root: String::new(),
                driver: CgroupDriver::Cgroupfs,
                runtime_name: "containerd".to_owned(),
                are_per_qos: true,
            },
            system_cgroups: vec![
                SystemCgroup {
                    name: "kubelet",
                    path: None,
                    started_at: Some(START),
                },
                SystemCgroup {
                    name: "pods",
                    path: Some("/kubepods".to_owned()),
                    started_at: None,
                },
            ],
            storage: StoragePlaces {
                root_dir: "/root".into(),
                pod_logs_dir: "/logs".into(),
            },
            machine: MachineNames {
                machine_id: "m".to_owned(),
                system_uuid: "u".to_owned(),
                boot_id: "b".to_owned(),
                kernel_version: "6.18".to_owned(),
                os_image: "Debian".to_owned(),
            },
            volume_period: Duration::from_mins(1),
            huge_page_bytes: 100,
            pods: source,
            container_page: source,
        };
        Self {
            statistics: Statistics::new(settings, ports),
            clock,
            runtime,
            usage,
            disk,
            pods,
            registry,
        }
    }

    /// A pod with a container `main`, which began ten seconds ago and has used half a processor since.
    pub(crate) fn run(&self, name: &str) {
        let ten_ago = self.clock.now().minus(Duration::from_secs(10));
        self.runtime.add(name, ten_ago);
        self.usage.uses(&pod_cgroup(name), 5_500_000_000, 3 << 20);
        self.usage.uses(&container_cgroup(name), 5_000_000_000, 2 << 20);
    }

    pub(crate) fn advance(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }
}

/// The pods that the agent knows.
#[derive(Default)]
pub(crate) struct Pods(Mutex<Vec<Arc<Pod>>>);

impl Pods {
    pub(crate) fn add(&self, pod: Pod) {
        self.0.lock().unwrap().push(Arc::new(pod));
    }
}

#[async_trait]
impl PodsToRun for Pods {
    async fn pods_to_run(&self) -> Result<Option<Vec<Arc<Pod>>>, NoAnswer> {
        Ok(Some(self.0.lock().unwrap().clone()))
    }
}

struct Signals;

#[async_trait]
impl NodeSignals for Signals {
    async fn memory(&self) -> Result<MemoryReading, SignalError> {
        Err(SignalError::new("memory", "no one asks"))
    }

    async fn cgroup_memory(&self, cgroup: &str) -> Result<Option<MemoryReading>, SignalError> {
        Err(SignalError::new(cgroup, "no one asks"))
    }

    async fn filesystem(&self, path: &std::path::Path) -> Result<FilesystemReading, SignalError> {
        Err(SignalError::new(path.display().to_string(), "no one asks"))
    }

    async fn processes(&self) -> Result<ProcessReading, SignalError> {
        Ok(ProcessReading {
            most: 7000,
            running: 345,
        })
    }
}

pub(crate) fn pod_cgroup(name: &str) -> String {
    format!("/kubepods/besteffort/poduid-{name}")
}

pub(crate) fn container_cgroup(name: &str) -> String {
    format!("{}/c-{name}", pod_cgroup(name))
}

/// A runtime with pods of one container.
#[derive(Default)]
pub(crate) struct Runtime {
    pods: Mutex<Vec<(String, Timestamp)>>,
    figures: Mutex<Vec<v1::ContainerStats>>,
    pod_figures: Mutex<Vec<v1::PodSandboxStats>>,
    metrics: Mutex<Vec<v1::PodSandboxMetrics>>,
    pub(crate) descriptions_asked: AtomicUsize,
    problem: Mutex<Option<Problem>>,
    lists: AtomicUsize,
    figures_asked: AtomicUsize,
    pub(crate) images_listed: AtomicUsize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Problem {
    Fails,
    Hangs,
}

impl Runtime {
    fn add(&self, name: &str, created_at: Timestamp) {
        self.pods.lock().unwrap().push((name.to_owned(), created_at));
    }

    pub(crate) fn remove(&self, name: &str) {
        self.pods.lock().unwrap().retain(|(known, _)| known != name);
    }

    pub(crate) fn set_problem(&self, problem: Option<Problem>) {
        *self.problem.lock().unwrap() = problem;
    }

    /// Sets the runtime's own figures of a pod's container.
    pub(crate) fn set_figures(&self, name: &str, cpu_nanos: u64, memory_bytes: u64) {
        let value = |value| Some(v1::UInt64Value { value });
        let stats = v1::ContainerStats {
            attributes: Some(v1::ContainerAttributes {
                id: format!("c-{name}"),
                ..v1::ContainerAttributes::default()
            }),
            cpu: Some(v1::CpuUsage {
                timestamp: 7_000_000_000,
                usage_core_nano_seconds: value(cpu_nanos),
                ..v1::CpuUsage::default()
            }),
            memory: Some(v1::MemoryUsage {
                timestamp: 7_000_000_000,
                working_set_bytes: value(memory_bytes),
                ..v1::MemoryUsage::default()
            }),
            writable_layer: Some(filesystem_usage(20, 2)),
            ..v1::ContainerStats::default()
        };
        self.figures.lock().unwrap().push(stats);
    }

    /// Sets what the runtime counts of a pod and its container.
    pub(crate) fn set_pod_figures(&self, name: &str, linux: v1::LinuxPodSandboxStats) {
        let stats = v1::PodSandboxStats {
            attributes: Some(v1::PodSandboxAttributes {
                id: format!("s-{name}"),
                ..v1::PodSandboxAttributes::default()
            }),
            linux: Some(linux),
            ..v1::PodSandboxStats::default()
        };
        self.pod_figures.lock().unwrap().push(stats);
    }

    /// The figures of all containers that were set.
    pub(crate) fn container_figures(&self) -> Vec<v1::ContainerStats> {
        self.figures.lock().unwrap().clone()
    }

    pub(crate) fn add_metrics(&self, metrics: v1::PodSandboxMetrics) {
        self.metrics.lock().unwrap().push(metrics);
    }

    /// How often pods were listed, and how often figures were.
    pub(crate) fn calls(&self) -> (usize, usize) {
        (
            self.lists.load(Ordering::Relaxed),
            self.figures_asked.load(Ordering::Relaxed),
        )
    }

    async fn answer<T>(&self, answer: T) -> Result<T, RuntimeError> {
        let problem = *self.problem.lock().unwrap();
        match problem {
            None => Ok(answer),
            Some(Problem::Fails) => Err(unavailable()),
            Some(Problem::Hangs) => std::future::pending().await,
        }
    }
}

/// What the runtime counts of one of its filesystems.
fn filesystem_usage(bytes: u64, inodes: u64) -> v1::FilesystemUsage {
    v1::FilesystemUsage {
        timestamp: 8_000_000_000,
        fs_id: Some(v1::FilesystemIdentifier {
            mountpoint: "/images".to_owned(),
        }),
        used_bytes: Some(v1::UInt64Value { value: bytes }),
        inodes_used: Some(v1::UInt64Value { value: inodes }),
    }
}

#[async_trait]
impl ImageReader for Runtime {
    async fn list_images(&self, _: Option<v1::ImageFilter>) -> Result<Vec<v1::Image>, RuntimeError> {
        self.images_listed.fetch_add(1, Ordering::Relaxed);
        let image = |id: &str, tag: &str, pinned| v1::Image {
            id: id.to_owned(),
            repo_tags: vec![tag.to_owned()],
            pinned,
            ..v1::Image::default()
        };
        let images = vec![
            image("sha256:1", "web:1", false),
            image("sha256:2", "pause:3", true),
        ];
        self.answer(images).await
    }

    async fn image_status(&self, _: v1::ImageSpec, _: bool) -> Result<v1::ImageStatusResponse, RuntimeError> {
        Err(unavailable())
    }

    async fn image_fs_info(&self) -> Result<v1::ImageFsInfoResponse, RuntimeError> {
        self.answer(v1::ImageFsInfoResponse {
            image_filesystems: vec![filesystem_usage(500, 50)],
            container_filesystems: Vec::new(),
        })
        .await
    }
}

fn unavailable() -> RuntimeError {
    RuntimeError::new(
        "List",
        "unix:///r.sock",
        RuntimeErrorKind::Unavailable,
        "it is away",
    )
}

#[async_trait]
impl RuntimeReader for Runtime {
    async fn list_pod_sandboxes(
        &self,
        _: Option<v1::PodSandboxFilter>,
    ) -> Result<Vec<v1::PodSandbox>, RuntimeError> {
        self.lists.fetch_add(1, Ordering::Relaxed);
        let pods = self.pods.lock().unwrap().clone();
        let sandboxes = pods.into_iter().map(|(name, created_at)| v1::PodSandbox {
            id: format!("s-{name}"),
            metadata: Some(v1::PodSandboxMetadata {
                uid: format!("uid-{name}"),
                name,
                namespace: "default".to_owned(),
                attempt: 0,
            }),
            state: v1::PodSandboxState::SandboxReady.into(),
            created_at: created_at.unix_nanos(),
            ..v1::PodSandbox::default()
        });
        self.answer(sandboxes.collect()).await
    }

    async fn list_containers(
        &self,
        _: Option<v1::ContainerFilter>,
    ) -> Result<Vec<v1::Container>, RuntimeError> {
        let pods = self.pods.lock().unwrap().clone();
        let containers = pods.into_iter().map(|(name, created_at)| v1::Container {
            id: format!("c-{name}"),
            pod_sandbox_id: format!("s-{name}"),
            metadata: Some(v1::ContainerMetadata {
                name: "main".to_owned(),
                attempt: 0,
            }),
            image_ref: "sha256:1".to_owned(),
            state: v1::ContainerState::ContainerRunning.into(),
            created_at: created_at.unix_nanos(),
            ..v1::Container::default()
        });
        self.answer(containers.collect()).await
    }

    async fn list_container_stats(
        &self,
        _: Option<v1::ContainerStatsFilter>,
    ) -> Result<Vec<v1::ContainerStats>, RuntimeError> {
        self.figures_asked.fetch_add(1, Ordering::Relaxed);
        let figures = self.figures.lock().unwrap().clone();
        self.answer(figures).await
    }

    async fn version(&self) -> Result<v1::VersionResponse, RuntimeError> {
        Err(unavailable())
    }

    async fn status(&self, _: bool) -> Result<v1::StatusResponse, RuntimeError> {
        Err(unavailable())
    }

    async fn runtime_config(&self) -> Result<v1::RuntimeConfigResponse, RuntimeError> {
        Err(unavailable())
    }

    async fn pod_sandbox_status(
        &self,
        _: &str,
        _: bool,
    ) -> Result<v1::PodSandboxStatusResponse, RuntimeError> {
        Err(unavailable())
    }

    async fn container_status(&self, _: &str, _: bool) -> Result<v1::ContainerStatusResponse, RuntimeError> {
        Err(unavailable())
    }

    async fn container_stats(&self, _: &str) -> Result<Option<v1::ContainerStats>, RuntimeError> {
        Err(unavailable())
    }

    async fn pod_sandbox_stats(&self, _: &str) -> Result<Option<v1::PodSandboxStats>, RuntimeError> {
        Err(unavailable())
    }

    async fn list_pod_sandbox_stats(
        &self,
        _: Option<v1::PodSandboxStatsFilter>,
    ) -> Result<Vec<v1::PodSandboxStats>, RuntimeError> {
        let figures = self.pod_figures.lock().unwrap().clone();
        self.answer(figures).await
    }

    async fn list_metric_descriptors(&self) -> Result<Vec<v1::MetricDescriptor>, RuntimeError> {
        self.descriptions_asked.fetch_add(1, Ordering::Relaxed);
        let descriptor = v1::MetricDescriptor {
            name: "container_oom_events_total".to_owned(),
            help: "Kills.".to_owned(),
            label_keys: vec!["pod".to_owned()],
        };
        self.answer(vec![descriptor]).await
    }

    async fn list_pod_sandbox_metrics(&self) -> Result<Vec<v1::PodSandboxMetrics>, RuntimeError> {
        let metrics = self.metrics.lock().unwrap().clone();
        self.answer(metrics).await
    }

    fn container_events(&self) -> EventStream {
        futures_util::stream::empty().boxed()
    }
}
