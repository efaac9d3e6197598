//! The runtime port over CRI.
//!
//! Owns one method per call of `RuntimeService`: its request, its deadline, what its answer must hold.

use std::time::Duration;

use async_trait::async_trait;
use prost::Message;
use rubelet_ports::{EventStream, RuntimeError, RuntimeErrorKind, RuntimeReader, RuntimeWriter};
use rubelet_wire::cri::{self, v1};

use crate::answer;
use crate::call::{Caller, Listing};
use crate::client::CriClient;
use crate::deadline::{self, Patience};
use crate::events;
use crate::method::{self, Method};

impl Caller {
    /// A call within the ordinary deadline whose answer is held against the interface.
    pub(crate) async fn checked<Q: Message, A: Message + Default>(
        &self,
        method: &Method,
        request: Q,
        check: fn(&A) -> Result<(), String>,
    ) -> Result<A, RuntimeError> {
        self.checked_within(method, request, Patience::Until(self.request_timeout), check)
            .await
    }

    async fn checked_within<Q: Message, A: Message + Default>(
        &self,
        method: &Method,
        request: Q,
        patience: Patience,
        check: fn(&A) -> Result<(), String>,
    ) -> Result<A, RuntimeError> {
        let operation = async {
            let answer = self.exchange(method, request, patience).await?;
            check(&answer)
                .map_err(|message| self.error(method, RuntimeErrorKind::MalformedAnswer, &message))?;
            Ok(answer)
        };
        self.observe(method, operation).await
    }
}

#[async_trait]
impl RuntimeReader for CriClient {
    async fn version(&self) -> Result<v1::VersionResponse, RuntimeError> {
        let request = v1::VersionRequest {
            version: cri::CLIENT_VERSION.to_owned(),
        };
        self.runtime
            .checked(&method::VERSION, request, answer::version)
            .await
    }

    async fn status(&self, verbose: bool) -> Result<v1::StatusResponse, RuntimeError> {
        self.runtime
            .checked(&method::STATUS, v1::StatusRequest { verbose }, answer::status)
            .await
    }

    async fn runtime_config(&self) -> Result<v1::RuntimeConfigResponse, RuntimeError> {
        self.runtime
            .call(&method::RUNTIME_CONFIG, v1::RuntimeConfigRequest::default())
            .await
    }

    async fn list_pod_sandboxes(
        &self,
        filter: Option<v1::PodSandboxFilter>,
    ) -> Result<Vec<v1::PodSandbox>, RuntimeError> {
        self.runtime
            .list(
                Listing {
                    method: &method::LIST_POD_SANDBOX,
                    request: v1::ListPodSandboxRequest {
                        filter: filter.clone(),
                    },
                    items: |answer: v1::ListPodSandboxResponse| answer.items,
                },
                Listing {
                    method: &method::STREAM_POD_SANDBOXES,
                    request: v1::StreamPodSandboxesRequest { filter },
                    items: |answer: v1::StreamPodSandboxesResponse| answer.pod_sandboxes,
                },
            )
            .await
    }

    async fn pod_sandbox_status(
        &self,
        pod_sandbox_id: &str,
        verbose: bool,
    ) -> Result<v1::PodSandboxStatusResponse, RuntimeError> {
        let request = v1::PodSandboxStatusRequest {
            pod_sandbox_id: pod_sandbox_id.to_owned(),
            verbose,
        };
        self.runtime
            .checked(&method::POD_SANDBOX_STATUS, request, answer::pod_sandbox_status)
            .await
    }

    async fn list_containers(
        &self,
        filter: Option<v1::ContainerFilter>,
    ) -> Result<Vec<v1::Container>, RuntimeError> {
        self.runtime
            .list(
                Listing {
                    method: &method::LIST_CONTAINERS,
                    request: v1::ListContainersRequest {
                        filter: filter.clone(),
                    },
                    items: |answer: v1::ListContainersResponse| answer.containers,
                },
                Listing {
                    method: &method::STREAM_CONTAINERS,
                    request: v1::StreamContainersRequest { filter },
                    items: |answer: v1::StreamContainersResponse| answer.containers,
                },
            )
            .await
    }

