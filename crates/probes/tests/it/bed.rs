//! A prober between simulated edges.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rubelet_fakes::{SameNumber, Tasks, TokioClock};
use rubelet_model::Timestamp;
use rubelet_model::observation::{
    ContainerExit, ContainerId, ContainerObservation, ContainerState, PodObservation, PodUid, ProbeResult,
    SandboxId,
};
use rubelet_ports::{
    ConnectError, Dialer, EventRecorder, GrpcCall, GrpcHealth, HttpAnswer, HttpCall, HttpCallError, PodEvent,
    ProbeReading, ProbedPod, Prober, RuntimeError, RuntimeErrorKind, RuntimeWriter, TcpCall,
};
use rubelet_probes::{Probes, ProbesPorts, ProbesSettings};
use rubelet_wire::cri::v1;
use serde_json::{Value, json};
use tokio::time::Instant;

/// The wall clock at the start of every test.
pub(crate) const EPOCH: Timestamp = Timestamp::from_unix_seconds(1_000_000);

/// What the container's port does, and when it was asked, in milliseconds since the start.
#[derive(Default)]
pub(crate) struct Network {
    pub(crate) ports: BTreeMap<u16, Result<(), String>>,
    /// Host names are not looked up in time.
    pub(crate) without_place: bool,
    pub(crate) http: BTreeMap<u16, Result<HttpAnswer, HttpCallError>>,
    pub(crate) asked: BTreeMap<u16, Vec<u128>>,
}

#[derive(Clone)]
pub(crate) struct TestEdges {
    start: Instant,
    pub(crate) network: Arc<Mutex<Network>>,
    pub(crate) events: Arc<Mutex<Vec<String>>>,
    /// How long a command takes, and its exit code; by its first word. Without an entry it never ends.
    pub(crate) commands: Arc<Mutex<BTreeMap<String, (Duration, i32)>>>,
    pub(crate) executed: Arc<Mutex<Vec<(u128, String)>>>,
}

impl TestEdges {
    fn ask(&self, port: u16) {
        let at = self.start.elapsed().as_millis();
        self.network
            .lock()
            .unwrap()
            .asked
            .entry(port)
            .or_default()
            .push(at);
    }
}

#[async_trait]
impl Dialer for TestEdges {
    async fn http_get(&self, call: &HttpCall) -> Result<HttpAnswer, HttpCallError> {
        self.ask(call.port);
        self.network.lock().unwrap().http[&call.port].clone()
    }

    async fn connect(&self, call: &TcpCall) -> Result<(), ConnectError> {
        self.ask(call.port);
        let network = self.network.lock().unwrap();
        if network.without_place {
            let message = "too many look-ups".to_owned();
            return Err(ConnectError::NoPlace { message });
        }
        let answer = network.ports.get(&call.port).cloned();
        answer
            .unwrap_or(Ok(()))
            .map_err(|message| ConnectError::Failed { message })
    }

    async fn grpc_health(&self, call: &GrpcCall) -> GrpcHealth {
        self.ask(call.port);
        GrpcHealth::Serving
    }
}

impl EventRecorder for TestEdges {
    fn record(&self, _pod: &Pod, event: PodEvent) {
        let text = format!(
            "{} {} {}: {}",
            event.event_type.as_str(),
            event.reason,
            event.container.unwrap_or_default(),
            event.message
        );
        self.events.lock().unwrap().push(text);
    }
}

fn unused<T>(method: &'static str) -> Result<T, RuntimeError> {
    Err(RuntimeError::new(method, "", RuntimeErrorKind::Unimplemented, ""))
}

