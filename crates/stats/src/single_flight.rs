//! One answer for all who ask at the same time.
//!
//! Owns the work under way and its last result: a question during the work, or shortly after it, gets the same result. A task that
//! asked and went leaves the work to those that remain.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use rubelet_ports::{Clock, Moment};

/// Work that takes longer was left by all who asked; it is begun anew.
const GIVEN_UP: Duration = Duration::from_secs(30);

pub(crate) struct SingleFlight<T: Clone> {
    // A std mutex: it is held to start or find the work, never while that is done.
    flight: Mutex<Option<Flight<T>>>,
}

struct Flight<T: Clone> {
    began: Moment,
    work: Shared<BoxFuture<'static, (Moment, T)>>,
}

impl<T: Clone> Default for SingleFlight<T> {
    fn default() -> Self {
        Self {
            flight: Mutex::default(),
        }
    }
}

impl<T: Clone + Send + Sync + 'static> SingleFlight<T> {
    /// A result that is at most this old, from work that `start` makes unless there is some.
    pub(crate) async fn get(
        &self,
        clock: &std::sync::Arc<dyn Clock>,
        max_age: Duration,
        start: impl FnOnce() -> BoxFuture<'static, T>,
    ) -> T {
        let work = {
            let mut flight = self.flight.lock().unwrap_or_else(PoisonError::into_inner);
            let now = clock.moment();
            match flight.as_ref().filter(|flight| flight.is_fresh(now, max_age)) {
                Some(flight) => flight.work.clone(),
                None => {
                    let (work, clock) = (start(), std::sync::Arc::clone(clock));
                    let work = async move {
                        let result = work.await;
                        (clock.moment(), result)
                    };
                    let work = work.boxed().shared();
                    *flight = Some(Flight {
                        began: now,
                        work: work.clone(),
                    });
                    work
                }
            }
        };
        work.await.1
    }

    /// Gives the last result back.
    pub(crate) fn forget(&self) {
        *self.flight.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl<T: Clone> Flight<T> {
    fn is_fresh(&self, now: Moment, max_age: Duration) -> bool {
        match self.work.peek() {
            Some((ended, _)) => now.since(*ended) < max_age,
            None => now.since(self.began) < GIVEN_UP,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures_util::future::join_all;
    use rubelet_fakes::ManualClock;
    use rubelet_model::Timestamp;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    struct Counter {
        clock: Arc<ManualClock>,
        flight: SingleFlight<u32>,
        begun: Arc<AtomicU32>,
    }

    impl Counter {
        fn new() -> Self {
            Self {
                clock: Arc::new(ManualClock::new(Timestamp::EPOCH)),
                flight: SingleFlight::default(),
                begun: Arc::default(),
            }
        }

        /// Work of a second, whose result is how often work was begun.
        async fn ask(&self) -> u32 {
            let clock: Arc<dyn Clock> = self.clock.clone();
            let start = || {
                let number = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
                let end = self.clock.sleep(SECOND);
                async move {
                    end.await;
                    number
                }
                .boxed()
            };
            self.flight.get(&clock, SECOND, start).await
        }
    }

    #[tokio::test]
    async fn those_who_ask_at_the_same_time_share_one_answer() {
        let counter = Counter::new();
        let mut all = std::pin::pin!(join_all((0..50).map(|_| counter.ask())));
        assert!(all.as_mut().now_or_never().is_none());
        counter.clock.advance(SECOND);
        assert_eq!(all.await, [1; 50]);
        counter.clock.advance(SECOND / 2);
        assert_eq!(counter.ask().await, 1, "it is fresh");
        counter.clock.advance(SECOND / 2);
        let mut later = std::pin::pin!(counter.ask());
        assert!(later.as_mut().now_or_never().is_none());
        counter.clock.advance(SECOND);
        assert_eq!(later.await, 2);
        counter.flight.forget();
        assert!(counter.ask().now_or_never().is_none(), "nothing is kept");
    }

    #[tokio::test]
    async fn one_that_goes_leaves_the_work_to_the_others() {
        let counter = Counter::new();
        let mut first = Box::pin(counter.ask());
        assert!(first.as_mut().now_or_never().is_none());
        let mut second = std::pin::pin!(counter.ask());
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        counter.clock.advance(SECOND);
        assert_eq!(second.await, 1);
    }

    #[tokio::test]
    async fn work_that_all_have_left_is_begun_anew() {
        let counter = Counter::new();
        assert!(counter.ask().now_or_never().is_none());
        counter.clock.advance(GIVEN_UP);
        let mut next = std::pin::pin!(counter.ask());
        assert!(next.as_mut().now_or_never().is_none());
        counter.clock.advance(SECOND);
        assert_eq!(next.await, 2);
    }
}
