//! How badly the simulated runtime behaves.
//!
//! Owns the knobs and the fate of one call. Shares are per 10,000 calls.

use std::time::Duration;

use crate::dice::Dice;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Least and most time until a call takes effect.
    pub latency_ms: (u64, u64),
    /// Least and most time between the reservation of a sandbox's name and the sandbox.
    pub sandbox_ms: (u64, u64),
    pub fails_before: u64,
    pub loses_answer: u64,
    /// It takes effect and is answered with an error.
    pub fails_after: u64,
    /// A list of everything leaves an entry out.
    pub list_omits: u64,
    /// A list, of everything or of one pod, has an entry twice.
    pub list_repeats: u64,
    pub hangs_before: u64,
    pub hangs_after: u64,
    /// It takes effect long after the caller gave up.
    pub is_slow: u64,
    /// StartContainer fails and leaves an exited container.
    pub start_fails: u64,
    pub pull_fails: u64,
    pub event_is_lost: u64,
    pub event_is_doubled: u64,
    /// Most delay of an event; delays differ, so that events overtake each other.
    pub event_delay_ms: u64,
    /// The host name of a probe is not looked up in time, because too many others are.
    pub lookup_has_no_place: u64,
    /// The pod whose calls never get an answer.
    pub hanging_uid: Option<String>,
}

impl Faults {
    /// A runtime that does what it should, quickly.
    #[must_use]
    pub fn calm() -> Self {
        Self {
            latency_ms: (1, 30),
            sandbox_ms: (5, 80),
            event_delay_ms: 5,
            ..Self::default()
        }
    }

    /// A runtime as the dice have it; about one in four is calm.
    #[must_use]
    pub fn roll(dice: &mut Dice) -> Self {
        if dice.percent(25) {
            return Self::calm();
        }
        let mut share = |percent: u64, most: u64| {
            if dice.percent(percent) {
                dice.between(1, most)
            } else {
                0
            }
        };
        let (fails_before, loses_answer) = (share(60, 1500), share(60, 1500));
        let (hangs_before, hangs_after) = (share(30, 200), share(30, 200));
        let (is_slow, start_fails, pull_fails) = (share(30, 200), share(30, 1000), share(30, 3000));
        let (event_is_lost, event_is_doubled) = (share(50, 6000), share(50, 3000));
        let event_delay_ms = share(50, 3000) + 5;
        // By dice of their own, so that the other faults of a seed are what they were.
        let mut lies = dice.aside("lies");
        let mut lie = |percent: u64, most: u64| match lies.percent(percent) {
            true => lies.between(1, most),
            false => 0,
        };
        let (fails_after, list_omits, list_repeats) = (lie(30, 800), lie(30, 3000), lie(30, 3000));
        let lookup_has_no_place = lie(30, 3000);
        let most = [30, 200, 1500][dice.below(3)];
        let sandbox_ms = *dice.pick(&[(5, 80), (5, 80), (500, 20_000)]);
        Self {
            latency_ms: (1, most),
            sandbox_ms,
            fails_before,
            loses_answer,
            fails_after,
            list_omits,
            list_repeats,
            hangs_before,
            hangs_after,
            is_slow,
            start_fails,
            pull_fails,
            event_is_lost,
            event_is_doubled,
            event_delay_ms,
            lookup_has_no_place,
            hanging_uid: None,
        }
    }
}

/// How one call goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Course {
    Fine,
    FailBefore,
    LoseAnswer,
    FailAfter,
    /// The connection breaks first, and the work is done all the same.
    LoseCaller,
    HangBefore,
    HangAfter,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Fate {
    pub(super) course: Course,
    pub(super) before: Duration,
    pub(super) after: Duration,
    /// Whether a caller that gives up stops the work.
    pub(super) honours_cancel: bool,
}

impl Fate {
    pub(super) fn roll(faults: &Faults, dice: &mut Dice, subject_hangs: bool) -> Self {
        let (low, high) = faults.latency_ms;
        let mut fate = Self {
            course: Course::Fine,
            before: dice.millis(low, high),
            after: dice.millis(0, high / 4),
            honours_cancel: dice.percent(50),
        };
        if subject_hangs || dice.per_myriad(faults.hangs_before) {
            fate.course = Course::HangBefore;
        } else if dice.per_myriad(faults.hangs_after) {
            fate.course = Course::HangAfter;
        } else if dice.per_myriad(faults.fails_before) {
            fate.course = Course::FailBefore;
        } else if dice.per_myriad(faults.loses_answer) {
            fate.course = *dice.pick(&[Course::LoseAnswer, Course::LoseCaller]);
            fate.honours_cancel &= fate.course == Course::LoseAnswer;
        } else if dice.aside("after").per_myriad(faults.fails_after) {
            fate.course = Course::FailAfter;
        } else if dice.per_myriad(faults.is_slow) {
            fate.before = dice.millis(60_000, 180_000);
            fate.honours_cancel = false;
        }
        fate
    }
}
