//! A runtime and a filesystem in memory, with faults on demand.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, pending};
use k8s_openapi::api::core::v1::Pod;
use rubelet_lifecycle::configuration::labels;
use rubelet_model::Timestamp;
use rubelet_model::cgroup::{PodCgroupPart, PodCgroupReading};
use rubelet_model::observation::PodUid;
use rubelet_ports::{
    CgroupError, CgroupErrorKind, Clock, DirectoryEntry, EventStream, FileError, FileErrorKind, FileKind,
    FileReader, FileWriter, Moment, MountRequest, NodeEvent, NodeEventRecorder, PodCgroups, PodVolumes,
    RuntimeError, RuntimeErrorKind, RuntimeReader, RuntimeWriter, VolumeFailure, WatchStream,
};
use rubelet_wire::cri::v1;

use super::super::{GarbageCollector, GarbagePorts, GarbageSettings};
use crate::metrics::AgentMetrics;
use crate::node_now::NodeNow;

pub(super) struct StillClock;

impl Clock for StillClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_unix_seconds(10_000)
    }

    fn moment(&self) -> Moment {
        Moment::default()
    }

    /// Time stands still here, so nobody ever wakes.
    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        pending().boxed()
    }
}

#[derive(Default)]
pub(super) struct RuntimeState {
    pub(super) containers: BTreeMap<String, v1::Container>,
    pub(super) sandboxes: BTreeMap<String, v1::PodSandbox>,
    pub(super) log_paths: BTreeMap<String, String>,
    /// Calls about these ids fail.
    pub(super) broken: BTreeSet<String>,
    /// Calls about these ids never end.
    pub(super) hanging: BTreeSet<String>,
    /// Calls about these ids panic.
    pub(super) panicking: BTreeSet<String>,
    pub(super) lists_fail: bool,
    /// How often containers were listed.
    pub(super) lists: usize,
    /// Calls that change something, in order.
    pub(super) calls: Vec<String>,
}

#[derive(Default)]
pub(super) struct FakeRuntime(Mutex<RuntimeState>);

impl FakeRuntime {
    pub(super) fn state(&self) -> MutexGuard<'_, RuntimeState> {
        self.0.lock().unwrap()
    }

    /// Adds `pod/name#attempt`, whose id is this text, with a log.
    pub(super) fn add_container(&self, text: &str, state: v1::ContainerState) {
        let (pod, rest) = text.split_once('/').unwrap();
        let (name, attempt) = rest.split_once('#').unwrap();
        let id = container_id(text);
        let attempt: u32 = attempt.parse().unwrap();
        let container = v1::Container {
            id: id.clone(),
            pod_sandbox_id: format!("{pod}-sandbox"),
            metadata: Some(v1::ContainerMetadata {
                name: name.to_owned(),
                attempt,
            }),
            state: state as i32,
            created_at: i64::from(attempt),
            labels: labels_of(pod, Some(name)),
            ..v1::Container::default()
        };
        let mut runtime = self.state();
        let log = format!("/logs/ns_{pod}-name_{pod}/{name}/{attempt}.log");
        runtime.log_paths.insert(id.clone(), log);
        runtime.containers.insert(id, container);
    }

    pub(super) fn add_sandbox(&self, id: &str, pod: &str, attempt: u32, state: v1::PodSandboxState) {
        let sandbox = v1::PodSandbox {
            id: id.to_owned(),
            metadata: Some(v1::PodSandboxMetadata {
                attempt,
                ..v1::PodSandboxMetadata::default()
            }),
            state: state as i32,
            labels: labels_of(pod, None),
            ..v1::PodSandbox::default()
        };
        self.state().sandboxes.insert(id.to_owned(), sandbox);
    }

    async fn change(
        &self,
        call: &str,
        id: &str,
        act: impl FnOnce(&mut RuntimeState),
    ) -> Result<(), RuntimeError> {
        let hangs = {
            let mut state = self.state();
            state.calls.push(format!("{call} {id}"));
            if state.broken.contains(id) {
                return Err(error(RuntimeErrorKind::Unknown, "broken"));
            }
            if state.panicking.contains(id) {
                drop(state);
                panic!("on purpose");
            }
            state.hanging.contains(id)
        };
        if hangs {
            pending::<()>().await;
        }
        act(&mut self.state());
        Ok(())
    }
}

