//! The calls that change a pod.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::select;
use rubelet_ports::{Clock, RuntimeError, RuntimeErrorKind, RuntimeWriter};
use rubelet_wire::cri::v1;
use tokio::sync::Notify;

use super::state::{Failure, Process, Sandbox, SimContainer, container_name, sandbox_name};
use super::{CALL_DEADLINE, Call, ENDPOINT, Script, SimRuntime, Work};
use crate::history::{Ask, Cause, Fact};

fn unimplemented<T>(method: &'static str) -> Result<T, RuntimeError> {
    Err(RuntimeError::new(
        method,
        ENDPOINT,
        RuntimeErrorKind::Unimplemented,
        "not part of the simulation",
    ))
}

impl SimRuntime {
    /// The name is taken first; the sandbox can be seen when its network is there.
    async fn make_sandbox(work: Work, config: v1::PodSandboxConfig) -> Result<String, Failure> {
        let runtime = work.runtime.clone();
        let metadata = config.metadata.clone().unwrap_or_default();
        let name = sandbox_name(&metadata);
        let id = {
            let mut state = runtime.lock();
            let id = state.new_id('s');
            state.reserve("sandbox", &name, &id)?;
            id
        };
        let (low_ms, high_ms) = runtime.faults().sandbox_ms;
        work.pause(low_ms, high_ms).await;
        let goes_on = work.goes_on();
        {
            let mut state = runtime.lock();
            let mut sandbox = Sandbox {
                config,
                name: name.clone(),
                is_ready: true,
                created_at: 0,
                ip: String::new(),
                has_lost_network: false,
            };
            let no_network = !state.is_network_ready && !sandbox.uses_node_network();
            if goes_on.is_err() || no_network {
                if state.names.get(&name) == Some(&id) {
                    state.names.remove(&name);
                }
                goes_on?;
                return Err(Failure::unknown("failed to setup network for sandbox: not ready"));
            }
            if !sandbox.uses_node_network() {
                // Its own number is nobody else's.
                let number: u64 = id[1..].parse().unwrap_or(0);
                sandbox.ip = format!("10.88.{}.{}", number / 250 % 250, number % 250 + 1);
            }
            sandbox.created_at = runtime.wall_nanos();
            state.sandboxes.insert(id.clone(), sandbox);
        }
        runtime.happened(Fact::SandboxReady {
            id: id.clone(),
            uid: metadata.uid,
            attempt: metadata.attempt,
            is_late: *work.caller.borrow(),
        });
        runtime.emit(&id, v1::ContainerEventType::ContainerCreatedEvent);
        runtime.emit(&id, v1::ContainerEventType::ContainerStartedEvent);
        Ok(id)
    }

    async fn end_sandbox(work: &Work, id: &str, cause: Cause) -> Result<(), Failure> {
        let runtime = &work.runtime;
        let running: Vec<String> = {
            let state = runtime.lock();
            let running = state
                .containers_of(id)
                .filter(|(_, container)| container.is_running());
            running.map(|(id, _)| id.clone()).collect()
        };
        for container in running {
            runtime.kill(&container, cause).await;
        }
        work.pause(2, 40).await;
        work.goes_on()?;
        let was_ready = {
            let mut state = runtime.lock();
            let ready = state.sandboxes.get_mut(id).filter(|sandbox| sandbox.is_ready);
            ready.map(|sandbox| sandbox.is_ready = false).is_some()
        };
        if was_ready {
            runtime.happened(Fact::SandboxStopped { id: id.to_owned() });
            runtime.emit(id, v1::ContainerEventType::ContainerStoppedEvent);
        }
        let state = runtime.lock();
        let sandbox = state.sandboxes.get(id);
        sandbox.map_or(Ok(()), |sandbox| sandbox.check_network("failed to stop sandbox"))
    }

    fn forget_container(&self, id: &str) {
        let removed = {
            let mut state = self.lock();
            let removed = state.containers.remove(id);
            if let Some(container) = &removed {
                state.names.remove(&container.name);
            }
            removed
        };
        if let Some(container) = removed {
            self.happened(Fact::Removed { id: id.to_owned() });
            let kind = v1::ContainerEventType::ContainerDeletedEvent;
            self.emit_in(&container.sandbox, id, kind);
        }
    }

