//! Waiting for a state with a deadline. Tests never sleep for a time.

use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

const POLL: Duration = Duration::from_millis(20);

/// Polls `state` until it gives a value; an error of the last look is told when the deadline passes.
pub fn wait_for<T>(what: &str, deadline: Duration, mut state: impl FnMut() -> Result<T>) -> Result<T> {
    let end = Instant::now() + deadline;
    loop {
        match state() {
            Ok(value) => return Ok(value),
            Err(error) if Instant::now() > end => bail!("{what}: not so after {deadline:?}: {error:#}"),
            Err(_) => std::thread::sleep(POLL),
        }
    }
}

/// The same for a state that takes an await to look at.
pub async fn wait_until<T, F: Future<Output = Result<T>>>(
    what: &str,
    deadline: Duration,
    mut state: impl FnMut() -> F,
) -> Result<T> {
    let end = Instant::now() + deadline;
    loop {
        match state().await {
            Ok(value) => return Ok(value),
            Err(error) if Instant::now() > end => bail!("{what}: not so after {deadline:?}: {error:#}"),
            Err(_) => tokio::time::sleep(POLL).await,
        }
    }
}