/// Ids have no signs that a link's name cannot have.
pub(super) fn container_id(text: &str) -> String {
    text.replace(['/', '#'], "x")
}

fn labels_of(pod: &str, container: Option<&str>) -> BTreeMap<String, String> {
    let mut all = BTreeMap::from([
        (labels::POD_UID.to_owned(), pod.to_owned()),
        (labels::POD_NAME.to_owned(), format!("{pod}-name")),
        (labels::POD_NAMESPACE.to_owned(), "ns".to_owned()),
    ]);
    all.extend(container.map(|name| (labels::CONTAINER_NAME.to_owned(), name.to_owned())));
    all
}

fn error(kind: RuntimeErrorKind, message: &str) -> RuntimeError {
    RuntimeError::new("Call", "unix:///fake.sock", kind, message)
}

fn matches(selector: &BTreeMap<String, String>, labels: &BTreeMap<String, String>) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// An implementation of a port, with the calls that collecting garbage has no business with at the end.
macro_rules! runtime {
    ($port:ident { $($real:tt)* } never { $($name:ident($($kind:ty),*) -> $answer:ty;)* }) => {
        #[async_trait]
        impl $port for FakeRuntime {
            $($real)*
            $(async fn $name(&self, $(_: $kind),*) -> Result<$answer, RuntimeError> {
                panic!("{} was called", stringify!($name))
            })*
        }
    };
}

runtime!(RuntimeReader {
    async fn list_containers(
        &self,
        filter: Option<v1::ContainerFilter>,
    ) -> Result<Vec<v1::Container>, RuntimeError> {
        let mut state = self.state();
        state.lists += 1;
        if state.lists_fail {
            return Err(error(RuntimeErrorKind::Unavailable, "down"));
        }
        let selector = filter.unwrap_or_default().label_selector;
        let all = state.containers.values();
        Ok(all.filter(|one| matches(&selector, &one.labels)).cloned().collect())
    }

    async fn list_pod_sandboxes(
        &self,
        filter: Option<v1::PodSandboxFilter>,
    ) -> Result<Vec<v1::PodSandbox>, RuntimeError> {
        let selector = filter.unwrap_or_default().label_selector;
        let state = self.state();
        let all = state.sandboxes.values();
        Ok(all.filter(|one| matches(&selector, &one.labels)).cloned().collect())
    }

    async fn container_status(
        &self,
        container_id: &str,
        _: bool,
    ) -> Result<v1::ContainerStatusResponse, RuntimeError> {
        let log_path = self.state().log_paths.get(container_id).cloned();
        let status = v1::ContainerStatus {
            log_path: log_path.ok_or_else(|| error(RuntimeErrorKind::NotFound, "no such container"))?,
            ..v1::ContainerStatus::default()
        };
        Ok(v1::ContainerStatusResponse {
            status: Some(status),
            ..v1::ContainerStatusResponse::default()
        })
    }

    fn container_events(&self) -> EventStream {
        panic!("container_events was called")
    }
} never {
    version() -> v1::VersionResponse;
    status(bool) -> v1::StatusResponse;
    runtime_config() -> v1::RuntimeConfigResponse;
    pod_sandbox_status(&str, bool) -> v1::PodSandboxStatusResponse;
    container_stats(&str) -> Option<v1::ContainerStats>;
    list_container_stats(Option<v1::ContainerStatsFilter>) -> Vec<v1::ContainerStats>;
    pod_sandbox_stats(&str) -> Option<v1::PodSandboxStats>;
    list_pod_sandbox_stats(Option<v1::PodSandboxStatsFilter>) -> Vec<v1::PodSandboxStats>;
    list_metric_descriptors() -> Vec<v1::MetricDescriptor>;
    list_pod_sandbox_metrics() -> Vec<v1::PodSandboxMetrics>;
});

