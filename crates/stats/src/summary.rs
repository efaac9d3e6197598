//! From figures to `/stats/summary`: processors, memory, swap, stalls, network and processes.
//!
//! Owns which figure stands where, by upstream's rules: a pod's figures are those of its cgroup, and only without one the sum of its
//! containers; a container whose cgroup looks dead has the runtime's.

use rubelet_usage::summary::{
    ContainerStats, CpuStats, InterfaceStats, IoStats, MemoryStats, NetworkStats, NodeStats, PodReference,
    PodStats, ProcessStats, PsiStats, ShownTime, Summary, SwapStats,
};
use rubelet_usage::{Interface, PressureFigures};

use crate::pods::RunningContainer;
use crate::runtime_pods;
use crate::sampler::{ContainerSample, NodeSample, PodSample, Row, Scope, SystemCgroup};

/// The interface whose figures stand beside the list.
const DEFAULT_INTERFACE: &str = "eth0";

/// What a summary says of the node beside its figures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeFacts {
    pub(crate) name: String,
    /// Memory that was set aside for huge pages is not available.
    pub(crate) huge_page_bytes: u64,
}

/// The figures of cgroups and networks. What is on filesystems comes later.
pub(crate) fn assemble(sample: &NodeSample, scope: Scope, facts: &NodeFacts) -> Summary {
    Summary {
        node: node_stats(sample, scope, facts),
        pods: sample.pods.iter().map(|pod| pod_stats(pod, scope)).collect(),
    }
}

fn node_stats(sample: &NodeSample, scope: Scope, facts: &NodeFacts) -> NodeStats {
    let root = sample.root.as_ref();
    let is_full = scope == Scope::Full;
    let mut memory = root.and_then(|row| memory_stats(row, scope));
    if let Some(available) = memory.as_mut().and_then(|memory| memory.available_bytes.as_mut()) {
        *available = available.saturating_sub(facts.huge_page_bytes);
    }
    NodeStats {
        node_name: facts.name.clone(),
        start_time: ShownTime(sample.booted_at.unwrap_or_default()),
        cpu: root.and_then(|row| cpu_stats(row, scope)),
        memory,
        io: root.filter(|_| is_full).map(io_stats),
        network: root.filter(|_| is_full).and_then(network_stats),
        system_containers: sample
            .system
            .iter()
            .map(|(cgroup, row)| system_stats(cgroup, row, scope))
            .collect(),
        swap: root.and_then(swap_stats),
        ..NodeStats::default()
    }
}

fn system_stats(cgroup: &SystemCgroup, row: &Row, scope: Scope) -> ContainerStats {
    let started_at = cgroup.started_at.unwrap_or(row.reading.made_at);
    let mut stats = ContainerStats {
        name: cgroup.name.to_owned(),
        start_time: ShownTime(started_at),
        created_at: started_at,
        io: (scope == Scope::Full).then(|| io_stats(row)),
        ..ContainerStats::default()
    };
    with_row(&mut stats, row, scope);
    stats
}

fn pod_stats(sample: &PodSample, scope: Scope) -> PodStats {
    if let Some(counted) = &sample.runtime {
        return runtime_pods::pod_stats(sample, counted, scope);
    }
    let PodSample {
        pod,
        row,
        sandbox,
        containers,
        runtime: _,
    } = sample;
    let is_full = scope == Scope::Full;
    let stats: Vec<ContainerStats> = pod
        .containers
        .iter()
        .zip(containers)
        .map(|(container, sample)| container_stats(container, sample, scope))
        .collect();
    let row = row.as_ref();
    PodStats {
        pod_ref: PodReference {
            name: pod.name.clone(),
            namespace: pod.namespace.clone(),
            uid: pod.uid.clone(),
        },
        start_time: ShownTime(pod.created_at),
        cpu: row
            .and_then(|row| cpu_stats(row, scope))
            .or_else(|| cpu_sum(&stats)),
        memory: row
            .and_then(|row| memory_stats(row, scope))
            .or_else(|| memory_sum(&stats)),
        io: row.filter(|_| is_full).map(io_stats),
        network: sandbox.as_ref().and_then(network_stats),
        process_stats: is_full.then(|| process_stats(containers)),
        swap: row.and_then(swap_stats).or_else(|| swap_sum(&stats)),
        containers: stats,
        ..PodStats::default()
    }
}

fn container_stats(container: &RunningContainer, sample: &ContainerSample, scope: Scope) -> ContainerStats {
    let row = sample.row.as_ref();
    let runtime = sample.runtime.as_ref();
    let mut stats = ContainerStats {
        name: container.name.clone(),
        start_time: ShownTime(container.created_at),
        created_at: container.created_at,
        io: row.filter(|_| scope == Scope::Full).map(io_stats),
        ..ContainerStats::default()
    };
    match (row, runtime) {
        (Some(row), None) => with_row(&mut stats, row, scope),
        (Some(row), Some(_)) if !row.is_dead() => with_row(&mut stats, row, scope),
        (Some(_) | None, Some(runtime)) => {
            let no_stalls = psi(None, scope);
            runtime_pods::fill(&mut stats, runtime, (scope, no_stalls));
        }
        (None, None) => {}
    }
    stats
}

fn with_row(stats: &mut ContainerStats, row: &Row, scope: Scope) {
    stats.cpu = cpu_stats(row, scope);
    stats.memory = memory_stats(row, scope);
    stats.swap = swap_stats(row);
}

