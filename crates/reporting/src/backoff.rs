//! Backoff after failures, and rate limits.
//!
//! Owns pauses after failures and the rate of repeated writes. Time and randomness come in as values.

use std::time::Duration;

use rubelet_ports::{Moment, Randomness};

/// The first pause and the longest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) first: Duration,
    pub(crate) longest: Duration,
}

/// For what passes by itself.
pub(crate) const PASSING: Limits = Limits {
    first: Duration::from_millis(200),
    longest: Duration::from_secs(10),
};

/// For errors that an administrator has to fix.
pub(crate) const REFUSED: Limits = Limits {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(300),
};

/// For a mirror that the API server refuses, as while its namespace is missing: upstream tries again at every sync of the pod.
pub(crate) const MIRROR_REFUSED: Limits = Limits {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(60),
};

/// How long the watch may take to report the deletion of a pod that the API server does not find.
const ABSENCE: Duration = Duration::from_secs(10);

/// Failures in a row.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    length: Duration,
    pub(crate) until: Moment,
    /// What went wrong, so that it is logged only once.
    pub(crate) message: String,
    /// The API server refused the content: a new status may be sent at once.
    pub(crate) ends_with_news: bool,
}

impl Backoff {
    /// After an answer that there is no such pod, which the watch has not confirmed yet.
    pub(crate) fn for_absence(message: String, now: Moment) -> Self {
        Self {
            length: ABSENCE,
            until: now.plus(ABSENCE),
            message,
            ends_with_news: false,
        }
    }

    /// After a failure, with those before it. A part of each pause is chance, so that many do not come back at once.
    pub(crate) fn after(
        before: Option<&Self>,
        limits: Limits,
        message: String,
        now: Moment,
        chance: &dyn Randomness,
    ) -> Self {
        let length = before.map_or(limits.first, |before| (before.length * 2).min(limits.longest));
        let half = length / 2;
        Self {
            length,
            until: now.plus(half + chance.part_of(half)),
            message,
            ends_with_news: false,
        }
    }
}

/// How often something may be repeated: some times at once, then with gaps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pace {
    /// What was spent and has not come back at `at`.
    spent: Duration,
    at: Moment,
}

const REPEATS_AT_ONCE: u32 = 5;
const GAP: Duration = Duration::from_secs(10);

impl Pace {
    pub(crate) fn spend(&mut self, now: Moment) {
        self.spent = self.left(now) + GAP;
        self.at = now;
    }

    fn left(&self, now: Moment) -> Duration {
        self.spent.saturating_sub(now.since(self.at))
    }

    /// The time at which the next one may begin; `None`: at once.
    pub(crate) fn ready_at(&self, now: Moment) -> Option<Moment> {
        let over = self.left(now).saturating_sub(GAP * (REPEATS_AT_ONCE - 1));
        (!over.is_zero()).then(|| now.plus(over))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Most;

    impl Randomness for Most {
        fn number(&self) -> u64 {
            u64::MAX
        }
    }

    fn at(millis: u64) -> Moment {
        Moment::from_start(Duration::from_millis(millis))
    }

    #[test]
    fn pauses_double_up_to_a_limit_and_differ() {
        let mut backoff = Backoff::after(None, PASSING, String::new(), at(0), &Most);
        let mut lengths = vec![backoff.length.as_millis()];
        for _ in 0..7 {
            backoff = Backoff::after(Some(&backoff), PASSING, String::new(), at(0), &Most);
            lengths.push(backoff.length.as_millis());
            assert!(backoff.until >= at(0).plus(backoff.length / 2));
            assert!(backoff.until < at(0).plus(backoff.length));
        }
        assert_eq!(lengths, [200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
    }

    #[test]
    fn some_repeats_go_at_once_and_the_rest_in_time() {
        let mut pace = Pace::default();
        for _ in 0..5 {
            assert_eq!(pace.ready_at(at(0)), None);
            pace.spend(at(0));
        }
        assert_eq!(pace.ready_at(at(0)), Some(at(10_000)));
        assert_eq!(pace.ready_at(at(4_000)), Some(at(10_000)));
        assert_eq!(pace.ready_at(at(10_000)), None);
        pace.spend(at(10_000));
        assert_eq!(pace.ready_at(at(10_000)), Some(at(20_000)));
        assert_eq!(pace.ready_at(at(100_000)), None);
    }
}