runtime!(RuntimeWriter {
    async fn stop_container(&self, container_id: &str, grace_seconds: i64) -> Result<(), RuntimeError> {
        self.change(&format!("stop({grace_seconds})"), container_id, |_| {}).await
    }

    async fn remove_container(&self, container_id: &str) -> Result<(), RuntimeError> {
        self.change("remove", container_id, |state| {
            state.containers.remove(container_id);
            state.log_paths.remove(container_id);
        })
        .await
    }

    async fn stop_pod_sandbox(&self, pod_sandbox_id: &str) -> Result<(), RuntimeError> {
        self.change("stop", pod_sandbox_id, |_| {}).await
    }

    async fn remove_pod_sandbox(&self, pod_sandbox_id: &str) -> Result<(), RuntimeError> {
        self.change("remove", pod_sandbox_id, |state| {
            state.sandboxes.remove(pod_sandbox_id);
        })
        .await
    }
} never {
    run_pod_sandbox(v1::PodSandboxConfig, &str) -> String;
    create_container(&str, v1::ContainerConfig, v1::PodSandboxConfig) -> String;
    start_container(&str) -> ();
    update_container_resources(v1::UpdateContainerResourcesRequest) -> ();
    update_pod_sandbox_resources(v1::UpdatePodSandboxResourcesRequest) -> ();
    reopen_container_log(&str) -> ();
    exec_sync(&str, Vec<String>, Option<Duration>) -> v1::ExecSyncResponse;
    exec(v1::ExecRequest) -> String;
    attach(v1::AttachRequest) -> String;
    port_forward(v1::PortForwardRequest) -> String;
    update_runtime_config(v1::RuntimeConfig) -> ();
    checkpoint_container(v1::CheckpointContainerRequest) -> ();
    checkpoint_pod(v1::CheckpointPodRequest, Option<Duration>) -> ();
    restore_pod(v1::RestorePodRequest, Option<Duration>) -> v1::RestorePodResponse;
});

#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    File,
    Directory,
    Link(PathBuf),
}

/// Paths and what is there. Directories exist as far as somebody made them or something is in them.
#[derive(Default)]
pub(super) struct FakeFiles {
    nodes: Mutex<BTreeMap<PathBuf, Node>>,
    pub(super) mounts: Mutex<BTreeSet<PathBuf>>,
}

impl FakeFiles {
    fn nodes(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Node>> {
        self.nodes.lock().unwrap()
    }

    pub(super) fn add_file(&self, path: &str) {
        self.add(Path::new(path), Node::File);
    }

    pub(super) fn add_directory(&self, path: &str) {
        self.add(Path::new(path), Node::Directory);
    }

    pub(super) fn add_link(&self, path: &str, target: &str) {
        self.add(Path::new(path), Node::Link(PathBuf::from(target)));
    }

    fn add(&self, path: &Path, node: Node) {
        let mut nodes = self.nodes();
        for parent in path.ancestors().skip(1) {
            nodes.entry(parent.to_owned()).or_insert(Node::Directory);
        }
        nodes.insert(path.to_owned(), node);
    }

    /// All files and links below a directory, and directories without any.
    pub(super) fn leaves(&self, directory: &str) -> Vec<String> {
        let nodes = self.nodes();
        let is_leaf = |path: &&PathBuf| !nodes.keys().any(|other| other.parent() == Some(path));
        let below = nodes.keys().filter(|path| path.starts_with(directory));
        below
            .filter(is_leaf)
            .map(|path| path.display().to_string())
            .collect()
    }

    pub(super) fn target(&self, link: &str) -> Option<PathBuf> {
        match self.nodes().get(Path::new(link)) {
            Some(Node::Link(target)) => Some(target.clone()),
            Some(Node::File | Node::Directory) | None => None,
        }
    }
}

fn file_error(path: &Path, kind: FileErrorKind) -> FileError {
    FileError {
        path: path.to_owned(),
        kind,
        message: format!("{kind:?}"),
    }
}

#[async_trait]
impl FileReader for FakeFiles {
    async fn read(&self, path: &Path, _: u64) -> Result<Vec<u8>, FileError> {
        panic!("{} was read", path.display())
    }

    async fn read_within(&self, directory: &Path, _: &Path, _: u64) -> Result<Vec<u8>, FileError> {
        panic!("{} was read", directory.display())
    }

    async fn read_end(&self, path: &Path, _: u64) -> Result<Vec<u8>, FileError> {
        panic!("{} was read", path.display())
    }

