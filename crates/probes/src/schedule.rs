//! When one probe is run.
//!
//! Owns the times: the initial delay, the period, and the early tries. It is pure: the current time is an argument.
//!
//! A container is probed first when its initial delay has passed, and then every period, counted from there; a run that took
//! longer than a period is followed by one at once and the times stay what they were. Two things differ by kind:
//!
//! - A passed **readiness** or **startup** probe should be known soon. When the first run fails, it is tried again after growing
//!   gaps for the length of one period.
//! - Without an initial delay, **startup** and **liveness** count failures only from the end of the first period on. Upstream's
//!   first run comes about that late, and pods are written for it.

use std::time::Duration;

use rubelet_ports::{Moment, ProbeKind};

/// Requests to probe now are ignored within this time after the last run.
const HURRY_GAP: Duration = Duration::from_secs(1);
const MIN_PERIOD: Duration = Duration::from_secs(1);
/// Two runs of one probe are this far apart at least.
const NEVER_AT_ONCE: Duration = Duration::from_millis(1);

/// The times of the probe's definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    pub initial_delay: Duration,
    pub period: Duration,
    /// The first gap between tries before the time; each is twice the one before.
    pub early_gap: Duration,
}

/// The next run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    pub at: Moment,
    /// A try before its time: its failure does not count.
    pub is_early: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    period: Duration,
    next: Due,
    /// The next regular run.
    regular: Moment,
    /// When the runs go on after the first success, if the first run came late. It counts from the container's own start and not from
    /// the first look, because otherwise all containers of a pod would be probed at the same instant for ever.
    grid: Option<Moment>,
    /// The next gap, while there are tries before the time.
    gap: Option<Duration>,
    not_before: Moment,
    last_began: Option<Moment>,
}

impl Schedule {
    /// For an instance that has run for `age`. `spread`: it ran before the agent did, and the first run comes after this
    /// part of a period, so that not all probes of the node are run at once.
    #[must_use]
    pub fn new(
        kind: ProbeKind,
        timing: Timing,
        now: Moment,
        age: Duration,
        spread: Option<Duration>,
    ) -> Self {
        let period = timing.period.max(MIN_PERIOD);
        let first = now.plus(timing.initial_delay.saturating_sub(age));
        let has_delay = !timing.initial_delay.is_zero();
        let after_a_period = now.plus(period.saturating_sub(age));
        let due_at_age = match kind {
            ProbeKind::Liveness if !has_delay => period,
            ProbeKind::Liveness | ProbeKind::Readiness | ProbeKind::Startup => timing.initial_delay,
        };
        let grid = match spread {
            None => next_on_grid(now, age.saturating_sub(due_at_age), period),
            Some(_) => None,
        };
        let (next, regular, gap) = match (spread, kind) {
            (Some(spread), _) => {
                let at = first.max(now.plus(spread));
                (regularly(at), at, None)
            }
            (None, ProbeKind::Readiness) => (regularly(first), first, Some(timing.early_gap)),
            (None, ProbeKind::Startup) if has_delay => (regularly(first), first, Some(timing.early_gap)),
            (None, ProbeKind::Startup) => {
                let next = Due {
                    at: first,
                    is_early: true,
                };
                (next, after_a_period, Some(timing.early_gap))
            }
            (None, ProbeKind::Liveness) => {
                let at = if has_delay { first } else { after_a_period };
                (regularly(at), at, None)
            }
        };
        Self {
            period,
            next,
            regular,
            grid,
            gap,
            not_before: first,
            last_began: None,
        }
    }

    #[must_use]
    pub fn next(&self) -> Due {
        self.next
    }

    pub fn began(&mut self, now: Moment) {
        self.last_began = Some(now);
    }

    /// A run is over.
    pub fn finished(&mut self, run: Due, now: Moment, is_success: bool) {
        if !run.is_early {
            self.regular = self.following(run.at, now);
        } else if is_success {
            self.regular = run.at.plus(self.period);
        }
        if is_success {
            self.gap = None;
            if let Some(grid) = self.grid.take() {
                let soonest = run.at.plus(NEVER_AT_ONCE);
                let missed = soonest.since(grid).as_nanos().div_ceil(self.period.as_nanos());
                let periods = u32::try_from(missed).unwrap_or(u32::MAX);
                self.regular = grid.plus(self.period.saturating_mul(periods));
            }
        }
        if let Some(gap) = self.gap.take() {
            let at = now.plus(gap);
            if at < self.regular {
                self.gap = Some(gap * 2);
                self.next = Due { at, is_early: true };
                return;
            }
        }
        self.next = regularly(self.regular);
    }