#[async_trait]
impl RuntimeWriter for TestEdges {
    async fn exec_sync(
        &self,
        _container_id: &str,
        command: Vec<String>,
        timeout: Option<Duration>,
    ) -> Result<v1::ExecSyncResponse, RuntimeError> {
        let at = self.start.elapsed().as_millis();
        self.executed.lock().unwrap().push((at, command.join(" ")));
        let known = self.commands.lock().unwrap().get(&command[0]).copied();
        let Some((takes, exit_code)) = known else {
            return std::future::pending().await;
        };
        if exit_code < 0 {
            return Err(RuntimeError::new(
                "ExecSync",
                "",
                RuntimeErrorKind::NotFound,
                "gone",
            ));
        }
        if timeout.is_some_and(|timeout| takes > timeout) {
            tokio::time::sleep(timeout.unwrap()).await;
            return Err(RuntimeError::new(
                "ExecSync",
                "",
                RuntimeErrorKind::DeadlineExceeded,
                "",
            ));
        }
        tokio::time::sleep(takes).await;
        Ok(v1::ExecSyncResponse {
            stdout: b"out ".to_vec(),
            stderr: b"err".to_vec(),
            exit_code,
        })
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
    async fn update_runtime_config(&self, _: v1::RuntimeConfig) -> Result<(), RuntimeError> {
        unused("UpdateRuntimeConfig")
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

/// A prober and a pod of one or more containers.
pub(crate) struct Bed {
    pub(crate) edges: TestEdges,
    pub(crate) probes: Probes,
    pub(crate) pod: Arc<Pod>,
    pub(crate) status: Option<PodStatus>,
    start: Instant,
    changes: BoxStream<'static, PodUid>,
    containers: BTreeMap<String, ContainerObservation>,
}

impl Bed {
    /// Containers with their probes.
    pub(crate) fn new(containers: &Value) -> Self {
        let start = Instant::now();
        let edges = TestEdges {
            start,
            network: Arc::default(),
            events: Arc::default(),
            commands: Arc::default(),
            executed: Arc::default(),
        };
        let shared = Arc::new(edges.clone());
        let ports = ProbesPorts {
            clock: Arc::new(TokioClock::since(start, EPOCH)),
            spawner: Arc::<Tasks>::default(),
            randomness: Arc::new(SameNumber(Duration::from_secs(7))),
            runtime_writer: shared.clone(),
            dialer: shared.clone(),
            events: shared,
        };
        let probes = Probes::new(ProbesSettings::default(), ports);
        let changes = probes.changes();
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"containers": containers},
        });
        Self {
            edges,
            probes,
            pod: Arc::new(serde_json::from_value(pod).unwrap()),
            status: None,
            start,
            changes,
            containers: BTreeMap::new(),
        }
    }

    fn now(&self) -> Timestamp {
        EPOCH.plus(self.start.elapsed())
    }

    /// An instance of a container runs from now on.
    pub(crate) fn runs(&mut self, name: &str, id: &str) -> ProbeReading {
        let started_at = self.now();
        self.runs_since(name, id, started_at)
    }

    pub(crate) fn runs_since(&mut self, name: &str, id: &str, started_at: Timestamp) -> ProbeReading {
        self.is_seen(name, id, ContainerState::Running { started_at })
    }

    pub(crate) fn ended(&mut self, name: &str, id: &str) -> ProbeReading {
        let exit = ContainerExit {
            exit_code: 1,
            reason: String::new(),
            message: String::new(),
            started_at: self.now(),
            finished_at: self.now(),
        };
        self.is_seen(name, id, ContainerState::Exited(exit))
    }

    pub(crate) fn is_seen(&mut self, name: &str, id: &str, state: ContainerState) -> ProbeReading {
        let sandbox = SandboxId::from("s");
        let seen = ContainerObservation::new(id, name, sandbox, state, self.now());
        self.containers.insert(name.to_owned(), seen);
        self.show()
    }

    pub(crate) fn show(&self) -> ProbeReading {
        let identity = (PodUid::from("u"), "n".to_owned(), "p".to_owned());
        let containers = self.containers.values().cloned().collect();
        let observation = PodObservation::new(identity, Vec::new(), containers, self.now());
        self.probes.show(ProbedPod {
            pod: &self.pod,
            observation: &observation,
            ip: "10.0.0.1",
            last_status: self.status.as_ref(),
        })
    }

    /// Waits until the prober says that something changed; the time is in milliseconds since the start.
    pub(crate) async fn change(&mut self) -> u128 {
        let change = tokio::time::timeout(Duration::from_secs(600), self.changes.next());
        let uid = change.await.expect("a change");
        assert_eq!(uid, Some(PodUid::from("u")));
        self.start.elapsed().as_millis()
    }

    /// Lets this time pass, counted from the start.
    pub(crate) async fn at(&self, ms: u64) {
        tokio::time::sleep_until(self.start + Duration::from_millis(ms)).await;
    }

    pub(crate) fn asked(&self, port: u16) -> Vec<u128> {
        let network = self.edges.network.lock().unwrap();
        network.asked.get(&port).cloned().unwrap_or_default()
    }

    pub(crate) fn port(&self, port: u16, works: bool) {
        let answer = if works { Ok(()) } else { Err("refused".to_owned()) };
        self.edges.network.lock().unwrap().ports.insert(port, answer);
    }

    pub(crate) fn events(&self) -> Vec<String> {
        self.edges.events.lock().unwrap().clone()
    }
}

/// Startup, readiness and liveness, as letters.
pub(crate) fn results(reading: &ProbeReading, id: &str) -> String {
    let of = reading.results.of(&ContainerId::from(id));
    [of.startup, of.readiness, of.liveness]
        .map(|result| match result {
            None => '-',
            Some(ProbeResult::Success) => '+',
            Some(ProbeResult::Failure) => 'x',
            Some(ProbeResult::Unknown) => '?',
        })
        .iter()
        .collect()
}

pub(crate) fn tcp(port: u16, more: &Value) -> Value {
    let mut probe = json!({"tcpSocket": {"port": port}, "periodSeconds": 10, "timeoutSeconds": 1});
    let fields = more.as_object().unwrap().clone();
    probe.as_object_mut().unwrap().extend(fields);
    probe
}