    async fn list(&self, directory: &Path) -> Result<Vec<DirectoryEntry>, FileError> {
        let nodes = self.nodes();
        if !nodes.contains_key(directory) {
            return Err(file_error(directory, FileErrorKind::NotFound));
        }
        let inside = nodes.iter().filter(|(path, _)| path.parent() == Some(directory));
        let entry = |(path, node): (&PathBuf, &Node)| DirectoryEntry {
            name: path.file_name().unwrap().to_str().unwrap().to_owned(),
            kind: match node {
                Node::File => FileKind::File,
                Node::Directory => FileKind::Directory,
                Node::Link(_) => FileKind::Symlink,
            },
        };
        Ok(inside.map(entry).collect())
    }

    async fn kind(&self, path: &Path) -> Result<FileKind, FileError> {
        let nodes = self.nodes();
        let node = match nodes.get(path) {
            Some(Node::Link(target)) => nodes.get(target),
            other => other,
        };
        match node {
            Some(Node::File) => Ok(FileKind::File),
            Some(Node::Directory) => Ok(FileKind::Directory),
            Some(Node::Link(_)) => Ok(FileKind::Symlink),
            None => Err(file_error(path, FileErrorKind::NotFound)),
        }
    }

    fn watch(&self, path: &Path) -> WatchStream {
        panic!("{} was watched", path.display())
    }
}

#[async_trait]
impl FileWriter for FakeFiles {
    async fn write(&self, path: &Path, _: &[u8], _: u32) -> Result<(), FileError> {
        panic!("{} was written", path.display())
    }

    async fn write_in_place(&self, path: &Path, _: &[u8], _: u32) -> Result<(), FileError> {
        panic!("{} was written", path.display())
    }

    async fn create_directory(&self, path: &Path, _: u32) -> Result<(), FileError> {
        self.add(path, Node::Directory);
        Ok(())
    }

    async fn link(&self, target: &Path, link: &Path) -> Result<(), FileError> {
        if !self.nodes().contains_key(link.parent().unwrap()) {
            return Err(file_error(link, FileErrorKind::NotFound));
        }
        self.add(link, Node::Link(target.to_owned()));
        Ok(())
    }

    async fn remove_file(&self, path: &Path) -> Result<(), FileError> {
        self.nodes().remove(path);
        Ok(())
    }

    async fn remove_tree(&self, path: &Path) -> Result<(), FileError> {
        if self
            .mounts
            .lock()
            .unwrap()
            .iter()
            .any(|mount| mount.starts_with(path))
        {
            return Err(file_error(path, FileErrorKind::Mounted));
        }
        self.nodes().retain(|one, _| !one.starts_with(path));
        Ok(())
    }
}

/// Volumes that go at once, unless they are stuck.
#[derive(Default)]
pub(super) struct FakeVolumes {
    /// Pods whose volumes do not go.
    pub(super) stuck: Mutex<BTreeSet<PodUid>>,
    /// Pods whose volumes were taken down, in order.
    pub(super) taken_down: Mutex<Vec<PodUid>>,
}

#[async_trait]
impl PodVolumes for FakeVolumes {
    async fn set_up(&self, _: Arc<Pod>) -> Result<(), VolumeFailure> {
        Ok(())
    }

    async fn mounts(&self, _: MountRequest) -> Result<Vec<v1::Mount>, VolumeFailure> {
        Ok(Vec::new())
    }

    async fn tear_down(&self, uid: &PodUid) -> Result<(), VolumeFailure> {
        if self.stuck.lock().unwrap().contains(uid) {
            return Err(VolumeFailure {
                message: "the volume is in use".to_owned(),
                retry_at: None,
            });
        }
        self.taken_down.lock().unwrap().push(uid.clone());
        Ok(())
    }
}

/// A collector with its edges.
pub(super) struct Bench {
    pub(super) collector: GarbageCollector,
    pub(super) metrics: Arc<AgentMetrics>,
    pub(super) runtime: Arc<FakeRuntime>,
    pub(super) files: Arc<FakeFiles>,
    pub(super) volumes: Arc<FakeVolumes>,
    pub(super) cgroups: Arc<FakeCgroups>,
    pub(super) node_events: Arc<FakeNodeEvents>,
}

#[derive(Default)]
pub(super) struct FakeNodeEvents(Mutex<Vec<NodeEvent>>);

impl NodeEventRecorder for FakeNodeEvents {
    fn record_node(&self, event: NodeEvent) {
        self.0.lock().unwrap().push(event);
    }
}

impl FakeNodeEvents {
    /// What was told since the last question, as `reason: message`.
    pub(super) fn take(&self) -> Vec<String> {
        let told = std::mem::take(&mut *self.0.lock().unwrap());
        told.iter()
            .map(|event| format!("{}: {}", event.reason, event.message))
            .collect()
    }
}

/// The pods that have a cgroup.
#[derive(Default)]
pub(super) struct FakeCgroups(pub(super) Mutex<BTreeSet<PodUid>>);

#[async_trait]
impl PodCgroups for FakeCgroups {
    fn hold(&self, _pod: &Arc<Pod>) {}

