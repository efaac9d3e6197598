//! Starting and stopping everything that listens.
//!
//! Owns which ports the settings open, in upstream's order of failures: access, then certificates, then the ports.
//! Listening and serving are two steps: a node that finds its ports taken must not have touched a pod before.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rubelet_config::version::KUBERNETES_VERSION;
use rubelet_config::{Gate, Settings};
use rubelet_ports::api::Reviewer;
use rubelet_ports::{
    Clock, CpuProfiler, FileReader, LogFileReader, MetricsPages, NodeLogReader, NodeStatistics, PodView,
    RuntimeWriter,
};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::ServerError;
use crate::access::{self, Access};
use crate::api::{Api, Metrics};
use crate::checkpoint::Checkpoints;
use crate::configz::configz;
use crate::listener::{Local, Plain, Tls, accept_connections, listen};
use crate::logs::ContainerLogs;
use crate::metrics::{CountedPort, ServerMetrics};
use crate::node_logs::NodeLogs;
use crate::paths::{Check, Paths};
use crate::pods::DesiredPods;
use crate::profile::Profiles;
use crate::stopping::Stopping;
use crate::streams::Streams;
use crate::tls::{ServingCertificate, TlsSetup};
use crate::verbosity::SetVerbosity;
use crate::why::{WhyApi, WhySocket};
use crate::zpages::ZPages;

/// How many connections each port serves at a time; more wait in the kernel's queue, or get the slot of one that is idle.
const TLS_CONNECTIONS: usize = 1024;
const READ_ONLY_CONNECTIONS: usize = 256;
const HEALTHZ_CONNECTIONS: usize = 32;
const WHY_CONNECTIONS: usize = 16;
/// Upstream's pause before it tries the health port again.
const HEALTHZ_RETRY: Duration = Duration::from_secs(5);
/// A little more than the listeners wait for answers in flight.
const STOP_LIMIT: Duration = Duration::from_secs(6);

/// What has to be known before anything listens.
pub struct ListenOptions {
    pub settings: Arc<Settings>,
    pub node_name: String,
    pub files: Arc<dyn FileReader>,
    /// Reviews of tokens and access by the API server; `None` on a node without one.
    pub reviewer: Option<Arc<dyn Reviewer>>,
    /// The certificate that the server shows, managed by another part of rubelet. `None` leaves it to the server: the configured files, or
    /// a self-signed pair below `--cert-dir`, read again when they change.
    pub certificate: Option<Arc<ServingCertificate>>,
}

/// What answers are made from.
pub struct ServeOptions {
    /// The cgroup driver in force, which `/configz` shows.
    pub cgroup_driver: String,
    pub pods: Arc<dyn PodView>,
    /// Used to open sessions in containers and to write their checkpoints, and for nothing else.
    pub runtime: Arc<dyn RuntimeWriter>,
    pub clock: Arc<dyn Clock>,
    pub log_files: Arc<dyn LogFileReader>,
    pub node_logs: Arc<dyn NodeLogReader>,
    pub set_verbosity: Arc<SetVerbosity>,
    /// Where requests and health checks are counted.
    pub metrics: ServerMetrics,
    pub metrics_pages: Arc<dyn MetricsPages>,
    pub statistics: Arc<dyn NodeStatistics>,
    /// `None` where rubelet is built without it.
    pub cpu_profiler: Option<Arc<dyn CpuProfiler>>,
}

/// The node's HTTP API and the socket of `rubelet why`, listening but not answering yet.
pub struct Server {
    settings: Arc<Settings>,
    node_name: String,
    files: Arc<dyn FileReader>,
    reviewer: Option<Arc<dyn Reviewer>>,
    tls: TlsSetup,
    ports: Option<Ports>,
    healthz: Option<SocketAddr>,
    why: WhySocket,
}

struct Ports {
    tls: TcpListener,
    read_only: Option<TcpListener>,
}

