//! Pauses between lists and watches, with jitter.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// The server ends a watch after a time between this and twice this, so that not all end together. Upstream's last 5 to 10
/// minutes; a node may have thousands of watches, and each end is a request.
const WATCH_SECONDS: u64 = 1800;

const FIRST_PAUSE: Duration = Duration::from_millis(800);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

const LONGEST_SPREAD: Duration = Duration::from_secs(1);

/// How often a type is listed again that the server does not serve.
const NOT_SERVED_PAUSE: Duration = Duration::from_secs(300);

/// The `timeoutSeconds` of the next watch.
pub(super) fn watch_seconds() -> u64 {
    let share = Duration::from_secs(WATCH_SECONDS).mul_f64(random());
    WATCH_SECONDS + share.as_secs()
}

/// The pause before the next list of a type that the server does not serve.
pub(super) fn not_served_pause() -> Duration {
    NOT_SERVED_PAUSE.mul_f64(1.0 + random())
}

/// The pause after a number of failures in a row.
pub(super) fn pause(failures: u32) -> Duration {
    pause_after(failures, random())
}

/// The random delay after an outage.
pub(super) fn spread() -> Duration {
    LONGEST_SPREAD.mul_f64(random())
}

/// From the first pause on it doubles; jitter makes it up to twice as long, and nothing makes it longer than the longest.
fn pause_after(failures: u32, random: f64) -> Duration {
    let shortest = FIRST_PAUSE.saturating_mul(1 << failures.min(16));
    (shortest * 2).min(LONGEST_PAUSE).mul_f64(0.5 + random / 2.0)
}

/// From zero up to one. Good enough to spread clients; every hasher of the standard library is seeded anew.
fn random() -> f64 {
    let bits = u32::try_from(RandomState::new().hash_one(()) >> 32).unwrap_or(0);
    f64::from(bits) / (f64::from(u32::MAX) + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_longest_and_are_spread() {
        let check = |failures, random, expected_ms: u128| {
            assert_eq!(
                pause_after(failures, random).as_millis(),
                expected_ms,
                "{failures} {random}"
            );
        };
        check(0, 0.0, 800);
        check(0, 0.5, 1200);
        check(1, 0.0, 1600);
        check(2, 0.0, 3200);
        check(5, 0.0, 15_000);
        check(5, 0.999_999_999, 29_999);
        check(u32::MAX, 0.0, 15_000);
    }

    #[test]
    fn random_numbers_are_spread_over_the_unit() {
        let numbers: Vec<f64> = (0..1000).map(|_| random()).collect();
        assert!(numbers.iter().all(|number| (0.0..1.0).contains(number)));
        assert!(numbers.iter().any(|number| *number < 0.2) && numbers.iter().any(|number| *number > 0.8));
    }
}
