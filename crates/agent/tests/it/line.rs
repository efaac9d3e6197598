//! The line between the agent and the simulated runtime: it notes every call, and hangs, fails, delays or panics where a test
//! says so.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream;
use futures_util::{FutureExt, StreamExt};
use rubelet_ports::{Clock, EventStream, RuntimeError, RuntimeErrorKind, RuntimeReader, RuntimeWriter};
use rubelet_sim::executor::Executor;
use rubelet_sim::runtime::SimRuntime;
use rubelet_sim::trace::{Actor, Trace};
use rubelet_wire::cri::v1;
use tokio::sync::mpsc;

const ENDPOINT: &str = "unix:///line.sock";
/// The deadline that the adapter gives a call.
const CALL_DEADLINE: Duration = Duration::from_secs(120);

/// What happens to a call that a rule matches.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// No answer until the call's deadline, and no effect.
    Hang,
    Fail(RuntimeErrorKind),
    Panic,
    /// The effect and what the answer says are of now; the answer comes later.
    SlowAnswer(Duration),
}

struct Rule {
    method: &'static str,
    about: String,
    fault: Fault,
    left: usize,
}

/// A call that left the agent.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) at: Duration,
    pub(crate) method: &'static str,
    /// `pod/container` or `pod`; empty for a list of everything.
    pub(crate) about: String,
    /// Of `StopContainer`.
    pub(crate) grace_seconds: i64,
}

type Injected = mpsc::UnboundedSender<v1::ContainerEventResponse>;

#[derive(Default)]
struct State {
    rules: Vec<Rule>,
    sent: Vec<Sent>,
    /// What an id is about.
    titles: BTreeMap<String, String>,
    /// What containers were made from, by what they are about.
    created: Vec<(String, v1::ContainerConfig)>,
    /// What containers were to have instead, likewise.
    updated: Vec<(String, v1::LinuxContainerResources)>,
    /// What sandboxes were asked for with.
    sandboxes: Vec<(String, v1::PodSandboxConfig, String)>,
    streams_refused: bool,
    hangs_whole_lists: bool,
    /// What commands in containers print, to both outputs.
    printed: Vec<u8>,
    injected: Option<Injected>,
}

pub(crate) struct Line {
    inner: SimRuntime,
    executor: Executor,
    trace: Trace,
    state: Arc<Mutex<State>>,
}

impl Line {
    pub(crate) fn new(executor: &Executor, trace: &Trace, inner: &SimRuntime) -> Self {
        Self {
            inner: inner.clone(),
            executor: executor.clone(),
            trace: trace.clone(),
            state: Arc::default(),
        }
    }

    /// The next `times` calls of the method about this get the fault; an empty `about` is any.
    pub(crate) fn fault(&self, method: &'static str, about: &str, fault: Fault, times: usize) {
        let rule = Rule {
            method,
            about: about.to_owned(),
            fault,
            left: times,
        };
        self.state.lock().unwrap().rules.push(rule);
    }

    /// From now on every call goes through.
    pub(crate) fn heal(&self) {
        self.state.lock().unwrap().rules.clear();
    }

    /// Streams of events cannot be opened.
    pub(crate) fn refuse_streams(&self, refuse: bool) {
        self.state.lock().unwrap().streams_refused = refuse;
    }

    /// Lists of everything get no answer.
    pub(crate) fn hang_whole_lists(&self, hang: bool) {
        self.state.lock().unwrap().hangs_whole_lists = hang;
    }

    /// From now on every command in a container prints this, to both outputs.
    pub(crate) fn print(&self, output: Vec<u8>) {
        self.state.lock().unwrap().printed = output;
    }

    /// Sends an event that the runtime did not send.
    pub(crate) fn inject(&self, event: v1::ContainerEventResponse) {
        let state = self.state.lock().unwrap();
        state
            .injected
            .as_ref()
            .expect("a stream is open")
            .send(event)
            .expect("a stream is open");
    }

    /// Calls of a method since a time.
    pub(crate) fn sent(&self, method: &str, since: Duration) -> Vec<Sent> {
        let state = self.state.lock().unwrap();
        let sent = state
            .sent
            .iter()
            .filter(|sent| sent.method == method && sent.at >= since);
        sent.cloned().collect()
    }

    /// Calls of a method that are about this.
    pub(crate) fn sent_about(&self, method: &str, about: &str) -> Vec<Sent> {
        let mut sent = self.sent(method, Duration::ZERO);
        sent.retain(|sent| sent.about == about);
        sent
    }

    /// What the container was made from, each time.
    pub(crate) fn created(&self, about: &str) -> Vec<v1::ContainerConfig> {
        let state = self.state.lock().unwrap();
        let created = state.created.iter().filter(|(title, _)| title == about);
        created.map(|(_, config)| config.clone()).collect()
    }