    /// What is zero stays as it is, as for containerd.
    fn update(&self, id: &str, linux: &v1::LinuxContainerResources, is_late: bool) -> Result<(), Failure> {
        {
            let mut state = self.lock();
            let container = state.containers.get_mut(id).ok_or_else(|| {
                Failure::new(
                    RuntimeErrorKind::NotFound,
                    format!("container \"{id}\" not found"),
                )
            })?;
            if !container.is_running() {
                return Err(Failure::unknown("container is not running"));
            }
            let known = container.config.linux.get_or_insert_default();
            let known = known.resources.get_or_insert_default();
            let set = |known: &mut i64, new: i64| {
                if new != 0 {
                    *known = new;
                }
            };
            set(&mut known.cpu_shares, linux.cpu_shares);
            set(&mut known.cpu_quota, linux.cpu_quota);
            set(&mut known.cpu_period, linux.cpu_period);
            set(&mut known.memory_limit_in_bytes, linux.memory_limit_in_bytes);
        }
        self.limited(id, !is_late);
        Ok(())
    }

    /// The container has other resources, or begins to have some.
    pub(super) fn limited(&self, id: &str, is_update: bool) {
        let limits = self.lock().containers.get(id).map(SimContainer::limits);
        if let Some(limits) = limits {
            let id = id.to_owned();
            self.happened(Fact::Resized {
                id,
                limits,
                is_update,
            });
        }
    }

    async fn drop_sandbox(work: Work, id: String) -> Result<(), Failure> {
        let runtime = work.runtime.clone();
        if !runtime.lock().sandboxes.contains_key(&id) {
            return Ok(());
        }
        Self::end_sandbox(&work, &id, Cause::SandboxStopped).await?;
        let containers: Vec<String> = {
            let state = runtime.lock();
            state.containers_of(&id).map(|(id, _)| id.clone()).collect()
        };
        for container in containers {
            runtime.forget_container(&container);
        }
        let removed = {
            let mut state = runtime.lock();
            let removed = state.sandboxes.remove(&id);
            if let Some(sandbox) = &removed {
                state.names.remove(&sandbox.name);
            }
            removed
        };
        if removed.is_some() {
            runtime.happened(Fact::SandboxRemoved { id: id.clone() });
            runtime.emit(&id, v1::ContainerEventType::ContainerDeletedEvent);
        }
        Ok(())
    }

