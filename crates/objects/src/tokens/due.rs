//! A point in time on the wall clock and on the monotonic clock.
//!
//! Owns when it is due: as soon as either clock has reached it. The wall clock advances during suspend; the monotonic clock is not
//! affected when the wall clock is set back.

use std::time::Duration;

use rubelet_model::Timestamp;
use rubelet_ports::{Clock, Moment};

#[derive(Clone, Copy)]
pub(super) struct Due {
    pub(super) at: Timestamp,
    moment: Moment,
}

#[derive(Clone, Copy)]
pub(super) struct Now {
    pub(super) at: Timestamp,
    pub(super) moment: Moment,
}

impl Now {
    pub(super) fn of(clock: &dyn Clock) -> Self {
        Self {
            at: clock.now(),
            moment: clock.moment(),
        }
    }

    pub(super) fn plus(self, duration: Duration) -> Due {
        Due {
            at: self.at.plus(duration),
            moment: self.moment.plus(duration),
        }
    }

    pub(super) fn is_past(self, due: Due) -> bool {
        self.at >= due.at || self.moment >= due.moment
    }

    pub(super) fn until(self, due: Due) -> Duration {
        due.at.since(self.at).min(due.moment.since(self.moment))
    }
}