    /// Ticks that were missed are made up for by one run.
    fn following(&self, ran_at: Moment, now: Moment) -> Moment {
        let missed = now.since(ran_at).as_nanos() / self.period.as_nanos();
        let periods = u32::try_from(missed.max(1)).unwrap_or(u32::MAX);
        ran_at.plus(self.period.saturating_mul(periods))
    }

    /// Moves the next run to now, unless a run is due or has just begun. The answer is whether it comes sooner than before.
    pub fn hurry(&mut self, now: Moment) -> bool {
        let is_soon = self.gap.is_some() || self.next.at <= now;
        let was_just_run = self.last_began.is_some_and(|began| now.since(began) < HURRY_GAP);
        if is_soon || was_just_run || now < self.not_before {
            return false;
        }
        self.next = regularly(now);
        true
    }
}

/// The next point of the grid that a run should have begun which is late by this; nothing for one that is in time.
fn next_on_grid(now: Moment, late: Duration, period: Duration) -> Option<Moment> {
    let beyond = u64::try_from(late.as_nanos() % period.as_nanos()).ok()?;
    (!late.is_zero()).then(|| now.plus(period.saturating_sub(Duration::from_nanos(beyond))))
}

fn regularly(at: Moment) -> Due {
    Due { at, is_early: false }
}

#[cfg(test)]
mod tests {
    use ProbeKind::{Liveness, Readiness, Startup};
    use proptest::prelude::*;

    use super::*;

    fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    fn at(number: u64) -> Moment {
        Moment::from_start(ms(number))
    }

    fn timing(delay: u64, period: u64) -> Timing {
        Timing {
            initial_delay: ms(delay),
            period: ms(period),
            early_gap: ms(100),
        }
    }

    /// Runs a schedule against a probe that takes `took` and fails until `good_at`; the runs until `end`, early ones with
    /// their sign below zero.
    fn runs(mut schedule: Schedule, took: u64, good_at: u64, end: u64) -> Vec<i64> {
        let mut found = Vec::new();
        let mut now = 0;
        loop {
            let due = schedule.next();
            let due_ms = u64::try_from(due.at.since(Moment::default()).as_millis()).unwrap();
            let begins = due_ms.max(now);
            if begins > end {
                return found;
            }
            let shown = i64::try_from(begins).unwrap();
            found.push(if due.is_early { -shown } else { shown });
            schedule.began(at(begins));
            now = begins + took;
            schedule.finished(due, at(now), begins >= good_at);
        }
    }

    #[test]
    fn runs_come_at_their_times() {
        let check = |kind, timing, age: u64, good_at, expected: &[i64]| {
            let schedule = Schedule::new(kind, timing, at(1000), ms(age), None);
            assert_eq!(
                runs(schedule, 0, good_at, 12_000),
                expected,
                "{kind:?} {timing:?} {age}"
            );
        };
        // Good from the start.
        check(Readiness, timing(0, 5000), 0, 0, &[1000, 6000, 11_000]);
        check(Startup, timing(0, 5000), 0, 0, &[-1000, 6000, 11_000]);
        check(Liveness, timing(0, 5000), 0, 0, &[6000, 11_000]);
        // With a delay, to the moment.
        check(Readiness, timing(2000, 5000), 0, 0, &[3000, 8000]);
        check(Startup, timing(2000, 5000), 0, 0, &[3000, 8000]);
        check(Liveness, timing(2000, 5000), 0, 0, &[3000, 8000]);
        check(Liveness, timing(2000, 5000), 500, 0, &[2500, 7500]);
        // Tries before the time, until it is good.
        check(
            Readiness,
            timing(0, 5000),
            0,
            2000,
            &[1000, -1100, -1300, -1700, -2500, 7500],
        );
        check(
            Startup,
            timing(0, 3000),
            0,
            99_000,
            &[-1000, -1100, -1300, -1700, -2500, 4000, 7000, 10_000],
        );
        check(Liveness, timing(0, 3000), 0, 99_000, &[4000, 7000, 10_000]);
        // Looked at late: the container's own start decides when the runs come.
        check(Readiness, timing(0, 5000), 2000, 0, &[1000, 4000, 9000]);
        check(Readiness, timing(0, 5000), 4000, 0, &[1000, 2000, 7000, 12_000]);
        check(Readiness, timing(1000, 5000), 4000, 0, &[1000, 3000, 8000]);
        check(
            Readiness,
            timing(0, 5000),
            4000,
            1200,
            &[1000, -1100, -1300, 2000, 7000, 12_000],
        );
        check(Startup, timing(0, 5000), 2000, 0, &[-1000, 4000, 9000]);
        check(Liveness, timing(0, 5000), 2000, 0, &[4000, 9000]);
        check(Liveness, timing(0, 5000), 7000, 0, &[1000, 4000, 9000]);
        // A container that has run for long.
        check(Liveness, timing(0, 5000), 60_000, 0, &[1000, 6000, 11_000]);
    }

