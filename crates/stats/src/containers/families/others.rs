//! Families, by name: network, stalls, limits, processes, and the machine.

use super::{
    Family, Samples, counter, detail, file_limit, gauge, limit, memory, persistent_memory, stalled,
    unix_seconds, waiting,
};

pub(super) const FAMILIES: &[Family] = &[
    counter(
        "container_network_receive_bytes_total",
        "Bytes that were received.",
        Samples::Network(|interface| interface.receive.bytes),
    ),
    counter(
        "container_network_receive_errors_total",
        "Errors of packets to be received.",
        Samples::Network(|interface| interface.receive.errors),
    ),
    counter(
        "container_network_receive_packets_dropped_total",
        "Packets that were dropped instead of being received.",
        Samples::Network(|interface| interface.receive.dropped),
    ),
    counter(
        "container_network_receive_packets_total",
        "Packets that were received.",
        Samples::Network(|interface| interface.receive.packets),
    ),
    counter(
        "container_network_transmit_bytes_total",
        "Bytes that were sent.",
        Samples::Network(|interface| interface.transmit.bytes),
    ),
    counter(
        "container_network_transmit_errors_total",
        "Errors of packets to be sent.",
        Samples::Network(|interface| interface.transmit.errors),
    ),
    counter(
        "container_network_transmit_packets_dropped_total",
        "Packets that were dropped instead of being sent.",
        Samples::Network(|interface| interface.transmit.dropped),
    ),
    counter(
        "container_network_transmit_packets_total",
        "Packets that were sent.",
        Samples::Network(|interface| interface.transmit.packets),
    ),
    counter(
        "container_oom_events_total",
        "Processes directly in the cgroup that were killed because memory ran out.",
        Samples::Rows(|row, _, line| line.value(detail(row).map_or(0, |detail| detail.memory.oom_kills))),
    ),
    counter(
        "container_pressure_cpu_stalled_seconds_total",
        "Seconds in which all processes waited for a processor.",
        Samples::Pressure(|figures| figures.cpu_pressure, stalled),
    ),
    counter(
        "container_pressure_cpu_waiting_seconds_total",
        "Seconds in which some processes waited for a processor.",
        Samples::Pressure(|figures| figures.cpu_pressure, waiting),
    ),
    counter(
        "container_pressure_io_stalled_seconds_total",
        "Seconds in which all processes waited for IO.",
        Samples::Pressure(|figures| figures.io_pressure, stalled),
    ),
    counter(
        "container_pressure_io_waiting_seconds_total",
        "Seconds in which some processes waited for IO.",
        Samples::Pressure(|figures| figures.io_pressure, waiting),
    ),
    counter(
        "container_pressure_memory_stalled_seconds_total",
        "Seconds in which all processes waited for memory.",
        Samples::Pressure(|figures| figures.memory_pressure, stalled),
    ),
    counter(
        "container_pressure_memory_waiting_seconds_total",
        "Seconds in which some processes waited for memory.",
        Samples::Pressure(|figures| figures.memory_pressure, waiting),
    ),
    gauge(
        "container_processes",
        "Processes directly in the cgroup.",
        Samples::Tasks(|tasks| tasks.processes),
    ),
    gauge(
        "container_scrape_error",
        "1 where the containers could not be listed, else 0.",
        Samples::Node(|look, line| line.without_labels().value(look.has_failed.into())),
    ),
    gauge(
        "container_sockets",
        "Open sockets of the processes directly in the cgroup.",
        Samples::Tasks(|tasks| tasks.sockets),
    ),
    gauge(
        "container_spec_cpu_period",
        "Microseconds of a period of the quota.",
        Samples::Limit(|row| Some(detail(row)?.cpu_share.period_micros)),
    ),
    gauge(
        "container_spec_cpu_quota",
        "Microseconds of processor time in each period; only where they are limited.",
        Samples::Limit(|row| detail(row)?.cpu_share.quota_micros),
    ),
    gauge(
        "container_spec_cpu_shares",
        "Share of the processors, in the terms of cgroup version 1.",
        Samples::Limit(|row| Some(detail(row)?.cpu_share.shares)),
    ),
    gauge(
        "container_spec_memory_limit_bytes",
        "Bytes of memory that may be used; 0 is no limit.",
        Samples::Limit(|row| {
            memory(row)
                .and(row.figures.limits)
                .map(|limits| limit(limits.memory_bytes))
        }),
    ),
    gauge(
        "container_spec_memory_reservation_limit_bytes",
        "Bytes of memory that are kept from reclaim; 0 is no limit.",
        Samples::Limit(|row| memory(row).map(|(_, detail)| limit(detail.reserved_bytes))),
    ),
    gauge(
        "container_spec_memory_swap_limit_bytes",
        "Bytes of swap that may be used, on cgroup version 1 of memory and swap together; 0 is no limit.",
        Samples::Limit(|row| {
            memory(row)
                .and(row.figures.limits)
                .map(|limits| limit(limits.swap_bytes))
        }),
    ),
    gauge(
        "container_start_time_seconds",
        "When the cgroup was made, in seconds since 1970.",
        Samples::Limit(|row| Some(unix_seconds(row.started_at))),
    ),
    gauge(
        "container_threads",
        "Threads in the cgroup and below.",
        Samples::Tasks(|tasks| tasks.threads),
    ),
    gauge(
        "container_threads_max",
        "Threads that there may be; 0 is no limit.",
        Samples::Tasks(|tasks| tasks.most_threads),
    ),
    gauge(
        "container_ulimits_soft",
        "Soft limit of the first process; -1 is no limit.",
        Samples::Rows(file_limit),
    ),
    gauge(
        "machine_cpu_books",
        "Processor books of the machine.",
        Samples::Machine(|machine| machine.figures.processors.books),
    ),
    gauge(
        "machine_cpu_cores",
        "Logical processors of the machine.",
        Samples::Machine(|machine| machine.figures.processors.logical),
    ),
    gauge(
        "machine_cpu_drawers",
        "Processor drawers of the machine.",
        Samples::Machine(|machine| machine.figures.processors.drawers),
    ),
    gauge(
        "machine_cpu_physical_cores",
        "Cores of the machine.",
        Samples::Machine(|machine| machine.figures.processors.cores),
    ),
    gauge(
        "machine_cpu_sockets",
        "Processor sockets of the machine.",
        Samples::Machine(|machine| machine.figures.processors.sockets),
    ),
    gauge(
        "machine_dimm_capacity_bytes",
        "Bytes of the memory modules of each type.",
        Samples::Dimms(|dimms| dimms.bytes),
    ),
    gauge(
        "machine_dimm_count",
        "Memory modules of each type.",
        Samples::Dimms(|dimms| dimms.count),
    ),
    gauge(
        "machine_memory_bytes",
        "Bytes of memory of the machine.",
        Samples::Machine(|machine| machine.memory.total_bytes),
    ),
    gauge(
        "machine_nvm_avg_power_budget_watts",
        "Always 0: persistent memory is not looked at.",
        Samples::Machine(|_| 0),
    ),
    gauge(
        "machine_nvm_capacity",
        "Always 0: persistent memory is not looked at.",
        Samples::Node(persistent_memory),
    ),
    gauge(
        "machine_scrape_error",
        "1 where the machine could not be read, else 0.",
        Samples::Node(|look, line| line.without_labels().value(look.machine.is_none().into())),
    ),
    gauge(
        "machine_swap_bytes",
        "Bytes of swap of the machine.",
        Samples::Machine(|machine| machine.memory.swap_total_bytes),
    ),
];