fn time(row: &Row) -> ShownTime {
    ShownTime(row.reading.read_at)
}

/// All zeros where the kernel has no such file: the field is always there.
fn psi(figures: Option<PressureFigures>, scope: Scope) -> Option<PsiStats> {
    scope.has_pressure().then(|| figures.unwrap_or_default().into())
}

fn cpu_stats(row: &Row, scope: Scope) -> Option<CpuStats> {
    let nanos = row.reading.figures.cpu_nanos?;
    Some(CpuStats {
        time: time(row),
        usage_nano_cores: row.nano_cores,
        usage_core_nano_seconds: Some(nanos),
        psi: psi(row.reading.figures.cpu_pressure, scope),
    })
}

fn memory_stats(row: &Row, scope: Scope) -> Option<MemoryStats> {
    let figures = &row.reading.figures;
    let memory = figures.memory?;
    Some(MemoryStats {
        time: time(row),
        available_bytes: figures.limits.and_then(|limits| memory.available_bytes(&limits)),
        usage_bytes: Some(memory.usage_bytes),
        working_set_bytes: Some(memory.working_set_bytes()),
        rss_bytes: Some(memory.rss_bytes),
        page_faults: Some(memory.page_faults),
        major_page_faults: Some(memory.major_page_faults),
        psi: psi(figures.memory_pressure, scope),
    })
}

fn swap_stats(row: &Row) -> Option<SwapStats> {
    let figures = &row.reading.figures;
    let used = figures.memory?.swap_bytes;
    Some(SwapStats {
        time: time(row),
        swap_available_bytes: figures
            .limits
            .and_then(|limits| limits.swap_available_bytes(used)),
        swap_usage_bytes: Some(used),
    })
}

fn io_stats(row: &Row) -> IoStats {
    IoStats {
        time: time(row),
        psi: Some(row.reading.figures.io_pressure.unwrap_or_default().into()),
    }
}

fn network_stats(row: &Row) -> Option<NetworkStats> {
    let network = row.reading.figures.network.as_ref()?;
    let interfaces: Vec<InterfaceStats> = network.interfaces.iter().map(interface_stats).collect();
    let default = interfaces.iter().find(|one| one.name == DEFAULT_INTERFACE);
    Some(NetworkStats {
        time: time(row),
        default: default.cloned().unwrap_or_default(),
        interfaces,
    })
}

fn interface_stats(interface: &Interface) -> InterfaceStats {
    InterfaceStats {
        name: interface.name.clone(),
        rx_bytes: Some(interface.receive.bytes),
        rx_errors: Some(interface.receive.errors),
        tx_bytes: Some(interface.transmit.bytes),
        tx_errors: Some(interface.transmit.errors),
    }
}

fn process_stats(containers: &[ContainerSample]) -> ProcessStats {
    let counts = containers
        .iter()
        .filter_map(|container| container.row.as_ref()?.reading.figures.processes);
    ProcessStats {
        process_count: Some(counts.sum()),
    }
}

fn sum<T>(figures: &[&T], value: impl Fn(&T) -> Option<u64>) -> Option<u64> {
    let values: Vec<u64> = figures.iter().filter_map(|figure| value(figure)).collect();
    let sum = values.iter().fold(0_u64, |sum, value| sum.saturating_add(*value));
    (!values.is_empty()).then_some(sum)
}

fn newest<T>(figures: &[&T], time: impl Fn(&T) -> ShownTime) -> Option<ShownTime> {
    figures.iter().map(|figure| time(figure).0).max().map(ShownTime)
}

fn cpu_sum(containers: &[ContainerStats]) -> Option<CpuStats> {
    let figures: Vec<&CpuStats> = containers.iter().filter_map(|one| one.cpu.as_ref()).collect();
    Some(CpuStats {
        time: newest(&figures, |cpu| cpu.time)?,
        usage_nano_cores: sum(&figures, |cpu| cpu.usage_nano_cores),
        usage_core_nano_seconds: sum(&figures, |cpu| cpu.usage_core_nano_seconds),
        psi: None,
    })
}

fn memory_sum(containers: &[ContainerStats]) -> Option<MemoryStats> {
    let figures: Vec<&MemoryStats> = containers.iter().filter_map(|one| one.memory.as_ref()).collect();
    Some(MemoryStats {
        time: newest(&figures, |memory| memory.time)?,
        available_bytes: sum(&figures, |memory| memory.available_bytes),
        usage_bytes: sum(&figures, |memory| memory.usage_bytes),
        working_set_bytes: sum(&figures, |memory| memory.working_set_bytes),
        rss_bytes: sum(&figures, |memory| memory.rss_bytes),
        page_faults: sum(&figures, |memory| memory.page_faults),
        major_page_faults: sum(&figures, |memory| memory.major_page_faults),
        psi: None,
    })
}

fn swap_sum(containers: &[ContainerStats]) -> Option<SwapStats> {
    let figures: Vec<&SwapStats> = containers.iter().filter_map(|one| one.swap.as_ref()).collect();
    Some(SwapStats {
        time: newest(&figures, |swap| swap.time)?,
        swap_available_bytes: sum(&figures, |swap| swap.swap_available_bytes),
        swap_usage_bytes: sum(&figures, |swap| swap.swap_usage_bytes),
    })
}
