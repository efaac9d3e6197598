//! When a lasting problem is logged again.
//!
//! Owns the gaps between the log lines of one problem: it is logged at once when it is new or different, then after a minute,
//! and then after twice as long each time, up to an hour. The caller writes the log line.

use std::time::Duration;

use crate::Moment;

const FIRST_GAP: Duration = Duration::from_mins(1);
const LAST_GAP: Duration = Duration::from_hours(1);

/// The log lines of one problem that may last.
#[derive(Clone, Debug, Default)]
pub struct LogThrottle {
    logged: Option<Logged>,
}

#[derive(Clone, Debug)]
struct Logged {
    what: String,
    at: Moment,
    gap: Duration,
}

impl LogThrottle {
    /// Whether the problem is to be logged now.
    #[must_use]
    pub fn is_due(&mut self, what: &str, now: Moment) -> bool {
        let gap = match &self.logged {
            Some(last) if last.what != what => FIRST_GAP,
            Some(last) if now.since(last.at) >= last.gap => (last.gap * 2).min(LAST_GAP),
            Some(_) => return false,
            None => FIRST_GAP,
        };
        self.logged = Some(Logged {
            what: what.to_owned(),
            at: now,
            gap,
        });
        true
    }

    /// The problem is over. Returns whether it was logged.
    pub fn end(&mut self) -> bool {
        self.logged.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_grow_until_it_changes_or_ends() {
        let mut throttle = LogThrottle::default();
        let mut is_due = |what: &str, seconds: u64| {
            throttle.is_due(what, Moment::from_start(Duration::from_secs(seconds)))
        };
        let steps = [
            ("a", 0, true),
            ("a", 59, false),
            ("a", 60, true),
            ("a", 179, false),
            ("a", 180, true),
            ("b", 181, true),
            ("b", 240, false),
            ("b", 241, true),
        ];
        for (what, seconds, expected) in steps {
            assert_eq!(is_due(what, seconds), expected, "{what} at {seconds} s");
        }
        assert!(throttle.end());
        assert!(!throttle.end());
        let mut now = Moment::default();
        let mut gaps = Vec::new();
        for _ in 0..10 {
            assert!(throttle.is_due("c", now));
            let gap = (0..).map(Duration::from_mins);
            let gap = gap
                .skip(1)
                .find(|gap| throttle.clone().is_due("c", now.plus(*gap)))
                .unwrap();
            gaps.push(gap.as_secs() / 60);
            now = now.plus(gap);
        }
        assert_eq!(gaps, [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]);
    }
}
