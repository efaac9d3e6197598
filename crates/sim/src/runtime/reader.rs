//! The calls that change nothing.

use std::collections::BTreeMap;

use async_trait::async_trait;
use rubelet_lifecycle::configuration::labels::POD_UID;
use rubelet_ports::{EventStream, RuntimeError, RuntimeErrorKind, RuntimeReader};
use rubelet_wire::cri::{NETWORK_READY, RUNTIME_READY, v1};

use super::process::not_found;
use super::state::{Failure, SimContainer, State};
use super::{Call, ENDPOINT, SimRuntime};
use crate::cgroups::USED_BYTES;
use crate::history::Fact;

/// All labels that are asked for, with these values.
fn selects(selector: &BTreeMap<String, String>, labels: &BTreeMap<String, String>) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

fn sandboxes(state: &State, filter: &v1::PodSandboxFilter) -> Vec<v1::PodSandbox> {
    let all = state.sandboxes.iter();
    all.filter(|(id, _)| filter.id.is_empty() || **id == filter.id)
        .filter(|(_, sandbox)| {
            let wanted = filter.state.as_ref();
            wanted.is_none_or(|wanted| wanted.state == sandbox.state())
        })
        .filter(|(_, sandbox)| selects(&filter.label_selector, &sandbox.config.labels))
        .map(|(id, sandbox)| sandbox.listed(id))
        .collect()
}

fn containers(state: &State, filter: &v1::ContainerFilter) -> Vec<v1::Container> {
    let all = state.containers.iter();
    all.filter(|(id, _)| filter.id.is_empty() || **id == filter.id)
        .filter(|(_, container)| {
            filter.pod_sandbox_id.is_empty() || container.sandbox == filter.pod_sandbox_id
        })
        .filter(|(_, container)| {
            let wanted = filter.state.as_ref();
            wanted.is_none_or(|wanted| wanted.state == container.state())
        })
        .filter(|(_, container)| selects(&filter.label_selector, &container.config.labels))
        .map(|(id, container)| container.listed(id))
        .collect()
}

fn unimplemented<T>(method: &'static str) -> Result<T, RuntimeError> {
    Err(RuntimeError::new(
        method,
        ENDPOINT,
        RuntimeErrorKind::Unimplemented,
        "not part of the simulation",
    ))
}

impl SimRuntime {
    /// A list as a runtime that lies has it. Only lists of everything leave something out: who lists one pod has nothing else to
    /// know it from. `uid_of` tells whose an entry is.
    fn distort<T: Clone>(&self, mut list: Vec<T>, is_whole: bool, uid_of: fn(&T) -> String) -> Vec<T> {
        let (omits, repeats) = {
            let faults = self.faults();
            (faults.list_omits, faults.list_repeats)
        };
        if list.is_empty() || (omits == 0 && repeats == 0) {
            return list;
        }
        let left_out = self.inner.dice.with(|dice| {
            let mut dice = dice.aside("lists");
            let place = dice.below(list.len());
            if is_whole && dice.per_myriad(omits) {
                return Some(list.remove(place));
            }
            if dice.per_myriad(repeats) {
                list.push(list[place].clone());
            }
            None
        });
        if let Some(entry) = left_out {
            self.happened(Fact::LeftOut { uid: uid_of(&entry) });
        }
        list
    }

    /// A call that only looks at the state.
    async fn look<T: Send + 'static>(
        &self,
        call: Call,
        look: impl FnOnce(&State) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, RuntimeError> {
        self.call(call, |work| Box::pin(async move { look(&work.runtime.lock()) }))
            .await
    }
}

#[async_trait]
impl RuntimeReader for SimRuntime {
    async fn version(&self) -> Result<v1::VersionResponse, RuntimeError> {
        self.look(Call::reading("Version", ""), |_| {
            Ok(v1::VersionResponse {
                version: "0.1.0".to_owned(),
                runtime_name: "containerd".to_owned(),
                runtime_version: "v2.0.0-sim".to_owned(),
                runtime_api_version: "v1".to_owned(),
            })
        })
        .await
    }

    async fn status(&self, _verbose: bool) -> Result<v1::StatusResponse, RuntimeError> {
        self.look(Call::reading("Status", ""), |state| {
            let condition = |name: &str, status: bool| v1::RuntimeCondition {
                r#type: name.to_owned(),
                status,
                reason: if status {
                    String::new()
                } else {
                    "Simulated".to_owned()
                },
                message: String::new(),
            };
            Ok(v1::StatusResponse {
                status: Some(v1::RuntimeStatus {
                    conditions: vec![
                        condition(RUNTIME_READY, true),
                        condition(NETWORK_READY, state.is_network_ready),
                    ],
                }),
                // The default can everything, the other one nothing of it.
                runtime_handlers: [("", true), ("kata", false)]
                    .map(|(name, is_able)| v1::RuntimeHandler {
                        name: name.to_owned(),
                        features: Some(v1::RuntimeHandlerFeatures {
                            recursive_read_only_mounts: is_able,
                            user_namespaces: is_able,
                        }),
                    })
                    .to_vec(),
                ..v1::StatusResponse::default()
            })
        })
        .await
    }

