//! The agent on a virtual clock: simulated runtime and files, and between them and the agent a line that each test scripts.
//!
//! Owns time and the order of polls. Tests wait for a state and never for a duration, except where "nothing happens" is the claim.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{BoxFuture, FutureExt};
use k8s_openapi::api::core::v1::{ContainerStatus, Node, Pod, PodStatus};
use prometheus::Registry;
use rubelet_agent::node_shutdown::{self, ShutdownHandle, ShutdownPorts, ShutdownSettings};
use rubelet_agent::settings::HttpSource;
use rubelet_agent::{AgentHandle, AgentMetrics, AgentPorts, AgentSettings, ApiPorts, NodeNow};
use rubelet_images::{Images, ImagesSettings};
use rubelet_model::explanation::{NodeExplanation, PodExplanation, WaitExplanation};
use rubelet_ports::{
    Clock, EventRecorder, FileError, MemoryKills, NoPodCgroups, NoReporter, NodeEvent, NodeEventRecorder,
    PodCgroups, PodEvent, PodReporter, PodView,
};
use rubelet_probes::{Probes, ProbesPorts, ProbesSettings};
use rubelet_sim::api::{SimApi, SimObjects};
use rubelet_sim::dialer::SimDialer;
use rubelet_sim::dice::SharedDice;
use rubelet_sim::edges::SimHttp;
use rubelet_sim::executor::{Executor, Group, Life, STALLED, Step};
use rubelet_sim::files::SimFiles;
use rubelet_sim::history::History;
use rubelet_sim::node;
use rubelet_sim::runtime::{Faults, SimRuntime};
use rubelet_sim::scenario::Scenario;
use rubelet_sim::shutdowns::SimShutdowns;
use rubelet_sim::trace::{Actor, Trace};
use rubelet_sim::volumes::SimVolumes;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::line::Line;

pub(crate) const IMAGE: &str = "registry.test/app:1";

/// Long enough for everything that should happen by itself and at once.
pub(crate) const SOON: Duration = Duration::from_secs(5);

/// An event with its pod's name.
type Recorded = (String, PodEvent);

/// What the kernel would say.
#[derive(Default)]
pub(crate) struct FakeMemoryKills {
    /// Whether it killed every container that it is asked about.
    pub(crate) all: AtomicBool,
    pub(crate) asked: AtomicUsize,
}

#[async_trait]
impl MemoryKills for FakeMemoryKills {
    async fn was_killed(&self, _container_id: &str) -> Result<bool, FileError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Ok(self.all.load(Ordering::Relaxed))
    }
}

struct Events {
    executor: Executor,
    trace: Trace,
    recorded: Mutex<Vec<Recorded>>,
    of_node: Mutex<Vec<NodeEvent>>,
}

impl NodeEventRecorder for Events {
    fn record_node(&self, event: NodeEvent) {
        let at = self.executor.elapsed();
        self.trace.say(at, Actor::Rubelet, format!("node: {event:?}"));
        self.of_node.lock().unwrap().push(event);
    }
}

impl EventRecorder for Events {
    fn record(&self, pod: &Pod, event: PodEvent) {
        let at = self.executor.elapsed();
        let pod = pod.metadata.name.clone().unwrap_or_default();
        self.trace.say(at, Actor::Rubelet, format!("{pod}: {event:?}"));
        self.recorded.lock().unwrap().push((pod, event));
    }
}

/// One run of the agent.
struct Running {
    life: Life,
    handle: AgentHandle,
    reporter: Arc<dyn PodReporter>,
}

pub(crate) struct Bed {
    pub(crate) executor: Executor,
    pub(crate) runtime: SimRuntime,
    pub(crate) line: Arc<Line>,
    pub(crate) files: SimFiles,
    pub(crate) volumes: SimVolumes,
    pub(crate) http: SimHttp,
    pub(crate) dialer: SimDialer,
    /// Changed before the agent starts.
    pub(crate) settings: AgentSettings,
    /// How the node is, as the agent sees it.
    pub(crate) node: NodeNow,
    pub(crate) cgroups: Arc<dyn PodCgroups>,
    pub(crate) memory_kills: Arc<FakeMemoryKills>,
    trace: Trace,
    history: History,
    events: Arc<Events>,
    running: Option<Running>,
    pub(crate) cluster: Option<Cluster>,
    /// What this life of the agent counts.
    pub(crate) registry: Registry,
}

