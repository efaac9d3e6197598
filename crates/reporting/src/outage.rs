//! State of the connection to the API server as a whole: unreachable, failed TLS or credentials, 401, 429, 503 with a time.
//!
//! Owns the backoff that all pods share. During an outage one call at a time probes, after each backoff; the first answer that is
//! none of these failures ends the outage, and all calls resume. 403 concerns one call, and is no outage.

use rubelet_ports::api::{ApiError, ApiErrorKind};
use rubelet_ports::{Moment, Randomness};

use crate::backoff::{Backoff, PASSING};

#[derive(Debug)]
struct Down {
    since: Moment,
    kind: ApiErrorKind,
    backoff: Backoff,
}

#[derive(Debug, Default)]
pub(crate) struct Outage(Option<Down>);

impl Outage {
    /// Whether a failure concerns the server and not the pod of the call.
    pub(crate) fn explains(kind: ApiErrorKind) -> bool {
        match kind {
            ApiErrorKind::Unreachable
            | ApiErrorKind::Unauthorized
            | ApiErrorKind::Busy { .. }
            | ApiErrorKind::Tls
            | ApiErrorKind::Credentials => true,
            ApiErrorKind::DeadlineExceeded
            | ApiErrorKind::Forbidden
            | ApiErrorKind::NotFound
            | ApiErrorKind::AlreadyExists
            | ApiErrorKind::Conflict
            | ApiErrorKind::Gone
            | ApiErrorKind::Invalid
            | ApiErrorKind::ServerFailed
            | ApiErrorKind::Malformed => false,
        }
    }

    pub(crate) fn failed(&mut self, error: &ApiError, now: Moment, chance: &dyn Randomness) {
        let before = self.0.as_ref();
        if before.is_some_and(|down| now < down.backoff.until) {
            // One of those that were under way when it began.
            return;
        }
        if before.is_none_or(|down| down.backoff.message != error.message) {
            tracing::warn!(%error, "Pods cannot be reported to the API server; their newest states wait");
        }
        let last = before.map(|down| &down.backoff);
        let mut backoff = Backoff::after(last, PASSING, error.message.clone(), now, chance);
        if let Some(wait) = error.retry_after() {
            backoff.until = backoff.until.max(now.plus(wait));
        }
        self.0 = Some(Down {
            since: before.map_or(now, |down| down.since),
            kind: error.kind,
            backoff,
        });
    }

    /// The server has answered a call, with success or not.
    pub(crate) fn ended(&mut self, now: Moment) {
        if let Some(down) = self.0.take() {
            let seconds = now.since(down.since).as_secs();
            tracing::info!(seconds, "Pods are reported to the API server again");
        }
    }

    /// Something came from the server on another way: no need to wait any longer for one that could not be reached.
    pub(crate) fn hint(&mut self, now: Moment) {
        if let Some(down) = &mut self.0
            && down.kind == ApiErrorKind::Unreachable
        {
            down.backoff.until = down.backoff.until.min(now);
        }
    }

    /// How many calls may be under way now, or when one may try.
    pub(crate) fn room(&self, now: Moment, usual: usize) -> Result<usize, Moment> {
        match &self.0 {
            None => Ok(usual),
            Some(down) if now < down.backoff.until => Err(down.backoff.until),
            Some(_) => Ok(1),
        }
    }
}
