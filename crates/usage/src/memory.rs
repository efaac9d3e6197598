//! Memory of a cgroup and of the machine.
//!
//! Owns what is read from `memory.stat` and `/proc/meminfo` under both versions, and the sums that upstream makes of it.

use crate::text::{digits, pairs};

/// Version 1 shows no limit as a number near the largest one, rounded to pages.
pub const UNLIMITED_BYTES: u64 = 1 << 62;

/// Which of the kernel's interfaces a cgroup is under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    V1,
    V2,
}

/// What a cgroup, with all below it, holds in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryFigures {
    pub usage_bytes: u64,
    /// The kernel reclaims these pages first.
    pub inactive_file_bytes: u64,
    pub rss_bytes: u64,
    pub swap_bytes: u64,
    /// On version 1 of the processes directly in the cgroup.
    pub page_faults: u64,
    pub major_page_faults: u64,
}

impl MemoryFigures {
    /// From `memory.stat`. Usage, and on version 2 swap, have files of their own.
    #[must_use]
    pub fn of_stat(version: CgroupVersion, text: &[u8]) -> Self {
        let mut figures = Self::default();
        for (name, value) in pairs(text) {
            let place = match (version, name) {
                (_, b"pgfault") => &mut figures.page_faults,
                (_, b"pgmajfault") => &mut figures.major_page_faults,
                (CgroupVersion::V1, b"total_inactive_file") | (CgroupVersion::V2, b"inactive_file") => {
                    &mut figures.inactive_file_bytes
                }
                (CgroupVersion::V1, b"total_rss") | (CgroupVersion::V2, b"anon") => &mut figures.rss_bytes,
                (CgroupVersion::V1, b"total_swap") => &mut figures.swap_bytes,
                _ => continue,
            };
            *place = value;
        }
        figures
    }

    /// What the root cgroup of version 2 uses: it has no file for that.
    #[must_use]
    pub fn root_usage_bytes(text: &[u8]) -> u64 {
        pairs(text)
            .filter(|(name, _)| matches!(*name, b"anon" | b"file"))
            .fold(0, |sum, (_, value)| sum.saturating_add(value))
    }

    /// What cannot be given up easily.
    #[must_use]
    pub fn working_set_bytes(&self) -> u64 {
        self.usage_bytes.saturating_sub(self.inactive_file_bytes)
    }

    /// What is left of a limit.
    #[must_use]
    pub fn available_bytes(&self, limits: &MemoryLimits) -> Option<u64> {
        let limit = limits.memory_bytes?;
        Some(limit.saturating_sub(self.working_set_bytes()))
    }
}

/// What a cgroup may use. `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryLimits {
    pub memory_bytes: Option<u64>,
    /// As the kernel has it: version 1 limits memory and swap together, version 2 swap alone. Zero without swap accounting.
    pub swap_bytes: Option<u64>,
}

impl MemoryLimits {
    /// From the numbers in the files; a file that is missing reads zero, as for upstream.
    #[must_use]
    pub fn of_numbers(memory: Option<u64>, swap: Option<u64>) -> Self {
        let limited =
            |number: Option<u64>| Some(number.unwrap_or(0)).filter(|limit| *limit <= UNLIMITED_BYTES);
        Self {
            memory_bytes: limited(memory),
            swap_bytes: limited(swap),
        }
    }

    /// What is left of the swap that may be used.
    #[must_use]
    pub fn swap_available_bytes(&self, used_bytes: u64) -> Option<u64> {
        Some(self.swap_bytes?.saturating_sub(used_bytes))
    }
}

/// From `/proc/meminfo`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineMemory {
    pub total_bytes: u64,
    pub swap_total_bytes: u64,
    pub swap_free_bytes: u64,
}

impl MachineMemory {
    #[must_use]
    pub fn of_meminfo(text: &[u8]) -> Self {
        let mut memory = Self::default();
        for line in text.split(|byte| *byte == b'\n') {
            let Some(colon) = line.iter().position(|byte| *byte == b':') else {
                continue;
            };
            let place = match &line[..colon] {
                b"MemTotal" => &mut memory.total_bytes,
                b"SwapTotal" => &mut memory.swap_total_bytes,
                b"SwapFree" => &mut memory.swap_free_bytes,
                _ => continue,
            };
            let value = line[colon + 1..].trim_ascii();
            let kibibytes = value.strip_suffix(b"kB").unwrap_or(value).trim_ascii();
            *place = digits(kibibytes).unwrap_or(0).saturating_mul(1024);
        }
        memory
    }

    #[must_use]
    pub fn swap_used_bytes(&self) -> u64 {
        self.swap_total_bytes.saturating_sub(self.swap_free_bytes)
    }

