//! Clocks for tests: one that follows tokio's time, which a test can pause, and one that only a test moves.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use rubelet_model::Timestamp;
use rubelet_ports::{Clock, Moment};
use tokio::sync::watch;
use tokio::time::Instant;

/// Tokio's time. With paused time a sleep ends as soon as no task has anything else to do.
#[derive(Clone, Copy, Debug)]
pub struct TokioClock {
    start: Instant,
    epoch: Timestamp,
}

impl TokioClock {
    /// Begins now, with this wall time.
    #[must_use]
    pub fn new(epoch: Timestamp) -> Self {
        Self::since(Instant::now(), epoch)
    }

    /// Began at `start`, with this wall time: clocks of one start show the same time.
    #[must_use]
    pub fn since(start: Instant, epoch: Timestamp) -> Self {
        Self { start, epoch }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        self.epoch.plus(self.start.elapsed())
    }

    fn moment(&self) -> Moment {
        Moment::from_start(self.start.elapsed())
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        tokio::time::sleep(duration).boxed()
    }
}

/// Stands still until a test advances it; sleeps end when it has advanced far enough.
#[derive(Debug)]
pub struct ManualClock {
    epoch: Timestamp,
    elapsed: watch::Sender<Duration>,
    /// By how much the wall clock was put back. Moments do not follow it.
    put_back: Mutex<Duration>,
}

impl ManualClock {
    #[must_use]
    pub fn new(epoch: Timestamp) -> Self {
        Self {
            epoch,
            elapsed: watch::Sender::new(Duration::ZERO),
            put_back: Mutex::default(),
        }
    }

    /// Puts the wall clock back, as a step of the machine's clock does.
    pub fn put_back(&self, by: Duration) {
        *self.put_back.lock().unwrap_or_else(PoisonError::into_inner) += by;
    }

    pub fn advance(&self, by: Duration) {
        self.elapsed.send_modify(|elapsed| *elapsed += by);
    }

    /// How many sleeps have not ended.
    #[must_use]
    pub fn sleepers(&self) -> usize {
        self.elapsed.receiver_count()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        let put_back = *self.put_back.lock().unwrap_or_else(PoisonError::into_inner);
        self.epoch.plus(*self.elapsed.borrow()).minus(put_back)
    }

    fn moment(&self) -> Moment {
        Moment::from_start(*self.elapsed.borrow())
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let mut elapsed = self.elapsed.subscribe();
        let end = *elapsed.borrow() + duration;
        async move {
            // The sender lives as long as the clock, and a task that sleeps holds the clock.
            let _ = elapsed.wait_for(|elapsed| *elapsed >= end).await;
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOCH: Timestamp = Timestamp::from_unix_seconds(1_000);

    #[test]
    fn a_manual_clock_wakes_those_whose_time_has_come() {
        let clock = ManualClock::new(EPOCH);
        let mut short = clock.sleep(Duration::from_secs(1));
        let mut long = clock.sleep(Duration::from_secs(3));
        assert!(short.as_mut().now_or_never().is_none());
        clock.advance(Duration::from_secs(2));
        assert!(short.now_or_never().is_some());
        assert!(long.as_mut().now_or_never().is_none());
        assert_eq!(clock.sleepers(), 1);
        assert_eq!(clock.now(), EPOCH.plus(Duration::from_secs(2)));
        assert_eq!(clock.moment(), Moment::from_start(Duration::from_secs(2)));
    }

    #[tokio::test(start_paused = true)]
    async fn clocks_of_one_start_follow_tokios_time() {
        let start = Instant::now();
        let (first, second) = (TokioClock::since(start, EPOCH), TokioClock::since(start, EPOCH));
        first.sleep(Duration::from_hours(1)).await;
        assert_eq!(second.now(), EPOCH.plus(Duration::from_hours(1)));
        assert_eq!(second.moment(), Moment::from_start(Duration::from_hours(1)));
    }
}
