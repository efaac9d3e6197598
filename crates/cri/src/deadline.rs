//! How long each call may take.
//!
//! Owns the arithmetic of deadlines, which is upstream's, and the two constants. Pure.
//!
//! | call | deadline |
//! |---|---|
//! | all others, streamed lists as a whole included | `runtimeRequestTimeout` |
//! | RunPodSandbox | twice that |
//! | StopContainer, ExecSync with a timeout | their own plus that |
//! | CheckpointContainer | the larger of its own and that |
//! | CheckpointPod, RestorePod | the caller's, else that |
//! | PullImage, ExecSync without a timeout, GetContainerEvents | none, but the runtime must stay alive |
//!
//! "Stay alive" is the no-progress deadline that upstream lacks: while such a call waits, the client asks the runtime for its
//! version every [`DEFAULT_LIVENESS_INTERVAL`]; when there is no answer within `runtimeRequestTimeout`, the call
//! fails. CRI does not show the progress of a pull; runtimes watch that themselves.

use std::time::Duration;

use rubelet_model::{MAX_PERIOD_SECONDS, period};

/// `runtimeRequestTimeout` when nothing is configured.
pub const DEFAULT_REQUEST_TIMEOUT: Duration = Duration::from_secs(120);

/// How often the runtime's liveness is checked while a call without deadline waits.
pub const DEFAULT_LIVENESS_INTERVAL: Duration = Duration::from_secs(60);

/// What bounds a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// An answer within this time.
    Until(Duration),
    /// As long as the runtime is alive.
    WhileAlive,
}

pub(crate) fn run_pod_sandbox(request_timeout: Duration) -> Patience {
    Patience::Until(request_timeout.saturating_mul(2))
}

pub(crate) fn stop_container(request_timeout: Duration, grace_seconds: i64) -> Patience {
    Patience::Until(request_timeout.saturating_add(period(grace_seconds)))
}

pub(crate) fn exec_sync(request_timeout: Duration, timeout: Option<Duration>) -> Patience {
    match timeout {
        Some(timeout) => Patience::Until(request_timeout.saturating_add(timeout)),
        None => Patience::WhileAlive,
    }
}

/// The seconds of a request, in the bounds that a runtime can count with.
pub(crate) fn whole_seconds(seconds: i64) -> i64 {
    seconds.clamp(0, MAX_PERIOD_SECONDS)
}

/// The deadline to send with a call. Headers end at eight digits of hours, where tonic panics, and a runtime written in Go
/// counts no further than [`MAX_PERIOD_SECONDS`].
pub(crate) fn sent(timeout: Duration) -> Duration {
    timeout.min(period(MAX_PERIOD_SECONDS))
}

/// ExecSync's own timeout in the request. Zero there means none, so a part of a second counts as a whole one.
pub(crate) fn exec_sync_seconds(timeout: Option<Duration>) -> i64 {
    let Some(timeout) = timeout else { return 0 };
    let seconds = timeout
        .as_secs()
        .saturating_add(u64::from(timeout.subsec_nanos() > 0))
        .max(1);
    whole_seconds(i64::try_from(seconds).unwrap_or(i64::MAX))
}

/// The seconds to put into CheckpointContainer's request, and its deadline. A request below zero has been refused before.
pub(crate) fn checkpoint_container(request_timeout: Duration, asked_seconds: i64) -> (i64, Patience) {
    let default_seconds = whole_seconds(i64::try_from(request_timeout.as_secs()).unwrap_or(i64::MAX));
    if asked_seconds > default_seconds {
        (
            whole_seconds(asked_seconds),
            Patience::Until(period(asked_seconds)),
        )
    } else {
        (default_seconds, Patience::Until(request_timeout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_MINUTES: Duration = DEFAULT_REQUEST_TIMEOUT;

    fn until(seconds: u64) -> Patience {
        Patience::Until(Duration::from_secs(seconds))
    }

    #[test]
    fn deadlines_are_upstreams() {
        assert_eq!(run_pod_sandbox(TWO_MINUTES), until(240));
        assert_eq!(stop_container(TWO_MINUTES, 30), until(150));
        assert_eq!(stop_container(TWO_MINUTES, -5), until(120));
        assert_eq!(exec_sync(TWO_MINUTES, Some(Duration::from_secs(10))), until(130));
        assert_eq!(exec_sync(TWO_MINUTES, None), Patience::WhileAlive);
        assert_eq!(checkpoint_container(TWO_MINUTES, 0), (120, until(120)));
        assert_eq!(checkpoint_container(TWO_MINUTES, 120), (120, until(120)));
        assert_eq!(checkpoint_container(TWO_MINUTES, 121), (121, until(121)));
    }

    #[test]
    fn extremes_do_not_overflow() {
        assert_eq!(run_pod_sandbox(Duration::MAX), Patience::Until(Duration::MAX));
        assert_eq!(
            stop_container(Duration::MAX, i64::MAX),
            Patience::Until(Duration::MAX)
        );
        assert_eq!(
            exec_sync(Duration::MAX, Some(Duration::MAX)),
            Patience::Until(Duration::MAX)
        );
        assert_eq!(exec_sync_seconds(Some(Duration::MAX)), MAX_PERIOD_SECONDS);
        assert_eq!(
            stop_container(TWO_MINUTES, i64::MAX),
            until(MAX_PERIOD_SECONDS.unsigned_abs() + 120)
        );
        assert_eq!(
            checkpoint_container(TWO_MINUTES, i64::MAX),
            (MAX_PERIOD_SECONDS, until(MAX_PERIOD_SECONDS.unsigned_abs()))
        );
        assert_eq!(sent(Duration::MAX), period(MAX_PERIOD_SECONDS));
        assert_eq!(sent(TWO_MINUTES), TWO_MINUTES);
    }

    #[test]
    fn a_short_exec_never_becomes_an_endless_one() {
        let check = |timeout, seconds| assert_eq!(exec_sync_seconds(timeout), seconds, "{timeout:?}");
        check(None, 0);
        check(Some(Duration::ZERO), 1);
        check(Some(Duration::from_millis(200)), 1);
        check(Some(Duration::from_secs(1)), 1);
        check(Some(Duration::from_millis(1001)), 2);
    }
}