    async fn container_status(
        &self,
        container_id: &str,
        verbose: bool,
    ) -> Result<v1::ContainerStatusResponse, RuntimeError> {
        let request = v1::ContainerStatusRequest {
            container_id: container_id.to_owned(),
            verbose,
        };
        self.runtime
            .checked(&method::CONTAINER_STATUS, request, answer::container_status)
            .await
    }

    async fn container_stats(&self, container_id: &str) -> Result<Option<v1::ContainerStats>, RuntimeError> {
        let request = v1::ContainerStatsRequest {
            container_id: container_id.to_owned(),
        };
        let answer: v1::ContainerStatsResponse = self.runtime.call(&method::CONTAINER_STATS, request).await?;
        Ok(answer.stats)
    }

    async fn list_container_stats(
        &self,
        filter: Option<v1::ContainerStatsFilter>,
    ) -> Result<Vec<v1::ContainerStats>, RuntimeError> {
        self.runtime
            .list(
                Listing {
                    method: &method::LIST_CONTAINER_STATS,
                    request: v1::ListContainerStatsRequest {
                        filter: filter.clone(),
                    },
                    items: |answer: v1::ListContainerStatsResponse| answer.stats,
                },
                Listing {
                    method: &method::STREAM_CONTAINER_STATS,
                    request: v1::StreamContainerStatsRequest { filter },
                    items: |answer: v1::StreamContainerStatsResponse| answer.container_stats,
                },
            )
            .await
    }

    async fn pod_sandbox_stats(
        &self,
        pod_sandbox_id: &str,
    ) -> Result<Option<v1::PodSandboxStats>, RuntimeError> {
        let request = v1::PodSandboxStatsRequest {
            pod_sandbox_id: pod_sandbox_id.to_owned(),
        };
        let answer: v1::PodSandboxStatsResponse =
            self.runtime.call(&method::POD_SANDBOX_STATS, request).await?;
        Ok(answer.stats)
    }

    async fn list_pod_sandbox_stats(
        &self,
        filter: Option<v1::PodSandboxStatsFilter>,
    ) -> Result<Vec<v1::PodSandboxStats>, RuntimeError> {
        self.runtime
            .list(
                Listing {
                    method: &method::LIST_POD_SANDBOX_STATS,
                    request: v1::ListPodSandboxStatsRequest {
                        filter: filter.clone(),
                    },
                    items: |answer: v1::ListPodSandboxStatsResponse| answer.stats,
                },
                Listing {
                    method: &method::STREAM_POD_SANDBOX_STATS,
                    request: v1::StreamPodSandboxStatsRequest { filter },
                    items: |answer: v1::StreamPodSandboxStatsResponse| answer.pod_sandbox_stats,
                },
            )
            .await
    }

    async fn list_metric_descriptors(&self) -> Result<Vec<v1::MetricDescriptor>, RuntimeError> {
        let request = v1::ListMetricDescriptorsRequest::default();
        let answer: v1::ListMetricDescriptorsResponse = self
            .runtime
            .call(&method::LIST_METRIC_DESCRIPTORS, request)
            .await?;
        Ok(answer.descriptors)
    }

    async fn list_pod_sandbox_metrics(&self) -> Result<Vec<v1::PodSandboxMetrics>, RuntimeError> {
        self.runtime
            .list(
                Listing {
                    method: &method::LIST_POD_SANDBOX_METRICS,
                    request: v1::ListPodSandboxMetricsRequest::default(),
                    items: |answer: v1::ListPodSandboxMetricsResponse| answer.pod_metrics,
                },
                Listing {
                    method: &method::STREAM_POD_SANDBOX_METRICS,
                    request: v1::StreamPodSandboxMetricsRequest::default(),
                    items: |answer: v1::StreamPodSandboxMetricsResponse| answer.pod_sandbox_metrics,
                },
            )
            .await
    }

