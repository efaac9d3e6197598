//! A clock on which a minute is soon over.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rubelet_model::Timestamp;
use rubelet_ports::{Clock, Moment};
use tokio::time::Instant;

/// No sleep takes longer than this.
const LONGEST: Duration = Duration::from_millis(20);

pub(crate) struct ShortClock {
    begun: Instant,
}

impl ShortClock {
    pub(crate) fn new() -> Self {
        Self {
            begun: Instant::now(),
        }
    }
}

impl Clock for ShortClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_unix_nanos(0)
    }

    fn moment(&self) -> Moment {
        Moment::from_start(self.begun.elapsed())
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        tokio::time::sleep(duration.min(LONGEST)).boxed()
    }
}
