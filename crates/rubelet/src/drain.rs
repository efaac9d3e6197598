//! The orderly stop: work under way gets a deadline, and a second signal ends the process at once.

use std::future::Future;
use std::time::Duration;

/// How a drain ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Drained {
    /// Everything under way came to its end.
    InTime,
    /// Something is left behind.
    TooLate,
    /// A second signal, by its name, ends the process at once.
    Interrupted(&'static str),
}

/// Waits for `work`, for at most `deadline`, or until `second_signal`.
pub(crate) async fn drain(
    work: impl Future,
    second_signal: impl Future<Output = &'static str>,
    deadline: Duration,
) -> Drained {
    tokio::select! {
        // Neither arm is used again after the other wins, so cancellation loses nothing.
        biased;
        signal = second_signal => Drained::Interrupted(signal),
        done = tokio::time::timeout(deadline, work) => if done.is_ok() { Drained::InTime } else { Drained::TooLate },
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn work_that_ends_is_waited_for() {
        let work = tokio::time::sleep(DEADLINE / 2);
        assert_eq!(drain(work, pending(), DEADLINE).await, Drained::InTime);
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_hangs_is_left_behind() {
        assert_eq!(
            drain(pending::<()>(), pending(), DEADLINE).await,
            Drained::TooLate
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_signal_ends_it_at_once() {
        assert_eq!(
            drain(pending::<()>(), ready("SIGINT"), DEADLINE).await,
            Drained::Interrupted("SIGINT")
        );
    }
}
