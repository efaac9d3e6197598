//! What collectors of container metrics want to know of a cgroup beyond its use: shares and throttling, the parts of its memory, its
//! processes.
//!
//! Owns how these are read from the kernel's texts under both versions. What a version does not count is zero.

use crate::io::IoFigures;
use crate::memory::CgroupVersion;
use crate::text::{digits, number, pairs};

/// Version 1 counts processor time by kind in ticks of 10 ms.
const NANOS_PER_TICK: u64 = 10_000_000;

/// Read only where a page shows it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Detail {
    pub cpu: CpuDetail,
    pub cpu_share: CpuShare,
    pub memory: MemoryDetail,
    pub io: IoFigures,
    pub tasks: Tasks,
}

/// Processor time by kind, and how often the quota stopped it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuDetail {
    pub user_nanos: u64,
    pub system_nanos: u64,
    pub periods: u64,
    pub throttled_periods: u64,
    pub throttled_nanos: u64,
    pub burst_periods: u64,
    pub burst_nanos: u64,
}

impl CpuDetail {
    /// From `cpu.stat`, whose times are microseconds on version 2, and nanoseconds on version 1.
    #[must_use]
    pub fn of_stat(version: CgroupVersion, text: &[u8]) -> Self {
        let mut found = Self::default();
        for (name, value) in pairs(text) {
            let (place, unit) = match (version, name) {
                (_, b"nr_periods") => (&mut found.periods, 1),
                (_, b"nr_throttled") => (&mut found.throttled_periods, 1),
                (CgroupVersion::V1, b"throttled_time") => (&mut found.throttled_nanos, 1),
                (CgroupVersion::V2, b"throttled_usec") => (&mut found.throttled_nanos, 1000),
                (CgroupVersion::V2, b"nr_bursts") => (&mut found.burst_periods, 1),
                (CgroupVersion::V2, b"burst_usec") => (&mut found.burst_nanos, 1000),
                (CgroupVersion::V2, b"user_usec") => (&mut found.user_nanos, 1000),
                (CgroupVersion::V2, b"system_usec") => (&mut found.system_nanos, 1000),
                _ => continue,
            };
            *place = value.saturating_mul(unit);
        }
        found
    }

    /// With the times of version 1's `cpuacct.stat`.
    #[must_use]
    pub fn with_accounted(self, text: &[u8]) -> Self {
        let ticks = |name: &[u8]| {
            pairs(text)
                .find(|(found, _)| *found == name)
                .map_or(0, |(_, ticks)| ticks)
        };
        Self {
            user_nanos: ticks(b"user").saturating_mul(NANOS_PER_TICK),
            system_nanos: ticks(b"system").saturating_mul(NANOS_PER_TICK),
            ..self
        }
    }
}

/// What a cgroup gets of the processors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuShare {
    pub shares: u64,
    pub period_micros: u64,
    /// `None` without a quota.
    pub quota_micros: Option<u64>,
}

impl CpuShare {
    /// From `cpu.shares`, `cpu.cfs_period_us` and `cpu.cfs_quota_us`.
    #[must_use]
    pub fn of_v1(shares: Option<u64>, period_micros: Option<u64>, quota_micros: Option<u64>) -> Self {
        Self {
            shares: shares.unwrap_or(0),
            period_micros: period_micros.unwrap_or(0),
            // A quota of -1 is none, and reads as no number.
            quota_micros: quota_micros.filter(|quota| *quota > 0),
        }
    }

    /// From `cpu.weight` and the two fields of `cpu.max`.
    #[must_use]
    pub fn of_v2(weight: Option<u64>, max: Option<&[u8]>) -> Self {
        let mut fields = max.unwrap_or_default().trim_ascii().split(|byte| *byte == b' ');
        let quota = fields.next().and_then(digits).filter(|quota| *quota > 0);
        Self {
            shares: weight.and_then(shares_of_weight).unwrap_or(0),
            period_micros: fields.next().and_then(digits).unwrap_or(0),
            quota_micros: quota,
        }
    }
}

/// From 1..=10000 to 2..=262144.
fn shares_of_weight(weight: u64) -> Option<u64> {
    (1..=10_000)
        .contains(&weight)
        .then(|| 2 + (weight - 1) * 262_142 / 9999)
}

