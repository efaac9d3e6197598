//! The container runtime: sandboxes, containers, their state and their usage.
//!
//! Owns the two halves of CRI's `RuntimeService`. Reading is whatever leaves sandboxes, containers and the runtime's
//! settings as they were. Everything else is writing, and so are exec, attach and port forwarding: they run code in a pod
//! or connect to it.
//!
//! Answers come back checked: what the interface promises to be set is set, else the call failed with
//! [`RuntimeErrorKind::MalformedAnswer`](crate::RuntimeErrorKind::MalformedAnswer). Dropping a call's future cancels the call,
//! but a writing call may have taken effect; the same holds for a deadline that passed and a connection that broke.
//!
//! CRI's `Stream*` variants of the lists are no calls of their own here: the adapter decides whether a list arrives in one
//! message or in many.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use rubelet_wire::cri::v1;

use crate::RuntimeError;

/// Container events as the runtime sends them: hints to observe a pod again. The stream ends when the runtime closes it and after
/// an error; the caller then opens a new one.
pub type EventStream = BoxStream<'static, Result<v1::ContainerEventResponse, RuntimeError>>;

/// Calls that change nothing.
#[async_trait]
pub trait RuntimeReader: Send + Sync {
    /// Name and versions of the runtime.
    async fn version(&self) -> Result<v1::VersionResponse, RuntimeError>;

    /// Conditions (`RuntimeReady`, `NetworkReady`, …), handlers and features of the runtime.
    async fn status(&self, verbose: bool) -> Result<v1::StatusResponse, RuntimeError>;

    /// Settings that the agent must share with the runtime: the cgroup driver.
    async fn runtime_config(&self) -> Result<v1::RuntimeConfigResponse, RuntimeError>;

    async fn list_pod_sandboxes(
        &self,
        filter: Option<v1::PodSandboxFilter>,
    ) -> Result<Vec<v1::PodSandbox>, RuntimeError>;

    async fn pod_sandbox_status(
        &self,
        pod_sandbox_id: &str,
        verbose: bool,
    ) -> Result<v1::PodSandboxStatusResponse, RuntimeError>;

    async fn list_containers(
        &self,
        filter: Option<v1::ContainerFilter>,
    ) -> Result<Vec<v1::Container>, RuntimeError>;

    async fn container_status(
        &self,
        container_id: &str,
        verbose: bool,
    ) -> Result<v1::ContainerStatusResponse, RuntimeError>;

    /// `None` when the runtime has no figures of this container.
    async fn container_stats(&self, container_id: &str) -> Result<Option<v1::ContainerStats>, RuntimeError>;

    async fn list_container_stats(
        &self,
        filter: Option<v1::ContainerStatsFilter>,
    ) -> Result<Vec<v1::ContainerStats>, RuntimeError>;

    /// `None` when the runtime has no figures of this sandbox.
    async fn pod_sandbox_stats(
        &self,
        pod_sandbox_id: &str,
    ) -> Result<Option<v1::PodSandboxStats>, RuntimeError>;

    async fn list_pod_sandbox_stats(
        &self,
        filter: Option<v1::PodSandboxStatsFilter>,
    ) -> Result<Vec<v1::PodSandboxStats>, RuntimeError>;

    /// Names, help texts and label keys of what [`Self::list_pod_sandbox_metrics`] returns.
    async fn list_metric_descriptors(&self) -> Result<Vec<v1::MetricDescriptor>, RuntimeError>;

    async fn list_pod_sandbox_metrics(&self) -> Result<Vec<v1::PodSandboxMetrics>, RuntimeError>;

    /// Opens the stream of container events. It returns at once; a runtime without events answers the first poll with
    /// [`RuntimeErrorKind::Unimplemented`](crate::RuntimeErrorKind::Unimplemented).
    fn container_events(&self) -> EventStream;
}

