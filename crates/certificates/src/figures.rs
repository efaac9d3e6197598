//! What is known of a certificate, for metrics and health checks.

use rubelet_model::Timestamp;
use tokio::sync::watch;

/// Upper ends of the buckets of the ages at which certificates were rotated.
pub const ROTATION_AGE_BUCKETS_SECONDS: [f64; 10] = [
    60.0,
    3_600.0,
    14_400.0,
    86_400.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
    124_416_000.0,
];

/// How old certificates were when they were replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RotationAges {
    /// One for each of [`ROTATION_AGE_BUCKETS_SECONDS`], not cumulated, and one for what is above.
    pub counts: [u64; ROTATION_AGE_BUCKETS_SECONDS.len() + 1],
    pub sum_seconds: f64,
}

impl RotationAges {
    pub(crate) fn observe(&mut self, age_seconds: f64) {
        let above = ROTATION_AGE_BUCKETS_SECONDS.len();
        let bucket = ROTATION_AGE_BUCKETS_SECONDS
            .iter()
            .position(|end| age_seconds <= *end);
        self.counts[bucket.unwrap_or(above)] += 1;
        self.sum_seconds += age_seconds;
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) expiration: Option<Timestamp>,
    pub(crate) renew_errors: u64,
    pub(crate) rotation_ages: RotationAges,
    pub(crate) problem: Option<String>,
}

/// Reads the state of a certificate's renewal. Clones read the same.
#[derive(Clone, Debug)]
pub struct CertificateHandle {
    pub(crate) figures: watch::Receiver<Figures>,
}

impl CertificateHandle {
    /// When the certificate in use expires or has expired; `None` while there is none.
    #[must_use]
    pub fn expiration(&self) -> Option<Timestamp> {
        self.figures.borrow().expiration
    }

    /// Whole seconds until it expires, negative when it has, infinite while there is none.
    #[must_use]
    pub fn ttl_seconds(&self, now: Timestamp) -> f64 {
        self.expiration().map_or(f64::INFINITY, |at| {
            let (until, since) = (at.since(now).as_secs_f64(), now.since(at).as_secs_f64());
            (until - since).trunc()
        })
    }

    /// How many requests for a certificate failed.
    #[must_use]
    pub fn renew_errors(&self) -> u64 {
        self.figures.borrow().renew_errors
    }

    #[must_use]
    pub fn rotation_ages(&self) -> RotationAges {
        self.figures.borrow().rotation_ages
    }

    /// Why there is no valid certificate, as a text.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        self.figures.borrow().problem.clone()
    }

    /// Ends at the next change of what is known.
    pub async fn changed(&mut self) {
        if self.figures.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_fall_into_upstreams_buckets() {
        let mut ages = RotationAges::default();
        for age in [1.0, 60.0, 61.0, 200_000_000.0] {
            ages.observe(age);
        }
        assert_eq!(ages.counts, [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert!((ages.sum_seconds - 200_000_122.0).abs() < 1e-6);
    }

    #[test]
    fn the_time_to_live_is_infinite_positive_or_negative() {
        let at = Timestamp::from_unix_seconds;
        let check = |expiration: Option<Timestamp>, expected: f64| {
            let (_, figures) = watch::channel(Figures {
                expiration,
                ..Figures::default()
            });
            let handle = CertificateHandle { figures };
            assert!(handle.ttl_seconds(at(100)) == expected, "{expiration:?}");
        };
        check(None, f64::INFINITY);
        check(Some(at(160)), 60.0);
        check(Some(at(40)), -60.0);
    }
}
