//! Families, by name: memory.

use super::{Family, Samples, counter, gauge, last_seen, page_faults};

pub(super) const FAMILIES: &[Family] = &[
    gauge(
        "container_health_state",
        "Always -1: containers have no health checks of their own.",
        Samples::Rows(|_, _, line| line.push(&[], -1.0)),
    ),
    gauge(
        "container_last_seen",
        "When the cgroup was last seen, in seconds since 1970.",
        Samples::Rows(last_seen),
    ),
    gauge(
        "container_memory_cache",
        "Bytes of page cache.",
        Samples::Memory(|_, detail| detail.cache_bytes),
    ),
    counter(
        "container_memory_events_high_total",
        "Times that processes were slowed down because of memory.high.",
        Samples::Memory(|_, detail| detail.high_events),
    ),
    counter(
        "container_memory_events_max_total",
        "Times that memory.max was met.",
        Samples::Memory(|_, detail| detail.max_events),
    ),
    counter(
        "container_memory_failcnt",
        "Times that the limit of memory was met.",
        Samples::Memory(|_, detail| detail.failures),
    ),
    counter(
        "container_memory_failures_total",
        "Page faults, and those that needed a disk.",
        Samples::Rows(page_faults),
    ),
    gauge(
        "container_memory_file_dirty_bytes",
        "Bytes of page cache that have to be written to a disk.",
        Samples::Memory(|_, detail| detail.dirty_bytes),
    ),
    gauge(
        "container_memory_file_writeback_bytes",
        "Bytes of page cache that are being written to a disk.",
        Samples::Memory(|_, detail| detail.writeback_bytes),
    ),
    gauge(
        "container_memory_kernel_usage",
        "Bytes of memory of the kernel.",
        Samples::Memory(|_, detail| detail.kernel_bytes),
    ),
    gauge(
        "container_memory_mapped_file",
        "Bytes of files that are mapped into memory.",
        Samples::Memory(|_, detail| detail.mapped_file_bytes),
    ),
    gauge(
        "container_memory_max_usage_bytes",
        "The most bytes of memory that were in use at a time.",
        Samples::Memory(|_, detail| detail.peak_bytes),
    ),
    counter(
        "container_memory_pgscan_total",
        "Pages that were looked at for reclaim.",
        Samples::Memory(|_, detail| detail.scanned_pages),
    ),
    counter(
        "container_memory_pgsteal_total",
        "Pages that were reclaimed.",
        Samples::Memory(|_, detail| detail.reclaimed_pages),
    ),
    gauge(
        "container_memory_rss",
        "Bytes of anonymous memory.",
        Samples::Memory(|memory, _| memory.rss_bytes),
    ),
    gauge(
        "container_memory_swap",
        "Bytes of swap in use.",
        Samples::Memory(|memory, _| memory.swap_bytes),
    ),
    gauge(
        "container_memory_total_active_file_bytes",
        "Bytes of page cache that are in use.",
        Samples::Memory(|_, detail| detail.active_file_bytes),
    ),
    gauge(
        "container_memory_total_inactive_file_bytes",
        "Bytes of page cache that the kernel reclaims first.",
        Samples::Memory(|memory, _| memory.inactive_file_bytes),
    ),
    gauge(
        "container_memory_usage_bytes",
        "Bytes of memory in use, page cache included.",
        Samples::Memory(|memory, _| memory.usage_bytes),
    ),
    gauge(
        "container_memory_working_set_bytes",
        "Bytes of memory that the kernel cannot reclaim easily.",
        Samples::Memory(|memory, _| memory.working_set_bytes()),
    ),
    counter(
        "container_memory_workingset_refault_anon_total",
        "Anonymous pages that were needed again after their reclaim.",
        Samples::Memory(|_, detail| detail.anonymous_refaults),
    ),
    counter(
        "container_memory_workingset_refault_file_total",
        "Pages of files that were needed again after their reclaim.",
        Samples::Memory(|_, detail| detail.file_refaults),
    ),
];