    fn container_events(&self) -> EventStream {
        events::open(self.runtime.clone())
    }
}

#[async_trait]
impl RuntimeWriter for CriClient {
    async fn run_pod_sandbox(
        &self,
        config: v1::PodSandboxConfig,
        runtime_handler: &str,
    ) -> Result<String, RuntimeError> {
        let timer = self.runtime.metrics.start_sandbox(runtime_handler);
        let request = v1::RunPodSandboxRequest {
            config: Some(config),
            runtime_handler: runtime_handler.to_owned(),
        };
        let result = self
            .runtime
            .checked_within(
                &method::RUN_POD_SANDBOX,
                request,
                deadline::run_pod_sandbox(self.runtime.request_timeout),
                |answer: &v1::RunPodSandboxResponse| answer::text(&answer.pod_sandbox_id, "pod_sandbox_id"),
            )
            .await;
        timer.finish(&result);
        result.map(|answer| answer.pod_sandbox_id)
    }

    async fn stop_pod_sandbox(&self, pod_sandbox_id: &str) -> Result<(), RuntimeError> {
        let request = v1::StopPodSandboxRequest {
            pod_sandbox_id: pod_sandbox_id.to_owned(),
        };
        let v1::StopPodSandboxResponse {} = self.runtime.call(&method::STOP_POD_SANDBOX, request).await?;
        Ok(())
    }

    async fn remove_pod_sandbox(&self, pod_sandbox_id: &str) -> Result<(), RuntimeError> {
        let request = v1::RemovePodSandboxRequest {
            pod_sandbox_id: pod_sandbox_id.to_owned(),
        };
        let v1::RemovePodSandboxResponse {} = self.runtime.call(&method::REMOVE_POD_SANDBOX, request).await?;
        Ok(())
    }

