//! Time: the wall clock, time that only goes forward, and waiting.
//!
//! Owns the shape of the clock. Wall time is for what people and other machines see; every delay and deadline is measured in
//! [`Moment`]s, because the wall clock can be set by hours in both directions.

use std::future::Future;
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, select};
use rubelet_model::Timestamp;
use thiserror::Error;

/// A point in time of this process, counted from an unknown beginning. It never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

impl Moment {
    #[must_use]
    pub const fn from_start(elapsed: Duration) -> Self {
        Self(elapsed)
    }

    /// The time that passed since `earlier`; zero when that is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }
}

pub trait Clock: Send + Sync {
    /// The time of the wall clock.
    fn now(&self) -> Timestamp;

    fn moment(&self) -> Moment;

    /// Ends after this time at the earliest.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

/// The deadline came first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no result within {} s", .0.as_secs_f64())]
pub struct Elapsed(pub Duration);

/// Waits for a future, for at most `limit`. What is not finished then is dropped.
///
/// # Errors
/// When the limit has passed first.
pub async fn within<T>(
    clock: &dyn Clock,
    limit: Duration,
    future: impl Future<Output = T>,
) -> Result<T, Elapsed> {
    let future = std::pin::pin!(future);
    match select(future, clock.sleep(limit)).await {
        Either::Left((value, _)) => Ok(value),
        Either::Right(((), _)) => Err(Elapsed(limit)),
    }
}

/// Random numbers; seeded in simulation.
pub trait Randomness: Send + Sync {
    fn number(&self) -> u64;

    /// A part of `limit`, evenly spread, without its end.
    fn part_of(&self, limit: Duration) -> Duration {
        let nanos = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        match nanos {
            0 => Duration::ZERO,
            nanos => Duration::from_nanos(self.number() % nanos),
        }
    }
}
