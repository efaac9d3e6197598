//! The rate limit of calls: a token bucket, as `kubeAPIQPS` and `kubeAPIBurst` set it.
//!
//! Owns the order: the first caller gets the next token. A caller that gives up waiting gives its token back.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// A pace, and how far a burst may run ahead of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    pub per_second: u32,
    pub burst: u32,
}

impl RateLimit {
    /// From settings such as `kubeAPIQPS` and `kubeAPIBurst`: zero or less calls per second mean no limit.
    #[must_use]
    pub fn from_settings(per_second: i32, burst: i32) -> Option<Self> {
        let per_second = u32::try_from(per_second).ok().filter(|pace| *pace > 0)?;
        let burst = u32::try_from(burst).unwrap_or(0).max(1);
        Some(Self { per_second, burst })
    }
}

#[derive(Debug)]
pub(crate) struct Limiter {
    per_second: f64,
    burst: f64,
    bucket: Mutex<Bucket>,
}

/// Below zero are the tokens that callers wait for.
#[derive(Debug)]
struct Bucket {
    tokens: f64,
    filled_at: Instant,
}

impl Limiter {
    pub(crate) fn new(limit: RateLimit) -> Self {
        Self {
            per_second: f64::from(limit.per_second),
            burst: f64::from(limit.burst),
            bucket: Mutex::new(Bucket {
                tokens: f64::from(limit.burst),
                filled_at: Instant::now(),
            }),
        }
    }

    /// Returns when a call may be made, after all earlier callers. Giving up is free.
    pub(crate) async fn acquire(&self) {
        let wait = self.take(Instant::now());
        if wait.is_zero() {
            return;
        }
        let mut reservation = Reservation {
            limiter: self,
            is_used: false,
        };
        tokio::time::sleep(wait).await;
        reservation.is_used = true;
    }

    fn take(&self, now: Instant) -> Duration {
        let mut bucket = self.bucket();
        let passed = now.saturating_duration_since(bucket.filled_at);
        bucket.tokens = (bucket.tokens + passed.as_secs_f64() * self.per_second).min(self.burst);
        bucket.filled_at = now;
        bucket.tokens -= 1.0;
        if bucket.tokens >= 0.0 {
            return Duration::ZERO;
        }
        Duration::from_secs_f64(-bucket.tokens / self.per_second)
    }

    // A panic while the lock is held would leave nothing half-changed here.
    fn bucket(&self) -> MutexGuard<'_, Bucket> {
        self.bucket.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Reservation<'a> {
    limiter: &'a Limiter,
    is_used: bool,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if !self.is_used {
            self.limiter.bucket().tokens += 1.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limiter(per_second: u32, burst: u32) -> Limiter {
        Limiter::new(RateLimit { per_second, burst })
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_at_once_and_the_rest_at_the_pace() {
        let limiter = limiter(50, 100);
        let start = Instant::now();
        for _ in 0..100 {
            limiter.acquire().await;
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        for _ in 0..50 {
            limiter.acquire().await;
        }
        let elapsed = start.elapsed();
        assert!(
            elapsed >= Duration::from_millis(999) && elapsed < Duration::from_millis(1060),
            "{elapsed:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_callers_share_the_pace() {
        let limiter = limiter(10, 1);
        let start = Instant::now();
        let waits = (0..11).map(|_| limiter.acquire());
        futures_util::future::join_all(waits).await;
        let elapsed = start.elapsed();
        assert!(
            elapsed >= Duration::from_millis(999) && elapsed < Duration::from_millis(1010),
            "{elapsed:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn who_gives_up_gives_the_token_back() {
        let limiter = limiter(1, 1);
        limiter.acquire().await;
        for _ in 0..100 {
            let given_up = tokio::time::timeout(Duration::from_millis(1), limiter.acquire()).await;
            assert!(given_up.is_err());
        }
        let start = Instant::now();
        limiter.acquire().await;
        assert!(start.elapsed() <= Duration::from_secs(1), "{:?}", start.elapsed());
    }

    #[test]
    fn zero_or_less_per_second_is_no_limit() {
        assert_eq!(RateLimit::from_settings(0, 100), None);
        assert_eq!(RateLimit::from_settings(-1, 100), None);
        let limit = RateLimit::from_settings(50, 0);
        assert_eq!(
            limit,
            Some(RateLimit {
                per_second: 50,
                burst: 1
            })
        );
    }
}
