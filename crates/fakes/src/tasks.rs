//! Tasks on tokio that a test can end all at once, and random numbers that are always the same.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use rubelet_ports::{Randomness, Spawner};
use tokio::task::AbortHandle;

/// The tasks of one process under test.
#[derive(Debug, Default)]
pub struct Tasks(Mutex<Vec<AbortHandle>>);

impl Tasks {
    /// Ends every task where it is, as a kill of the process would.
    pub fn end(&self) {
        let tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.iter().for_each(AbortHandle::abort);
    }
}

impl Spawner for Tasks {
    fn spawn(&self, _: &str, future: BoxFuture<'static, ()>) {
        let task = tokio::spawn(future).abort_handle();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(task);
    }
}

/// Every number is this time in nanoseconds: a part of a longer limit is exactly this time.
#[derive(Clone, Copy, Debug)]
pub struct SameNumber(pub Duration);

impl Randomness for SameNumber {
    fn number(&self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }
}
