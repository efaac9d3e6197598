//! Watching the node's pressure (memory, disk, PIDs), with or without an API server.

use std::sync::Arc;

use anyhow::{Context, Result};
use rubelet_agent::AgentSettings;
use rubelet_config::settings::Settings;
use rubelet_host::capacity::huge_pages;
use rubelet_host::cgroups::Layout;
use rubelet_host::signals::HostSignals;
use rubelet_model::Pressure;
use rubelet_node::pressure::{PressurePlaces, PressurePorts, watch_pressure};
use rubelet_ports::Spawner as _;
use rubelet_resources::pressure::PressureSettings;
use tokio::sync::watch;

use crate::agent::NodeFound;
use crate::cgroups::pods_cgroup;
use crate::edges::Edges;

/// Starts the watch; it has nothing until the first look.
pub(crate) fn watch_node(
    settings: &Settings,
    found: &NodeFound<'_>,
    agent: &AgentSettings,
    edges: &Edges,
) -> Result<watch::Receiver<Option<Pressure>>> {
    let configuration = settings.configuration();
    let layout = Layout::of_this_machine(found.cgroup).context("look for the machine's cgroups")?;
    let huge_page_bytes = huge_pages().into_iter().map(|(size, count)| size * count).sum();
    let ignores_allocatable = settings.flags().experimental_allocatable_ignore_eviction;
    let thresholds = PressureSettings::new(
        configuration,
        settings.gates(),
        ignores_allocatable,
        huge_page_bytes,
    )?;
    let ports = PressurePorts {
        clock: edges.clock.clone(),
        signals: Arc::new(HostSignals::new(&layout)),
        images: edges.cri.clone(),
        events: edges.node_events.clone(),
    };
    let places = PressurePlaces {
        root_dir: agent.root_dir.clone(),
        pods_cgroup: pods_cgroup(&agent.node),
    };
    let (sender, pressure) = watch::channel(None);
    let watching = watch_pressure(ports, thresholds, places, sender);
    edges.vital.spawn("pressure", Box::pin(watching));
    Ok(pressure)
}
