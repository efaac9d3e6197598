//! Reviews by the API server, with retries.
//!
//! Owns the retries and how failures are logged: once for each change, because a busy node would else log thousands of the same.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rubelet_ports::api::{ApiError, ApiErrorKind};
use rubelet_ports::{Clock, within};

/// Upstream's: five tries, each pause half as long again as the one before.
const TRIES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// For all tries together, upstream's limit for a review that several requests may wait for.
const REVIEW_LIMIT: Duration = Duration::from_secs(30);

/// The first answer that is not a transient failure.
pub(super) async fn ask_patiently<T, F>(
    clock: &dyn Clock,
    operation: &'static str,
    ask: impl Fn() -> F + Send + Sync,
) -> Result<T, ApiError>
where
    F: Future<Output = Result<T, ApiError>> + Send,
{
    let tries = async {
        let mut pause = FIRST_PAUSE;
        let mut tried = 1;
        loop {
            match ask().await {
                Err(error) if tried < TRIES && may_pass(error.kind) => {}
                answer => return answer,
            }
            clock.sleep(pause).await;
            pause = pause * 3 / 2;
            tried += 1;
        }
    };
    within(clock, REVIEW_LIMIT, tries)
        .await
        .unwrap_or_else(|elapsed| {
            let kind = ApiErrorKind::DeadlineExceeded;
            Err(ApiError::new(operation, kind, elapsed.to_string()))
        })
}

/// Failures that a retry within seconds can heal; credentials and certificates take longer.
fn may_pass(kind: ApiErrorKind) -> bool {
    match kind {
        ApiErrorKind::Unreachable | ApiErrorKind::Busy { .. } | ApiErrorKind::ServerFailed => true,
        ApiErrorKind::DeadlineExceeded
        | ApiErrorKind::Unauthorized
        | ApiErrorKind::Forbidden
        | ApiErrorKind::NotFound
        | ApiErrorKind::AlreadyExists
        | ApiErrorKind::Conflict
        | ApiErrorKind::Gone
        | ApiErrorKind::Invalid
        | ApiErrorKind::Malformed
        | ApiErrorKind::Tls
        | ApiErrorKind::Credentials => false,
    }
}

/// Logs failures when they begin, change and end.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    // Held for a comparison, never across an await.
    last: Mutex<Option<Arc<str>>>,
}

impl Trouble {
    /// Notes the result of a review; failures are logged with `what`.
    pub(super) fn note(&self, what: &'static str, failure: Option<&Arc<str>>) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref() == failure {
            return;
        }
        match failure {
            Some(error) => tracing::warn!(%error, "{what} fails; requests that need it are refused"),
            None => tracing::info!("{what} works again"),
        }
        *last = failure.cloned();
    }
}
