//! Random numbers, runtime, network and events of a node under test.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use rubelet_ports::{
    AddressError, AddressReader, EventStream, HostAddresses, ImageReader, NodeEvent, NodeEventRecorder,
    Randomness, RuntimeError, RuntimeErrorKind, RuntimeReader, RuntimeWriter,
};
use rubelet_wire::cri::v1;

/// Always seven seconds, or none where less is asked for.
pub(super) struct TestRandomness;

impl Randomness for TestRandomness {
    fn number(&self) -> u64 {
        7_000_000_000
    }

    fn part_of(&self, limit: Duration) -> Duration {
        let seven = Duration::from_secs(7);
        if seven < limit { seven } else { Duration::ZERO }
    }
}

#[derive(Clone)]
pub(crate) struct Edges(Arc<Mutex<State>>);

struct State {
    addresses: HostAddresses,
    images: Vec<v1::Image>,
    events: Vec<NodeEvent>,
    pod_cidrs: Vec<String>,
    /// So many pushes of a range fail.
    failing_pushes: usize,
}

impl Edges {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            addresses: HostAddresses::default(),
            images: vec![],
            events: vec![],
            pod_cidrs: vec![],
            failing_pushes: 0,
        })))
    }

    pub(crate) fn set_addresses(&self, own: &[&str]) {
        self.0.lock().unwrap().addresses = super::addresses(own);
    }

    /// What the node's name resolves to; `None` while the resolver does not answer.
    pub(crate) fn set_name(&self, of_name: Option<&[&str]>) {
        let addresses = &mut self.0.lock().unwrap().addresses;
        addresses.is_name_unknown = of_name.is_none();
        let of_name = of_name.unwrap_or_default().iter();
        addresses.of_name = of_name.map(|text| text.parse().unwrap()).collect();
    }

    pub(crate) fn add_image(&self, tag: &str, size: u64) {
        self.0.lock().unwrap().images.push(v1::Image {
            id: tag.to_owned(),
            repo_tags: vec![tag.to_owned()],
            size,
            ..v1::Image::default()
        });
    }

    pub(crate) fn fail_pushes(&self, count: usize) {
        self.0.lock().unwrap().failing_pushes = count;
    }

    pub(crate) fn pod_cidrs(&self) -> Vec<String> {
        self.0.lock().unwrap().pod_cidrs.clone()
    }

    /// Type, reason and the Node's UID.
    pub(crate) fn events(&self) -> Vec<String> {
        let state = self.0.lock().unwrap();
        let events = state.events.iter().map(|event| {
            let uid = event.node_uid.as_deref().unwrap_or("-");
            format!("{} {} {uid}", event.event_type.as_str(), event.reason)
        });
        events.collect()
    }

    pub(crate) fn forget_events(&self) {
        self.0.lock().unwrap().events.clear();
    }
}

impl NodeEventRecorder for Edges {
    fn record_node(&self, event: NodeEvent) {
        self.0.lock().unwrap().events.push(event);
    }
}

#[async_trait]
impl AddressReader for Edges {
    async fn addresses(&self, name: Option<&str>) -> Result<HostAddresses, AddressError> {
        assert_eq!(name, Some("n1"));
        Ok(self.0.lock().unwrap().addresses.clone())
    }
}

fn unused<T>(method: &'static str) -> Result<T, RuntimeError> {
    Err(RuntimeError::new(method, "", RuntimeErrorKind::Unimplemented, ""))
}

#[async_trait]
impl ImageReader for Edges {
    async fn list_images(&self, _: Option<v1::ImageFilter>) -> Result<Vec<v1::Image>, RuntimeError> {
        Ok(self.0.lock().unwrap().images.clone())
    }
    async fn image_status(&self, _: v1::ImageSpec, _: bool) -> Result<v1::ImageStatusResponse, RuntimeError> {
        unused("ImageStatus")
    }
    async fn image_fs_info(&self) -> Result<v1::ImageFsInfoResponse, RuntimeError> {
        unused("ImageFsInfo")
    }
}