/// The API server, for a node that has one.
pub(crate) struct Cluster {
    pub(crate) api: SimApi,
    pub(crate) objects: SimObjects,
    pub(crate) node: watch::Sender<Option<Arc<Node>>>,
}

impl Bed {
    /// A calm node with one image and no pods; the agent is not started yet.
    pub(crate) fn new() -> Self {
        let executor = Executor::new(1);
        let (trace, history) = (Trace::default(), History::default());
        let dice = |part| SharedDice::new(1, part);
        let files = SimFiles::new(
            &executor,
            dice("files"),
            history.clone(),
            trace.clone(),
            Path::new(node::MANIFESTS),
        );
        for directory in [node::ROOT, node::POD_LOGS, node::CONTAINER_LOGS] {
            files.make_directory(Path::new(directory));
        }
        files.place(Path::new("/etc/hosts"), b"127.0.0.1 localhost\n");
        files.place(Path::new(node::RESOLVER_FILE), b"nameserver 192.0.2.53\n");
        let runtime = SimRuntime::new(
            &executor,
            dice("runtime"),
            history.clone(),
            trace.clone(),
            files.clone(),
        );
        runtime.set_faults(Faults::calm());
        runtime.add_image(IMAGE);
        let volumes = SimVolumes::new(
            &executor,
            dice("volumes"),
            history.clone(),
            trace.clone(),
            files.clone(),
        );
        let mut settings = node::settings(&Scenario::roll(1));
        settings.http_source = None;
        Self {
            line: Arc::new(Line::new(&executor, &trace, &runtime)),
            http: SimHttp::new(&executor, dice("http"), history.clone()),
            history,
            cluster: None,
            registry: Registry::new(),
            dialer: SimDialer::new(&executor, dice("dialer")),
            events: Arc::new(Events {
                executor: executor.clone(),
                trace: trace.clone(),
                recorded: Mutex::default(),
                of_node: Mutex::default(),
            }),
            executor,
            runtime,
            files,
            volumes,
            settings,
            node: NodeNow {
                host_ips: Arc::new(node::host_ips()),
                ..NodeNow::standalone()
            },
            cgroups: Arc::new(NoPodCgroups),
            memory_kills: Arc::default(),
            trace,
            running: None,
        }
    }

    /// A calm node on which the agent runs.
    pub(crate) fn started() -> Self {
        let mut bed = Self::new();
        bed.start();
        bed
    }

    /// A second source that delivers nothing until it is told to serve.
    pub(crate) fn add_http_source(&mut self) {
        self.settings.http_source = Some(HttpSource {
            url: node::URL.to_owned(),
            headers: Vec::new(),
            check_interval: Duration::from_secs(1),
        });
    }

    /// A calm node of a cluster on which the agent runs.
    pub(crate) fn in_cluster() -> Self {
        Self::in_cluster_with(watch::channel(false).1)
    }

    /// The same, of a machine that may shut down.
    pub(crate) fn in_cluster_with(shutting_down: watch::Receiver<bool>) -> Self {
        let mut bed = Self::new();
        bed.node.shutting_down = shutting_down;
        let dice = SharedDice::new(1, "api");
        let api = SimApi::new(&bed.executor, dice, bed.history.clone(), bed.trace.clone());
        let objects = SimObjects::default();
        objects.set_services(Vec::new());
        let (node, object) = watch::channel(Some(Arc::new(known_node())));
        bed.node.object = object;
        bed.cluster = Some(Cluster { api, objects, node });
        bed.start();
        bed
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        self.cluster.as_ref().expect("a node of a cluster")
    }

    pub(crate) fn api(&self) -> SimApi {
        self.cluster().api.clone()
    }

