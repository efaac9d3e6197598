//! Families, by name: filesystems and disks.

use rubelet_usage::IoTable;

use super::{Family, Samples, counter, gauge, millis, number};

pub(super) const FAMILIES: &[Family] = &[
    gauge(
        "container_fs_inodes_free",
        "Inodes of the filesystem that no file has.",
        Samples::Filesystem(|space| space.inodes_free),
    ),
    gauge(
        "container_fs_inodes_total",
        "Inodes of the filesystem.",
        Samples::Filesystem(|space| space.inodes),
    ),
    counter(
        "container_fs_io_cost_indebt_seconds_total",
        "Seconds of debt in the cost model.",
        Samples::Io(IoTable::CostInDebt, "Count", 1e6, None),
    ),
    counter(
        "container_fs_io_cost_indelay_seconds_total",
        "Seconds of delay because of debt in the cost model.",
        Samples::Io(IoTable::CostInDelay, "Count", 1e6, None),
    ),
    counter(
        "container_fs_io_cost_usage_seconds_total",
        "Seconds of the device by its cost model.",
        Samples::Io(IoTable::CostUsage, "Count", 1e6, None),
    ),
    counter(
        "container_fs_io_cost_wait_seconds_total",
        "Seconds of waiting because of the cost model.",
        Samples::Io(IoTable::CostWait, "Count", 1e6, None),
    ),
    gauge(
        "container_fs_io_current",
        "Operations in progress.",
        Samples::Io(
            IoTable::Queued,
            "Total",
            1.0,
            Some(|disk| number(disk.in_progress)),
        ),
    ),
    counter(
        "container_fs_io_time_seconds_total",
        "Seconds in which the device was busy.",
        Samples::Io(
            IoTable::ServiceTime,
            "Total",
            1e9,
            Some(|disk| millis(disk.busy_millis)),
        ),
    ),
    counter(
        "container_fs_io_time_weighted_seconds_total",
        "Seconds in which the disk was busy, times the operations in progress.",
        Samples::Disk(|disk| millis(disk.weighted_millis)),
    ),
    gauge(
        "container_fs_limit_bytes",
        "Bytes of the filesystem.",
        Samples::Filesystem(|space| space.capacity_bytes),
    ),
    counter(
        "container_fs_read_seconds_total",
        "Seconds that reads took.",
        Samples::Io(
            IoTable::ServiceTime,
            "Read",
            1e9,
            Some(|disk| millis(disk.read_millis)),
        ),
    ),
    counter(
        "container_fs_reads_bytes_total",
        "Bytes that were read.",
        Samples::Io(IoTable::Bytes, "Read", 1.0, None),
    ),
    counter(
        "container_fs_reads_merged_total",
        "Reads that were joined with others.",
        Samples::Io(
            IoTable::Merged,
            "Read",
            1.0,
            Some(|disk| number(disk.reads_merged)),
        ),
    ),
    counter(
        "container_fs_reads_total",
        "Reads that have ended.",
        Samples::Io(IoTable::Operations, "Read", 1.0, Some(|disk| number(disk.reads))),
    ),
    counter(
        "container_fs_sector_reads_total",
        "Sectors that were read.",
        Samples::Io(
            IoTable::Sectors,
            "Read",
            1.0,
            Some(|disk| number(disk.sectors_read)),
        ),
    ),
    counter(
        "container_fs_sector_writes_total",
        "Sectors that were written.",
        Samples::Io(
            IoTable::Sectors,
            "Write",
            1.0,
            Some(|disk| number(disk.sectors_written)),
        ),
    ),
    gauge(
        "container_fs_usage_bytes",
        "Bytes of the filesystem that are in use.",
        Samples::Filesystem(|space| space.used().bytes),
    ),
    counter(
        "container_fs_write_seconds_total",
        "Seconds that writes took.",
        Samples::Io(
            IoTable::ServiceTime,
            "Write",
            1e9,
            Some(|disk| millis(disk.write_millis)),
        ),
    ),
    counter(
        "container_fs_writes_bytes_total",
        "Bytes that were written.",
        Samples::Io(IoTable::Bytes, "Write", 1.0, None),
    ),
    counter(
        "container_fs_writes_merged_total",
        "Writes that were joined with others.",
        Samples::Io(
            IoTable::Merged,
            "Write",
            1.0,
            Some(|disk| number(disk.writes_merged)),
        ),
    ),
    counter(
        "container_fs_writes_total",
        "Writes that have ended.",
        Samples::Io(
            IoTable::Operations,
            "Write",
            1.0,
            Some(|disk| number(disk.writes)),
        ),
    ),
];