    async fn make_container(
        work: Work,
        sandbox: String,
        config: v1::ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> Result<String, Failure> {
        let runtime = work.runtime.clone();
        let metadata = config.metadata.clone().unwrap_or_default();
        let pod = sandbox_config.metadata.clone().unwrap_or_default();
        let name = container_name(&metadata, &pod);
        let id = {
            let mut state = runtime.lock();
            check_sandbox(&state.sandboxes, &sandbox)?;
            let id = state.new_id('c');
            state.reserve("container", &name, &id)?;
            id
        };
        work.pause(2, 30).await;
        let goes_on = work.goes_on();
        let image_name = config
            .image
            .as_ref()
            .map(|image| image.image.clone())
            .unwrap_or_default();
        let made = {
            let mut state = runtime.lock();
            let found = state.find_image(&image_name).cloned().ok_or_else(|| {
                Failure::new(
                    RuntimeErrorKind::NotFound,
                    format!("failed to resolve image \"{image_name}\": not found"),
                )
            });
            let checked = goes_on
                .and_then(|()| check_sandbox(&state.sandboxes, &sandbox))
                .and(found);
            match checked {
                Ok(image) => {
                    let log_path = match config.log_path.as_str() {
                        "" => String::new(),
                        path => format!("{}/{path}", sandbox_config.log_directory),
                    };
                    let container = SimContainer {
                        script: Script::parse(&config.args),
                        sandbox: sandbox.clone(),
                        name: name.clone(),
                        log_path,
                        process: Process::Created,
                        created_at: runtime.wall_nanos(),
                        started_at: 0,
                        running_since: Duration::ZERO,
                        image: image.clone(),
                        ended: Arc::new(Notify::new()),
                        config,
                    };
                    state.containers.insert(id.clone(), container);
                    Ok(image.tag)
                }
                Err(failure) => {
                    if state.names.get(&name) == Some(&id) {
                        state.names.remove(&name);
                    }
                    Err(failure)
                }
            }
        };
        let image = made?;
        runtime.happened(Fact::Created {
            id: id.clone(),
            sandbox,
            uid: pod.uid,
            name: metadata.name,
            attempt: metadata.attempt,
            image,
            is_late: *work.caller.borrow(),
        });
        runtime.emit(&id, v1::ContainerEventType::ContainerCreatedEvent);
        Ok(id)
    }

    /// The signal, then the wait, then the kill. A caller that gives up gets the signal sent, but no kill.
    async fn end_container(work: Work, id: String, grace: Duration) -> Result<(), Failure> {
        let runtime = work.runtime.clone();
        if !runtime.signal(&id) {
            return Ok(());
        }
        let executor = runtime.inner.executor.clone();
        let until = executor.elapsed().saturating_add(grace);
        let ended = runtime.lock().containers.get(&id).map(|one| one.ended.clone());
        let Some(ended) = ended else {
            return Ok(());
        };
        loop {
            let is_running = |runtime: &SimRuntime| {
                runtime
                    .lock()
                    .containers
                    .get(&id)
                    .is_some_and(SimContainer::is_running)
            };
            let end = std::pin::pin!(ended.notified());
            if !is_running(&runtime) {
                return Ok(());
            }
            work.goes_on()?;
            let left = until.saturating_sub(executor.elapsed());
            if left.is_zero() {
                break;
            }
            // Short naps, so that a caller that gives up is noticed.
            select(end, executor.sleep(left.min(Duration::from_secs(1)))).await;
        }
        runtime.kill(&id, Cause::GraceOver).await;
        Ok(())
    }
}

fn check_sandbox(sandboxes: &std::collections::BTreeMap<String, Sandbox>, id: &str) -> Result<(), Failure> {
    match sandboxes.get(id) {
        None => Err(Failure::new(
            RuntimeErrorKind::NotFound,
            format!("failed to find sandbox id \"{id}\": not found"),
        )),
        Some(sandbox) if !sandbox.is_ready => Err(Failure::unknown(format!(
            "failed to get sandbox container task: no running task found: sandbox {id}"
        ))),
        // A runtime that joins the namespace by its path cannot.
        Some(sandbox) => sandbox.check_network("failed to create containerd task"),
    }
}

#[async_trait]
impl RuntimeWriter for SimRuntime {
    async fn run_pod_sandbox(
        &self,
        config: v1::PodSandboxConfig,
        _runtime_handler: &str,
    ) -> Result<String, RuntimeError> {
        let metadata = config.metadata.clone().unwrap_or_default();
        let ask = Ask::RunSandbox {
            uid: metadata.uid.clone(),
            attempt: metadata.attempt,
        };
        let about = sandbox_name(&metadata);
        let mut call = Call::writing("RunPodSandbox", about, &metadata.uid, Some(ask));
        call.deadline = Some(CALL_DEADLINE * 2);
        self.call(call, move |work| Box::pin(Self::make_sandbox(work, config)))
            .await
    }

    async fn stop_pod_sandbox(&self, pod_sandbox_id: &str) -> Result<(), RuntimeError> {
        let id = pod_sandbox_id.to_owned();
        let ask = Ask::StopSandbox { id: id.clone() };
        let call = Call::writing("StopPodSandbox", pod_sandbox_id, pod_sandbox_id, Some(ask));
        self.call(call, move |work| {
            Box::pin(async move { Self::end_sandbox(&work, &id, Cause::SandboxStopped).await })
        })
        .await
    }

    async fn remove_pod_sandbox(&self, pod_sandbox_id: &str) -> Result<(), RuntimeError> {
        let id = pod_sandbox_id.to_owned();
        let ask = Ask::RemoveSandbox { id: id.clone() };
        let call = Call::writing("RemovePodSandbox", pod_sandbox_id, pod_sandbox_id, Some(ask));
        self.call(call, move |work| Box::pin(Self::drop_sandbox(work, id)))
            .await
    }

