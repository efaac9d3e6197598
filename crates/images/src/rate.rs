//! The limit on how many pulls begin per second.
//!
//! Owns a bucket of permissions that fills over time. It never waits: a pull that comes too early is refused.

use rubelet_ports::Moment;

#[derive(Debug)]
pub(crate) struct PullRate {
    per_second: f64,
    burst: f64,
    left: f64,
    counted_at: Moment,
}

impl PullRate {
    /// A bucket that is full.
    #[must_use]
    pub(crate) fn new(per_second: f64, burst: u32, now: Moment) -> Self {
        let burst = f64::from(burst);
        Self {
            per_second,
            burst,
            left: burst,
            counted_at: now,
        }
    }

    /// Takes a permission, if there is one.
    pub(crate) fn take(&mut self, now: Moment) -> bool {
        let gained = now.since(self.counted_at).as_secs_f64() * self.per_second;
        self.left = (self.left + gained).min(self.burst);
        self.counted_at = now;
        if self.left < 1.0 {
            return false;
        }
        self.left -= 1.0;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_burst_is_allowed_and_then_the_rate() {
        let at = |millis: u64| Moment::from_start(Duration::from_millis(millis));
        let mut rate = PullRate::new(5.0, 2, at(1000));
        let check = |rate: &mut PullRate, millis: u64, expected: bool| {
            assert_eq!(rate.take(at(millis)), expected, "at {millis} ms");
        };
        check(&mut rate, 1000, true);
        check(&mut rate, 1000, true);
        check(&mut rate, 1000, false);
        check(&mut rate, 1199, false);
        check(&mut rate, 1200, true);
        check(&mut rate, 1201, false);
        // A long rest gives the burst again, not more.
        check(&mut rate, 60_000, true);
        check(&mut rate, 60_000, true);
        check(&mut rate, 60_000, false);
    }
}