impl Server {
    /// Listens on the ports of the settings, and on the local socket under the root directory, which has to exist. Everything
    /// that can be wrong is found here, except for the health port, which is tried again and again as upstream does.
    ///
    /// # Errors
    /// When the settings cannot be honoured without an API server, a certificate cannot be had, a port is taken, or another
    /// rubelet has the root directory.
    pub async fn listen(options: ListenOptions) -> Result<Self, ServerError> {
        let ListenOptions {
            settings,
            node_name,
            files,
            reviewer,
            certificate,
        } = options;
        let configuration = settings.configuration();
        access::check(configuration, reviewer.is_some())?;
        // Before the ports: the rubelet that has the root directory has the rest as well.
        let why = WhySocket::bind(&settings.flags().root_dir)?;
        let tls = TlsSetup::prepare(&settings, &node_name, files.as_ref(), certificate).await?;
        let ports = if configuration.enable_server == Some(false) {
            None
        } else {
            for setting in access::insecure_settings(configuration) {
                tracing::warn!("{setting}");
            }
            let bind = async |setting: &'static str, port: i32| {
                let address = address("address", &configuration.address, port)?;
                listen(setting, address).await
            };
            Some(Ports {
                tls: bind("port", configuration.port).await?,
                read_only: match configuration.read_only_port {
                    port @ 1.. => Some(bind("readOnlyPort", port).await?),
                    _ => None,
                },
            })
        };
        let healthz = match configuration.healthz_port {
            Some(port @ 1..) => Some(address(
                "healthzBindAddress",
                &configuration.healthz_bind_address,
                port,
            )?),
            _ => None,
        };
        Ok(Self {
            settings,
            node_name,
            files,
            reviewer,
            tls,
            ports,
            healthz,
            why,
        })
    }

    /// Begins to answer.
    #[must_use]
    pub fn serve(self, options: ServeOptions) -> ServerHandle {
        let (stop, stopping) = watch::channel(false);
        let stopping = Stopping::new(stopping);
        let certificate_files = self.tls.certificate_files();
        let configz = configz(&self.settings, certificate_files, &options.cgroup_driver).to_string();
        let idle_limit = self.settings.configuration().streaming_connection_idle_timeout;
        let streams = Streams::new(
            Arc::clone(&options.pods),
            Arc::clone(&options.runtime),
            idle_limit.to_std().filter(|limit| !limit.is_zero()),
            self.settings.gates().enabled(Gate::ExtendWebSocketsToKubelet),
            options.metrics.clone(),
            stopping.clone(),
        );
        let paths = Paths::authenticated(&self.settings);
        let root_dir = &self.settings.flags().root_dir;
        let parts = Parts {
            node_logs: Arc::new(NodeLogs::new(&self.settings, options.node_logs)),
            checkpoints: Arc::new(Checkpoints::new(
                root_dir,
                options.runtime,
                Arc::clone(&options.clock),
            )),
            profiles: Profiles::new(options.cpu_profiler),
            zpages: Arc::new(zpages(&self.settings, &paths, options.clock.as_ref())),
            set_verbosity: options.set_verbosity,
            clock: Arc::clone(&options.clock),
            metrics: Arc::new(Metrics {
                counts: options.metrics,
                pages: options.metrics_pages,
            }),
            statistics: Arc::clone(&options.statistics),
            configz: configz.into(),
            logs: Arc::new(ContainerLogs::new(
                &self.settings,
                Arc::clone(&options.log_files),
                Arc::clone(&options.clock),
            )),
            streams: Arc::new(streams),
            pods: Arc::clone(&options.pods),
            desired: Arc::default(),
            stopping: stopping.clone(),
        };
        let mut tasks = JoinSet::new();
        if let Some(ports) = self.ports {
            let reviewer = self.reviewer.as_ref();
            let authorities = self.tls.authorities();
            let access = Access::new(
                &self.settings,
                &self.node_name,
                authorities,
                reviewer,
                &options.clock,
            );
            let mut api = parts.api(paths, Some(access), &Check::ALL);
            api.counted = Some(CountedPort::Authenticated);
            let greeter = Tls {
                handler: Arc::new(api),
                configuration: self.tls.configuration(),
            };
            parts.serve(&mut tasks, ports, greeter);
            tasks.spawn(self.tls.follow(self.files, stopping.clone()));
        }
        if let Some(address) = self.healthz {
            let api = Arc::new(parts.api(Paths::healthz(), None, &[Check::Ping]));
            tasks.spawn(serve_healthz(address, api, stopping.clone()));
        }
        let (listener, why_guard) = self.why.into_parts();
        let why_api = Local(Arc::new(WhyApi::new(options.pods, options.statistics)));
        tasks.spawn(async move {
            accept_connections("why", listener, WHY_CONNECTIONS, why_api, stopping).await;
            drop(why_guard);
        });
        ServerHandle { stop, tasks }
    }
}

fn zpages(settings: &Settings, paths: &Paths, clock: &dyn Clock) -> ZPages {
    ZPages {
        flags: settings.flag_texts().clone(),
        started: clock.now(),
        binary_version: KUBERNETES_VERSION.trim_start_matches('v').to_owned(),
        paths: paths.all(),
    }
}

