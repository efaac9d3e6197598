//! The runtime's stream of container events.
//!
//! Owns the stream, whether it works, and the backoff before it is opened again. The observer decides what an event means.
//!
//! ```text
//!             open                 judge (still open after a second)
//!   Waiting ─────────► Opening ─────────────────────────► Working
//!      ▲                  │ ended                            │ ended
//!      └──────────────────┴──────────────────────────────────┘
//! ```

use std::time::Duration;

use futures_util::stream::StreamExt;
use rubelet_ports::{EventStream, Moment, RuntimeError, RuntimeErrorKind};
use rubelet_wire::cri::v1;

/// A runtime without events says so at once; a stream that is open for longer has them.
const OPENING: Duration = Duration::from_secs(1);
/// The pause before the stream is opened again, doubling.
const RETRY: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);
/// A runtime that has no events may get them with an update.
const RETRY_UNIMPLEMENTED: Duration = Duration::from_secs(60);

enum Stage {
    Waiting,
    Opening { stream: EventStream, since: Moment },
    Working { stream: EventStream },
}

pub(super) struct ContainerEvents {
    stage: Stage,
    /// The pause after the next end.
    retry: Duration,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct StreamEnd {
    pub(super) retry_after: Duration,
    pub(super) has_worked: bool,
}

impl ContainerEvents {
    pub(super) fn new() -> Self {
        Self {
            stage: Stage::Waiting,
            retry: RETRY,
        }
    }

    pub(super) fn open(&mut self, stream: EventStream, now: Moment) {
        self.stage = Stage::Opening { stream, since: now };
    }

    pub(super) fn works(&self) -> bool {
        matches!(self.stage, Stage::Working { .. })
    }

    /// Returns whether the stream counts as working from now on.
    pub(super) fn judge(&mut self, now: Moment) -> bool {
        match std::mem::replace(&mut self.stage, Stage::Waiting) {
            Stage::Opening { stream, since } if now.since(since) >= OPENING => {
                self.stage = Stage::Working { stream };
                tracing::info!("The runtime sends container events; lists are a safety net from now on");
                true
            }
            stage @ (Stage::Waiting | Stage::Opening { .. } | Stage::Working { .. }) => {
                self.stage = stage;
                false
            }
        }
    }

    /// The next event; `None` when the stream is closed. Cancel-safe: the stream keeps what was not taken.
    pub(super) async fn next(&mut self) -> Option<Result<v1::ContainerEventResponse, RuntimeError>> {
        match &mut self.stage {
            Stage::Opening { stream, .. } | Stage::Working { stream } => stream.next().await,
            Stage::Waiting => std::future::pending().await,
        }
    }

    pub(super) fn received(&mut self) {
        self.retry = RETRY;
    }

    /// The stream failed, or the runtime closed it.
    pub(super) fn ended(&mut self, error: Option<&RuntimeError>) -> StreamEnd {
        let has_worked = self.works();
        self.stage = Stage::Waiting;
        let retry_after = self.retry;
        self.retry = match error {
            Some(error) if error.kind() == RuntimeErrorKind::Unimplemented => {
                if retry_after != RETRY_UNIMPLEMENTED {
                    tracing::info!("The runtime has no container events; pods are listed every second");
                }
                RETRY_UNIMPLEMENTED
            }
            Some(_) | None => (retry_after * 2).min(RETRY_MAX),
        };
        if let Some(error) = error {
            tracing::debug!(%error, "The stream of container events failed");
        }
        if has_worked {
            tracing::info!("The runtime sends no container events any more; pods are listed every second");
        }
        StreamEnd {
            retry_after,
            has_worked,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_start(Duration::from_secs(seconds))
    }

    fn end(events: &mut ContainerEvents, kind: Option<RuntimeErrorKind>) -> (u64, bool) {
        let error = kind.map(|kind| RuntimeError::new("GetContainerEvents", "", kind, "no"));
        let end = events.ended(error.as_ref());
        (end.retry_after.as_secs(), end.has_worked)
    }

    #[test]
    fn a_stream_works_when_it_stays_open() {
        let mut events = ContainerEvents::new();
        assert!(!events.judge(at(0)) && !events.works());
        events.open(stream::pending().boxed(), at(5));
        assert!(!events.judge(at(5)) && !events.works());
        assert!(events.judge(at(6)) && events.works());
        assert!(!events.judge(at(7)) && events.works(), "reported twice");
        assert_eq!(end(&mut events, None), (1, true));
        assert!(!events.works());
        assert_eq!(end(&mut events, None), (2, false));
    }

    #[test]
    fn pauses_grow_until_an_event_comes() {
        let unimplemented = Some(RuntimeErrorKind::Unimplemented);
        let unavailable = Some(RuntimeErrorKind::Unavailable);
        let check = |ends: &[Option<RuntimeErrorKind>], pauses: &[u64]| {
            let mut events = ContainerEvents::new();
            for (kind, pause) in ends.iter().zip(pauses) {
                assert_eq!(end(&mut events, *kind), (*pause, false), "{ends:?}");
            }
            events.received();
            assert_eq!(end(&mut events, None), (1, false));
        };
        check(&[unavailable; 8], &[1, 2, 4, 8, 16, 32, 60, 60]);
        check(&[None; 3], &[1, 2, 4]);
        check(&[unimplemented; 3], &[1, 60, 60]);
        check(&[unimplemented, unavailable, None], &[1, 60, 60]);
    }

    #[tokio::test]
    async fn a_closed_stream_yields_its_end() {
        let mut events = ContainerEvents::new();
        let event = v1::ContainerEventResponse::default();
        events.open(stream::iter([Ok(event.clone())]).boxed(), at(0));
        assert_eq!(events.next().await, Some(Ok(event)));
        assert_eq!(events.next().await, None);
    }
}