    #[test]
    fn slow_runs_keep_the_times() {
        let schedule = Schedule::new(Liveness, timing(1000, 1000), at(0), ms(0), None);
        assert_eq!(runs(schedule, 2500, 0, 9000), [1000, 3500, 6000, 8500]);
        let schedule = Schedule::new(Liveness, timing(1000, 1000), at(0), ms(0), None);
        assert_eq!(runs(schedule, 300, 0, 4000), [1000, 2000, 3000, 4000]);
    }

    #[test]
    fn old_containers_are_spread() {
        for kind in [Readiness, Startup, Liveness] {
            let schedule = Schedule::new(kind, timing(0, 5000), at(0), ms(90_000), Some(ms(1234)));
            assert_eq!(runs(schedule, 0, 99_000, 7000), [1234, 6234], "{kind:?}");
        }
        let delayed = Schedule::new(Readiness, timing(20_000, 5000), at(0), ms(15_000), Some(ms(1234)));
        assert_eq!(runs(delayed, 0, 0, 7000), [5000]);
    }

    #[test]
    fn hurrying_has_limits() {
        let mut schedule = Schedule::new(Readiness, timing(2000, 5000), at(0), ms(0), None);
        assert!(!schedule.hurry(at(1000)), "the initial delay holds");
        let first = schedule.next();
        schedule.began(at(2000));
        schedule.finished(first, at(2010), true);
        assert!(!schedule.hurry(at(2500)), "it was just run");
        assert!(schedule.hurry(at(4000)));
        assert!(!schedule.hurry(at(4000)), "it is due");
        schedule.began(at(4000));
        schedule.finished(regularly(at(4000)), at(4010), false);
        assert_eq!(
            schedule.next(),
            regularly(at(9000)),
            "the period counts from the run"
        );
        let mut failing = Schedule::new(Readiness, timing(0, 5000), at(0), ms(0), None);
        failing.began(at(0));
        failing.finished(regularly(at(0)), at(1), false);
        assert!(!failing.hurry(at(50)), "it is tried again soon anyway");
    }

    proptest! {
        /// Runs never stop and never overlap: the next one is ahead, at most a period after the last, and early tries are few.
        #[test]
        fn the_next_run_is_near(
            kind in prop_oneof![Just(Startup), Just(Readiness), Just(Liveness)],
            delay in 0_u64..30_000,
            period in 1_u64..30,
            age in 0_u64..60_000,
            took in 0_u64..5_000,
            good_at in 0_u64..60_000,
        ) {
            let period = period * 1000;
            let schedule = Schedule::new(kind, timing(delay, period), at(0), ms(age), None);
            let found = runs(schedule, took, good_at, 120_000);
            prop_assert!(!found.is_empty());
            let early = found.iter().filter(|run| **run < 0).count();
            prop_assert!(early <= 10);
            for pair in found.windows(2) {
                let gap = pair[1].unsigned_abs() - pair[0].unsigned_abs();
                prop_assert!(gap <= period.max(took), "{found:?}");
            }
        }
    }
}