    /// What the pod's sandboxes were asked for with.
    /// What the container was to have instead, in order.
    pub(crate) fn updated(&self, about: &str) -> Vec<v1::LinuxContainerResources> {
        let state = self.state.lock().unwrap();
        let of_it = state.updated.iter().filter(|(title, _)| title == about);
        of_it.map(|(_, linux)| linux.clone()).collect()
    }

    pub(crate) fn sandbox_configs(&self, about: &str) -> Vec<v1::PodSandboxConfig> {
        let state = self.state.lock().unwrap();
        let asked = state.sandboxes.iter().filter(|(title, ..)| title == about);
        asked.map(|(_, config, _)| config.clone()).collect()
    }

    /// The runtime handlers that the pod's sandboxes were asked for with.
    pub(crate) fn handlers(&self, about: &str) -> Vec<String> {
        let state = self.state.lock().unwrap();
        let asked = state.sandboxes.iter().filter(|(title, ..)| title == about);
        asked.map(|(.., handler)| handler.clone()).collect()
    }

    /// The name servers that the pod's sandboxes were asked for with.
    pub(crate) fn name_servers(&self, about: &str) -> Vec<Vec<String>> {
        let state = self.state.lock().unwrap();
        let asked = state.sandboxes.iter().filter(|(title, ..)| title == about);
        asked
            .map(|(_, config, _)| config.dns_config.clone().unwrap_or_default().servers)
            .collect()
    }

    /// Lists of everything since a time.
    pub(crate) fn lists(&self, since: Duration) -> Vec<Duration> {
        let lists = self.sent("ListPodSandbox", since);
        lists
            .iter()
            .filter(|sent| sent.about.is_empty())
            .map(|sent| sent.at)
            .collect()
    }

    fn title(&self, id: &str) -> String {
        let titles = &self.state.lock().unwrap().titles;
        titles.get(id).cloned().unwrap_or_else(|| id.to_owned())
    }

    fn name(&self, id: &str, title: String) {
        self.state.lock().unwrap().titles.insert(id.to_owned(), title);
    }

    fn note(&self, method: &'static str, about: &str, grace_seconds: i64) -> Option<Fault> {
        let at = self.executor.elapsed();
        let mut state = self.state.lock().unwrap();
        state.sent.push(Sent {
            at,
            method,
            about: about.to_owned(),
            grace_seconds,
        });
        let is_list = matches!(method, "ListPodSandbox" | "ListContainers");
        if state.hangs_whole_lists && is_list && about.is_empty() {
            return Some(Fault::Hang);
        }
        let rule = state.rules.iter_mut().find(|rule| {
            rule.method == method && rule.left > 0 && (rule.about.is_empty() || rule.about == about)
        })?;
        rule.left -= 1;
        let fault = rule.fault;
        self.trace
            .say(at, Actor::Scenario, format!("{method} {about}: {fault:?}"));
        Some(fault)
    }

    async fn pass<T>(
        &self,
        method: &'static str,
        about: &str,
        call: impl Future<Output = Result<T, RuntimeError>>,
    ) -> Result<T, RuntimeError> {
        let fault = self.note(method, about, 0);
        self.go_on(method, fault, call).await
    }

    async fn go_on<T>(
        &self,
        method: &'static str,
        fault: Option<Fault>,
        call: impl Future<Output = Result<T, RuntimeError>>,
    ) -> Result<T, RuntimeError> {
        match fault {
            None => call.await,
            Some(Fault::Hang) => {
                self.executor.sleep(CALL_DEADLINE).await;
                Err(error(method, RuntimeErrorKind::DeadlineExceeded))
            }
            Some(Fault::Fail(kind)) => {
                // As the runtime's client logs it.
                tracing::warn!(method, "The call failed");
                Err(error(method, kind))
            }
            Some(Fault::Panic) => panic!("injected by the test"),
            Some(Fault::SlowAnswer(time)) => {
                let answer = call.await;
                self.executor.sleep(time).await;
                answer
            }
        }
    }
}

fn error(method: &'static str, kind: RuntimeErrorKind) -> RuntimeError {
    RuntimeError::new(method, ENDPOINT, kind, "injected by the test")
}

/// The pod's uid without the part that all of them share. The garbage collector lists everything too, by an empty filter.
fn pod_of(selector: &BTreeMap<String, String>) -> String {
    match selector.get("io.kubernetes.pod.uid") {
        Some(uid) => uid.trim_start_matches("uid-").to_owned(),
        None => "garbage".to_owned(),
    }
}

#[async_trait]
impl RuntimeReader for Line {
    async fn version(&self) -> Result<v1::VersionResponse, RuntimeError> {
        self.pass("Version", "", self.inner.version()).await
    }

