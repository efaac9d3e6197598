//! From settings to a running node and back: the one composition root.
//!
//! The order is upstream's: warnings, effective configuration, limits, watchdog, lock file, runtime, readiness; then the node runs
//! until a signal or until another process opens the lock file, and drains with a deadline.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rubelet_agent::node_shutdown::ShutdownHandle;
use rubelet_agent::{AgentHandle, AgentSettings};
use rubelet_certificates::CertificateHandle;
use rubelet_config::gates::Gate;
use rubelet_config::settings::Settings;
use rubelet_cri::{CriClient, CriMetrics, CriOptions};
use rubelet_eviction::EvictionHandle;
use rubelet_host::HostFiles;
use rubelet_host::cgroup::CgroupVersion;
use rubelet_host::lock::LockFile;
use rubelet_host::machine::Machine;
use rubelet_host::open_files;
use rubelet_host::service_manager::{ServiceManager, watchdog_interval_from_environment};
use rubelet_images::garbage::GarbageHandle;
use rubelet_logs::RotationHandle;
use rubelet_node::NodeHandle;
use rubelet_ports::api::Reviewer;
use rubelet_ports::{CpuProfiler, NodeStatistics, PodView, RuntimeReader as _, Spawner as _};
use rubelet_server::{ListenOptions, ServeOptions, Server, ServerHandle, ServerMetrics};
use tokio::sync::{mpsc, oneshot, watch};

use crate::agent::{self, Given, NodeFound};
use crate::certificates;
use crate::cgroup_driver;
use crate::cgroups;
use crate::cluster::{self, Findings};
use crate::drain::{Drained, drain};
use crate::edges::Edges;
use crate::images::NodeImages;
use crate::logging;
use crate::logs;
use crate::metrics::{self, Registries};
use crate::network;
use crate::node_report;
use crate::node_settings;
use crate::pressure;
use crate::shutdown;
use crate::signals::StopSignals;
use crate::statistics;
use crate::unknown_volumes;
use crate::watchdog;

/// As upstream: only root and its group can read the directories of pods.
const DATA_DIR_MODE: u32 = 0o750;
/// Work that is still under way this long after a stop signal is abandoned.
const DRAIN_DEADLINE: Duration = Duration::from_secs(10);

/// Runs the node until it is asked to stop.
pub(crate) fn run(settings: Settings) -> Result<()> {
    for warning in settings.warnings() {
        tracing::warn!("{warning}");
    }
    if std::env::var_os("DISABLE_HTTP2").is_some_and(|value| !value.is_empty()) {
        tracing::warn!("DISABLE_HTTP2 has no effect: rubelet speaks HTTP/2 with the API server where it can");
    }
    tracing::info!(version = settings.reported_version(), "Rubelet starts");
    tracing::debug!(
        configuration = settings.effective_yaml(),
        "Effective configuration"
    );
    // Before anything opens a file that the limit in force might be too low for.
    limit_open_files(&settings);
    let cgroup = cgroup_version()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start the async runtime")?;
    let result = runtime.block_on(node(Arc::new(settings), cgroup));
    // Blocking threads, such as the lock file's watcher, never end by themselves.
    runtime.shutdown_background();
    result
}

fn limit_open_files(settings: &Settings) {
    // Validation has refused what is below zero.
    let wanted = u64::try_from(settings.configuration().max_open_files).unwrap_or(0);
    if let Err(error) = open_files::set_limit(wanted) {
        tracing::warn!(
            limit = error.limit,
            error = %error.source,
            "The limit of open files cannot be set to maxOpenFiles ({wanted}); raising it takes CAP_SYS_RESOURCE"
        );
    }
}

/// That this machine's version is allowed was checked with the settings.
fn cgroup_version() -> Result<CgroupVersion> {
    let version = CgroupVersion::of_this_machine().context("look at /sys/fs/cgroup")?;
    if version == CgroupVersion::V1 {
        tracing::warn!("This machine has cgroup v1; upstream no longer supports it");
    }
    Ok(version)
}