#[async_trait]
impl RuntimeReader for Edges {
    async fn version(&self) -> Result<v1::VersionResponse, RuntimeError> {
        Ok(v1::VersionResponse {
            runtime_name: "containerd".to_owned(),
            runtime_version: "v2.4.0".to_owned(),
            ..v1::VersionResponse::default()
        })
    }
    async fn status(&self, _: bool) -> Result<v1::StatusResponse, RuntimeError> {
        unused("Status")
    }
    async fn runtime_config(&self) -> Result<v1::RuntimeConfigResponse, RuntimeError> {
        unused("RuntimeConfig")
    }
    async fn list_pod_sandboxes(
        &self,
        _: Option<v1::PodSandboxFilter>,
    ) -> Result<Vec<v1::PodSandbox>, RuntimeError> {
        unused("ListPodSandbox")
    }
    async fn pod_sandbox_status(
        &self,
        _: &str,
        _: bool,
    ) -> Result<v1::PodSandboxStatusResponse, RuntimeError> {
        unused("PodSandboxStatus")
    }
    async fn list_containers(
        &self,
        _: Option<v1::ContainerFilter>,
    ) -> Result<Vec<v1::Container>, RuntimeError> {
        unused("ListContainers")
    }
    async fn container_status(&self, _: &str, _: bool) -> Result<v1::ContainerStatusResponse, RuntimeError> {
        unused("ContainerStatus")
    }
    async fn container_stats(&self, _: &str) -> Result<Option<v1::ContainerStats>, RuntimeError> {
        unused("ContainerStats")
    }
    async fn list_container_stats(
        &self,
        _: Option<v1::ContainerStatsFilter>,
    ) -> Result<Vec<v1::ContainerStats>, RuntimeError> {
        unused("ListContainerStats")
    }
    async fn pod_sandbox_stats(&self, _: &str) -> Result<Option<v1::PodSandboxStats>, RuntimeError> {
        unused("PodSandboxStats")
    }
    async fn list_pod_sandbox_stats(
        &self,
        _: Option<v1::PodSandboxStatsFilter>,
    ) -> Result<Vec<v1::PodSandboxStats>, RuntimeError> {
        unused("ListPodSandboxStats")
    }
    async fn list_metric_descriptors(&self) -> Result<Vec<v1::MetricDescriptor>, RuntimeError> {
        unused("ListMetricDescriptors")
    }
    async fn list_pod_sandbox_metrics(&self) -> Result<Vec<v1::PodSandboxMetrics>, RuntimeError> {
        unused("ListPodSandboxMetrics")
    }
    fn container_events(&self) -> EventStream {
        futures_util::stream::empty().boxed()
    }
}

#[async_trait]
impl RuntimeWriter for Edges {
    async fn update_runtime_config(&self, config: v1::RuntimeConfig) -> Result<(), RuntimeError> {
        let mut state = self.0.lock().unwrap();
        if state.failing_pushes > 0 {
            state.failing_pushes -= 1;
            return unused("UpdateRuntimeConfig");
        }
        state.pod_cidrs.push(config.network_config.unwrap().pod_cidr);
        Ok(())
    }
    async fn exec_sync(
        &self,
        _: &str,
        _: Vec<String>,
        _: Option<Duration>,
    ) -> Result<v1::ExecSyncResponse, RuntimeError> {
        unused("ExecSync")
    }
    async fn run_pod_sandbox(&self, _: v1::PodSandboxConfig, _: &str) -> Result<String, RuntimeError> {
        unused("RunPodSandbox")
    }
    async fn stop_pod_sandbox(&self, _: &str) -> Result<(), RuntimeError> {
        unused("StopPodSandbox")
    }
    async fn remove_pod_sandbox(&self, _: &str) -> Result<(), RuntimeError> {
        unused("RemovePodSandbox")
    }
    async fn create_container(
        &self,
        _: &str,
        _: v1::ContainerConfig,
        _: v1::PodSandboxConfig,
    ) -> Result<String, RuntimeError> {
        unused("CreateContainer")
    }
    async fn start_container(&self, _: &str) -> Result<(), RuntimeError> {
        unused("StartContainer")
    }
    async fn stop_container(&self, _: &str, _: i64) -> Result<(), RuntimeError> {
        unused("StopContainer")
    }
    async fn remove_container(&self, _: &str) -> Result<(), RuntimeError> {
        unused("RemoveContainer")
    }
    async fn update_container_resources(
        &self,
        _: v1::UpdateContainerResourcesRequest,
    ) -> Result<(), RuntimeError> {
        unused("UpdateContainerResources")
    }
    async fn update_pod_sandbox_resources(
        &self,
        _: v1::UpdatePodSandboxResourcesRequest,
    ) -> Result<(), RuntimeError> {
        unused("UpdatePodSandboxResources")
    }
    async fn reopen_container_log(&self, _: &str) -> Result<(), RuntimeError> {
        unused("ReopenContainerLog")
    }
    async fn exec(&self, _: v1::ExecRequest) -> Result<String, RuntimeError> {
        unused("Exec")
    }
    async fn attach(&self, _: v1::AttachRequest) -> Result<String, RuntimeError> {
        unused("Attach")
    }
    async fn port_forward(&self, _: v1::PortForwardRequest) -> Result<String, RuntimeError> {
        unused("PortForward")
    }
    async fn checkpoint_container(&self, _: v1::CheckpointContainerRequest) -> Result<(), RuntimeError> {
        unused("CheckpointContainer")
    }
    async fn checkpoint_pod(
        &self,
        _: v1::CheckpointPodRequest,
        _: Option<Duration>,
    ) -> Result<(), RuntimeError> {
        unused("CheckpointPod")
    }
    async fn restore_pod(
        &self,
        _: v1::RestorePodRequest,
        _: Option<Duration>,
    ) -> Result<v1::RestorePodResponse, RuntimeError> {
        unused("RestorePod")
    }
}
