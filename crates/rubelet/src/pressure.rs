//! The node's pressure (memory, disk, PIDs) and what follows from it, with or without an API server.

use std::sync::Arc;

use anyhow::{Context, Result};
use rubelet_agent::{AgentHandle, AgentSettings};
use rubelet_config::settings::Settings;
use rubelet_eviction::{
    EvictionHandle, EvictionMetrics, EvictionPorts, EvictionSettings, PressureHandle, PressurePlaces,
    PressureWatch, SignalPorts, SystemOomPorts, SystemOomSettings, watch_system_oom,
};
use rubelet_host::capacity::huge_pages;
use rubelet_host::cgroups::Layout;
use rubelet_host::signals::HostSignals;
use rubelet_host::{HostMemoryAlarm, HostOomLog};
use rubelet_images::garbage::GarbageHandle;
use rubelet_model::Pressure;
use rubelet_ports::Spawner as _;
use rubelet_resources::eviction::LocalStorageRules;
use rubelet_resources::pressure::PressureSettings;
use rubelet_stats::Statistics;
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
) -> Result<(watch::Receiver<Option<Pressure>>, PressureHandle)> {
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
    let ports = SignalPorts {
        clock: edges.clock.clone(),
        signals: Arc::new(HostSignals::new(&layout)),
        images: edges.cri.clone(),
        alarm: Arc::new(HostMemoryAlarm::new(&layout)),
    };
    let places = PressurePlaces {
        root_dir: agent.root_dir.clone(),
        pods_cgroup: pods_cgroup(&agent.node),
    };
    let (sender, pressure) = watch::channel(None);
    let (watching, handle) = PressureWatch::new(ports, thresholds, places, sender);
    edges.vital.spawn("pressure", Box::pin(watching.run()));
    Ok((pressure, handle))
}

/// Starts the evictions.
pub(crate) fn evict(
    settings: EvictionSettings,
    edges: &Edges,
    pressure: PressureHandle,
    (agent, images, statistics): (&AgentHandle, &GarbageHandle, &Statistics),
) -> Result<EvictionHandle> {
    let ports = EvictionPorts {
        clock: edges.clock.clone(),
        spawner: edges.vital.clone(),
        pods: Arc::new(agent.clone()),
        usage: Arc::new(statistics.clone()),
        storage: Arc::new(statistics.clone()),
        images: Arc::new(images.clone()),
        events: edges.events.clone(),
        node_events: edges.node_events.clone(),
        metrics: EvictionMetrics::register(&edges.registries.node)
            .context("register metrics of evictions")?,
    };
    Ok(rubelet_eviction::start(ports, settings, pressure))
}

/// Starts the events about kills for the whole machine.
pub(crate) fn watch_oom(found: &NodeFound<'_>, agent: &AgentSettings, edges: &Edges) {
    let ports = SystemOomPorts {
        clock: edges.clock.clone(),
        log: Arc::new(HostOomLog::new()),
        events: edges.node_events.clone(),
        file_reader: edges.files.clone(),
        file_writer: edges.files.clone(),
    };
    let settings = SystemOomSettings {
        root_dir: agent.root_dir.clone(),
        boot_id: found.machine.boot_id.clone(),
    };
    let watching = watch_system_oom(ports, settings);
    edges.vital.spawn("system OOM", Box::pin(watching));
}

pub(crate) fn eviction_settings(settings: &Settings, agent: &AgentSettings) -> EvictionSettings {
    let configuration = settings.configuration();
    let rules = &agent.node.rules;
    let is_isolated = configuration.local_storage_capacity_isolation != Some(false);
    EvictionSettings {
        rules: rules.clone(),
        most_grace_seconds: i64::from(configuration.eviction_max_pod_grace_period),
        local_storage: is_isolated.then(|| LocalStorageRules { rules: rules.clone() }),
    }
}