async fn node(settings: Arc<Settings>, cgroup: CgroupVersion) -> Result<()> {
    // First, so that a signal during start-up is not lost.
    let mut signals = StopSignals::new().context("take over the stop signals")?;
    let watchdog_interval = watchdog_interval_from_environment().context("configure the watchdog")?;
    let service_manager = Arc::new(ServiceManager::from_environment().context("read NOTIFY_SOCKET")?);

    let started = tokio::select! {
        biased;
        // The process ends now, so that whatever the start-up has begun ends with it; no pod was touched yet.
        signal = signals.next() => {
            tracing::info!(signal, "Stopped during start-up");
            return Ok(());
        }
        started = start(&settings, cgroup) => started?,
    };
    let Started {
        mut running,
        mut defects,
        lock,
        contention,
    } = started;
    service_manager
        .ready()
        .unwrap_or_else(|error| tracing::warn!(%error, "Cannot notify the service manager"));
    tracing::info!("Rubelet is ready");

    let health = move || running.health.sync_loop_health();
    let notified = Arc::clone(&service_manager);
    let keep_alive = tokio::spawn(watchdog::serve(watchdog_interval, health, move || {
        notified.alive()
    }));
    let reason = tokio::select! {
        biased;
        signal = signals.next() => signal,
        () = contended(contention) => "lock file contention",
        Some(defect) = running.fatal.recv() => bail!("a defect in rubelet ends it: {defect}"),
        Some(defect) = defects.recv() => bail!("a defect in rubelet ends it: {defect}"),
        defect = node_failed(running.node.as_ref()) => bail!("a defect in rubelet's node object ends it: {defect}"),
        defect = running.server.failed() => bail!("a defect in rubelet's HTTP server ends it: {defect}"),
    };
    tracing::info!(reason, deadline_s = DRAIN_DEADLINE.as_secs(), "Rubelet stops");
    service_manager
        .stopping()
        .unwrap_or_else(|error| tracing::warn!(%error, "Cannot notify the service manager"));
    keep_alive.abort();
    drop((running.image_garbage, running.evictions, running.shutdown));
    let rotation = running.rotation;
    let last_rotations = async {
        if let Some(rotation) = rotation {
            rotation.stop().await;
        }
    };
    // The server drops the last handle of the agent, which then ends; its pods go on.
    let work = async { tokio::join!(keep_alive, running.server.stop(), last_rotations) };
    match drain(work, signals.next(), DRAIN_DEADLINE).await {
        Drained::InTime => {}
        Drained::TooLate => tracing::warn!("The drain deadline has passed; what is under way is left behind"),
        Drained::Interrupted(signal) => bail!("a second signal ({signal}) ends rubelet at once"),
    }
    drop(lock);
    tracing::info!("Rubelet has stopped");
    Ok(())
}

struct Started {
    running: Running,
    /// Why the parts around the agent cannot go on.
    defects: mpsc::Receiver<String>,
    lock: Option<LockFile>,
    contention: Option<oneshot::Receiver<()>>,
}

struct Running {
    server: ServerHandle,
    /// Whether the sync loop is healthy.
    health: Arc<dyn PodView>,
    /// Why the agent cannot go on.
    fatal: mpsc::Receiver<String>,
    /// On a node of a cluster.
    node: Option<NodeHandle>,
    /// The tasks that renew the node's client and serving certificates.
    _certificates: (Option<CertificateHandle>, Option<CertificateHandle>),
    /// Dropping it ends the rotation; `None` where logs are not rotated.
    rotation: Option<RotationHandle>,
    /// Dropping it ends the image garbage collection.
    image_garbage: GarbageHandle,
    /// Dropping it ends the evictions.
    evictions: EvictionHandle,
    /// Dropping it releases the lock on the machine's shutdown; `None` where that does not wait for the pods.
    shutdown: Option<ShutdownHandle>,
}

async fn start(settings: &Arc<Settings>, cgroup: CgroupVersion) -> Result<Started> {
    let (lock, contention) = take_lock(settings).await?;
    let configuration = settings.configuration();
    make_directories(settings)?;

    let mut options = CriOptions::new(&configuration.container_runtime_endpoint);
    options.image_endpoint =
        Some(configuration.image_service_endpoint.clone()).filter(|endpoint| !endpoint.is_empty());
    // A negative time is no time; the client refuses both and names the setting.
    options.request_timeout = configuration.runtime_request_timeout.to_std().unwrap_or_default();
    options.list_streaming = settings.gates().enabled(Gate::CRIListStreaming);
    let registries = Registries::new()?;
    metrics::show_settings(&registries.node, settings)?;
    let metrics = CriMetrics::register(&registries.node).context("register metrics of the runtime")?;
    let cri = CriClient::connect(&options, &metrics)
        .await
        .context("connect to the container runtime")?;
    let version = cri.version().await?;
    node_report::log_runtime(&configuration.container_runtime_endpoint, &version);
    unknown_volumes::refuse(settings, &cri).await?;
    let driver = cgroup_driver::of_node(&cri, &configuration.cgroup_driver, &registries).await?;
    let machine = Machine::read();
    cgroups::settle_machine(settings)?;
    let name = settings
        .flags()
        .node_name(&machine.hostname)
        .context("the node has no name: set --hostname-override")?;
    let is_in_cluster = settings.flags().kubeconfig.is_some();
    node_report::log_node(&name, &machine, cgroup, &driver, is_in_cluster);
    let found = NodeFound {
        name: &name,
        machine: &machine,
        cgroup,
        cgroup_driver: &driver,
        runtime_name: &version.runtime_name,
    };
    let agent_settings = agent::settings(settings, &found)?;
    certificates::prepare_kubeconfig(settings, &HostFiles::new()).await?;
    metrics::show_node(&registries.node, &name, cgroup)?;
    let api = cluster::api_server(settings, &registries)?;
    let (edges, defects) = Edges::new(&name, &cri, api, registries)?;
    cgroups::warn_of_volumes_in_swap(&machine, edges.node_events.as_ref());
    let running = match start_node(settings, &found, agent_settings, &edges).await {
        Ok(running) => running,
        Err(error) => {
            edges.report_setup_failure(&error).await;
            return Err(error);
        }
    };
    Ok(Started {
        running,
        defects,
        lock,
        contention,
    })
}