    async fn status(&self, verbose: bool) -> Result<v1::StatusResponse, RuntimeError> {
        self.pass("Status", "", self.inner.status(verbose)).await
    }

    async fn runtime_config(&self) -> Result<v1::RuntimeConfigResponse, RuntimeError> {
        self.inner.runtime_config().await
    }

    async fn list_pod_sandboxes(
        &self,
        filter: Option<v1::PodSandboxFilter>,
    ) -> Result<Vec<v1::PodSandbox>, RuntimeError> {
        let about = filter
            .as_ref()
            .map(|filter| pod_of(&filter.label_selector))
            .unwrap_or_default();
        self.pass("ListPodSandbox", &about, self.inner.list_pod_sandboxes(filter))
            .await
    }

    async fn pod_sandbox_status(
        &self,
        pod_sandbox_id: &str,
        verbose: bool,
    ) -> Result<v1::PodSandboxStatusResponse, RuntimeError> {
        let call = self.inner.pod_sandbox_status(pod_sandbox_id, verbose);
        self.pass("PodSandboxStatus", &self.title(pod_sandbox_id), call)
            .await
    }

    async fn list_containers(
        &self,
        filter: Option<v1::ContainerFilter>,
    ) -> Result<Vec<v1::Container>, RuntimeError> {
        let about = filter
            .as_ref()
            .map(|filter| pod_of(&filter.label_selector))
            .unwrap_or_default();
        self.pass("ListContainers", &about, self.inner.list_containers(filter))
            .await
    }

    async fn container_status(
        &self,
        container_id: &str,
        verbose: bool,
    ) -> Result<v1::ContainerStatusResponse, RuntimeError> {
        let call = self.inner.container_status(container_id, verbose);
        self.pass("ContainerStatus", &self.title(container_id), call)
            .await
    }

    async fn container_stats(&self, container_id: &str) -> Result<Option<v1::ContainerStats>, RuntimeError> {
        self.inner.container_stats(container_id).await
    }

    async fn list_container_stats(
        &self,
        filter: Option<v1::ContainerStatsFilter>,
    ) -> Result<Vec<v1::ContainerStats>, RuntimeError> {
        self.inner.list_container_stats(filter).await
    }

    async fn pod_sandbox_stats(
        &self,
        pod_sandbox_id: &str,
    ) -> Result<Option<v1::PodSandboxStats>, RuntimeError> {
        self.inner.pod_sandbox_stats(pod_sandbox_id).await
    }

    async fn list_pod_sandbox_stats(
        &self,
        filter: Option<v1::PodSandboxStatsFilter>,
    ) -> Result<Vec<v1::PodSandboxStats>, RuntimeError> {
        self.inner.list_pod_sandbox_stats(filter).await
    }

    async fn list_metric_descriptors(&self) -> Result<Vec<v1::MetricDescriptor>, RuntimeError> {
        self.inner.list_metric_descriptors().await
    }

    async fn list_pod_sandbox_metrics(&self) -> Result<Vec<v1::PodSandboxMetrics>, RuntimeError> {
        self.inner.list_pod_sandbox_metrics().await
    }

    fn container_events(&self) -> EventStream {
        // Faults of a stream are set by `refuse_streams`.
        let _ = self.note("GetContainerEvents", "", 0);
        let mut state = self.state.lock().unwrap();
        if state.streams_refused {
            let refusal = Err(error("GetContainerEvents", RuntimeErrorKind::Unavailable));
            return stream::once(async move { refusal }).boxed();
        }
        let (sender, receiver) = mpsc::unbounded_channel();
        state.injected = Some(sender);
        let parts = (self.inner.container_events(), receiver);
        stream::unfold(parts, |(mut events, mut injected)| async move {
            let item = tokio::select! {
                biased;
                event = events.next() => event,
                Some(event) = injected.recv() => Some(Ok(event)),
            };
            item.map(|item| (item, (events, injected)))
        })
        .boxed()
    }
}

#[async_trait]
impl RuntimeWriter for Line {
    async fn run_pod_sandbox(
        &self,
        config: v1::PodSandboxConfig,
        runtime_handler: &str,
    ) -> Result<String, RuntimeError> {
        let uid = config
            .metadata
            .as_ref()
            .map(|metadata| metadata.uid.clone())
            .unwrap_or_default();
        let title = uid.trim_start_matches("uid-").to_owned();
        let asked = (title.clone(), config.clone(), runtime_handler.to_owned());
        self.state.lock().unwrap().sandboxes.push(asked);
        let made = self
            .inner
            .run_pod_sandbox(config, runtime_handler)
            .map(|made| made.inspect(|id| self.name(id, title.clone())));
        self.pass("RunPodSandbox", &title, made).await
    }