/// Calls that change a pod or the runtime.
#[async_trait]
pub trait RuntimeWriter: Send + Sync {
    /// Creates and starts a sandbox and returns its id. An empty handler is the runtime's default.
    async fn run_pod_sandbox(
        &self,
        config: v1::PodSandboxConfig,
        runtime_handler: &str,
    ) -> Result<String, RuntimeError>;

    /// Stops a sandbox with everything in it. Stopping it twice is no error.
    async fn stop_pod_sandbox(&self, pod_sandbox_id: &str) -> Result<(), RuntimeError>;

    /// Removes a sandbox with everything in it. Removing it twice is no error.
    async fn remove_pod_sandbox(&self, pod_sandbox_id: &str) -> Result<(), RuntimeError>;

    /// Creates a container in a sandbox and returns its id.
    async fn create_container(
        &self,
        pod_sandbox_id: &str,
        config: v1::ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> Result<String, RuntimeError>;

    async fn start_container(&self, container_id: &str) -> Result<(), RuntimeError>;

    /// Stops a container: its stop signal, and after `grace_seconds` (below zero counts as zero) a kill.
    async fn stop_container(&self, container_id: &str, grace_seconds: i64) -> Result<(), RuntimeError>;

    /// Removes a container, running or not. Removing it twice is no error.
    async fn remove_container(&self, container_id: &str) -> Result<(), RuntimeError>;

    async fn update_container_resources(
        &self,
        request: v1::UpdateContainerResourcesRequest,
    ) -> Result<(), RuntimeError>;

    async fn update_pod_sandbox_resources(
        &self,
        request: v1::UpdatePodSandboxResourcesRequest,
    ) -> Result<(), RuntimeError>;

    /// Makes the runtime open the container's log file anew, after a rotation.
    async fn reopen_container_log(&self, container_id: &str) -> Result<(), RuntimeError>;

    /// Runs a command to its end. `None` sets no limit. An exit code other than zero is an answer, not an error. A command
    /// that took longer than `timeout` is [`RuntimeErrorKind::DeadlineExceeded`](crate::RuntimeErrorKind::DeadlineExceeded).
    async fn exec_sync(
        &self,
        container_id: &str,
        command: Vec<String>,
        timeout: Option<Duration>,
    ) -> Result<v1::ExecSyncResponse, RuntimeError>;

    /// Prepares an exec session and returns its address. The address alone opens the session: keep it out of logs.
    async fn exec(&self, request: v1::ExecRequest) -> Result<String, RuntimeError>;

    /// Prepares an attach session and returns its address, which is as secret as that of [`Self::exec`].
    async fn attach(&self, request: v1::AttachRequest) -> Result<String, RuntimeError>;

    /// Prepares port forwarding and returns its address, which is as secret as that of [`Self::exec`].
    async fn port_forward(&self, request: v1::PortForwardRequest) -> Result<String, RuntimeError>;

    /// Sets the node's pod CIDR in the runtime.
    async fn update_runtime_config(&self, config: v1::RuntimeConfig) -> Result<(), RuntimeError>;

    /// Writes a container's checkpoint. `request.timeout` counts only above the ordinary deadline of a call.
    async fn checkpoint_container(&self, request: v1::CheckpointContainerRequest)
    -> Result<(), RuntimeError>;

    /// Writes a pod's checkpoint; without `timeout` the ordinary deadline of a call holds.
    async fn checkpoint_pod(
        &self,
        request: v1::CheckpointPodRequest,
        timeout: Option<Duration>,
    ) -> Result<(), RuntimeError>;

    /// Restores a pod from a checkpoint; without `timeout` the ordinary deadline of a call holds.
    async fn restore_pod(
        &self,
        request: v1::RestorePodRequest,
        timeout: Option<Duration>,
    ) -> Result<v1::RestorePodResponse, RuntimeError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails to compile when a half can no longer be used as a trait object.
    #[test]
    fn the_halves_are_object_safe() {
        fn takes(_: Option<&dyn RuntimeReader>, _: Option<&dyn RuntimeWriter>) {}
        takes(None, None);
    }
}
