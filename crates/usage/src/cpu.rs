//! Processor time: the kernel's counters, and how many processors are used at the moment.
//!
//! Owns the arithmetic of rates. The caller says when a counter was read, by a clock that never goes back.

use std::time::Duration;

use rubelet_model::Timestamp;

use crate::text::pairs;

const NANOS_PER_SECOND: u128 = 1_000_000_000;
/// Over less than this the kernel's own granularity would show.
const SHORTEST: Duration = Duration::from_secs(1);

/// Nanoseconds of processor time, from version 2's `cpu.stat`.
#[must_use]
pub fn nanos_of_stat(text: &[u8]) -> Option<u64> {
    let micros = pairs(text).find(|(name, _)| *name == b"usage_usec")?.1;
    Some(micros.saturating_mul(1000))
}

/// How fast one counter of processor time grows. Without an earlier reading the counter began at zero when its cgroup did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuRate {
    read_at: Duration,
    nanos: u64,
    nano_cores: u64,
}

impl CpuRate {
    /// From the first reading of a counter. `age` is how old the cgroup is.
    #[must_use]
    pub fn first(read_at: Duration, nanos: u64, age: Duration) -> Self {
        Self {
            read_at,
            nanos,
            nano_cores: nano_cores(nanos, age),
        }
    }

    /// With a further reading. One that comes right after the last changes nothing; a counter that went back begins anew.
    #[must_use]
    pub fn then(self, read_at: Duration, nanos: u64) -> Self {
        let passed = read_at.saturating_sub(self.read_at);
        if passed < SHORTEST {
            return self;
        }
        Self {
            read_at,
            nanos,
            nano_cores: nano_cores(nanos.saturating_sub(self.nanos), passed),
        }
    }

    /// Billionths of a processor that were used between the last two readings.
    #[must_use]
    pub fn nano_cores(&self) -> u64 {
        self.nano_cores
    }
}

fn nano_cores(nanos: u64, time: Duration) -> u64 {
    let rate = u128::from(nanos) * NANOS_PER_SECOND;
    let rate = rate.checked_div(time.as_nanos()).unwrap_or(0);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// How old something is; nothing when it began in the future, as after a step of the clock.
#[must_use]
pub fn age(now: Timestamp, began: Timestamp) -> Duration {
    now.since(began)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn version_2_counts_in_microseconds() {
        let text = b"usage_usec 12345\nuser_usec 10000\nsystem_usec 2345\nnr_periods 0\n";
        assert_eq!(nanos_of_stat(text), Some(12_345_000));
        assert_eq!(nanos_of_stat(b"user_usec 1\n"), None);
    }

    #[test]
    fn a_rate_is_the_growth_over_the_time_between_two_readings() {
        let check = |readings: &[(f64, u64)], age: f64, expected: u64| {
            let (first, later) = readings.split_first().expect("a reading");
            let rate = CpuRate::first(seconds(first.0), first.1, seconds(age));
            let rate = later
                .iter()
                .fold(rate, |rate, (at, nanos)| rate.then(seconds(*at), *nanos));
            assert_eq!(rate.nano_cores(), expected, "{readings:?}");
        };
        let second = 1_000_000_000;
        // The first reading is measured from the beginning of the cgroup.
        check(&[(100.0, 5 * second)], 10.0, second / 2);
        check(&[(100.0, 5 * second)], 0.0, 0);
        check(&[(100.0, 5 * second), (110.0, 8 * second)], 50.0, 300_000_000);
        // Two processors.
        check(&[(100.0, 0), (101.0, 2 * second)], 50.0, 2 * second);
        // Readings right after another keep the last rate and the last distance.
        check(
            &[(100.0, 0), (110.0, second), (110.5, 2 * second)],
            50.0,
            100_000_000,
        );
        check(
            &[
                (100.0, 0),
                (110.0, second),
                (110.5, 2 * second),
                (111.0, 3 * second),
            ],
            50.0,
            2 * second,
        );
        // A counter that went back used nothing, and counts on from there.
        check(&[(100.0, 9 * second), (110.0, second)], 50.0, 0);
        check(
            &[(100.0, 9 * second), (110.0, second), (120.0, 2 * second)],
            50.0,
            100_000_000,
        );
        check(&[(100.0, 0), (101.0, u64::MAX)], 50.0, u64::MAX);
    }

    #[test]
    fn a_step_of_the_clock_makes_nothing_old() {
        let at = Timestamp::from_unix_seconds;
        assert_eq!(age(at(100), at(40)), Duration::from_mins(1));
        assert_eq!(age(at(40), at(100)), Duration::ZERO);
    }
}