    async fn stop_pod_sandbox(&self, pod_sandbox_id: &str) -> Result<(), RuntimeError> {
        let call = self.inner.stop_pod_sandbox(pod_sandbox_id);
        self.pass("StopPodSandbox", &self.title(pod_sandbox_id), call)
            .await
    }

    async fn remove_pod_sandbox(&self, pod_sandbox_id: &str) -> Result<(), RuntimeError> {
        let call = self.inner.remove_pod_sandbox(pod_sandbox_id);
        self.pass("RemovePodSandbox", &self.title(pod_sandbox_id), call)
            .await
    }

    async fn create_container(
        &self,
        pod_sandbox_id: &str,
        config: v1::ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> Result<String, RuntimeError> {
        let name = config
            .metadata
            .as_ref()
            .map(|metadata| metadata.name.clone())
            .unwrap_or_default();
        let title = format!("{}/{name}", self.title(pod_sandbox_id));
        let asked = (title.clone(), config.clone());
        self.state.lock().unwrap().created.push(asked);
        let made = self
            .inner
            .create_container(pod_sandbox_id, config, sandbox_config)
            .map(|made| made.inspect(|id| self.name(id, title.clone())));
        self.pass("CreateContainer", &title, made).await
    }

    async fn start_container(&self, container_id: &str) -> Result<(), RuntimeError> {
        let call = self.inner.start_container(container_id);
        self.pass("StartContainer", &self.title(container_id), call).await
    }

    async fn stop_container(&self, container_id: &str, grace_seconds: i64) -> Result<(), RuntimeError> {
        let fault = self.note("StopContainer", &self.title(container_id), grace_seconds);
        let call = self.inner.stop_container(container_id, grace_seconds);
        self.go_on("StopContainer", fault, call).await
    }

    async fn remove_container(&self, container_id: &str) -> Result<(), RuntimeError> {
        let call = self.inner.remove_container(container_id);
        self.pass("RemoveContainer", &self.title(container_id), call)
            .await
    }

    async fn update_container_resources(
        &self,
        request: v1::UpdateContainerResourcesRequest,
    ) -> Result<(), RuntimeError> {
        let title = self.title(&request.container_id);
        if let Some(linux) = &request.linux {
            let updated = (title.clone(), linux.clone());
            self.state.lock().unwrap().updated.push(updated);
        }
        let call = self.inner.update_container_resources(request);
        self.pass("UpdateContainerResources", &title, call).await
    }

    async fn update_pod_sandbox_resources(
        &self,
        request: v1::UpdatePodSandboxResourcesRequest,
    ) -> Result<(), RuntimeError> {
        let title = self.title(&request.pod_sandbox_id);
        let call = self.inner.update_pod_sandbox_resources(request);
        self.pass("UpdatePodSandboxResources", &title, call).await
    }

    async fn reopen_container_log(&self, container_id: &str) -> Result<(), RuntimeError> {
        self.inner.reopen_container_log(container_id).await
    }

    async fn exec_sync(
        &self,
        container_id: &str,
        command: Vec<String>,
        timeout: Option<Duration>,
    ) -> Result<v1::ExecSyncResponse, RuntimeError> {
        let about = self.title(container_id);
        let call = self.inner.exec_sync(container_id, command, timeout);
        let mut answer = self.pass("ExecSync", &about, call).await?;
        let printed = self.state.lock().unwrap().printed.clone();
        answer.stdout.extend_from_slice(&printed);
        answer.stderr.extend_from_slice(&printed);
        Ok(answer)
    }

    async fn exec(&self, request: v1::ExecRequest) -> Result<String, RuntimeError> {
        self.inner.exec(request).await
    }

    async fn attach(&self, request: v1::AttachRequest) -> Result<String, RuntimeError> {
        self.inner.attach(request).await
    }

    async fn port_forward(&self, request: v1::PortForwardRequest) -> Result<String, RuntimeError> {
        self.inner.port_forward(request).await
    }

    async fn update_runtime_config(&self, config: v1::RuntimeConfig) -> Result<(), RuntimeError> {
        self.inner.update_runtime_config(config).await
    }

    async fn checkpoint_container(
        &self,
        request: v1::CheckpointContainerRequest,
    ) -> Result<(), RuntimeError> {
        self.inner.checkpoint_container(request).await
    }

    async fn checkpoint_pod(
        &self,
        request: v1::CheckpointPodRequest,
        timeout: Option<Duration>,
    ) -> Result<(), RuntimeError> {
        self.inner.checkpoint_pod(request, timeout).await
    }

    async fn restore_pod(
        &self,
        request: v1::RestorePodRequest,
        timeout: Option<Duration>,
    ) -> Result<v1::RestorePodResponse, RuntimeError> {
        self.inner.restore_pod(request, timeout).await
    }
}
