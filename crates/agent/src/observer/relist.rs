//! When the observer lists everything that the runtime has: the safety net of the looks at single pods.
//!
//! Owns the schedule. Pure: the observer makes the lists.

use std::time::Duration;

use rubelet_ports::Moment;

/// How often everything is listed while the runtime sends no events, or did not answer the last list.
pub(super) const RELIST_WITHOUT_EVENTS: Duration = Duration::from_secs(1);
/// How often while it does.
const RELIST_WITH_EVENTS: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Progress {
    #[default]
    Idle,
    Running,
    /// A list that begins after the one under way is wanted.
    RunningAndWanted,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LastAnswer {
    Listed,
    #[default]
    FailedOrNone,
}

/// A list begins now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Begin {
    /// Since the begin of the list before.
    pub(super) interval: Option<Duration>,
}

#[derive(Debug, Default)]
pub(super) struct RelistSchedule {
    progress: Progress,
    last_answer: LastAnswer,
    began_at: Option<Moment>,
    next_at: Moment,
}

impl RelistSchedule {
    /// When [`Self::tick`] is due.
    pub(super) fn next_at(&self) -> Moment {
        self.next_at
    }

    pub(super) fn is_running(&self) -> bool {
        self.progress != Progress::Idle
    }

    pub(super) fn tick(&mut self, now: Moment, has_events: bool) -> Option<Begin> {
        let interval = match self.last_answer {
            LastAnswer::Listed if has_events => RELIST_WITH_EVENTS,
            LastAnswer::Listed | LastAnswer::FailedOrNone => RELIST_WITHOUT_EVENTS,
        };
        self.next_at = now.plus(interval);
        (!self.is_running()).then(|| self.begin(now))
    }

    /// Wants a list that begins from now on.
    pub(super) fn want(&mut self, now: Moment) -> Option<Begin> {
        if self.is_running() {
            self.progress = Progress::RunningAndWanted;
            return None;
        }
        Some(self.begin(now))
    }

    /// The events have ended: what happened since the last one is not known.
    pub(super) fn events_lost(&mut self, now: Moment) -> Option<Begin> {
        self.next_at = now.plus(RELIST_WITHOUT_EVENTS);
        self.want(now)
    }

    pub(super) fn succeeded(&mut self, now: Moment) -> Option<Begin> {
        self.last_answer = LastAnswer::Listed;
        self.ended(now)
    }

    /// The next try follows soon, also while there are events.
    pub(super) fn failed(&mut self, now: Moment) -> Option<Begin> {
        self.last_answer = LastAnswer::FailedOrNone;
        self.next_at = now.plus(RELIST_WITHOUT_EVENTS);
        self.ended(now)
    }

    fn ended(&mut self, now: Moment) -> Option<Begin> {
        let is_wanted = std::mem::take(&mut self.progress) == Progress::RunningAndWanted;
        is_wanted.then(|| self.begin(now))
    }

    fn begin(&mut self, now: Moment) -> Begin {
        self.progress = Progress::Running;
        let interval = self.began_at.replace(now).map(|last| now.since(last));
        Begin { interval }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Tick { has_events: bool },
        Want,
        EventsLost,
        Succeeded,
        Failed,
    }
    use Step::{EventsLost, Failed, Succeeded, Tick, Want};

    const EVENTS: Step = Tick { has_events: true };
    const NO_EVENTS: Step = Tick { has_events: false };

    /// Takes each step at its second; the expected list says whether a list begins and when the next tick is due.
    fn check(steps: &[(u64, Step, bool, u64)]) {
        let at = |seconds: u64| Moment::from_start(Duration::from_secs(seconds));
        let mut schedule = RelistSchedule::default();
        let mut last: Option<u64> = None;
        for (second, step, begins, next) in steps {
            let now = at(*second);
            let begin = match step {
                Tick { has_events } => schedule.tick(now, *has_events),
                Want => schedule.want(now),
                EventsLost => schedule.events_lost(now),
                Succeeded => schedule.succeeded(now),
                Failed => schedule.failed(now),
            };
            let interval = last.map(|last| Duration::from_secs(second - last));
            let expected = begins.then_some(Begin { interval });
            assert_eq!(begin, expected, "{second} {step:?}");
            assert_eq!(schedule.next_at(), at(*next), "{second} {step:?}");
            if *begins {
                last = Some(*second);
            }
        }
    }

    #[test]
    fn lists_are_rare_with_events_and_a_good_answer() {
        check(&[
            (0, EVENTS, true, 1),
            (0, Succeeded, false, 1),
            (1, NO_EVENTS, true, 2),
            (1, Succeeded, false, 2),
            (2, EVENTS, true, 12),
            (2, Failed, false, 3),
            (3, EVENTS, true, 4),
            (3, Succeeded, false, 4),
            (4, EVENTS, true, 14),
        ]);
    }

    #[test]
    fn one_list_at_a_time_and_one_more_when_wanted() {
        check(&[
            (0, NO_EVENTS, true, 1),
            (1, NO_EVENTS, false, 2),
            (1, Want, false, 2),
            (1, Want, false, 2),
            (2, NO_EVENTS, false, 3),
            (2, Succeeded, true, 3),
            (2, Succeeded, false, 3),
            (2, Want, true, 3),
            (2, Want, false, 3),
            (2, Failed, true, 3),
        ]);
    }

    #[test]
    fn lost_events_bring_a_list_at_once_and_the_next_one_soon() {
        check(&[
            (0, EVENTS, true, 1),
            (0, Succeeded, false, 1),
            (1, EVENTS, true, 11),
            (1, Succeeded, false, 11),
            (5, EventsLost, true, 6),
            (5, EventsLost, false, 6),
            (6, Succeeded, true, 6),
        ]);
    }
}