    fn cluster_ports(&self, life: &Life) -> ApiPorts {
        let Some(cluster) = &self.cluster else {
            return ApiPorts {
                pods: None,
                objects: None,
                reporter: Arc::new(NoReporter),
            };
        };
        let reporter = cluster
            .api
            .reporter(Arc::new(life.clone()), cluster.node.subscribe());
        ApiPorts {
            pods: Some(Arc::new(cluster.api.clone())),
            objects: Some(Arc::new(cluster.objects.clone())),
            reporter: Arc::new(reporter),
        }
    }

    pub(crate) fn start(&mut self) {
        let life = self.executor.life();
        let clock: Arc<dyn Clock> = Arc::new(self.executor.clone());
        let runtime = Arc::new(self.runtime.clone());
        let events: Arc<dyn EventRecorder> = self.events.clone();
        let images = Images::new(
            ImagesSettings::default(),
            runtime.clone(),
            runtime,
            clock.clone(),
            events.clone(),
        );
        let files = Arc::new(self.files.clone());
        let volumes = node::volumes(&self.settings, &clock, &life, events.clone(), &self.volumes);
        let dialer = Arc::new(self.dialer.clone());
        let probes = Probes::new(
            ProbesSettings::default(),
            ProbesPorts {
                clock: clock.clone(),
                spawner: Arc::new(life.clone()),
                randomness: Arc::new(SharedDice::new(1, "probes")),
                runtime_writer: self.line.clone(),
                dialer: dialer.clone(),
                events: events.clone(),
            },
        );
        let api = self.cluster_ports(&life);
        let registry = Registry::new();
        let ports = AgentPorts {
            clock,
            spawner: Arc::new(life.clone()),
            randomness: Arc::new(SharedDice::new(1, "randomness")),
            runtime_reader: self.line.clone(),
            runtime_writer: self.line.clone(),
            images: Arc::new(images),
            volumes: Arc::new(volumes),
            file_reader: files.clone(),
            file_writer: files,
            http: Arc::new(self.http.clone()),
            dialer,
            probes: Arc::new(probes),
            events,
            node_events: self.events.clone(),
            cgroups: self.cgroups.clone(),
            memory_kills: self.memory_kills.clone(),
            api,
            node: self.node.clone(),
            metrics: Arc::new(AgentMetrics::register(&registry).unwrap()),
        };
        self.registry = registry;
        let reporter = ports.api.reporter.clone();
        let (handle, mut fatal) = rubelet_agent::start(ports, self.settings.clone());
        let (trace, executor) = (self.trace.clone(), self.executor.clone());
        self.executor.spawn(
            Group::World,
            "fatal",
            Box::pin(async move {
                if let Some(text) = fatal.recv().await {
                    trace.say(executor.elapsed(), Actor::Check, format!("FATAL {text}"));
                }
            }),
        );
        self.running = Some(Running {
            life,
            handle,
            reporter,
        });
    }

    /// Lets the agent that runs follow the shutdowns of its machine.
    pub(crate) fn follow_shutdowns(
        &self,
        service: &SimShutdowns,
        settings: ShutdownSettings,
        shutting_down: watch::Sender<bool>,
    ) -> ShutdownHandle {
        let running = self.running.as_ref().expect("the agent runs");
        let ports = ShutdownPorts {
            clock: Arc::new(self.executor.clone()),
            spawner: Arc::new(running.life.clone()),
            service: Arc::new(service.clone()),
            events: self.events.clone(),
            reporter: running.reporter.clone(),
            node: self.node.object.clone(),
            file_reader: Arc::new(self.files.clone()),
            file_writer: Arc::new(self.files.clone()),
        };
        node_shutdown::start(ports, settings, running.handle.clone(), shutting_down)
    }

    /// The agent dies where it is.
    pub(crate) fn kill(&mut self) {
        if let Some(running) = self.running.take() {
            running.life.end();
        }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.executor.elapsed()
    }

    /// Lets time pass.
    pub(crate) fn pass(&mut self, time: Duration) {
        let until = self.elapsed() + time;
        loop {
            if self.executor.step() == Step::Idle {
                let now = self.elapsed();
                if !self.executor.advance(until) && now >= until {
                    return;
                }
            }
        }
    }

