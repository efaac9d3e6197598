//! Families, by name: processors, devices of the block layer, and what the runtime knows.

use super::{
    Family, Samples, counter, device_samples, gauge, number, processor_time, seconds, unix_seconds, version,
};

pub(super) const FAMILIES: &[Family] = &[
    gauge(
        "cadvisor_version_info",
        "Constant 1, with the versions of the kernel and of the operating system as labels.",
        Samples::Node(version),
    ),
    counter(
        "container_blkio_device_usage_total",
        "Bytes of each operation on a device.",
        Samples::Rows(device_samples::operations),
    ),
    counter(
        "container_cpu_cfs_burst_periods_total",
        "Periods in which more than the quota was used.",
        Samples::Throttling(|cpu| number(cpu.burst_periods)),
    ),
    counter(
        "container_cpu_cfs_burst_seconds_total",
        "Seconds of processor time beyond the quota.",
        Samples::Throttling(|cpu| seconds(cpu.burst_nanos)),
    ),
    counter(
        "container_cpu_cfs_periods_total",
        "Periods of the quota that began.",
        Samples::Throttling(|cpu| number(cpu.periods)),
    ),
    counter(
        "container_cpu_cfs_throttled_periods_total",
        "Periods in which the quota was used up.",
        Samples::Throttling(|cpu| number(cpu.throttled_periods)),
    ),
    counter(
        "container_cpu_cfs_throttled_seconds_total",
        "Seconds in which the quota kept processes from running.",
        Samples::Throttling(|cpu| seconds(cpu.throttled_nanos)),
    ),
    counter(
        "container_cpu_system_seconds_total",
        "Seconds of processor time that were used in the kernel.",
        Samples::Cpu(|cpu| seconds(cpu.system_nanos)),
    ),
    counter(
        "container_cpu_usage_seconds_total",
        "Seconds of processor time that were used.",
        Samples::Rows(processor_time),
    ),
    counter(
        "container_cpu_user_seconds_total",
        "Seconds of processor time that were used outside of the kernel.",
        Samples::Cpu(|cpu| seconds(cpu.user_nanos)),
    ),
    gauge(
        "container_creation_time_seconds",
        "When the container was created, in seconds since 1970.",
        Samples::Limit(|row| Some(unix_seconds(row.created_at))),
    ),
    gauge(
        "container_file_descriptors",
        "Open files of the processes directly in the cgroup.",
        Samples::Tasks(|tasks| tasks.descriptors),
    ),
];
