//! Pods' figures as the runtime counts them, for nodes with the gate `PodAndContainerStatsFromCRI`.
//!
//! Owns where each of the runtime's figures stands in a summary, by upstream's rules: what the runtime does not count of a pod is missing,
//! and what it does not count of a container is zero. It must not ask the runtime.

use rubelet_model::Timestamp;
use rubelet_usage::summary::{
    ContainerStats, CpuStats, InterfaceStats, IoStats, MemoryStats, NetworkStats, PodReference, PodStats,
    ProcessStats, PsiData, PsiStats, ShownTime, SwapStats,
};
use rubelet_wire::cri::v1;

use crate::pods::RunningContainer;
use crate::sampler::{PodSample, Scope};

pub(crate) fn time(nanos: i64) -> ShownTime {
    ShownTime(Timestamp::from_unix_nanos(nanos))
}

pub(crate) fn value(value: Option<v1::UInt64Value>) -> Option<u64> {
    value.map(|value| value.value)
}

/// The containers of the sample are those that the runtime has figures of.
pub(crate) fn pod_stats(sample: &PodSample, counted: &v1::PodSandboxStats, scope: Scope) -> PodStats {
    let is_full = scope == Scope::Full;
    let linux = counted.linux.clone().unwrap_or_default();
    let containers = sample.pod.containers.iter().zip(&sample.containers);
    let containers: Vec<ContainerStats> = containers
        .filter_map(|(container, sample)| {
            let counted = sample.runtime.as_ref()?;
            Some(container_stats(container, counted, scope))
        })
        .collect();
    PodStats {
        pod_ref: PodReference {
            name: sample.pod.name.clone(),
            namespace: sample.pod.namespace.clone(),
            uid: sample.pod.uid.clone(),
        },
        start_time: ShownTime(sample.pod.created_at),
        cpu: linux.cpu.map(|cpu| CpuStats {
            time: time(cpu.timestamp),
            usage_nano_cores: value(cpu.usage_nano_cores),
            usage_core_nano_seconds: value(cpu.usage_core_nano_seconds),
            psi: psi(cpu.psi, scope),
        }),
        memory: linux.memory.map(|memory| MemoryStats {
            time: time(memory.timestamp),
            available_bytes: value(memory.available_bytes),
            usage_bytes: value(memory.usage_bytes),
            working_set_bytes: value(memory.working_set_bytes),
            rss_bytes: value(memory.rss_bytes),
            page_faults: value(memory.page_faults),
            major_page_faults: value(memory.major_page_faults),
            psi: psi(memory.psi, scope),
        }),
        io: linux.io.filter(|_| is_full).map(|io| IoStats {
            time: time(io.timestamp),
            psi: psi(io.psi, scope),
        }),
        network: linux.network.filter(|_| is_full).map(network_stats),
        process_stats: linux.process.filter(|_| is_full).map(|process| ProcessStats {
            process_count: value(process.process_count),
        }),
        swap: swap_sum(&containers).filter(|_| !is_full),
        containers,
        ..PodStats::default()
    }
}

fn container_stats(
    container: &RunningContainer,
    counted: &v1::ContainerStats,
    scope: Scope,
) -> ContainerStats {
    let mut stats = ContainerStats {
        name: container.name.clone(),
        start_time: ShownTime(container.created_at),
        created_at: container.created_at,
        io: counted.io.filter(|_| scope == Scope::Full).map(|io| IoStats {
            time: time(io.timestamp),
            psi: psi(io.psi, scope),
        }),
        ..ContainerStats::default()
    };
    fill(&mut stats, counted, (scope, None));
    stats
}

/// Processors, memory and swap of a container, zeros where the runtime has no figure. Without stalls the given ones are shown.
pub(crate) fn fill(
    stats: &mut ContainerStats,
    counted: &v1::ContainerStats,
    (scope, no_stalls): (Scope, Option<PsiStats>),
) {
    let number = |counted: Option<v1::UInt64Value>| Some(value(counted).unwrap_or(0));
    let cpu = counted.cpu.unwrap_or_default();
    stats.cpu = Some(CpuStats {
        time: time(cpu.timestamp),
        usage_nano_cores: number(cpu.usage_nano_cores),
        usage_core_nano_seconds: number(cpu.usage_core_nano_seconds),
        psi: psi(cpu.psi, scope).or(no_stalls),
    });
    let memory = counted.memory.unwrap_or_default();
    stats.memory = Some(MemoryStats {
        time: time(memory.timestamp),
        available_bytes: value(memory.available_bytes),
        usage_bytes: value(memory.usage_bytes),
        working_set_bytes: number(memory.working_set_bytes),
        rss_bytes: value(memory.rss_bytes),
        page_faults: value(memory.page_faults),
        major_page_faults: value(memory.major_page_faults),
        psi: psi(memory.psi, scope).or(no_stalls),
    });
    stats.swap = counted.swap.map(|swap| SwapStats {
        time: time(swap.timestamp),
        swap_available_bytes: value(swap.swap_available_bytes),
        swap_usage_bytes: value(swap.swap_usage_bytes),
    });
}

fn psi(counted: Option<v1::PsiStats>, scope: Scope) -> Option<PsiStats> {
    let data = |data: Option<v1::PsiData>| {
        let data = data.unwrap_or_default();
        PsiData {
            total: data.total,
            avg10: data.avg10,
            avg60: data.avg60,
            avg300: data.avg300,
        }
    };
    counted.filter(|_| scope.has_pressure()).map(|counted| PsiStats {
        full: data(counted.full),
        some: data(counted.some),
    })
}

fn network_stats(network: v1::NetworkUsage) -> NetworkStats {
    NetworkStats {
        time: time(network.timestamp),
        default: network.default_interface.map(interface_stats).unwrap_or_default(),
        interfaces: network.interfaces.into_iter().map(interface_stats).collect(),
    }
}

fn interface_stats(interface: v1::NetworkInterfaceUsage) -> InterfaceStats {
    InterfaceStats {
        name: interface.name,
        rx_bytes: value(interface.rx_bytes),
        rx_errors: value(interface.rx_errors),
        tx_bytes: value(interface.tx_bytes),
        tx_errors: value(interface.tx_errors),
    }
}

/// The runtime has none of the pod as a whole.
fn swap_sum(containers: &[ContainerStats]) -> Option<SwapStats> {
    let swaps: Vec<&SwapStats> = containers.iter().filter_map(|one| one.swap.as_ref()).collect();
    let sum = |figure: fn(&SwapStats) -> Option<u64>| {
        let figures = swaps.iter().filter_map(|swap| figure(swap));
        Some(figures.fold(0, u64::saturating_add))
    };
    Some(SwapStats {
        time: swaps.iter().map(|swap| swap.time.0).max().map(ShownTime)?,
        swap_available_bytes: sum(|swap| swap.swap_available_bytes),
        swap_usage_bytes: sum(|swap| swap.swap_usage_bytes),
    })
}