    /// What limits the root cgroup.
    #[must_use]
    pub fn limits(&self) -> MemoryLimits {
        MemoryLimits {
            memory_bytes: Some(self.total_bytes),
            swap_bytes: Some(self.swap_total_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Of a machine with many containers, shortened.
    const V1_STAT: &[u8] = b"cache 12603392
rss 8527872
swap 0
pgfault 37479
pgmajfault 7
inactive_file 32768
active_file 3637248
hierarchical_memory_limit 9223372036854771712
hierarchical_memsw_limit 9223372036854771712
total_cache 10088865792
total_rss 334909440
total_swap 4096
total_pgfault 41673899
total_inactive_file 7678095360
total_active_file 2401828864
";
    const V2_STAT: &[u8] = b"anon 4000
file 2000
kernel 300
file_mapped 7
inactive_anon 3000
active_anon 1000
inactive_file 900
active_file 1100
pgfault 55
pgmajfault 5
workingset_refault_file 1
";

    #[test]
    fn a_stat_of_version_1_counts_what_is_below_under_names_of_their_own() {
        assert_eq!(
            MemoryFigures::of_stat(CgroupVersion::V1, V1_STAT),
            MemoryFigures {
                usage_bytes: 0,
                inactive_file_bytes: 7_678_095_360,
                rss_bytes: 334_909_440,
                swap_bytes: 4096,
                page_faults: 37_479,
                major_page_faults: 7,
            }
        );
    }

    #[test]
    fn a_stat_of_version_2_is_recursive() {
        assert_eq!(
            MemoryFigures::of_stat(CgroupVersion::V2, V2_STAT),
            MemoryFigures {
                usage_bytes: 0,
                inactive_file_bytes: 900,
                rss_bytes: 4000,
                swap_bytes: 0,
                page_faults: 55,
                major_page_faults: 5,
            }
        );
        assert_eq!(MemoryFigures::root_usage_bytes(V2_STAT), 6000);
    }

    #[test]
    fn the_working_set_is_what_cannot_be_given_up() {
        let check = |usage: u64, inactive: u64, limit: Option<u64>, expected: (u64, Option<u64>)| {
            let figures = MemoryFigures {
                usage_bytes: usage,
                inactive_file_bytes: inactive,
                ..MemoryFigures::default()
            };
            let limits = MemoryLimits::of_numbers(limit, None);
            let found = (figures.working_set_bytes(), figures.available_bytes(&limits));
            assert_eq!(found, expected, "{usage} {inactive} {limit:?}");
        };
        check(500, 200, Some(1000), (300, Some(700)));
        check(500, 600, Some(1000), (0, Some(1000)));
        // Upstream's figure wraps here.
        check(500, 0, Some(400), (500, Some(0)));
        check(500, 0, Some(u64::MAX), (500, None));
        check(500, 0, Some(9_223_372_036_854_771_712), (500, None));
        check(500, 0, None, (500, Some(0)));
    }

    #[test]
    fn swap_is_what_its_limit_leaves() {
        let check = |limit: Option<u64>, used: u64, expected: Option<u64>| {
            let limits = MemoryLimits::of_numbers(None, limit);
            assert_eq!(limits.swap_available_bytes(used), expected, "{limit:?} {used}");
        };
        check(Some(1000), 300, Some(700));
        check(Some(1000), 2000, Some(0));
        check(Some(u64::MAX), 0, None);
        // Without swap accounting there is no file.
        check(None, 0, Some(0));
    }

    #[test]
    fn the_machine_is_what_limits_its_root() {
        let text = b"MemTotal:       24684100 kB\nMemFree:        13914820 kB\nSwapTotal:   100 kB\nSwapFree:   40 kB\nHugePages_Total:       0\n";
        let memory = MachineMemory::of_meminfo(text);
        assert_eq!(memory.total_bytes, 24_684_100 * 1024);
        assert_eq!(memory.swap_used_bytes(), 60 * 1024);
        assert_eq!(
            memory.limits(),
            MemoryLimits {
                memory_bytes: Some(24_684_100 * 1024),
                swap_bytes: Some(100 * 1024),
            }
        );
        assert_eq!(
            MachineMemory::of_meminfo(b"MemTotal: lots kB\nodd"),
            MachineMemory::default()
        );
    }

    proptest! {
        #[test]
        fn no_text_upsets_them(text in "((anon|file|pgfault|SwapFree:|MemTotal:)? ?[0-9a-z-]{0,24} ?(kB)?\n){0,8}") {
            let _ = MemoryFigures::of_stat(CgroupVersion::V2, text.as_bytes());
            let _ = MemoryFigures::root_usage_bytes(text.as_bytes());
            let _ = MachineMemory::of_meminfo(text.as_bytes()).swap_used_bytes();
        }
    }
}
