//! What has to be set up on the machine before the first pod: swap, kernel settings, the tree of cgroups; and the cgroups and the OOM
//! score of the node's own programs.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rubelet_cgroups::{
    CgroupMetrics, CgroupPorts, CgroupSettings, Cgroups, MeasuredWriter, MemoryMetrics, SystemCgroupPorts,
    SystemCgroupSettings, keep_processes_in_place,
};
use rubelet_config::gates::Gate;
use rubelet_config::settings::Settings;
use rubelet_host::capacity::huge_pages;
use rubelet_host::cgroup::CgroupVersion;
use rubelet_host::cgroups::{HostCgroups, Layout, Systemd};
use rubelet_host::kernel_settings::{self, KernelSettingError};
use rubelet_host::machine::Machine;
use rubelet_host::processes;
use rubelet_lifecycle::configuration::NodeConfiguration;
use rubelet_model::Quantity;
use rubelet_model::quantity::Format;
use rubelet_ports::{EventType, NoPodCgroups, NodeEvent, NodeEventRecorder, PodCgroups, Spawner as _};
use rubelet_resources::allocatable::{Capacity, PodCount};
use rubelet_resources::amounts::Amounts;
use rubelet_resources::cgroup_name::{CgroupDriver, node_allocatable};
use rubelet_resources::node_cgroup::{Enforcement, PIDS, Reservation};
use rubelet_resources::system_cgroups::SystemCgroups;

use crate::agent::NodeFound;
use crate::edges::Edges;

/// As often as upstream, in case another program changed it.
const OOM_SCORE_INTERVAL: Duration = Duration::from_secs(5 * 60);
/// With a cgroup of its own, rubelet's place is checked this often.
const OWN_CGROUP_INTERVAL: Duration = Duration::from_secs(60);

/// Checks that pods can run on the machine; kernel settings are changed where that is allowed.
pub(crate) fn settle_machine(settings: &Settings) -> Result<()> {
    let configuration = settings.configuration();
    if configuration.fail_swap_on.unwrap_or(true) && kernel_settings::is_swap_on() {
        bail!("this machine has swap on: turn it off or set failSwapOn to false");
    }
    match kernel_settings::settle(configuration.protect_kernel_defaults) {
        Err(error @ KernelSettingError::Unwritable { .. })
            if settings.gates().enabled(Gate::KubeletInUserNamespace)
                && kernel_settings::is_in_user_namespace() =>
        {
            tracing::info!(%error, "A kernel setting stays as it is in a user namespace");
            Ok(())
        }
        other => other.context("prepare the kernel for pods"),
    }
}

/// Records an event where volumes in memory, which may hold secrets, can be swapped to a disk.
pub(crate) fn warn_of_volumes_in_swap(machine: &Machine, events: &dyn NodeEventRecorder) {
    if let Some(event) = volumes_in_swap(kernel_settings::is_swap_on(), &machine.kernel_version) {
        events.record_node(event);
    }
}

fn volumes_in_swap(is_swap_on: bool, kernel_version: &str) -> Option<NodeEvent> {
    (is_swap_on && !kernel_settings::keeps_tmpfs_from_swap(kernel_version)).then(|| NodeEvent {
        event_type: EventType::Warning,
        reason: "PossibleMemoryBackedVolumesOnDisk".into(),
        message: "This kernel cannot keep volumes in memory (secrets, emptyDirs) out of the swap".to_owned(),
        node_uid: None,
    })
}

/// Keeps rubelet and the system's processes in the cgroups that the settings name, and rubelet's OOM score. Returns the names.
pub(crate) fn keep_own_programs(
    settings: &Settings,
    version: CgroupVersion,
    edges: &Edges,
) -> Result<SystemCgroups> {
    let configuration = settings.configuration();
    let named = SystemCgroups::read(
        &configuration.kubelet_cgroups,
        &configuration.system_cgroups,
        &settings.flags().runtime_cgroups,
    )?;
    if let Some(adjustment) = configuration.oom_score_adj {
        let interval = match named.kubelet {
            Some(_) => OWN_CGROUP_INTERVAL,
            None => OOM_SCORE_INTERVAL,
        };
        let keeping = keep_oom_score(adjustment, interval);
        edges.vital.spawn("OOM score", Box::pin(keeping));
    }
    let kept = SystemCgroupSettings {
        kubelet: named.kubelet.clone(),
        system: named.system.clone(),
    };
    if kept != SystemCgroupSettings::default() {
        let layout = Layout::of_this_machine(version).context("find the machine's cgroups")?;
        // As for upstream, also where systemd owns the tree: they are moved by the kernel's files.
        let edge = Arc::new(HostCgroups::new(layout, None));
        let ports = SystemCgroupPorts {
            clock: edges.clock.clone(),
            reader: edge.clone(),
            writer: edge,
        };
        let keeping = keep_processes_in_place(kept, ports);
        edges.vital.spawn("system cgroups", Box::pin(keeping));
    }
    Ok(named)
}