    /// Waits until `look` finds something. It is asked whenever nothing is left to do at a point in time.
    pub(crate) fn until<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut look: impl FnMut(&mut Self) -> Option<T>,
    ) -> T {
        let until = self.elapsed() + limit;
        loop {
            if self.executor.step() != Step::Idle {
                continue;
            }
            if let Some(found) = look(self) {
                return found;
            }
            let now = self.elapsed();
            if !self.executor.advance(until) && now >= until {
                panic!("not within {limit:?}: {what}\n{}", self.trace.text(200));
            }
        }
    }

    /// Waits until something holds.
    pub(crate) fn wait(&mut self, what: &str, limit: Duration, mut holds: impl FnMut(&mut Self) -> bool) {
        self.until(what, limit, |bed| holds(bed).then_some(()));
    }

    /// The last lines of what happened, for a failed assertion.
    pub(crate) fn trace(&self) -> String {
        self.trace.text(120)
    }

    /// Begins to ask the agent something, without waiting for the answer.
    pub(crate) fn begin<T: Send + 'static>(
        &mut self,
        question: impl FnOnce(AgentHandle) -> BoxFuture<'static, T>,
    ) -> tokio::sync::oneshot::Receiver<T> {
        let handle = self.running.as_ref().expect("the agent runs").handle.clone();
        let answer = question(handle);
        let (sender, receiver) = tokio::sync::oneshot::channel();
        self.executor.spawn(
            Group::World,
            "question",
            Box::pin(async move {
                // A test that needs no answer drops the receiver.
                let _ = sender.send(answer.await);
            }),
        );
        receiver
    }

    /// Asks the agent something; time passes only as far as the answer needs it.
    pub(crate) fn ask<T: Send + 'static>(
        &mut self,
        question: impl FnOnce(AgentHandle) -> BoxFuture<'static, T>,
    ) -> T {
        let mut receiver = self.begin(question);
        let until = self.elapsed() + Duration::from_secs(120);
        loop {
            if let Some(Ok(answer)) = (&mut receiver).now_or_never() {
                return answer;
            }
            if self.executor.step() == Step::Idle {
                assert!(self.elapsed() < until, "no answer\n{}", self.trace());
                self.executor.advance(until);
            }
        }
    }

    /// The desired pods with their statuses.
    pub(crate) fn pods(&mut self) -> Vec<Arc<Pod>> {
        self.ask(|handle| async move { handle.pods().await }.boxed())
            .expect("the agent answers")
    }

    /// The status of the pod with this name; empty when there is none.
    pub(crate) fn status(&mut self, name: &str) -> PodStatus {
        let pods = self.pods();
        let pod = pods
            .iter()
            .find(|pod| pod.metadata.name.as_deref() == Some(&full(name)));
        pod.and_then(|pod| pod.status.clone()).unwrap_or_default()
    }

    pub(crate) fn phase(&mut self, name: &str) -> String {
        self.status(name).phase.unwrap_or_default()
    }

    pub(crate) fn is_ready(&mut self, name: &str) -> bool {
        let conditions = self.status(name).conditions.unwrap_or_default();
        conditions
            .iter()
            .any(|one| one.type_ == "Ready" && one.status == "True")
    }

    /// The status of the pod's only container.
    pub(crate) fn container(&mut self, name: &str) -> ContainerStatus {
        let statuses = self.status(name).container_statuses.unwrap_or_default();
        statuses.into_iter().next().unwrap_or_default()
    }

    pub(crate) fn explanations(&mut self) -> Vec<PodExplanation> {
        self.ask(|handle| async move { handle.explanations().await }.boxed())
            .expect("the agent answers")
    }

    pub(crate) fn node_explanation(&mut self) -> NodeExplanation {
        self.ask(|handle| async move { handle.node_explanation().await }.boxed())
            .expect("the agent answers")
    }

    fn wait_of(&mut self, name: &str) -> Option<WaitExplanation> {
        let explanation = self.explanations().into_iter().find(|one| one.name == full(name));
        explanation.and_then(|one| one.waits_for)
    }

    /// What the pod waits for, in words; empty when it waits for nothing or is not known.
    pub(crate) fn waits_for(&mut self, name: &str) -> String {
        self.wait_of(name).map(|wait| wait.what).unwrap_or_default()
    }

    /// What went wrong last, in words; empty when nothing did.
    pub(crate) fn last_error(&mut self, name: &str) -> String {
        self.wait_of(name)
            .and_then(|wait| wait.last_error)
            .unwrap_or_default()
    }

    pub(crate) fn explain(&mut self, name: &str) -> PodExplanation {
        let explanations = self.explanations();
        let found = explanations.into_iter().find(|one| one.name == full(name));
        found.unwrap_or_else(|| panic!("{name} is not explained\n{}", self.trace()))
    }

    /// Writes the pod's manifest, and waits for nothing.
    pub(crate) fn put(&mut self, pod: &PodText) {
        self.files.place(&pod.path(), &pod.json());
    }

    pub(crate) fn remove(&mut self, pod: &PodText) {
        self.files.take_away(&pod.path());
    }

    pub(crate) fn put_and_wait(&mut self, pod: &PodText) {
        self.put(pod);
        let name = pod.name.clone();
        self.wait(&format!("{name} is ready"), SOON, |bed| bed.is_ready(&name));
    }

    /// The pod's events with this reason.
    pub(crate) fn events(&self, pod: &str, reason: &str) -> Vec<PodEvent> {
        self.events_of(&full(pod), reason)
    }

    /// The node's events with this reason.
    pub(crate) fn node_events(&self, reason: &str) -> Vec<NodeEvent> {
        let mut told = self.events.of_node.lock().unwrap().clone();
        told.retain(|event| event.reason == reason);
        told
    }

    /// The same by the pod's whole name.
    pub(crate) fn events_of(&self, pod: &str, reason: &str) -> Vec<PodEvent> {
        let recorded = self.events.recorded.lock().unwrap();
        let of_pod = recorded
            .iter()
            .filter(|(name, event)| name == pod && event.reason == reason);
        of_pod.map(|(_, event)| event.clone()).collect()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.kill();
        // Tasks hold the executor that holds them.
        self.executor.drop_group(Group::World);
        let texts = self.executor.take_panics();
        let stall = texts.iter().find(|text| text.contains(STALLED));
        assert!(std::thread::panicking() || stall.is_none(), "{stall:?}");
    }
}

