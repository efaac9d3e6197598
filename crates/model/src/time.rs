//! Instants as plain values.
//!
//! Owns one number: nanoseconds since 1970-01-01T00:00:00Z, and the bounds of periods. It must not know how an instant is
//! obtained: decisions take `now` as an argument.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The longest period, in whole seconds, that Go's `time.Duration` holds: some 292 years. Runtimes multiply the seconds of a
/// request by 10^9 unchecked, so that a longer grace period would become a negative one and kill at once.
pub const MAX_PERIOD_SECONDS: i64 = i64::MAX / 1_000_000_000;

/// The period that a field of an API object asks for. API servers accept every number in most of these fields: below zero
/// is no time at all, and what is longer than [`MAX_PERIOD_SECONDS`] is cut to that.
#[must_use]
pub const fn period(seconds: i64) -> Duration {
    let seconds = if seconds > MAX_PERIOD_SECONDS {
        MAX_PERIOD_SECONDS
    } else if seconds < 0 {
        0
    } else {
        seconds
    };
    Duration::from_secs(seconds.unsigned_abs())
}

/// A point in time of the wall clock. Arithmetic ends at the limits of the number instead of wrapping.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp {
    unix_nanos: i64,
}

impl Timestamp {
    /// 1970-01-01T00:00:00Z.
    pub const EPOCH: Self = Self { unix_nanos: 0 };

    #[must_use]
    pub const fn from_unix_nanos(unix_nanos: i64) -> Self {
        Self { unix_nanos }
    }

    #[must_use]
    pub const fn from_unix_seconds(unix_seconds: i64) -> Self {
        Self {
            unix_nanos: unix_seconds.saturating_mul(1_000_000_000),
        }
    }

    #[must_use]
    pub const fn unix_nanos(self) -> i64 {
        self.unix_nanos
    }

    /// Whole seconds, rounded down.
    #[must_use]
    pub const fn unix_seconds(self) -> i64 {
        self.unix_nanos.div_euclid(1_000_000_000)
    }

    /// The time that passed since `earlier`; zero when `earlier` is later, as after a step of the clock.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        u64::try_from(i128::from(self.unix_nanos) - i128::from(earlier.unix_nanos))
            .map_or(Duration::ZERO, Duration::from_nanos)
    }

    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        let nanos = i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
        Self::from_unix_nanos(self.unix_nanos.saturating_add(nanos))
    }

    #[must_use]
    pub fn minus(self, duration: Duration) -> Self {
        let nanos = i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
        Self::from_unix_nanos(self.unix_nanos.saturating_sub(nanos))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "@{}.{:09}s",
            self.unix_seconds(),
            self.unix_nanos.rem_euclid(1_000_000_000)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_ends_at_the_limits() {
        let check = |start: i64, seconds: u64, plus: i64, minus: i64| {
            let start = Timestamp::from_unix_nanos(start);
            let step = Duration::from_secs(seconds);
            assert_eq!(start.plus(step).unix_nanos(), plus, "{start:?} + {step:?}");
            assert_eq!(start.minus(step).unix_nanos(), minus, "{start:?} - {step:?}");
        };
        check(0, 1, 1_000_000_000, -1_000_000_000);
        check(i64::MAX, 1, i64::MAX, i64::MAX - 1_000_000_000);
        check(i64::MIN, 1, i64::MIN + 1_000_000_000, i64::MIN);
        check(0, u64::MAX, i64::MAX, -i64::MAX);
    }

    #[test]
    fn elapsed_time_is_never_negative() {
        let check = |later: i64, earlier: i64, expected: Duration| {
            let later = Timestamp::from_unix_seconds(later);
            assert_eq!(later.since(Timestamp::from_unix_seconds(earlier)), expected);
        };
        check(10, 4, Duration::from_secs(6));
        check(4, 10, Duration::ZERO);
        check(-4, -10, Duration::from_secs(6));
        check(i64::MAX, i64::MIN, Duration::from_nanos(u64::MAX));
    }

    #[test]
    fn a_period_fits_into_gos_duration() {
        let check = |seconds: i64, expected: u64| {
            assert_eq!(period(seconds), Duration::from_secs(expected), "{seconds}");
            assert!(i64::try_from(period(seconds).as_nanos()).is_ok(), "{seconds}");
        };
        check(0, 0);
        check(30, 30);
        check(-1, 0);
        check(i64::MIN, 0);
        check(9_223_372_036, 9_223_372_036);
        check(9_223_372_037, 9_223_372_036);
        check(i64::MAX, 9_223_372_036);
    }

    #[test]
    fn seconds_round_down() {
        assert_eq!(Timestamp::from_unix_nanos(-1).unix_seconds(), -1);
        assert_eq!(Timestamp::from_unix_nanos(1_999_999_999).unix_seconds(), 1);
        assert_eq!(
            format!("{:?}", Timestamp::from_unix_nanos(1_500_000_000)),
            "@1.500000000s"
        );
    }
}
