//! How a call to the API server fails.

use std::time::Duration;

use thiserror::Error;

/// What to do about a failure depends on this alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiErrorKind {
    /// No connection or no whole answer; nobody knows whether a writing call took effect.
    Unreachable,
    /// No answer in time, with the same doubt.
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
    /// The answer is none that we understand.
    Malformed,
    /// The certificate of the server or our own is not accepted, expired, or of another name.
    Tls,
    /// Our own credentials cannot be used (a broken kubeconfig, a plugin that fails).
    Credentials,
}

/// A call that failed, in words for people. It never carries an object's content.
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

    /// Whether the same call may work later without anybody changing anything.
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
