//! When to say again that something is wrong.
//!
//! Owns the gaps between two log lines of one trouble: at once when it is new or different, then after a minute, and then
//! after twice as long each time, up to an hour. What is said is not its affair.

use std::time::Duration;

use crate::Moment;

const FIRST_GAP: Duration = Duration::from_mins(1);
const LAST_GAP: Duration = Duration::from_hours(1);

/// One trouble that may last.
#[derive(Clone, Debug, Default)]
pub struct Complaint {
    said: Option<Said>,
}

#[derive(Clone, Debug)]
struct Said {
    what: String,
    at: Moment,
    gap: Duration,
}

impl Complaint {
    /// Whether it is time to say it.
    #[must_use]
    pub fn is_due(&mut self, what: &str, now: Moment) -> bool {
        let gap = match &self.said {
            Some(said) if said.what != what => FIRST_GAP,
            Some(said) if now.since(said.at) >= said.gap => (said.gap * 2).min(LAST_GAP),
            Some(_) => return false,
            None => FIRST_GAP,
        };
        self.said = Some(Said {
            what: what.to_owned(),
            at: now,
            gap,
        });
        true
    }

    /// The trouble is over. Whether it was told of.
    pub fn end(&mut self) -> bool {
        self.said.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_grow_until_it_changes_or_ends() {
        let mut complaint = Complaint::default();
        let mut said = |what: &str, seconds: u64| {
            complaint.is_due(what, Moment::from_start(Duration::from_secs(seconds)))
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
            assert_eq!(said(what, seconds), expected, "{what} at {seconds} s");
        }
        assert!(complaint.end());
        assert!(!complaint.end());
        let mut now = Moment::default();
        let mut gaps = Vec::new();
        for _ in 0..10 {
            assert!(complaint.is_due("c", now));
            let gap = (0..).map(Duration::from_mins);
            let gap = gap
                .skip(1)
                .find(|gap| complaint.clone().is_due("c", now.plus(*gap)))
                .unwrap();
            gaps.push(gap.as_secs() / 60);
            now = now.plus(gap);
        }
        assert_eq!(gaps, [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]);
    }
}
