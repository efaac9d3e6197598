//! The graceful shutdown of the node by the settings.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use rubelet_agent::AgentHandle;
use rubelet_agent::node_shutdown::{self, ShutdownHandle, ShutdownMetrics, ShutdownPorts, ShutdownSettings};
use rubelet_config::gates::Gate;
use rubelet_config::settings::Settings;
use rubelet_host::LoginManager;
use rubelet_lifecycle::node_shutdown::ShutdownPeriods;
use rubelet_ports::{NoReporter, PodReporter};
use tokio::sync::watch;

use crate::cluster::Membership;
use crate::edges::Edges;

/// Nothing where the machine does not wait for the pods.
pub(crate) fn follow(
    settings: &Settings,
    root_dir: PathBuf,
    edges: &Edges,
    membership: Option<&Membership>,
    agent: &AgentHandle,
    shutting_down: watch::Sender<bool>,
) -> Result<Option<ShutdownHandle>> {
    let gates = settings.gates();
    // The second needs the first.
    let metrics = gates
        .enabled(Gate::GracefulNodeShutdownBasedOnPodPriority)
        .then(|| ShutdownMetrics::register(&edges.registries.node))
        .transpose()
        .context("register metrics of shutdowns")?;
    let Some(periods) = ShutdownPeriods::of(settings.configuration(), gates) else {
        return Ok(None);
    };
    tracing::info!(
        total_s = periods.total().as_secs(),
        groups = ?periods.as_slice(),
        "The machine's shutdown waits for the pods"
    );
    let ports = ShutdownPorts {
        clock: edges.clock.clone(),
        spawner: edges.vital.clone(),
        service: Arc::new(LoginManager::default()),
        events: edges.node_events.clone(),
        reporter: membership.map_or_else(
            || Arc::new(NoReporter) as Arc<dyn PodReporter>,
            |membership| membership.reporter.clone(),
        ),
        node: membership.map_or_else(|| watch::channel(None).1, |membership| membership.node.object()),
        file_reader: edges.files.clone(),
        file_writer: edges.files.clone(),
    };
    let settings = ShutdownSettings {
        periods,
        root_dir,
        metrics,
    };
    Ok(Some(node_shutdown::start(
        ports,
        settings,
        agent.clone(),
        shutting_down,
    )))
}