    async fn runtime_config(&self) -> Result<v1::RuntimeConfigResponse, RuntimeError> {
        self.look(Call::reading("RuntimeConfig", ""), |_| {
            Ok(v1::RuntimeConfigResponse::default())
        })
        .await
    }

    async fn list_pod_sandboxes(
        &self,
        filter: Option<v1::PodSandboxFilter>,
    ) -> Result<Vec<v1::PodSandbox>, RuntimeError> {
        let is_whole = filter.is_none();
        let filter = filter.unwrap_or_default();
        let call = Call::reading("ListPodSandbox", filter.id.clone());
        let list = self
            .look(call, move |state| Ok(sandboxes(state, &filter)))
            .await?;
        Ok(self.distort(list, is_whole, |sandbox| {
            sandbox.metadata.clone().unwrap_or_default().uid
        }))
    }

    async fn pod_sandbox_status(
        &self,
        pod_sandbox_id: &str,
        _verbose: bool,
    ) -> Result<v1::PodSandboxStatusResponse, RuntimeError> {
        let id = pod_sandbox_id.to_owned();
        self.look(Call::reading("PodSandboxStatus", pod_sandbox_id), move |state| {
            let Some(sandbox) = state.sandboxes.get(&id) else {
                return Err(Failure::new(
                    RuntimeErrorKind::NotFound,
                    format!("an error occurred when try to find sandbox \"{id}\": not found"),
                ));
            };
            sandbox.check_network("failed to get sandbox ip")?;
            Ok(v1::PodSandboxStatusResponse {
                status: Some(sandbox.status(&id)),
                containers_statuses: state
                    .containers_of(&id)
                    .map(|(id, container)| container.status(id))
                    .collect(),
                ..v1::PodSandboxStatusResponse::default()
            })
        })
        .await
    }

    async fn list_containers(
        &self,
        filter: Option<v1::ContainerFilter>,
    ) -> Result<Vec<v1::Container>, RuntimeError> {
        let is_whole = filter.is_none();
        let filter = filter.unwrap_or_default();
        let call = Call::reading("ListContainers", filter.id.clone());
        let list = self
            .look(call, move |state| Ok(containers(state, &filter)))
            .await?;
        Ok(self.distort(list, is_whole, |container| {
            container.labels.get(POD_UID).cloned().unwrap_or_default()
        }))
    }

    async fn container_status(
        &self,
        container_id: &str,
        _verbose: bool,
    ) -> Result<v1::ContainerStatusResponse, RuntimeError> {
        let id = container_id.to_owned();
        self.look(Call::reading("ContainerStatus", container_id), move |state| {
            let Some(container) = state.containers.get(&id) else {
                return Err(not_found(&id));
            };
            Ok(v1::ContainerStatusResponse {
                status: Some(container.status(&id)),
                ..v1::ContainerStatusResponse::default()
            })
        })
        .await
    }

    async fn container_stats(&self, container_id: &str) -> Result<Option<v1::ContainerStats>, RuntimeError> {
        let is_running = {
            let state = self.lock();
            state
                .containers
                .get(container_id)
                .is_some_and(SimContainer::is_running)
        };
        let memory = v1::MemoryUsage {
            usage_bytes: Some(v1::UInt64Value { value: USED_BYTES }),
            ..v1::MemoryUsage::default()
        };
        Ok(is_running.then(|| v1::ContainerStats {
            memory: Some(memory),
            ..v1::ContainerStats::default()
        }))
    }

    async fn list_container_stats(
        &self,
        _filter: Option<v1::ContainerStatsFilter>,
    ) -> Result<Vec<v1::ContainerStats>, RuntimeError> {
        Ok(Vec::new())
    }

    async fn pod_sandbox_stats(
        &self,
        _pod_sandbox_id: &str,
    ) -> Result<Option<v1::PodSandboxStats>, RuntimeError> {
        Ok(None)
    }

    async fn list_pod_sandbox_stats(
        &self,
        _filter: Option<v1::PodSandboxStatsFilter>,
    ) -> Result<Vec<v1::PodSandboxStats>, RuntimeError> {
        Ok(Vec::new())
    }

    async fn list_metric_descriptors(&self) -> Result<Vec<v1::MetricDescriptor>, RuntimeError> {
        unimplemented("ListMetricDescriptors")
    }

    async fn list_pod_sandbox_metrics(&self) -> Result<Vec<v1::PodSandboxMetrics>, RuntimeError> {
        unimplemented("ListPodSandboxMetrics")
    }

    fn container_events(&self) -> EventStream {
        self.subscribe()
    }
}