    async fn create_container(
        &self,
        pod_sandbox_id: &str,
        config: v1::ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> Result<String, RuntimeError> {
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: pod_sandbox_id.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        let check = |answer: &v1::CreateContainerResponse| answer::text(&answer.container_id, "container_id");
        Ok(self
            .runtime
            .checked(&method::CREATE_CONTAINER, request, check)
            .await?
            .container_id)
    }

    async fn start_container(&self, container_id: &str) -> Result<(), RuntimeError> {
        let request = v1::StartContainerRequest {
            container_id: container_id.to_owned(),
        };
        let v1::StartContainerResponse {} = self.runtime.call(&method::START_CONTAINER, request).await?;
        Ok(())
    }

    async fn stop_container(&self, container_id: &str, grace_seconds: i64) -> Result<(), RuntimeError> {
        let patience = deadline::stop_container(self.runtime.request_timeout, grace_seconds);
        let request = v1::StopContainerRequest {
            container_id: container_id.to_owned(),
            timeout: deadline::whole_seconds(grace_seconds),
        };
        let v1::StopContainerResponse {} = self
            .runtime
            .call_within(&method::STOP_CONTAINER, request, patience)
            .await?;
        Ok(())
    }

    async fn remove_container(&self, container_id: &str) -> Result<(), RuntimeError> {
        let request = v1::RemoveContainerRequest {
            container_id: container_id.to_owned(),
        };
        let v1::RemoveContainerResponse {} = self.runtime.call(&method::REMOVE_CONTAINER, request).await?;
        Ok(())
    }

    async fn update_container_resources(
        &self,
        request: v1::UpdateContainerResourcesRequest,
    ) -> Result<(), RuntimeError> {
        let v1::UpdateContainerResourcesResponse {} = self
            .runtime
            .call(&method::UPDATE_CONTAINER_RESOURCES, request)
            .await?;
        Ok(())
    }

    async fn update_pod_sandbox_resources(
        &self,
        request: v1::UpdatePodSandboxResourcesRequest,
    ) -> Result<(), RuntimeError> {
        let v1::UpdatePodSandboxResourcesResponse {} = self
            .runtime
            .call(&method::UPDATE_POD_SANDBOX_RESOURCES, request)
            .await?;
        Ok(())
    }

    async fn reopen_container_log(&self, container_id: &str) -> Result<(), RuntimeError> {
        let request = v1::ReopenContainerLogRequest {
            container_id: container_id.to_owned(),
        };
        let v1::ReopenContainerLogResponse {} =
            self.runtime.call(&method::REOPEN_CONTAINER_LOG, request).await?;
        Ok(())
    }

    async fn exec_sync(
        &self,
        container_id: &str,
        command: Vec<String>,
        timeout: Option<Duration>,
    ) -> Result<v1::ExecSyncResponse, RuntimeError> {
        let request = v1::ExecSyncRequest {
            container_id: container_id.to_owned(),
            cmd: command,
            timeout: deadline::exec_sync_seconds(timeout),
        };
        let patience = deadline::exec_sync(self.runtime.request_timeout, timeout);
        self.runtime
            .call_within(&method::EXEC_SYNC, request, patience)
            .await
    }

    async fn exec(&self, request: v1::ExecRequest) -> Result<String, RuntimeError> {
        let check = |answer: &v1::ExecResponse| answer::text(&answer.url, "url");
        Ok(self.runtime.checked(&method::EXEC, request, check).await?.url)
    }

    async fn attach(&self, request: v1::AttachRequest) -> Result<String, RuntimeError> {
        let check = |answer: &v1::AttachResponse| answer::text(&answer.url, "url");
        Ok(self.runtime.checked(&method::ATTACH, request, check).await?.url)
    }

    async fn port_forward(&self, request: v1::PortForwardRequest) -> Result<String, RuntimeError> {
        let check = |answer: &v1::PortForwardResponse| answer::text(&answer.url, "url");
        Ok(self
            .runtime
            .checked(&method::PORT_FORWARD, request, check)
            .await?
            .url)
    }

    async fn update_runtime_config(&self, config: v1::RuntimeConfig) -> Result<(), RuntimeError> {
        let request = v1::UpdateRuntimeConfigRequest {
            runtime_config: Some(config),
        };
        let v1::UpdateRuntimeConfigResponse {} =
            self.runtime.call(&method::UPDATE_RUNTIME_CONFIG, request).await?;
        Ok(())
    }

    async fn checkpoint_container(
        &self,
        mut request: v1::CheckpointContainerRequest,
    ) -> Result<(), RuntimeError> {
        let method = &method::CHECKPOINT_CONTAINER;
        if request.timeout < 0 {
            let message = format!(
                "the timeout is {} seconds; it cannot be below zero",
                request.timeout
            );
            return Err(self
                .runtime
                .error(method, RuntimeErrorKind::InvalidArgument, &message));
        }
        let (seconds, patience) =
            deadline::checkpoint_container(self.runtime.request_timeout, request.timeout);
        request.timeout = seconds;
        let v1::CheckpointContainerResponse {} = self.runtime.call_within(method, request, patience).await?;
        Ok(())
    }

    async fn checkpoint_pod(
        &self,
        request: v1::CheckpointPodRequest,
        timeout: Option<Duration>,
    ) -> Result<(), RuntimeError> {
        let patience = Patience::Until(timeout.unwrap_or(self.runtime.request_timeout));
        let v1::CheckpointPodResponse {} = self
            .runtime
            .call_within(&method::CHECKPOINT_POD, request, patience)
            .await?;
        Ok(())
    }

    async fn restore_pod(
        &self,
        request: v1::RestorePodRequest,
        timeout: Option<Duration>,
    ) -> Result<v1::RestorePodResponse, RuntimeError> {
        let patience = Patience::Until(timeout.unwrap_or(self.runtime.request_timeout));
        self.runtime
            .call_within(&method::RESTORE_POD, request, patience)
            .await
    }
}