/// Everything behind the edges. What fails here is an event of the node.
async fn start_node(
    settings: &Arc<Settings>,
    found: &NodeFound<'_>,
    agent_settings: AgentSettings,
    edges: &Edges,
) -> Result<Running> {
    let (name, cgroup) = (found.name, found.cgroup);
    let client_certificate = certificates::keep_client(settings, name, edges)?;
    let issued = certificates::issued_serving_certificate(settings, edges);
    // While another kubelet has this node's ports or root directory, rubelet must not touch a pod.
    let server = Server::listen(ListenOptions {
        settings: Arc::clone(settings),
        node_name: name.to_owned(),
        files: edges.files.clone(),
        reviewer: edges.api.clone().map(|api| api as Arc<dyn Reviewer>),
        certificate: issued.clone(),
    });
    let server = server.await.context("serve the node's HTTP API")?;
    let cgroups = cgroups::start(settings, found, &agent_settings.node, edges).await?;
    let system_cgroups = cgroups::keep_own_programs(settings, cgroup, edges)?;
    let (pressure, rounds) = pressure::watch_node(settings, found, &agent_settings, edges)?;
    let eviction = pressure::eviction_settings(settings, &agent_settings);
    pressure::watch_oom(found, &agent_settings, edges);
    let (shuts_down, shutting_down) = watch::channel(false);
    let findings = Findings::new(pressure.clone(), shutting_down.clone());
    let node = node_settings::of(settings, found, &agent_settings)?;
    let addresses = node.addresses.clone();
    let membership = cluster::join(settings, &agent_settings, node, edges, findings.inputs)?;
    let joined = membership.as_ref();
    let serving_certificate = match (issued, joined) {
        (Some(issued), Some(joined)) => {
            let object = joined.node.object();
            certificates::keep_serving(settings, name, edges, issued, object)?
        }
        (Some(_), None) | (None, _) => None,
    };
    let certificates = (client_certificate, serving_certificate);
    let registry = &edges.registries.node;
    let (client, serving) = &certificates;
    metrics::show_certificates(registry, &edges.clock, client.as_ref(), serving.as_ref())?;
    let images = NodeImages::new(settings, edges, &agent_settings, joined, registry)?;
    let object = joined.map(|joined| joined.node.object());
    let given = Given {
        cgroups,
        host_ips: Arc::new(network::host_ips(edges, addresses, name, object)),
        pressure,
        shutting_down,
        images: images.provider(),
    };
    let ports = agent::ports(settings, edges, &agent_settings, joined, given)?;
    network::keep_helper_chains(settings, &ports);
    let statistics = statistics::settings(settings, found, &agent_settings, (&system_cgroups, edges)).await;
    let root_dir = agent_settings.root_dir.clone();
    let (agent, fatal) = rubelet_agent::start(ports, agent_settings);
    let shutdown = shutdown::follow(settings, root_dir, edges, joined, &agent, shuts_down)?;
    let health_updates = cluster::pass_on_runtime_health(agent.runtime_health(), findings.runtime);
    edges
        .vital
        .spawn("state of the runtime", Box::pin(health_updates));
    let node_object = joined.map(|joined| joined.node.object());
    let image_garbage = images.keep_collected(settings, edges, &agent, cgroup, node_object)?;
    let rotation = logs::keep_rotated(settings, edges, Arc::new(agent.clone()))?;
    let pods = pod_view(&agent, edges);
    let statistics = statistics::of_node(statistics, cgroup, &agent, edges)?;
    let parts = (&agent, &image_garbage, &statistics);
    let evictions = pressure::evict(eviction, edges, rounds, parts)?;
    let statistics = Arc::new(statistics);
    let server = server.serve(serve_options(found, edges, &agent, &pods, statistics)?);
    Ok(Running {
        server,
        health: pods,
        fatal,
        node: membership.map(|membership| membership.node),
        _certificates: certificates,
        rotation,
        image_garbage,
        evictions,
        shutdown,
    })
}

