//! What one probe has done, for the metrics.

use std::time::Duration;

use rubelet_ports::ProbeFigures;

use crate::course::Verdict;

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tally {
    pub(crate) successful: u64,
    pub(crate) failed: u64,
    pub(crate) within: [u64; ProbeFigures::LIMITS_SECONDS.len()],
    pub(crate) took: Duration,
}

impl Tally {
    /// Only successes are timed: a failure takes what the timeout is.
    pub(crate) fn count(&mut self, verdict: Verdict, took: Duration) {
        match verdict {
            Verdict::Failure => self.failed += 1,
            Verdict::Success => {
                self.successful += 1;
                self.took += took;
                let limits = ProbeFigures::LIMITS_SECONDS.iter();
                for (count, limit) in self.within.iter_mut().zip(limits) {
                    if took.as_secs_f64() <= *limit {
                        *count += 1;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_fall_into_every_limit_above_them() {
        let mut tally = Tally::default();
        tally.count(Verdict::Success, Duration::from_millis(30));
        tally.count(Verdict::Success, Duration::from_secs(20));
        tally.count(Verdict::Failure, Duration::from_millis(1));
        assert_eq!((tally.successful, tally.failed), (2, 1));
        assert_eq!(tally.within, [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]);
        assert_eq!(tally.took, Duration::from_millis(20_030));
    }
}