/// Sets the OOM score again and again; a failure is logged once.
async fn keep_oom_score(adjustment: i32, interval: Duration) {
    let mut ticks = tokio::time::interval(interval);
    let mut is_logged = false;
    loop {
        ticks.tick().await;
        match kernel_settings::adjust_own_oom_score(adjustment) {
            Ok(()) => is_logged = false,
            Err(error) if !is_logged => {
                is_logged = true;
                tracing::warn!(
                    adjustment,
                    %error,
                    "Rubelet's own oom_score_adj (oomScoreAdj) cannot be set; lowering it takes CAP_SYS_RESOURCE"
                );
            }
            Err(_) => {}
        }
    }
}

/// What the machine has for pods and for itself.
fn capacity(machine: &Machine) -> Amounts {
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let machine = Capacity {
        processors: signed(machine.processors as u64),
        memory_bytes: signed(machine.memory_bytes),
        // No cgroup limits storage.
        ephemeral_storage_bytes: None,
        huge_pages: huge_pages()
            .into_iter()
            .map(|(size, count)| (signed(size), signed(count)))
            .collect(),
    };
    let mut capacity = machine.amounts(PodCount { max: 0, per_core: 0 });
    if let Some(pids) = processes::most() {
        capacity.set(PIDS, Quantity::new(signed(pids), Format::DecimalSi));
    }
    capacity
}

/// Where everything that pods use is, below the cgroup mount; `None` where pods have no cgroups.
pub(crate) fn pods_cgroup(node: &NodeConfiguration) -> Option<String> {
    node.cgroups_per_qos
        .then(|| node_allocatable(&node.cgroup_root).path(node.cgroup_driver))
}

/// Makes the cgroups above the pods and maintains them.
pub(crate) async fn start(
    settings: &Settings,
    found: &NodeFound<'_>,
    node: &NodeConfiguration,
    edges: &Edges,
) -> Result<Arc<dyn PodCgroups>> {
    let configuration = settings.configuration();
    let registry = &edges.registries.node;
    // As upstream's they exist with the gate, whether memory is reserved or not.
    let memory_metrics =
        (settings.gates().enabled(Gate::MemoryQoS)).then(|| MemoryMetrics::register(registry));
    let memory_metrics = memory_metrics.transpose().context("register metrics of memory")?;
    if !node.cgroups_per_qos {
        return Ok(Arc::new(NoPodCgroups));
    }
    let layout = Layout::of_this_machine(found.cgroup).context("find the machine's cgroups")?;
    let systemd = match node.cgroup_driver {
        CgroupDriver::Cgroupfs => None,
        CgroupDriver::Systemd => {
            let systemd = Systemd::connect(found.cgroup).await;
            Some(systemd.context("use systemd as the cgroup driver, as the runtime does")?)
        }
    };
    let edge = Arc::new(HostCgroups::new(layout, systemd));
    let cgroup_settings = CgroupSettings {
        cgroup_root: node.cgroup_root.clone(),
        driver: node.cgroup_driver,
        rules: node.rules.clone(),
        facts: node.facts.clone(),
        capacity: capacity(found.machine),
        reservation: Reservation::read(&configuration.system_reserved, &configuration.kube_reserved)?,
        enforcement: Enforcement::read(
            configuration
                .enforce_node_allocatable
                .as_deref()
                .unwrap_or_default(),
        ),
        cpus: processes::processors(),
        system_reserved_cgroup: configuration.system_reserved_cgroup.clone(),
        kube_reserved_cgroup: configuration.kube_reserved_cgroup.clone(),
    };
    let metrics = CgroupMetrics::register(registry).context("register metrics of cgroups")?;
    let ports = CgroupPorts {
        clock: edges.clock.clone(),
        reader: edge.clone(),
        writer: Arc::new(MeasuredWriter {
            writer: edge,
            clock: edges.clock.clone(),
            metrics,
        }),
        events: edges.node_events.clone(),
    };
    let cgroups = Cgroups::new(cgroup_settings, ports).with_memory_metrics(memory_metrics);
    let cgroups = Arc::new(cgroups);
    cgroups.set_up().await.context("make the cgroups of pods")?;
    edges.vital.spawn("cgroups", Box::pin(Arc::clone(&cgroups).run()));
    Ok(cgroups)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_is_told_of_where_volumes_in_memory_may_end() {
        let check = |is_swap_on, kernel| volumes_in_swap(is_swap_on, kernel).map(|event| event.reason);
        assert_eq!(
            check(true, "6.1.0-38-amd64").as_deref(),
            Some("PossibleMemoryBackedVolumesOnDisk")
        );
        assert_eq!(check(false, "6.1.0-38-amd64"), None);
        assert_eq!(check(true, "6.12.48"), None);
    }
}
