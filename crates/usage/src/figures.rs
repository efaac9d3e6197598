//! Everything that was read of one cgroup at one time.
//!
//! Owns the classes of figures: a page names those that it shows, and nothing else is read.

use rubelet_model::Timestamp;

use crate::detail::Detail;
use crate::memory::{MemoryFigures, MemoryLimits};
use crate::network::NetworkFigures;
use crate::pressure::PressureFigures;
use crate::text::pairs;

/// What is to be read of a cgroup. Processor time and memory always are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Classes {
    /// Stalls of processors and memory.
    pub pressure: bool,
    /// Stalls of IO.
    pub io_pressure: bool,
    /// The limits of memory and swap.
    pub limits: bool,
    /// Traffic in the network namespace of the first process.
    pub network: bool,
    /// How many processes are directly in the cgroup.
    pub processes: bool,
    /// All that container metrics show beside.
    pub detail: bool,
    /// With `detail`: how many files the first process may open.
    pub file_limit: bool,
}

impl Classes {
    #[must_use]
    pub fn with_network(self, network: bool) -> Self {
        Self { network, ..self }
    }
}

/// The figures of a cgroup. What was not asked for, or cannot be read here, is missing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// Nanoseconds of processor time since the cgroup was made.
    pub cpu_nanos: Option<u64>,
    pub memory: Option<MemoryFigures>,
    pub limits: Option<MemoryLimits>,
    pub cpu_pressure: Option<PressureFigures>,
    pub memory_pressure: Option<PressureFigures>,
    pub io_pressure: Option<PressureFigures>,
    pub network: Option<NetworkFigures>,
    pub processes: Option<u64>,
    pub detail: Option<Box<Detail>>,
}

impl Figures {
    /// Whether a collector may be given these: one that sees a zero drops the whole pod.
    #[must_use]
    pub fn are_alive(&self) -> bool {
        let has_memory = self.memory.is_some_and(|memory| memory.working_set_bytes() > 0);
        self.cpu_nanos.is_some_and(|nanos| nanos > 0) && has_memory
    }
}

/// Lines of `cgroup.procs`.
#[must_use]
pub fn process_count(text: &[u8]) -> u64 {
    let lines = text.split(|byte| *byte == b'\n');
    lines.filter(|line| !line.is_empty()).count() as u64
}

/// The first process in `cgroup.procs`.
#[must_use]
pub fn first_process(text: &[u8]) -> Option<u32> {
    let line = text.split(|byte| *byte == b'\n').next()?;
    std::str::from_utf8(line)
        .ok()?
        .parse()
        .ok()
        .filter(|pid| *pid > 0)
}

/// When the kernel was started, from `/proc/stat`.
#[must_use]
pub fn boot_time(text: &[u8]) -> Option<Timestamp> {
    let (_, seconds) = pairs(text).find(|(name, _)| *name == b"btime")?;
    Some(Timestamp::from_unix_seconds(i64::try_from(seconds).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_when_it_was_started() {
        let text = b"cpu  1 2 3 4\ncpu0 1 2 3 4\nintr 5 6\nctxt 7\nbtime 1763495289\nprocesses 8\n";
        assert_eq!(boot_time(text), Some(Timestamp::from_unix_seconds(1_763_495_289)));
        assert_eq!(boot_time(b"cpu 1\n"), None);
    }

    #[test]
    fn processes_are_lines() {
        let check = |text: &str, count: u64, first: Option<u32>| {
            let found = (process_count(text.as_bytes()), first_process(text.as_bytes()));
            assert_eq!(found, (count, first), "{text:?}");
        };
        check("", 0, None);
        check("17\n", 1, Some(17));
        check("17\n230\n4\n", 3, Some(17));
        // A process of another namespace.
        check("0\n17\n", 2, None);
        check("x\n", 1, None);
    }

    #[test]
    fn a_collector_gets_no_zero() {
        let check = |cpu: Option<u64>, usage: Option<u64>, expected: bool| {
            let memory = usage.map(|usage_bytes| MemoryFigures {
                usage_bytes,
                inactive_file_bytes: 10,
                ..MemoryFigures::default()
            });
            let figures = Figures {
                cpu_nanos: cpu,
                memory,
                ..Figures::default()
            };
            assert_eq!(figures.are_alive(), expected, "{cpu:?} {usage:?}");
        };
        check(Some(1), Some(11), true);
        check(Some(0), Some(11), false);
        check(Some(1), Some(10), false);
        check(None, Some(11), false);
        check(Some(1), None, false);
    }
}