/// The parts of a cgroup's memory, and what happened to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryDetail {
    pub cache_bytes: u64,
    pub mapped_file_bytes: u64,
    pub active_file_bytes: u64,
    pub dirty_bytes: u64,
    pub writeback_bytes: u64,
    pub scanned_pages: u64,
    pub reclaimed_pages: u64,
    pub file_refaults: u64,
    pub anonymous_refaults: u64,
    /// Of the kernel for it.
    pub kernel_bytes: u64,
    /// The most that it ever was.
    pub peak_bytes: u64,
    /// How often the limit was met; on version 2 `max_events` has it.
    pub failures: u64,
    pub high_events: u64,
    pub max_events: u64,
    /// Processes directly in this cgroup that the kernel killed because memory ran out.
    pub oom_kills: u64,
    /// What is kept from reclaim; `None` is no limit.
    pub reserved_bytes: Option<u64>,
}

impl MemoryDetail {
    /// From `memory.stat`.
    #[must_use]
    pub fn of_stat(version: CgroupVersion, text: &[u8]) -> Self {
        use CgroupVersion::{V1, V2};
        let mut found = Self::default();
        for (name, value) in pairs(text) {
            let place = match (version, name) {
                (V1, b"total_cache") | (V2, b"file") => &mut found.cache_bytes,
                (V1, b"total_mapped_file") | (V2, b"file_mapped") => &mut found.mapped_file_bytes,
                (V1, b"total_active_file") | (V2, b"active_file") => &mut found.active_file_bytes,
                (_, b"file_dirty") => &mut found.dirty_bytes,
                (_, b"file_writeback") => &mut found.writeback_bytes,
                (_, b"pgscan") => &mut found.scanned_pages,
                (_, b"pgsteal") => &mut found.reclaimed_pages,
                (_, b"workingset_refault_file") => &mut found.file_refaults,
                (_, b"workingset_refault_anon") => &mut found.anonymous_refaults,
                _ => continue,
            };
            *place = value;
        }
        found
    }
}

/// A number of lines that have a name: `memory.events`, `memory.oom_control`.
#[must_use]
pub fn named_number(text: &[u8], name: &str) -> u64 {
    let mut found = pairs(text).filter(|(found, _)| *found == name.as_bytes());
    found.next().map_or(0, |(_, value)| value)
}

/// The processes that are directly in a cgroup, and the threads that are anywhere in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tasks {
    pub processes: u64,
    pub descriptors: u64,
    pub sockets: u64,
    pub threads: u64,
    /// Zero without a limit.
    pub most_threads: u64,
    /// How many files the first process may open, where that is asked for.
    pub open_files: Option<FileLimit>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileLimit {
    Unlimited,
    Files(u64),
}

impl FileLimit {
    /// The soft limit, from `/proc/<pid>/limits`.
    #[must_use]
    pub fn of_limits(text: &[u8]) -> Option<Self> {
        let mut lines = text.split(|byte| *byte == b'\n');
        let values = lines.find_map(|line| line.strip_prefix(b"Max open files"))?;
        let soft = values.trim_ascii().split(|byte| *byte == b' ').next()?;
        if soft == b"unlimited" {
            return Some(Self::Unlimited);
        }
        digits(soft).map(Self::Files)
    }
}

