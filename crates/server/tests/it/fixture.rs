//! A server of a test's own, and pods that the test makes up.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, bail};
use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use prometheus::{Registry, TextEncoder};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rubelet_config::{Files, HostFacts, Invocation, Settings, load};
use rubelet_host::clock::HostClock;
use rubelet_host::files::HostFiles;
use rubelet_host::{HostLogFiles, HostNodeLogs};
use rubelet_model::explanation::PodExplanation;
use rubelet_model::observation::{PodObservation, PodUid};
use rubelet_ports::api::Reviewer;
use rubelet_ports::{
    Clock, CpuProfiler, MetricsPage, MetricsPages, NoAnswer, NoSummary, NodeStatistics, PagePieces, PodView,
    RuntimeError, RuntimeWriter, SummaryExtent,
};
use rubelet_server::{
    ListenOptions, ServeOptions, Server, ServerError, ServerHandle, ServerMetrics, ServingCertificate,
    SetVerbosity,
};
use rubelet_testbed::Scope;
use rubelet_testbed::wait::wait_until;
use serde_json::{Value, json};

use crate::client::{Connection, DEADLINE, Identity};
use crate::runtime::FakeRuntime;

/// What the agent would say.
#[derive(Default)]
pub(crate) struct FakePods {
    pub(crate) pods: Mutex<Vec<Arc<Pod>>>,
    pub(crate) observed: Mutex<Vec<Arc<PodObservation>>>,
    /// How often everything was asked for.
    pub(crate) relists: AtomicUsize,
    pub(crate) explanations: Mutex<Vec<PodExplanation>>,
    pub(crate) records: Mutex<BTreeMap<String, Value>>,
    pub(crate) sync_loop_problem: Mutex<Option<String>>,
    /// UIDs of pods on the node by those of their mirrors.
    pub(crate) mirrors: Mutex<BTreeMap<String, String>>,
}

impl FakePods {
    pub(crate) fn set(&self, pod: Value) -> Result<()> {
        *self.pods.lock().unwrap() = vec![Arc::new(serde_json::from_value(pod)?)];
        Ok(())
    }

    /// What is for one pod does not wait for a look at all others.
    pub(crate) fn assert_no_relist(&self) {
        assert_eq!(self.relists.load(Ordering::SeqCst), 0, "all pods were looked at");
    }
}

#[async_trait]
impl PodView for FakePods {
    async fn pods(&self) -> Result<Vec<Arc<Pod>>, NoAnswer> {
        Ok(self.pods.lock().unwrap().clone())
    }

    async fn runtime_pods(&self) -> Result<Vec<Arc<PodObservation>>, RuntimeError> {
        self.relists.fetch_add(1, Ordering::SeqCst);
        Ok(self.observed.lock().unwrap().clone())
    }

    async fn runtime_pod(&self, uid: &PodUid) -> Result<Option<Arc<PodObservation>>, RuntimeError> {
        let observed = self.observed.lock().unwrap();
        Ok(observed.iter().find(|pod| pod.uid == *uid).cloned())
    }

    async fn explanations(&self) -> Result<Vec<PodExplanation>, NoAnswer> {
        Ok(self.explanations.lock().unwrap().clone())
    }

    async fn flight_record(&self, uid: &str) -> Result<Option<Value>, NoAnswer> {
        Ok(self.records.lock().unwrap().get(uid).cloned())
    }

    async fn events(&self) -> Result<Vec<Value>, NoAnswer> {
        Ok(vec![json!({ "reason": "Started" })])
    }

    fn uid_on_node(&self, uid: &str) -> PodUid {
        let mirrors = self.mirrors.lock().unwrap();
        PodUid::from(mirrors.get(uid).map_or(uid, String::as_str))
    }

    fn sync_loop_health(&self) -> Result<(), String> {
        match self.sync_loop_problem.lock().unwrap().clone() {
            Some(problem) => Err(problem),
            None => Ok(()),
        }
    }
}

/// The one configuration file of a test that is no file.
struct OneFile(String);

impl Files for OneFile {
    fn current_dir(&self) -> io::Result<PathBuf> {
        Ok(PathBuf::from("/"))
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        if path != Path::new("/config.json") {
            return fs::read(path);
        }
        Ok(self.0.clone().into_bytes())
    }

    fn is_dir(&self, _: &Path) -> io::Result<bool> {
        Ok(false)
    }

    fn list(&self, _: &Path) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }
}

/// A pair for `node-a`, the certificate followed by the one that signed it. Quicker to make than the server's own.
pub(crate) fn pair() -> Result<(String, String)> {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(vec!["node-a".to_owned()])?.signed_by(&key, &authority)?;
    Ok((
        format!("{}{}", certificate.pem(), authority.pem()),
        key.serialize_pem(),
    ))
}

