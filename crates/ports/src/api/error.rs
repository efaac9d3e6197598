//! How a call to the API server fails.

use std::time::Duration;

use thiserror::Error;

/// A server may ask for more patience than its clients have, but not for any.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(120);

/// What to do about a failure depends on this alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiErrorKind {
    /// No connection or no whole answer; a writing call may have taken effect.
    Unreachable,
    /// No answer in time; a writing call may have taken effect.
    DeadlineExceeded,
    /// 401: the server does not know us.
    Unauthorized,
    /// 403
    Forbidden,
    /// 404: the server has no such object, or does not serve its type.
    NotFound,
    /// 409 with reason `AlreadyExists`
    AlreadyExists,
    /// 409: a precondition, such as the UID or the resource version, does not hold.
    Conflict,
    /// 410: too old to be resumed.
    Gone,
    /// 422 or 400: the server will never accept it.
    Invalid,
    /// 429, or 503 with a time: again after it, or after a backoff.
    Busy { retry_after: Option<Duration> },
    /// 5xx, or a 404 that is not about the object: from something before the server, or from a webhook.
    ServerFailed,
    /// The answer cannot be understood.
    Malformed,
    /// The certificate of the server or our own is not accepted, expired, or of another name.
    Tls,
    /// Our own credentials cannot be used (a broken kubeconfig, a plugin that fails).
    Credentials,
}

/// A failed call, with a message for users. It never carries an object's content.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{operation}: {message}")]
pub struct ApiError {
    /// What was tried on what: `patch status of pod default/web`.
    pub operation: String,
    pub kind: ApiErrorKind,
    pub message: String,
}

impl ApiError {
    #[must_use]
    pub fn new(operation: impl Into<String>, kind: ApiErrorKind, message: impl Into<String>) -> Self {
        Self {
            operation: operation.into(),
            kind,
            message: message.into(),
        }
    }

    /// How long the server asks not to be called (`Retry-After`), up to two minutes.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self.kind {
            ApiErrorKind::Busy { retry_after } => retry_after.map(|wait| wait.min(LONGEST_RETRY_AFTER)),
            _ => None,
        }
    }

    /// The pause before the next try: the caller's own, or a longer one that the server asks for.
    #[must_use]
    pub fn pause(&self, own: Duration) -> Duration {
        self.retry_after().map_or(own, |asked| own.max(asked))
    }

    /// Whether the same call may succeed later with nothing else changed.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        matches!(
            self.kind,
            ApiErrorKind::Unreachable
                | ApiErrorKind::DeadlineExceeded
                | ApiErrorKind::Busy { .. }
                | ApiErrorKind::ServerFailed
                | ApiErrorKind::Tls
                | ApiErrorKind::Credentials
                | ApiErrorKind::Unauthorized
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_as_long_as_the_server_asks() {
        let check = |kind: ApiErrorKind, own: u64, expected: u64| {
            let pause = ApiError::new("call", kind, "failed").pause(Duration::from_secs(own));
            assert_eq!(pause, Duration::from_secs(expected), "{kind:?}");
        };
        let busy = |seconds: u64| ApiErrorKind::Busy {
            retry_after: Some(Duration::from_secs(seconds)),
        };
        check(busy(7), 3, 7);
        check(busy(7), 9, 9);
        check(busy(100_000), 3, 120);
        check(busy(100_000), 500, 500);
        check(ApiErrorKind::Busy { retry_after: None }, 3, 3);
        check(ApiErrorKind::Unreachable, 3, 3);
    }
}
