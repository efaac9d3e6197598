//! Putting the statistics of node and pods together.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use rubelet_agent::{AgentHandle, AgentSettings};
use rubelet_config::gates::Gate;
use rubelet_config::settings::Settings;
use rubelet_host::capacity::huge_pages;
use rubelet_host::cgroup::CgroupVersion;
use rubelet_host::cgroups::Layout;
use rubelet_host::node_facts::NodeFacts;
use rubelet_host::{HostDisk, HostSignals, HostUsage};
use rubelet_ports::{Clock as _, RuntimeErrorKind, RuntimeReader};
use rubelet_resources::system_cgroups::SystemCgroups;
use rubelet_stats::{
    CgroupPlaces, MachineNames, PodSource, Statistics, StatisticsMetrics, StatisticsPorts,
    StatisticsSettings, StoragePlaces, SystemCgroup,
};

use crate::agent::{NodeFound, pod_logs_dir, std_duration};
use crate::cgroups::pods_cgroup;
use crate::edges::Edges;
use crate::metrics::beginnings;

/// They read nothing until they are asked for.
pub(crate) fn of_node(
    settings: StatisticsSettings,
    cgroup: CgroupVersion,
    agent: &AgentHandle,
    edges: &Edges,
) -> Result<Statistics> {
    let layout = Layout::of_this_machine(cgroup).context("look for the machine's cgroups")?;
    let ports = StatisticsPorts {
        clock: edges.clock.clone(),
        spawner: edges.spawner.clone(),
        runtime: edges.cri.clone(),
        images: edges.cri.clone(),
        usage: Arc::new(HostUsage::new(&layout, edges.clock.clone())),
        signals: Arc::new(HostSignals::new(&layout)),
        disk: Arc::new(HostDisk::new()),
        pods: Arc::new(agent.clone()),
        metrics: StatisticsMetrics::register(&edges.registries.node)
            .context("register metrics of statistics")?,
    };
    Ok(Statistics::new(settings, ports))
}

pub(crate) async fn settings(
    settings: &Settings,
    found: &NodeFound<'_>,
    agent: &AgentSettings,
    (system_cgroups, edges): (&SystemCgroups, &Edges),
) -> StatisticsSettings {
    let node = &agent.node;
    StatisticsSettings {
        node_name: found.name.to_owned(),
        places: CgroupPlaces {
            root: node.cgroup_root.clone(),
            driver: node.cgroup_driver,
            runtime_name: found.runtime_name.to_owned(),
            are_per_qos: node.cgroups_per_qos,
        },
        system_cgroups: shown_cgroups(system_cgroups, agent, edges),
        storage: StoragePlaces {
            root_dir: agent.root_dir.clone(),
            pod_logs_dir: PathBuf::from(pod_logs_dir(settings)),
        },
        machine: machine_names(found),
        volume_period: std_duration(settings.configuration().volume_stats_agg_period),
        huge_page_bytes: huge_pages().into_iter().map(|(size, count)| size * count).sum(),
        pods: pod_source(settings, edges.cri.as_ref()).await,
        container_page: wanted_source(settings),
    }
}

fn wanted_source(settings: &Settings) -> PodSource {
    if settings.gates().enabled(Gate::PodAndContainerStatsFromCRI) {
        PodSource::Runtime
    } else {
        PodSource::Cgroups
    }
}

/// A runtime that does not count pods leaves it to their cgroups, as for upstream; one that fails is asked again for each page.
async fn pod_source(settings: &Settings, runtime: &dyn RuntimeReader) -> PodSource {
    if wanted_source(settings) == PodSource::Cgroups {
        return PodSource::Cgroups;
    }
    match runtime.pod_sandbox_stats("").await {
        Err(error) if error.kind() == RuntimeErrorKind::Unimplemented => {
            tracing::info!(
                gate = "PodAndContainerStatsFromCRI",
                "The runtime does not count what pods use; their cgroups are read"
            );
            PodSource::Cgroups
        }
        Ok(_) | Err(_) => PodSource::Runtime,
    }
}

fn machine_names(found: &NodeFound<'_>) -> MachineNames {
    let facts = NodeFacts::read();
    MachineNames {
        machine_id: facts.machine_id,
        system_uuid: facts.system_uuid,
        boot_id: found.machine.boot_id.clone(),
        kernel_version: found.machine.kernel_version.clone(),
        os_image: found.machine.os_image.clone(),
    }
}

/// The cgroups that the settings name; rubelet's own and that of all pods are known without.
fn shown_cgroups(named: &SystemCgroups, agent: &AgentSettings, edges: &Edges) -> Vec<SystemCgroup> {
    let kubelet = SystemCgroup {
        name: "kubelet",
        path: named.kubelet.clone(),
        started_at: Some(beginnings(edges.clock.now()).started_at),
    };
    let others = [
        ("runtime", named.runtime.clone()),
        ("misc", named.system.clone()),
        ("pods", pods_cgroup(&agent.node)),
    ];
    let others = others.into_iter().filter_map(|(name, path)| {
        Some(SystemCgroup {
            name,
            path: Some(path?),
            started_at: None,
        })
    });
    std::iter::once(kubelet).chain(others).collect()
}