/// The Node object of a node that the API server knows.
pub(crate) fn known_node() -> Node {
    let mut known = Node::default();
    known.metadata.name = Some(node::NODE_NAME.to_owned());
    known.metadata.uid = Some("uid-of-node".to_owned());
    known
}

/// A static pod's name has the node's behind it.
pub(crate) fn full(name: &str) -> String {
    format!("{name}-{}", node::NODE_NAME)
}

/// A pod with one container, and what a test changes of it.
#[derive(Clone, Debug)]
pub(crate) struct PodText {
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) uid: String,
    pub(crate) spec: Value,
    pub(crate) metadata: Value,
}

impl PodText {
    /// `args` is the script of the container's process, such as `runs=500:1,forever`.
    pub(crate) fn new(name: &str, args: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            file: name.to_owned(),
            uid: format!("uid-{name}"),
            spec: json!({
                "terminationGracePeriodSeconds": 5,
                "containers": [{"name": "main", "image": IMAGE, "args": args}],
            }),
            metadata: json!({}),
        }
    }

    pub(crate) fn spec(mut self, key: &str, value: Value) -> Self {
        self.spec[key] = value;
        self
    }

    pub(crate) fn container(mut self, key: &str, value: Value) -> Self {
        self.spec["containers"][0][key] = value;
        self
    }

    pub(crate) fn uid(mut self, uid: &str) -> Self {
        uid.clone_into(&mut self.uid);
        self
    }

    pub(crate) fn path(&self) -> PathBuf {
        node::manifest_path(&self.file)
    }

    pub(crate) fn document(&self) -> Value {
        let mut metadata = self.metadata.clone();
        metadata["name"] = json!(self.name);
        metadata["uid"] = json!(self.uid);
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": self.spec})
    }

    fn json(&self) -> Vec<u8> {
        self.document().to_string().into_bytes()
    }
}
