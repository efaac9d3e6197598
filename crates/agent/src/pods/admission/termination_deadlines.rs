//! How long other pods wait until a terminating pod frees what it holds.
//!
//! Owns each deadline and whether it has passed.

use std::collections::BTreeSet;

use rubelet_model::observation::PodUid;
use rubelet_ports::Moment;

use crate::pods::timers::Timers;

#[derive(Default)]
pub(super) struct TerminationDeadlines {
    timers: Timers,
    overdue: BTreeSet<PodUid>,
}

impl TerminationDeadlines {
    pub(super) fn len(&self) -> usize {
        self.timers.len() + self.overdue.len()
    }

    /// The pod terminates; its time to end only shrinks. The answer is whether it has missed it already.
    pub(super) fn begin(&mut self, uid: &PodUid, until: Moment) -> bool {
        let is_overdue = self.is_overdue(uid);
        if !is_overdue {
            self.timers.set_earlier(uid, until);
        }
        is_overdue
    }

    /// The pod gets this time to end, also if it missed its time once before.
    pub(super) fn restart(&mut self, uid: &PodUid, until: Moment) {
        self.overdue.remove(uid);
        self.timers.set(uid, until);
    }

    pub(super) fn end(&mut self, uid: &PodUid) {
        self.overdue.remove(uid);
        self.timers.remove(uid);
    }

    pub(super) fn is_overdue(&self, uid: &PodUid) -> bool {
        self.overdue.contains(uid)
    }

    /// When the next pod misses its time.
    pub(super) fn next(&self) -> Option<Moment> {
        self.timers.next()
    }

    /// Takes a pod that missed its time by now, each once.
    pub(super) fn take_overdue(&mut self, now: Moment) -> Option<PodUid> {
        let uid = self.timers.take_due(now)?;
        self.overdue.insert(uid.clone());
        Some(uid)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_start(Duration::from_secs(seconds))
    }

    #[test]
    fn a_pod_is_overdue_once_and_only_until_it_has_ended() {
        let mut deadlines = TerminationDeadlines::default();
        let uid = |name: &str| PodUid::from(name);
        deadlines.restart(&uid("short"), at(10));
        assert!(!deadlines.begin(&uid("long"), at(45)));
        deadlines.restart(&uid("ended"), at(10));
        deadlines.end(&uid("ended"));
        let check = |deadlines: &mut TerminationDeadlines, seconds: u64, expected: &[&str]| {
            let overdue: Vec<PodUid> = std::iter::from_fn(|| deadlines.take_overdue(at(seconds))).collect();
            let overdue: Vec<&str> = overdue.iter().map(PodUid::as_str).collect();
            assert_eq!(overdue, expected, "after {seconds} s");
        };
        check(&mut deadlines, 9, &[]);
        check(&mut deadlines, 10, &["short"]);
        assert_eq!(deadlines.next(), Some(at(45)));
        // Later events of the same end do not prolong it; a shorter grace period shortens it.
        assert!(!deadlines.begin(&uid("long"), at(60)));
        assert!(!deadlines.begin(&uid("long"), at(30)));
        assert!(deadlines.begin(&uid("short"), at(60)));
        check(&mut deadlines, 29, &[]);
        check(&mut deadlines, 30, &["long"]);
        check(&mut deadlines, 100, &[]);
        assert!(deadlines.is_overdue(&uid("short")));
        deadlines.restart(&uid("short"), at(110));
        assert!(!deadlines.is_overdue(&uid("short")));
        deadlines.end(&uid("short"));
        assert_eq!(deadlines.next(), None);
    }
}