/// The pods as the HTTP API and `rubelet why` show them.
fn pod_view(agent: &AgentHandle, edges: &Edges) -> Arc<dyn PodView> {
    let events = edges.event_log.clone();
    Arc::new(agent.clone().with_events(move || events.snapshot()))
}

/// What the HTTP API shows and reaches.
fn serve_options(
    found: &NodeFound<'_>,
    edges: &Edges,
    agent: &AgentHandle,
    pods: &Arc<dyn PodView>,
    statistics: Arc<dyn NodeStatistics>,
) -> Result<ServeOptions> {
    let registries = &edges.registries;
    let metrics = ServerMetrics::register(&registries.node, &registries.health_checks)
        .context("register metrics of the server")?;
    let pages = metrics::Pages {
        registries: registries.clone(),
        agent: agent.clone(),
        statistics: Arc::clone(&statistics),
    };
    Ok(ServeOptions {
        cgroup_driver: found.cgroup_driver.to_owned(),
        pods: Arc::clone(pods),
        runtime: edges.cri.clone(),
        clock: edges.clock.clone(),
        log_files: edges.log_files.clone(),
        node_logs: edges.node_logs.clone(),
        set_verbosity: Arc::new(logging::set_verbosity),
        metrics,
        metrics_pages: Arc::new(pages),
        statistics,
        cpu_profiler: cpu_profiler(),
    })
}

/// The root directory, the directories of pods and of their logs, and that of checkpoints. Those that exist keep their modes.
fn make_directories(settings: &Settings) -> Result<()> {
    let root = &settings.flags().root_dir;
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(DATA_DIR_MODE);
    let pod_logs = agent::pod_logs_dir(settings);
    for directory in [root, &root.join("pods"), Path::new(pod_logs)] {
        builder
            .create(directory)
            .with_context(|| format!("create the directory {}", directory.display()))?;
    }
    if settings.gates().enabled(Gate::ContainerCheckpoint) {
        // A checkpoint contains the secrets of its process.
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        let checkpoints = root.join("checkpoints");
        builder
            .create(&checkpoints)
            .with_context(|| format!("create the directory of checkpoints {}", checkpoints.display()))?;
    }
    Ok(())
}

#[cfg(feature = "profile")]
fn cpu_profiler() -> Option<Arc<dyn CpuProfiler>> {
    Some(Arc::new(rubelet_profile::CpuSampler))
}

#[cfg(not(feature = "profile"))]
fn cpu_profiler() -> Option<Arc<dyn CpuProfiler>> {
    None
}

async fn node_failed(node: Option<&NodeHandle>) -> String {
    match node {
        Some(node) => node.failed().await,
        None => std::future::pending().await,
    }
}

async fn take_lock(settings: &Settings) -> Result<(Option<LockFile>, Option<oneshot::Receiver<()>>)> {
    let flags = settings.flags();
    let Some(path) = flags.lock_file.clone() else {
        return Ok((None, None));
    };
    tracing::info!(path = %path.display(), "Acquiring the lock file");
    let waiting = || tracing::info!("Another process holds the lock file; waiting for it");
    let lock = tokio::task::spawn_blocking(move || LockFile::acquire(&path, waiting)).await??;
    if !flags.exit_on_lock_contention {
        return Ok((Some(lock), None));
    }
    let watch = lock.watch_contention()?;
    let (seen, contention) = oneshot::channel();
    tokio::task::spawn_blocking(move || {
        if let Err(error) = watch.wait() {
            tracing::error!(%error, "Lost the watch on the lock file");
        }
        // The receiver is gone when rubelet is stopping anyway.
        let _ = seen.send(());
    });
    Ok((Some(lock), Some(contention)))
}

async fn contended(contention: Option<oneshot::Receiver<()>>) {
    match contention {
        // A watcher that is gone counts as contention, as for upstream.
        Some(contention) => drop(contention.await),
        None => std::future::pending().await,
    }
}
