//! The table of families, in the order of their names.

use rubelet_usage::{FileLimit, IoTable};

use super::{
    Family, Line, Look, PageRow, Samples, cpu, detail, disks, interfaces, limit, memory, number, stalled,
    stalls, tasks, throttling, unix_seconds, waiting,
};

const fn rows(
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    samples: fn(&PageRow, &Look, &mut Line<'_>),
) -> Family {
    Family {
        name,
        kind,
        help,
        samples: Samples::OfRows(samples),
    }
}

const fn node(
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    samples: fn(&Look, &mut Line<'_>),
) -> Family {
    Family {
        name,
        kind,
        help,
        samples: Samples::OfNode(samples),
    }
}

const COUNTER: &str = "counter";
const GAUGE: &str = "gauge";

pub(in super::super) const FAMILIES: &[Family] = &[
    node(
        "cadvisor_version_info",
        GAUGE,
        "Constant 1, with the versions of the kernel and of the operating system as labels.",
        |look, line| {
            let labels = [
                ("cadvisorRevision", ""),
                ("cadvisorVersion", ""),
                ("dockerVersion", ""),
                ("kernelVersion", look.names.kernel_version.as_str()),
                ("osVersion", &look.names.os_image),
            ];
            line.without_labels().push(&labels, 1.0);
        },
    ),
    rows(
        "container_blkio_device_usage_total",
        COUNTER,
        "Bytes of each operation on a device.",
        disks::operations,
    ),
    rows(
        "container_cpu_cfs_burst_periods_total",
        COUNTER,
        "Periods in which more than the quota was used.",
        |row, _, line| {
            if let Some(cpu) = throttling(row) {
                line.value(cpu.burst_periods);
            }
        },
    ),
    rows(
        "container_cpu_cfs_burst_seconds_total",
        COUNTER,
        "Seconds of processor time beyond the quota.",
        |row, _, line| {
            if let Some(cpu) = throttling(row) {
                line.seconds(cpu.burst_nanos);
            }
        },
    ),
    rows(
        "container_cpu_cfs_periods_total",
        COUNTER,
        "Periods of the quota that began.",
        |row, _, line| {
            if let Some(cpu) = throttling(row) {
                line.value(cpu.periods);
            }
        },
    ),
    rows(
        "container_cpu_cfs_throttled_periods_total",
        COUNTER,
        "Periods in which the quota was used up.",
        |row, _, line| {
            if let Some(cpu) = throttling(row) {
                line.value(cpu.throttled_periods);
            }
        },
    ),
    rows(
        "container_cpu_cfs_throttled_seconds_total",
        COUNTER,
        "Seconds in which the quota kept processes from running.",
        |row, _, line| {
            if let Some(cpu) = throttling(row) {
                line.seconds(cpu.throttled_nanos);
            }
        },
    ),
    rows(
        "container_cpu_system_seconds_total",
        COUNTER,
        "Seconds of processor time that were used in the kernel.",
        |row, _, line| {
            if let Some(cpu) = cpu(row) {
                line.seconds(cpu.system_nanos);
            }
        },
    ),
    rows(
        "container_cpu_usage_seconds_total",
        COUNTER,
        "Seconds of processor time that were used.",
        |row, _, line| {
            if let Some(nanos) = row.figures.cpu_nanos.filter(|nanos| *nanos > 0) {
                line.push(&[("cpu", "total")], number(nanos) / 1e9);
            }
        },
    ),
    rows(
        "container_cpu_user_seconds_total",
        COUNTER,
        "Seconds of processor time that were used outside of the kernel.",
        |row, _, line| {
            if let Some(cpu) = cpu(row) {
                line.seconds(cpu.user_nanos);
            }
        },
    ),
    rows(
        "container_creation_time_seconds",
        GAUGE,
        "When the container was created, in seconds since 1970.",
        |row, _, line| line.without_time().value(unix_seconds(row.created_at)),
    ),
    rows(
        "container_file_descriptors",
        GAUGE,
        "Open files of the processes directly in the cgroup.",
        |row, _, line| {
            if let Some(tasks) = tasks(row) {
                line.value(tasks.descriptors);
            }
        },
    ),
    rows(
        "container_fs_inodes_free",
        GAUGE,
        "Inodes of the filesystem that no file has.",
        |row, look, line| disks::filesystems(row, look, line, |space| space.inodes_free),
    ),
    rows(
        "container_fs_inodes_total",
        GAUGE,
        "Inodes of the filesystem.",
        |row, look, line| disks::filesystems(row, look, line, |space| space.inodes),
    ),
    rows(
        "container_fs_io_cost_indebt_seconds_total",
        COUNTER,
        "Seconds of debt in the cost model.",
        |row, look, line| disks::cost((row, look, line), IoTable::CostInDebt),
    ),
    rows(
        "container_fs_io_cost_indelay_seconds_total",
        COUNTER,
        "Seconds of delay because of debt in the cost model.",
        |row, look, line| disks::cost((row, look, line), IoTable::CostInDelay),
    ),
    rows(
        "container_fs_io_cost_usage_seconds_total",
        COUNTER,
        "Seconds of the device by its cost model.",
        |row, look, line| disks::cost((row, look, line), IoTable::CostUsage),
    ),
    rows(
        "container_fs_io_cost_wait_seconds_total",
        COUNTER,
        "Seconds of waiting because of the cost model.",
        |row, look, line| disks::cost((row, look, line), IoTable::CostWait),
    ),
    rows(
        "container_fs_io_current",
        GAUGE,
        "Operations in progress.",
        |row, look, line| {
            disks::io(
                (row, look, line),
                (IoTable::Queued, "Total", 1.0),
                Some(|disk| number(disk.in_progress)),
            )
        },
    ),
    rows(
        "container_fs_io_time_seconds_total",
        COUNTER,
        "Seconds in which the device was busy.",
        |row, look, line| {
            disks::io(
                (row, look, line),
                (IoTable::ServiceTime, "Total", 1e9),
                Some(|disk| disks::millis(disk.busy_millis)),
            )
        },
    ),
    rows(
        "container_fs_io_time_weighted_seconds_total",
        COUNTER,
        "Seconds in which the disk was busy, times the operations in progress.",
        disks::weighted_time,
    ),
    rows(
        "container_fs_limit_bytes",
        GAUGE,
        "Bytes of the filesystem.",
        |row, look, line| disks::filesystems(row, look, line, |space| space.capacity_bytes),
    ),
    rows(
        "container_fs_read_seconds_total",
        COUNTER,
        "Seconds that reads took.",
        |row, look, line| {
            disks::io(
                (row, look, line),
                (IoTable::ServiceTime, "Read", 1e9),
                Some(|disk| disks::millis(disk.read_millis)),
            )
        },
    ),
    rows(
        "container_fs_reads_bytes_total",
        COUNTER,
        "Bytes that were read.",
        |row, look, line| disks::io((row, look, line), (IoTable::Bytes, "Read", 1.0), None),
    ),
    rows(
        "container_fs_reads_merged_total",
        COUNTER,
        "Reads that were joined with others.",
        |row, look, line| {
            disks::io(
                (row, look, line),
                (IoTable::Merged, "Read", 1.0),
                Some(|disk| number(disk.reads_merged)),
            )
        },
    ),
    rows(
        "container_fs_reads_total",
        COUNTER,
        "Reads that have ended.",
        |row, look, line| {
            disks::io(
                (row, look, line),
                (IoTable::Operations, "Read", 1.0),
                Some(|disk| number(disk.reads)),
            )
        },
    ),
    rows(
        "container_fs_sector_reads_total",
        COUNTER,
        "Sectors that were read.",
        |row, look, line| {
            disks::io(
                (row, look, line),
                (IoTable::Sectors, "Read", 1.0),
                Some(|disk| number(disk.sectors_read)),
            )
        },
    ),
    rows(
        "container_fs_sector_writes_total",
        COUNTER,
        "Sectors that were written.",
        |row, look, line| {
            disks::io(
                (row, look, line),
                (IoTable::Sectors, "Write", 1.0),
                Some(|disk| number(disk.sectors_written)),
            )
        },
    ),
    rows(
        "container_fs_usage_bytes",
        GAUGE,
        "Bytes of the filesystem that are in use.",
        |row, look, line| disks::filesystems(row, look, line, |space| space.used().bytes),
    ),
    rows(
        "container_fs_write_seconds_total",
        COUNTER,
        "Seconds that writes took.",
        |row, look, line| {
            disks::io(
                (row, look, line),
                (IoTable::ServiceTime, "Write", 1e9),
                Some(|disk| disks::millis(disk.write_millis)),
            )
        },
    ),
    rows(
        "container_fs_writes_bytes_total",
        COUNTER,
        "Bytes that were written.",
        |row, look, line| disks::io((row, look, line), (IoTable::Bytes, "Write", 1.0), None),
    ),
    rows(
        "container_fs_writes_merged_total",
        COUNTER,
        "Writes that were joined with others.",
        |row, look, line| {
            disks::io(
                (row, look, line),
                (IoTable::Merged, "Write", 1.0),
                Some(|disk| number(disk.writes_merged)),
            )
        },
    ),
    rows(
        "container_fs_writes_total",
        COUNTER,
        "Writes that have ended.",
        |row, look, line| {
            disks::io(
                (row, look, line),
                (IoTable::Operations, "Write", 1.0),
                Some(|disk| number(disk.writes)),
            )
        },
    ),
    rows(
        "container_health_state",
        GAUGE,
        "Always -1: containers have no health checks of their own.",
        |_, _, line| line.push(&[], -1.0),
    ),
    rows(
        "container_last_seen",
        GAUGE,
        "When the cgroup was last seen, in seconds since 1970.",
        |_, look, line| {
            line.taken_at = Some(look.at);
            line.value(unix_seconds(look.at));
        },
    ),
    rows(
        "container_memory_cache",
        GAUGE,
        "Bytes of page cache.",
        |row, _, line| {
            if let Some((_, detail)) = memory(row) {
                line.value(detail.cache_bytes);
            }
        },
    ),
    rows(
        "container_memory_events_high_total",
        COUNTER,
        "Times that processes were slowed down because of memory.high.",
        |row, _, line| {
            if let Some((_, detail)) = memory(row) {
                line.value(detail.high_events);
            }
        },
    ),
    rows(
        "container_memory_events_max_total",
        COUNTER,
        "Times that memory.max was met.",
        |row, _, line| {
            if let Some((_, detail)) = memory(row) {
                line.value(detail.max_events);
            }
        },
    ),
    rows(
        "container_memory_failcnt",
        COUNTER,
        "Times that the limit of memory was met.",
        |row, _, line| {
            if let Some((_, detail)) = memory(row) {
                line.value(detail.failures);
            }
        },
    ),
    rows(
        "container_memory_failures_total",
        COUNTER,
        "Page faults, and those that needed a disk.",
        |row, _, line| {
            if let Some((memory, _)) = memory(row) {
                for scope in ["container", "hierarchy"] {
                    let faults = [
                        ("pgfault", memory.page_faults),
                        ("pgmajfault", memory.major_page_faults),
                    ];
                    for (kind, count) in faults {
                        line.push(&[("failure_type", kind), ("scope", scope)], number(count));
                    }
                }
            }
        },
    ),
    rows(
        "container_memory_file_dirty_bytes",
        GAUGE,
        "Bytes of page cache that have to be written to a disk.",
        |row, _, line| {
            if let Some((_, detail)) = memory(row) {
                line.value(detail.dirty_bytes);
            }
        },
    ),
    rows(
        "container_memory_file_writeback_bytes",
        GAUGE,
        "Bytes of page cache that are being written to a disk.",
        |row, _, line| {
            if let Some((_, detail)) = memory(row) {
                line.value(detail.writeback_bytes);
            }
        },
    ),
    rows(
        "container_memory_kernel_usage",
        GAUGE,
        "Bytes of memory of the kernel.",
        |row, _, line| {
            if let Some((_, detail)) = memory(row) {
                line.value(detail.kernel_bytes);
            }
        },
    ),
    rows(
        "container_memory_mapped_file",
        GAUGE,
        "Bytes of files that are mapped into memory.",
        |row, _, line| {
            if let Some((_, detail)) = memory(row) {
                line.value(detail.mapped_file_bytes);
            }
        },
    ),
    rows(
        "container_memory_max_usage_bytes",
        GAUGE,
        "The most bytes of memory that were in use at a time.",
        |row, _, line| {
            if let Some((_, detail)) = memory(row) {
                line.value(detail.peak_bytes);
            }
        },
    ),
    rows(
        "container_memory_pgscan_total",
        COUNTER,
        "Pages that were looked at for reclaim.",
        |row, _, line| {
            if let Some((_, detail)) = memory(row) {
                line.value(detail.scanned_pages);
            }
        },
    ),
    rows(
        "container_memory_pgsteal_total",
        COUNTER,
        "Pages that were reclaimed.",
        |row, _, line| {
            if let Some((_, detail)) = memory(row) {
                line.value(detail.reclaimed_pages);
            }
        },
    ),
    rows(
        "container_memory_rss",
        GAUGE,
        "Bytes of anonymous memory.",
        |row, _, line| {
            if let Some((memory, _)) = memory(row) {
                line.value(memory.rss_bytes);
            }
        },
    ),
    rows(
        "container_memory_swap",
        GAUGE,
        "Bytes of swap in use.",
        |row, _, line| {
            if let Some((memory, _)) = memory(row) {
                line.value(memory.swap_bytes);
            }
        },
    ),
    rows(
        "container_memory_total_active_file_bytes",
        GAUGE,
        "Bytes of page cache that are in use.",
        |row, _, line| {
            if let Some((_, detail)) = memory(row) {
                line.value(detail.active_file_bytes);
            }
        },
    ),
    rows(
        "container_memory_total_inactive_file_bytes",
        GAUGE,
        "Bytes of page cache that the kernel reclaims first.",
        |row, _, line| {
            if let Some((memory, _)) = memory(row) {
                line.value(memory.inactive_file_bytes);
            }
        },
    ),
    rows(
        "container_memory_usage_bytes",
        GAUGE,
        "Bytes of memory in use, page cache included.",
        |row, _, line| {
            if let Some((memory, _)) = memory(row) {
                line.value(memory.usage_bytes);
            }
        },
    ),
    rows(
        "container_memory_working_set_bytes",
        GAUGE,
        "Bytes of memory that the kernel cannot reclaim easily.",
        |row, _, line| {
            if let Some((memory, _)) = memory(row) {
                line.value(memory.working_set_bytes());
            }
        },
    ),
    rows(
        "container_memory_workingset_refault_anon_total",
        COUNTER,
        "Anonymous pages that were needed again after their reclaim.",
        |row, _, line| {
            if let Some((_, detail)) = memory(row) {
                line.value(detail.anonymous_refaults);
            }
        },
    ),
    rows(
        "container_memory_workingset_refault_file_total",
        COUNTER,
        "Pages of files that were needed again after their reclaim.",
        |row, _, line| {
            if let Some((_, detail)) = memory(row) {
                line.value(detail.file_refaults);
            }
        },
    ),
    rows(
        "container_network_receive_bytes_total",
        COUNTER,
        "Bytes that were received.",
        |row, _, line| interfaces(row, line, |interface| interface.receive.bytes),
    ),
    rows(
        "container_network_receive_errors_total",
        COUNTER,
        "Errors of packets to be received.",
        |row, _, line| interfaces(row, line, |interface| interface.receive.errors),
    ),
    rows(
        "container_network_receive_packets_dropped_total",
        COUNTER,
        "Packets that were dropped instead of being received.",
        |row, _, line| interfaces(row, line, |interface| interface.receive.dropped),
    ),
    rows(
        "container_network_receive_packets_total",
        COUNTER,
        "Packets that were received.",
        |row, _, line| interfaces(row, line, |interface| interface.receive.packets),
    ),
    rows(
        "container_network_transmit_bytes_total",
        COUNTER,
        "Bytes that were sent.",
        |row, _, line| interfaces(row, line, |interface| interface.transmit.bytes),
    ),
    rows(
        "container_network_transmit_errors_total",
        COUNTER,
        "Errors of packets to be sent.",
        |row, _, line| interfaces(row, line, |interface| interface.transmit.errors),
    ),
    rows(
        "container_network_transmit_packets_dropped_total",
        COUNTER,
        "Packets that were dropped instead of being sent.",
        |row, _, line| interfaces(row, line, |interface| interface.transmit.dropped),
    ),
    rows(
        "container_network_transmit_packets_total",
        COUNTER,
        "Packets that were sent.",
        |row, _, line| interfaces(row, line, |interface| interface.transmit.packets),
    ),
    rows(
        "container_oom_events_total",
        COUNTER,
        "Processes directly in the cgroup that were killed because memory ran out.",
        |row, _, line| {
            if let Some(detail) = detail(row) {
                line.value(detail.memory.oom_kills);
            }
        },
    ),
    rows(
        "container_pressure_cpu_stalled_seconds_total",
        COUNTER,
        "Seconds in which all processes waited for a processor.",
        |row, _, line| stalls(line, row.figures.cpu_pressure, stalled),
    ),
    rows(
        "container_pressure_cpu_waiting_seconds_total",
        COUNTER,
        "Seconds in which some processes waited for a processor.",
        |row, _, line| stalls(line, row.figures.cpu_pressure, waiting),
    ),
    rows(
        "container_pressure_io_stalled_seconds_total",
        COUNTER,
        "Seconds in which all processes waited for IO.",
        |row, _, line| stalls(line, row.figures.io_pressure, stalled),
    ),
    rows(
        "container_pressure_io_waiting_seconds_total",
        COUNTER,
        "Seconds in which some processes waited for IO.",
        |row, _, line| stalls(line, row.figures.io_pressure, waiting),
    ),
    rows(
        "container_pressure_memory_stalled_seconds_total",
        COUNTER,
        "Seconds in which all processes waited for memory.",
        |row, _, line| stalls(line, row.figures.memory_pressure, stalled),
    ),
    rows(
        "container_pressure_memory_waiting_seconds_total",
        COUNTER,
        "Seconds in which some processes waited for memory.",
        |row, _, line| stalls(line, row.figures.memory_pressure, waiting),
    ),
    rows(
        "container_processes",
        GAUGE,
        "Processes directly in the cgroup.",
        |row, _, line| {
            if let Some(tasks) = tasks(row) {
                line.value(tasks.processes);
            }
        },
    ),
    node(
        "container_scrape_error",
        GAUGE,
        "1 where the containers could not be listed, else 0.",
        |look, line| line.without_labels().value(look.has_failed.into()),
    ),
    rows(
        "container_sockets",
        GAUGE,
        "Open sockets of the processes directly in the cgroup.",
        |row, _, line| {
            if let Some(tasks) = tasks(row) {
                line.value(tasks.sockets);
            }
        },
    ),
    rows(
        "container_spec_cpu_period",
        GAUGE,
        "Microseconds of a period of the quota.",
        |row, _, line| {
            if let Some(detail) = detail(row) {
                line.without_time().value(detail.cpu_share.period_micros);
            }
        },
    ),
    rows(
        "container_spec_cpu_quota",
        GAUGE,
        "Microseconds of processor time in each period; only where they are limited.",
        |row, _, line| {
            if let Some(quota) = detail(row).and_then(|detail| detail.cpu_share.quota_micros) {
                line.without_time().value(quota);
            }
        },
    ),
    rows(
        "container_spec_cpu_shares",
        GAUGE,
        "Share of the processors, in the terms of cgroup version 1.",
        |row, _, line| {
            if let Some(detail) = detail(row) {
                line.without_time().value(detail.cpu_share.shares);
            }
        },
    ),
    rows(
        "container_spec_memory_limit_bytes",
        GAUGE,
        "Bytes of memory that may be used; 0 is no limit.",
        |row, _, line| {
            if let Some(limits) = row.figures.limits.filter(|_| memory(row).is_some()) {
                line.without_time().value(limit(limits.memory_bytes));
            }
        },
    ),
    rows(
        "container_spec_memory_reservation_limit_bytes",
        GAUGE,
        "Bytes of memory that are kept from reclaim; 0 is no limit.",
        |row, _, line| {
            if let Some((_, detail)) = memory(row) {
                line.without_time().value(limit(detail.reserved_bytes));
            }
        },
    ),
    rows(
        "container_spec_memory_swap_limit_bytes",
        GAUGE,
        "Bytes of swap that may be used, on cgroup version 1 of memory and swap together; 0 is no limit.",
        |row, _, line| {
            if let Some(limits) = row.figures.limits.filter(|_| memory(row).is_some()) {
                line.without_time().value(limit(limits.swap_bytes));
            }
        },
    ),
    rows(
        "container_start_time_seconds",
        GAUGE,
        "When the cgroup was made, in seconds since 1970.",
        |row, _, line| line.without_time().value(unix_seconds(row.started_at)),
    ),
    rows(
        "container_threads",
        GAUGE,
        "Threads in the cgroup and below.",
        |row, _, line| {
            if let Some(tasks) = tasks(row) {
                line.value(tasks.threads);
            }
        },
    ),
    rows(
        "container_threads_max",
        GAUGE,
        "Threads that there may be; 0 is no limit.",
        |row, _, line| {
            if let Some(tasks) = tasks(row) {
                line.value(tasks.most_threads);
            }
        },
    ),
    rows(
        "container_ulimits_soft",
        GAUGE,
        "Soft limit of the first process; -1 is no limit.",
        |row, _, line| {
            let value = match tasks(row).and_then(|tasks| tasks.open_files) {
                Some(FileLimit::Files(files)) => number(files),
                Some(FileLimit::Unlimited) => -1.0,
                None => return,
            };
            line.push(&[("ulimit", "max_open_files")], value);
        },
    ),
    node(
        "machine_cpu_books",
        GAUGE,
        "Processor books of the machine.",
        |look, line| {
            if let Some(machine) = &look.machine {
                line.value(machine.figures.processors.books);
            }
        },
    ),
    node(
        "machine_cpu_cores",
        GAUGE,
        "Logical processors of the machine.",
        |look, line| {
            if let Some(machine) = &look.machine {
                line.value(machine.figures.processors.logical);
            }
        },
    ),
    node(
        "machine_cpu_drawers",
        GAUGE,
        "Processor drawers of the machine.",
        |look, line| {
            if let Some(machine) = &look.machine {
                line.value(machine.figures.processors.drawers);
            }
        },
    ),
    node(
        "machine_cpu_physical_cores",
        GAUGE,
        "Cores of the machine.",
        |look, line| {
            if let Some(machine) = &look.machine {
                line.value(machine.figures.processors.cores);
            }
        },
    ),
    node(
        "machine_cpu_sockets",
        GAUGE,
        "Processor sockets of the machine.",
        |look, line| {
            if let Some(machine) = &look.machine {
                line.value(machine.figures.processors.sockets);
            }
        },
    ),
    node(
        "machine_dimm_capacity_bytes",
        GAUGE,
        "Bytes of the memory modules of each type.",
        |look, line| {
            for (kind, dimms) in look.machine.iter().flat_map(|machine| &machine.figures.dimms) {
                line.push(&[("type", kind)], number(dimms.bytes));
            }
        },
    ),
    node(
        "machine_dimm_count",
        GAUGE,
        "Memory modules of each type.",
        |look, line| {
            for (kind, dimms) in look.machine.iter().flat_map(|machine| &machine.figures.dimms) {
                line.push(&[("type", kind)], number(dimms.count));
            }
        },
    ),
    node(
        "machine_memory_bytes",
        GAUGE,
        "Bytes of memory of the machine.",
        |look, line| {
            if let Some(machine) = &look.machine {
                line.value(machine.memory.total_bytes);
            }
        },
    ),
    node(
        "machine_nvm_avg_power_budget_watts",
        GAUGE,
        "Always 0: persistent memory is not looked at.",
        |look, line| {
            if look.machine.is_some() {
                line.value(0);
            }
        },
    ),
    node(
        "machine_nvm_capacity",
        GAUGE,
        "Always 0: persistent memory is not looked at.",
        |look, line| {
            for mode in ["app_direct_mode", "memory_mode"]
                .into_iter()
                .filter(|_| look.machine.is_some())
            {
                line.push(&[("mode", mode)], 0.0);
            }
        },
    ),
    node(
        "machine_scrape_error",
        GAUGE,
        "1 where the machine could not be read, else 0.",
        |look, line| line.without_labels().value(look.machine.is_none().into()),
    ),
    node(
        "machine_swap_bytes",
        GAUGE,
        "Bytes of swap of the machine.",
        |look, line| {
            if let Some(machine) = &look.machine {
                line.value(machine.memory.swap_total_bytes);
            }
        },
    ),
];
