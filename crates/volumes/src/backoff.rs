//! How long a volume that failed waits for its next try.

use std::time::Duration;

use rubelet_ports::Moment;

use crate::record::Fingerprint;

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(122);

/// The failures of one volume in a row.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    pause: Duration,
    failed_at: Moment,
    pub(crate) message: String,
    /// The steps that failed; nothing when there was no plan.
    pub(crate) attempt: Option<Fingerprint>,
}

impl Backoff {
    /// After a failure, with those before it.
    pub(crate) fn after(before: Option<&Self>, failed_at: Moment, message: String) -> Self {
        let pause = before.map_or(FIRST_PAUSE, |before| (before.pause * 2).min(LONGEST_PAUSE));
        Self {
            pause,
            failed_at,
            message,
            attempt: None,
        }
    }

    /// The same, of these steps.
    pub(crate) fn of_attempt(self, attempt: Option<Fingerprint>) -> Self {
        Self { attempt, ..self }
    }

    /// The time until the next try; zero when it may begin.
    pub(crate) fn remaining(&self, now: Moment) -> Duration {
        self.pause.saturating_sub(now.since(self.failed_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit() {
        let at = Moment::default();
        let mut backoff = Backoff::after(None, at, String::new());
        let mut pauses = vec![backoff.remaining(at).as_millis()];
        for _ in 0..9 {
            backoff = Backoff::after(Some(&backoff), at, String::new());
            pauses.push(backoff.remaining(at).as_millis());
        }
        assert_eq!(
            pauses,
            [
                500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 122_000, 122_000
            ]
        );
        let later = at.plus(Duration::from_secs(121));
        assert_eq!(backoff.remaining(later), Duration::from_secs(1));
        assert_eq!(
            backoff.remaining(at.plus(Duration::from_secs(500))),
            Duration::ZERO
        );
    }
}