    async fn create_container(
        &self,
        pod_sandbox_id: &str,
        config: v1::ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> Result<String, RuntimeError> {
        let sandbox = pod_sandbox_id.to_owned();
        let metadata = config.metadata.clone().unwrap_or_default();
        let ask = Ask::Create {
            sandbox: sandbox.clone(),
            name: metadata.name.clone(),
            attempt: metadata.attempt,
        };
        let about = format!("{}#{} in {sandbox}", metadata.name, metadata.attempt);
        let call = Call::writing("CreateContainer", about, pod_sandbox_id, Some(ask));
        self.call(call, move |work| {
            Box::pin(Self::make_container(work, sandbox, config, sandbox_config))
        })
        .await
    }

    async fn start_container(&self, container_id: &str) -> Result<(), RuntimeError> {
        let id = container_id.to_owned();
        let start_fails = self.faults().start_fails;
        let ask = Ask::Start { id: id.clone() };
        let about = self.title(container_id);
        let call = Call::writing("StartContainer", about, container_id, Some(ask));
        self.call(call, move |work| {
            Box::pin(async move {
                let runtime = &work.runtime;
                if runtime.inner.dice.with(|dice| dice.per_myriad(start_fails)) {
                    let is_created = runtime
                        .lock()
                        .containers
                        .get(&id)
                        .is_some_and(|container| matches!(container.process, Process::Created));
                    if is_created {
                        runtime.fail_start(&id);
                        return Err(Failure::unknown("failed to create containerd task: injected"));
                    }
                }
                runtime.start_process(&id, *work.caller.borrow())
            })
        })
        .await
    }

    async fn stop_container(&self, container_id: &str, grace_seconds: i64) -> Result<(), RuntimeError> {
        let id = container_id.to_owned();
        let ask = Ask::Stop {
            id: id.clone(),
            grace_seconds,
        };
        let about = format!("{} grace {grace_seconds}", self.title(container_id));
        let grace = Duration::from_secs(u64::try_from(grace_seconds).unwrap_or(0));
        let mut call = Call::writing("StopContainer", about, container_id, Some(ask));
        call.deadline = Some(CALL_DEADLINE + grace);
        self.call(call, move |work| Box::pin(Self::end_container(work, id, grace)))
            .await
    }

    async fn remove_container(&self, container_id: &str) -> Result<(), RuntimeError> {
        let id = container_id.to_owned();
        let ask = Ask::Remove { id: id.clone() };
        let about = self.title(container_id);
        let call = Call::writing("RemoveContainer", about, container_id, Some(ask));
        self.call(call, move |work| {
            Box::pin(async move {
                let is_running = work
                    .runtime
                    .lock()
                    .containers
                    .get(&id)
                    .is_some_and(SimContainer::is_running);
                if is_running {
                    work.runtime.kill(&id, Cause::Removed).await;
                }
                work.goes_on()?;
                work.runtime.forget_container(&id);
                Ok(())
            })
        })
        .await
    }

    async fn update_container_resources(
        &self,
        request: v1::UpdateContainerResourcesRequest,
    ) -> Result<(), RuntimeError> {
        let id = request.container_id.clone();
        let linux = request.linux.unwrap_or_default();
        let about = format!(
            "{} shares {} quota {} memory {}",
            self.title(&id),
            linux.cpu_shares,
            linux.cpu_quota,
            linux.memory_limit_in_bytes
        );
        let ask = Ask::Update { id: id.clone() };
        let call = Call::writing("UpdateContainerResources", about, &id, Some(ask));
        self.call(call, move |work| {
            Box::pin(async move {
                work.pause(1, 10).await;
                work.goes_on()?;
                let is_late = *work.caller.borrow();
                work.runtime.update(&id, &linux, is_late)
            })
        })
        .await
    }

    async fn update_pod_sandbox_resources(
        &self,
        _request: v1::UpdatePodSandboxResourcesRequest,
    ) -> Result<(), RuntimeError> {
        Ok(())
    }

    async fn reopen_container_log(&self, _container_id: &str) -> Result<(), RuntimeError> {
        Ok(())
    }

    async fn exec_sync(
        &self,
        container_id: &str,
        command: Vec<String>,
        timeout: Option<Duration>,
    ) -> Result<v1::ExecSyncResponse, RuntimeError> {
        self.run_command(container_id, command, timeout).await
    }

    async fn exec(&self, _request: v1::ExecRequest) -> Result<String, RuntimeError> {
        unimplemented("Exec")
    }

    async fn attach(&self, _request: v1::AttachRequest) -> Result<String, RuntimeError> {
        unimplemented("Attach")
    }

    async fn port_forward(&self, _request: v1::PortForwardRequest) -> Result<String, RuntimeError> {
        unimplemented("PortForward")
    }

    async fn update_runtime_config(&self, _config: v1::RuntimeConfig) -> Result<(), RuntimeError> {
        Ok(())
    }

    async fn checkpoint_container(
        &self,
        _request: v1::CheckpointContainerRequest,
    ) -> Result<(), RuntimeError> {
        unimplemented("CheckpointContainer")
    }

    async fn checkpoint_pod(
        &self,
        _request: v1::CheckpointPodRequest,
        _timeout: Option<Duration>,
    ) -> Result<(), RuntimeError> {
        unimplemented("CheckpointPod")
    }

    async fn restore_pod(
        &self,
        _request: v1::RestorePodRequest,
        _timeout: Option<Duration>,
    ) -> Result<v1::RestorePodResponse, RuntimeError> {
        unimplemented("RestorePod")
    }
}
