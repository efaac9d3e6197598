//! The machine's clocks.
//!
//! Owns the way from the kernel's clocks to the port's values. Nothing here decides how long anything may take.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::BoxFuture;
use rubelet_model::Timestamp;
use rubelet_ports::{Clock, Moment};

/// Wall time from the kernel, moments counted from the making of this value, sleeping on the tokio runtime.
#[derive(Clone, Copy, Debug)]
pub struct HostClock {
    start: Instant,
}

impl HostClock {
    #[must_use]
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
        }
    }
}

impl Default for HostClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for HostClock {
    fn now(&self) -> Timestamp {
        let nanos = |duration: Duration| i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
        let unix_nanos = match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => nanos(since),
            Err(before) => -nanos(before.duration()),
        };
        Timestamp::from_unix_nanos(unix_nanos)
    }

    fn moment(&self) -> Moment {
        Moment::from_start(self.start.elapsed())
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        // The time counts from the call, not from the first poll.
        match tokio::time::Instant::now().checked_add(duration) {
            Some(end) => Box::pin(async move { tokio::time::sleep_until(end).await }),
            None => Box::pin(std::future::pending()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wall_time_is_the_system_s_and_moments_go_forward() {
        let clock = HostClock::new();
        let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let now = clock.now().unix_seconds();
        let after = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        assert!((before..=after).contains(&u64::try_from(now).unwrap()));
        let first = clock.moment();
        assert!(clock.moment() >= first);
    }

    #[tokio::test(start_paused = true)]
    async fn sleep_counts_from_the_call_and_bears_any_length() {
        let clock = HostClock::new();
        let begin = tokio::time::Instant::now();
        let sleep = clock.sleep(Duration::from_secs(60));
        tokio::time::advance(Duration::from_secs(45)).await;
        sleep.await;
        assert_eq!(begin.elapsed().as_secs(), 60);
        let endless = tokio::time::timeout(Duration::from_secs(3600), clock.sleep(Duration::MAX)).await;
        assert!(endless.is_err());
    }
}