/// What several ports share.
struct Parts {
    configz: Bytes,
    logs: Arc<ContainerLogs>,
    streams: Arc<Streams>,
    node_logs: Arc<NodeLogs>,
    checkpoints: Arc<Checkpoints>,
    profiles: Profiles,
    zpages: Arc<ZPages>,
    set_verbosity: Arc<SetVerbosity>,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    statistics: Arc<dyn NodeStatistics>,
    pods: Arc<dyn PodView>,
    desired: Arc<DesiredPods>,
    stopping: Stopping,
}

impl Parts {
    fn api(&self, paths: Paths, access: Option<Access>, checks: &'static [Check]) -> Api {
        Api {
            paths,
            access,
            checks,
            pods: Arc::clone(&self.pods),
            desired: Arc::clone(&self.desired),
            configz: self.configz.clone(),
            logs: Arc::clone(&self.logs),
            streams: Arc::clone(&self.streams),
            node_logs: Arc::clone(&self.node_logs),
            checkpoints: Arc::clone(&self.checkpoints),
            profiles: self.profiles.clone(),
            zpages: Arc::clone(&self.zpages),
            set_verbosity: Arc::clone(&self.set_verbosity),
            clock: Arc::clone(&self.clock),
            metrics: Arc::clone(&self.metrics),
            statistics: Arc::clone(&self.statistics),
            counted: None,
            stopping: self.stopping.clone(),
        }
    }

    /// The ports of the API itself.
    fn serve(&self, tasks: &mut JoinSet<()>, ports: Ports, greeter: Tls) {
        let address = |listener: &TcpListener| match listener.local_addr() {
            Ok(address) => address.to_string(),
            Err(error) => error.to_string(),
        };
        tracing::info!(address = address(&ports.tls), "The API answers");
        let stopping = self.stopping.clone();
        tasks.spawn(accept_connections(
            "api",
            ports.tls,
            TLS_CONNECTIONS,
            greeter,
            stopping,
        ));
        if let Some(listener) = ports.read_only {
            tracing::info!(address = address(&listener), "The read-only port answers");
            let mut api = self.api(Paths::read_only(), None, &Check::ALL);
            api.counted = Some(CountedPort::ReadOnly);
            let api = Plain(Arc::new(api));
            let stopping = self.stopping.clone();
            tasks.spawn(accept_connections(
                "read-only",
                listener,
                READ_ONLY_CONNECTIONS,
                api,
                stopping,
            ));
        }
    }
}

fn address(setting: &'static str, host: &str, port: i32) -> Result<SocketAddr, ServerError> {
    let bad = || ServerError::BadAddress {
        setting,
        value: format!("{host}:{port}"),
    };
    let host: IpAddr = host.parse().map_err(|_| bad())?;
    let port = u16::try_from(port).map_err(|_| bad())?;
    Ok(SocketAddr::new(host, port))
}

/// A health port that is taken does not keep the node from running: it is tried again and again.
async fn serve_healthz(address: SocketAddr, api: Arc<Api>, mut stopping: Stopping) {
    let mut is_logged = false;
    loop {
        match listen("healthzPort", address).await {
            Ok(listener) => {
                let api = Plain(api);
                return accept_connections("healthz", listener, HEALTHZ_CONNECTIONS, api, stopping).await;
            }
            Err(error) if is_logged => tracing::debug!(%error, "The health port is still taken"),
            Err(error) => {
                let source = std::error::Error::source(&error).map(ToString::to_string);
                tracing::error!(%error, source, "The health port does not listen; it is tried again");
                is_logged = true;
            }
        }
        tokio::select! {
            biased;
            () = stopping.begun() => return,
            () = tokio::time::sleep(HEALTHZ_RETRY) => {}
        }
    }
}

/// The running server. Dropping it cuts every connection off.
pub struct ServerHandle {
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl ServerHandle {
    /// Takes no new connection and waits a few seconds for the answers in flight.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        let all = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(STOP_LIMIT, all).await.is_err() {
            tracing::warn!("The server does not stop in time and is cut off");
        }
    }

    /// Waits for a part of the server to fail, which only a panic can make it do, and returns its name.
    pub async fn failed(&mut self) -> String {
        loop {
            match self.tasks.join_next().await {
                Some(Err(error)) => return error.to_string(),
                Some(Ok(())) => {}
                None => std::future::pending().await,
            }
        }
    }
}
