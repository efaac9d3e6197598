//! How long a pod waits before it tries to pull an image again.
//!
//! Owns the delays per pod and image, and the error that is reported meanwhile. It measures in moments, not in wall time, and it
//! does not pull.

use std::collections::BTreeMap;
use std::time::Duration;

use rubelet_model::observation::PodUid;
use rubelet_ports::Moment;

const INITIAL_DELAY: Duration = Duration::from_secs(10);
const MAX_DELAY: Duration = Duration::from_secs(300);

/// The first delay, and the one where doubling ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullBackoffLimits {
    pub initial: Duration,
    pub max: Duration,
}

impl Default for PullBackoffLimits {
    fn default() -> Self {
        Self {
            initial: INITIAL_DELAY,
            max: MAX_DELAY,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    delay: Duration,
    failed_at: Moment,
    /// `None` while another try is under way.
    error: Option<String>,
}

impl Entry {
    /// After twice the longest delay without a failure, the next one begins anew.
    fn is_over(&self, now: Moment, limits: PullBackoffLimits) -> bool {
        now.since(self.failed_at) > limits.max * 2
    }
}

/// A pull that has to wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PullWait {
    pub(crate) remaining: Duration,
    /// What went wrong at the last try.
    pub(crate) error: Option<String>,
}

#[derive(Debug, Default)]
pub(crate) struct PullBackoff {
    limits: PullBackoffLimits,
    entries: BTreeMap<PodUid, BTreeMap<String, Entry>>,
}

impl PullBackoff {
    #[must_use]
    pub(crate) fn new(limits: PullBackoffLimits) -> Self {
        Self {
            limits,
            entries: BTreeMap::new(),
        }
    }

    /// Whether this pod still has to wait. When it has not, the last error is forgotten: a new try begins.
    pub(crate) fn begin(&mut self, pod: &PodUid, image: &str, now: Moment) -> Result<(), PullWait> {
        let Some(entry) = self.entries.get_mut(pod).and_then(|images| images.get_mut(image)) else {
            return Ok(());
        };
        let passed = now.since(entry.failed_at);
        if passed < entry.delay && !entry.is_over(now, self.limits) {
            return Err(PullWait {
                remaining: entry.delay - passed,
                error: entry.error.clone(),
            });
        }
        entry.error = None;
        Ok(())
    }

    /// Notes a failed try and returns the delay until the next one.
    pub(crate) fn fail(&mut self, pod: &PodUid, image: &str, error: String, now: Moment) -> Duration {
        let limits = self.limits;
        // Every entry is of a failure, so this is where the map could grow.
        self.drop_old(now);
        let images = self.entries.entry(pod.clone()).or_default();
        let delay = match images.get(image) {
            Some(entry) => (entry.delay * 2).min(limits.max),
            None => limits.initial,
        };
        images.insert(
            image.to_owned(),
            Entry {
                delay,
                failed_at: now,
                error: Some(error),
            },
        );
        delay
    }

    pub(crate) fn forget_pod(&mut self, pod: &PodUid) {
        self.entries.remove(pod);
    }

    fn drop_old(&mut self, now: Moment) {
        let limits = self.limits;
        self.entries.retain(|_, images| {
            images.retain(|_, entry| !entry.is_over(now, limits));
            !images.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_start(Duration::from_secs(seconds))
    }

    fn uid() -> PodUid {
        PodUid::from("u")
    }

    #[test]
    fn delays_double_up_to_the_limit_and_begin_anew_after_a_quiet_time() {
        let mut backoff = PullBackoff::default();
        let mut now = 0;
        for expected in [10, 20, 40, 80, 160, 300, 300] {
            let delay = backoff.fail(&uid(), "a", "no".to_owned(), at(now));
            assert_eq!(delay, Duration::from_secs(expected));
            let wait = backoff.begin(&uid(), "a", at(now + expected - 1)).unwrap_err();
            assert_eq!(wait.remaining, Duration::from_secs(1));
            assert_eq!(wait.error.as_deref(), Some("no"));
            assert_eq!(backoff.begin(&uid(), "a", at(now + expected)), Ok(()));
            now += expected;
        }
        // The last failure was 300 s ago by now; 600 s in all are not over yet, 601 s are.
        assert_eq!(
            backoff.fail(&uid(), "a", String::new(), at(now + 300)),
            Duration::from_secs(300)
        );
        assert_eq!(
            backoff.fail(&uid(), "a", String::new(), at(now + 300 + 601)),
            Duration::from_secs(10)
        );
    }

    #[test]
    fn pods_and_images_wait_apart_until_they_are_forgotten() {
        let mut backoff = PullBackoff::default();
        backoff.fail(&uid(), "a", "no".to_owned(), at(0));
        assert_eq!(backoff.begin(&uid(), "b", at(1)), Ok(()));
        assert_eq!(backoff.begin(&PodUid::from("v"), "a", at(1)), Ok(()));
        assert!(backoff.begin(&uid(), "a", at(1)).is_err());
        backoff.forget_pod(&uid());
        assert_eq!(backoff.begin(&uid(), "a", at(1)), Ok(()));
        assert!(backoff.entries.is_empty());
    }

    #[test]
    fn a_new_try_forgets_the_last_error_but_not_the_delay() {
        let mut backoff = PullBackoff::default();
        backoff.fail(&uid(), "a", "first".to_owned(), at(0));
        assert_eq!(backoff.begin(&uid(), "a", at(10)), Ok(()));
        assert_eq!(backoff.entries[&uid()]["a"].error, None);
        assert_eq!(
            backoff.fail(&uid(), "a", "second".to_owned(), at(11)),
            Duration::from_secs(20)
        );
        let wait = backoff.begin(&uid(), "a", at(12)).unwrap_err();
        assert_eq!(wait.error.as_deref(), Some("second"));
    }

    proptest! {
        #[test]
        fn memory_holds_only_failures_that_still_count(times in proptest::collection::vec((0_u64..2000, 0_u8..50), 1..60)) {
            let mut backoff = PullBackoff::default();
            let mut now = 0;
            for (step, pod) in times {
                now += step;
                let delay = backoff.fail(&PodUid::new(format!("u{pod}")), "a", String::new(), at(now));
                prop_assert!(delay >= INITIAL_DELAY && delay <= MAX_DELAY);
                for images in backoff.entries.values() {
                    prop_assert!(images.values().all(|entry| !entry.is_over(at(now), backoff.limits)));
                }
            }
        }
    }
}