/// The limit in `pids.max`.
#[must_use]
pub fn most_threads(text: &[u8]) -> u64 {
    number(text).filter(|most| *most != u64::MAX).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn both_versions_count_throttling_in_units_of_their_own() {
        let v1 = CpuDetail::of_stat(
            CgroupVersion::V1,
            b"nr_periods 10\nnr_throttled 3\nthrottled_time 7000\nnr_bursts 9\n",
        );
        let v1 = v1.with_accounted(b"user 5\nsystem 2\n");
        let expected = CpuDetail {
            user_nanos: 50_000_000,
            system_nanos: 20_000_000,
            periods: 10,
            throttled_periods: 3,
            throttled_nanos: 7000,
            ..CpuDetail::default()
        };
        assert_eq!(v1, expected);
        let v2 = CpuDetail::of_stat(
            CgroupVersion::V2,
            b"usage_usec 9\nuser_usec 50000\nsystem_usec 20000\nnr_periods 10\nnr_throttled 3\nthrottled_usec 7\nnr_bursts 2\nburst_usec 4\n",
        );
        let bursts = CpuDetail {
            burst_periods: 2,
            burst_nanos: 4000,
            ..expected
        };
        assert_eq!(v2, bursts);
    }

    #[test]
    fn a_share_is_told_in_version_1s_terms() {
        let v1 = |shares, period, quota| {
            let share = CpuShare::of_v1(shares, period, quota);
            (share.shares, share.period_micros, share.quota_micros)
        };
        assert_eq!(
            v1(Some(512), Some(100_000), Some(50_000)),
            (512, 100_000, Some(50_000))
        );
        assert_eq!(v1(Some(2), Some(100_000), None), (2, 100_000, None));
        assert_eq!(v1(None, None, None), (0, 0, None));
        let v2 = |weight, max: Option<&str>| {
            let share = CpuShare::of_v2(weight, max.map(str::as_bytes));
            (share.shares, share.period_micros, share.quota_micros)
        };
        assert_eq!(v2(Some(1), Some("max 100000\n")), (2, 100_000, None));
        assert_eq!(
            v2(Some(10_000), Some("5000 100000\n")),
            (262_144, 100_000, Some(5000))
        );
        assert_eq!(v2(Some(100), None), (2597, 0, None));
        // The root has none of these files, and no weight is above 10000.
        assert_eq!(v2(None, None), (0, 0, None));
        assert_eq!(v2(Some(10_001), Some("odd")), (0, 0, None));
    }

    #[test]
    fn version_1_counts_memory_below_under_names_of_their_own() {
        let text = b"cache 1\nmapped_file 2\ntotal_cache 30\ntotal_mapped_file 40\ntotal_active_file 50\nactive_file 5\n";
        let found = MemoryDetail::of_stat(CgroupVersion::V1, text);
        let expected = MemoryDetail {
            cache_bytes: 30,
            mapped_file_bytes: 40,
            active_file_bytes: 50,
            ..MemoryDetail::default()
        };
        assert_eq!(found, expected);
        let text = b"anon 1\nfile 30\nfile_mapped 40\nactive_file 50\nfile_dirty 6\nfile_writeback 7\npgscan 8\npgsteal 9\nworkingset_refault_file 10\nworkingset_refault_anon 11\n";
        let found = MemoryDetail::of_stat(CgroupVersion::V2, text);
        let more = MemoryDetail {
            dirty_bytes: 6,
            writeback_bytes: 7,
            scanned_pages: 8,
            reclaimed_pages: 9,
            file_refaults: 10,
            anonymous_refaults: 11,
            ..expected
        };
        assert_eq!(found, more);
    }

    #[test]
    fn numbers_stand_behind_their_names() {
        let text = b"oom_kill_disable 0\nunder_oom 1\noom_kill 3\n";
        assert_eq!(named_number(text, "oom_kill"), 3);
        assert_eq!(named_number(text, "max"), 0);
        assert_eq!(
            (most_threads(b"max\n"), most_threads(b"100\n"), most_threads(b"")),
            (0, 100, 0)
        );
    }

    #[test]
    fn the_limit_of_files_is_the_soft_one() {
        let check = |line: &str, expected: Option<FileLimit>| {
            let text = format!(
                "Limit  Soft Limit  Hard Limit  Units\nMax cpu time  unlimited  unlimited  seconds\n{line}\n"
            );
            assert_eq!(FileLimit::of_limits(text.as_bytes()), expected, "{line}");
        };
        check(
            "Max open files            1024                 524288               files     ",
            Some(FileLimit::Files(1024)),
        );
        check(
            "Max open files  unlimited  unlimited  files",
            Some(FileLimit::Unlimited),
        );
        check("Max open files  lots  unlimited  files", None);
        check("", None);
    }

    proptest! {
        #[test]
        fn no_text_upsets_them(text in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = CpuDetail::of_stat(CgroupVersion::V2, &text).with_accounted(&text);
            let _ = MemoryDetail::of_stat(CgroupVersion::V1, &text);
            let _ = CpuShare::of_v2(Some(7), Some(&text));
            let _ = (FileLimit::of_limits(&text), most_threads(&text));
        }
    }
}