    fn release(&self, _uid: &PodUid) {}

    async fn create(&self, _pod: &Pod) -> Result<(), CgroupError> {
        Ok(())
    }

    async fn exists(&self, pod: &Pod) -> Result<bool, CgroupError> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        Ok(self.0.lock().unwrap().contains(&PodUid::from(uid)))
    }

    async fn read(&self, _pod: &Pod) -> Result<Option<PodCgroupReading>, CgroupError> {
        Ok(None)
    }

    async fn update(&self, _pod: &Pod, _part: PodCgroupPart) -> Result<(), CgroupError> {
        Ok(())
    }

    async fn remove(&self, uid: &PodUid) -> Result<(), CgroupError> {
        if uid.as_str() == "stuck" {
            let message = "processes in it do not end";
            return Err(CgroupError::new("/podstuck", CgroupErrorKind::Busy, message));
        }
        self.0.lock().unwrap().remove(uid);
        Ok(())
    }

    async fn pods(&self) -> Result<BTreeSet<PodUid>, CgroupError> {
        Ok(self.0.lock().unwrap().clone())
    }
}

impl Bench {
    pub(super) fn new() -> Self {
        let runtime = Arc::new(FakeRuntime::default());
        let files = Arc::new(FakeFiles::default());
        let cgroups = Arc::new(FakeCgroups::default());
        let volumes = Arc::new(FakeVolumes::default());
        let node_events = Arc::new(FakeNodeEvents::default());
        let registry = prometheus::Registry::new();
        let metrics = Arc::new(AgentMetrics::register(&registry).expect("an empty registry takes them"));
        let ports = GarbagePorts {
            clock: Arc::new(StillClock),
            runtime_reader: Arc::clone(&runtime) as Arc<dyn RuntimeReader>,
            runtime_writer: Arc::clone(&runtime) as Arc<dyn RuntimeWriter>,
            file_reader: Arc::clone(&files) as Arc<dyn FileReader>,
            file_writer: Arc::clone(&files) as Arc<dyn FileWriter>,
            volumes: Arc::clone(&volumes) as Arc<dyn PodVolumes>,
            cgroups: Arc::clone(&cgroups) as Arc<dyn PodCgroups>,
            node_events: Arc::clone(&node_events) as Arc<dyn NodeEventRecorder>,
            node: NodeNow::standalone(),
            metrics: Arc::clone(&metrics),
        };
        let settings = GarbageSettings {
            limits: rubelet_lifecycle::garbage::GarbageLimits::default(),
            root_dir: PathBuf::from("/root"),
            pod_logs_dir: PathBuf::from("/logs"),
            container_logs_dir: PathBuf::from("/links"),
        };
        Self {
            collector: GarbageCollector::new(ports, settings),
            metrics,
            runtime,
            files,
            volumes,
            cgroups,
            node_events,
        }
    }

    /// Adds a container with its log, a rotated log and its link.
    pub(super) fn add_container(&self, text: &str, state: v1::ContainerState) {
        self.runtime.add_container(text, state);
        let log = self.runtime.state().log_paths[&container_id(text)].clone();
        self.files.add_file(&log);
        self.files.add_file(&format!("{log}.20260101-000000.gz"));
        let (pod, rest) = text.split_once('/').unwrap();
        let name = rest.split('#').next().unwrap();
        let link = format!("/links/{pod}-name_ns_{name}-{}.log", container_id(text));
        self.files.add_link(&link, &log);
    }

    pub(super) fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.runtime.state().calls)
    }
}