/// What the server itself counts, and a page of probes that says which it is.
struct Pages {
    node: Registry,
    health_checks: Registry,
    metrics: ServerMetrics,
}

impl Pages {
    fn new() -> Result<Self> {
        let (node, health_checks) = (Registry::new(), Registry::new());
        Ok(Self {
            metrics: ServerMetrics::register(&node, &health_checks)?,
            node,
            health_checks,
        })
    }
}

#[async_trait]
impl MetricsPages for Pages {
    async fn page(&self, page: MetricsPage) -> String {
        let registry = match page {
            MetricsPage::Node => &self.node,
            MetricsPage::HealthChecks => &self.health_checks,
            MetricsPage::Probes => return "# HELP probes x\n# TYPE probes gauge\nprobes 1\n".to_owned(),
        };
        TextEncoder::new().encode_to_string(&registry.gather()).unwrap()
    }
}

/// Of the page of containers: more than all buffers on the way take.
pub(crate) const CONTAINER_PIECES: usize = 400;

/// 64 KiB of it.
pub(crate) fn container_piece(number: usize) -> Vec<u8> {
    format!("{:>65535}\n", format!("containers {number}")).into_bytes()
}

/// Pages of statistics that say which they are.
#[derive(Default)]
pub(crate) struct FakeStatistics {
    pub(crate) has_no_summary: AtomicBool,
    /// Pieces of the page of containers that were made.
    pub(crate) pieces_made: Arc<AtomicUsize>,
}

#[async_trait]
impl NodeStatistics for FakeStatistics {
    async fn resource_page(&self) -> Arc<[u8]> {
        Arc::from(*b"# HELP resources x\n# TYPE resources gauge\nresources 1 1763495289123\n")
    }

    fn renew_metrics(&self) {}

    async fn container_page(&self) -> PagePieces {
        let made = Arc::clone(&self.pieces_made);
        let pieces = (0..CONTAINER_PIECES).map(move |number| {
            made.fetch_add(1, Ordering::Relaxed);
            container_piece(number)
        });
        Box::new(pieces)
    }

    async fn summary(&self, extent: SummaryExtent) -> Result<Arc<[u8]>, NoSummary> {
        if self.has_no_summary.load(Ordering::Relaxed) {
            return Err(NoSummary("the runtime is away".to_owned()));
        }
        Ok(match extent {
            SummaryExtent::CpuAndMemory => Arc::from(*b"{\"short\": 1}"),
            SummaryExtent::Everything => Arc::from(*b"{\"all\": 1}"),
        })
    }
}

pub(crate) struct Ports {
    pub(crate) tls: u16,
    pub(crate) read_only: u16,
    pub(crate) healthz: u16,
}

/// A configuration for a test, not started yet.
pub(crate) struct Setup<'a> {
    pub(crate) scope: &'a Scope,
    pub(crate) ports: Ports,
    pub(crate) pods: Arc<FakePods>,
    pub(crate) runtime: Arc<FakeRuntime>,
    pub(crate) real_runtime: Option<Arc<dyn RuntimeWriter>>,
    pub(crate) reviewer: Option<Arc<dyn Reviewer>>,
    pub(crate) certificate: Option<Arc<ServingCertificate>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) set_verbosity: Arc<SetVerbosity>,
    pub(crate) cpu_profiler: Option<Arc<dyn CpuProfiler>>,
    pub(crate) statistics: Arc<FakeStatistics>,
    pages: Arc<Pages>,
    root: PathBuf,
    rubelet_configuration: Option<PathBuf>,
    configuration: Value,
}

