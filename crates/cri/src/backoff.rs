//! When the next attempt to connect may be made.
//!
//! Owns the gaps between attempts: 100 ms growing by 1.6 to 3 s, as upstream's client. An attempt counts as failed until the
//! runtime has answered: a socket that accepts and then sends garbage is backed off from like a closed one.
//! Pure: the time comes in as a parameter.
//!
//! ```text
//!            attempt allowed                 answered
//!   Rested ──────────────────► Waiting(until) ────────► Rested
//!                                │      ▲
//!                                └──────┘ attempt after `until`: the next, longer gap
//! ```

use std::time::{Duration, Instant};

const FIRST_GAP: Duration = Duration::from_millis(100);
const LONGEST_GAP: Duration = Duration::from_secs(3);
const GROWTH: f64 = 1.6;

/// The state between attempts.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    attempts: u32,
    not_before: Option<Instant>,
}

impl Backoff {
    /// Books an attempt, or returns how long none may be made.
    pub(crate) fn attempt(&mut self, now: Instant) -> Result<(), Duration> {
        if let Some(wait) = self
            .not_before
            .and_then(|until| until.checked_duration_since(now))
            .filter(|wait| !wait.is_zero())
        {
            return Err(wait);
        }
        self.not_before = Some(now + gap(self.attempts));
        self.attempts = self.attempts.saturating_add(1);
        Ok(())
    }

    /// The runtime answered: the next attempt may follow at once. Returns whether the state has changed.
    pub(crate) fn answered(&mut self) -> bool {
        let news = self.attempts > 0;
        *self = Self::default();
        news
    }
}

fn gap(attempts: u32) -> Duration {
    let factor = GROWTH.powi(i32::try_from(attempts.min(32)).unwrap_or(32));
    FIRST_GAP.mul_f64(factor).min(LONGEST_GAP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_grow_to_three_seconds_and_an_answer_resets_them() {
        let mut now = Instant::now();
        let mut backoff = Backoff::default();
        for expected_ms in [100, 160, 256, 409, 655, 1048, 1677, 2684, 3000, 3000] {
            assert_eq!(backoff.attempt(now), Ok(()));
            let wait = backoff.attempt(now).expect_err("too early");
            assert_eq!(wait.as_millis(), expected_ms);
            assert!(backoff.attempt(now + wait - Duration::from_millis(1)).is_err());
            now += wait;
        }
        assert!(backoff.answered());
        assert!(!backoff.answered());
        assert_eq!(backoff.attempt(now), Ok(()));
        assert_eq!(backoff.attempt(now), Err(FIRST_GAP));
    }

    #[test]
    fn many_failures_do_not_overflow() {
        let backoff = Backoff {
            attempts: u32::MAX,
            not_before: None,
        };
        assert_eq!(gap(backoff.attempts), LONGEST_GAP);
    }
}