impl<'a> Setup<'a> {
    /// All requests are authorized; all ports listen.
    pub(crate) fn new(scope: &'a Scope) -> Result<Self> {
        let ports = Ports {
            tls: scope.port()?,
            read_only: scope.port()?,
            healthz: scope.port()?,
        };
        fs::create_dir_all(scope.path("root"))?;
        fs::create_dir_all(scope.path("var-log"))?;
        let certificate = scope.path("pki/kubelet.crt");
        if !certificate.exists() && !scope.path("pki/kubelet.key").exists() {
            let (made, key) = pair()?;
            fs::write(certificate, made)?;
            fs::write(scope.path("pki/kubelet.key"), key)?;
        }
        let configuration = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "127.0.0.1",
            "port": ports.tls,
            "readOnlyPort": ports.read_only,
            "healthzPort": ports.healthz,
            "podLogsDir": scope.path("logs-of-pods"),
            "authentication": { "anonymous": { "enabled": true }, "webhook": { "enabled": false } },
            "authorization": { "mode": "AlwaysAllow" },
        });
        Ok(Self {
            scope,
            ports,
            pods: Arc::new(FakePods::default()),
            runtime: Arc::default(),
            real_runtime: None,
            reviewer: None,
            certificate: None,
            clock: Arc::new(HostClock::new()),
            set_verbosity: Arc::new(|_| {}),
            cpu_profiler: None,
            statistics: Arc::default(),
            pages: Arc::new(Pages::new()?),
            root: scope.path("root"),
            rubelet_configuration: None,
            configuration,
        })
    }

    /// The server has to make its own.
    pub(crate) fn without_certificate(self) -> Result<Self> {
        fs::remove_dir_all(self.scope.path("pki"))?;
        Ok(self)
    }

    /// Changes one field of the configuration.
    pub(crate) fn with(mut self, field: &str, value: Value) -> Self {
        self.configuration[field] = value;
        self
    }

    /// The switches that only rubelet has.
    pub(crate) fn with_rubelet_configuration(mut self, file: &Path) -> Self {
        self.rubelet_configuration = Some(file.to_owned());
        self
    }

    pub(crate) fn at_root(mut self, root: PathBuf) -> Self {
        self.root = root;
        self
    }

    pub(crate) fn settings(&self) -> Result<Settings> {
        let mut arguments = vec![
            "--config=/config.json".to_owned(),
            "--hostname-override=node-a".to_owned(),
            format!("--root-dir={}", self.root.display()),
            format!("--cert-dir={}", self.scope.path("pki").display()),
        ];
        let rubelet = self.rubelet_configuration.iter();
        arguments.extend(rubelet.map(|file| format!("--rubelet-config={}", file.display())));
        let files = OneFile(self.configuration.to_string());
        match load(&arguments, &files, HostFacts { cgroup_v2: true })? {
            Invocation::Run(settings) => Ok(*settings),
            Invocation::Print(text) => bail!("{text}"),
        }
    }

    pub(crate) async fn try_start(&self) -> Result<Result<ServerHandle, ServerError>> {
        let listening = Server::listen(ListenOptions {
            settings: Arc::new(self.settings()?),
            node_name: "node-a".to_owned(),
            files: Arc::new(HostFiles::new()),
            reviewer: self.reviewer.clone(),
            certificate: self.certificate.clone(),
        });
        let fake = || Arc::clone(&self.runtime) as Arc<dyn RuntimeWriter>;
        Ok(listening.await.map(|server| {
            server.serve(ServeOptions {
                cgroup_driver: "cgroupfs".to_owned(),
                pods: Arc::clone(&self.pods) as Arc<dyn PodView>,
                runtime: self.real_runtime.clone().unwrap_or_else(fake),
                clock: Arc::clone(&self.clock),
                log_files: Arc::new(HostLogFiles::new()),
                node_logs: Arc::new(HostNodeLogs::new(
                    self.scope.path("var-log"),
                    self.scope.path("journalctl"),
                )),
                set_verbosity: self.set_verbosity.clone(),
                metrics: self.pages.metrics.clone(),
                metrics_pages: self.pages.clone(),
                statistics: self.statistics.clone(),
                cpu_profiler: self.cpu_profiler.clone(),
            })
        }))
    }

    pub(crate) async fn start(self) -> Result<Running> {
        let server = self.try_start().await?.context("the server starts")?;
        Ok(Running {
            certificate: self.scope.path("pki/kubelet.crt"),
            logs_dir: self.scope.path("logs-of-pods"),
            socket: self.scope.path("root/rubelet.sock"),
            ports: self.ports,
            pods: self.pods,
            runtime: self.runtime,
            server,
        })
    }
}

pub(crate) struct Running {
    pub(crate) server: ServerHandle,
    pub(crate) ports: Ports,
    pub(crate) pods: Arc<FakePods>,
    pub(crate) runtime: Arc<FakeRuntime>,
    pub(crate) certificate: PathBuf,
    pub(crate) logs_dir: PathBuf,
    pub(crate) socket: PathBuf,
}

impl Running {
    pub(crate) async fn tls(&self) -> Result<Connection> {
        Connection::tls(self.ports.tls, &self.certificate, None).await
    }

    pub(crate) async fn tls_as(&self, identity: &Identity) -> Result<Connection> {
        Connection::tls(self.ports.tls, &self.certificate, Some(identity)).await
    }

    pub(crate) async fn read_only(&self) -> Result<Connection> {
        Connection::plain(self.ports.read_only).await
    }

    /// The one port that a started server may not have yet: it is tried again and again.
    pub(crate) async fn healthz(&self) -> Result<Connection> {
        wait_until("the health port listens", DEADLINE, async || {
            Connection::plain(self.ports.healthz).await
        })
        .await
    }
}
