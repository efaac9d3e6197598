//! How long a connection may take for what it is doing.
//!
//! Owns the phases of a connection and their limits. A client that sends half a request, or asks and does not read the answer,
//! must not hold a place for hours.
//!
//! ```text
//!           bytes arrive              request complete              answer sent
//!   Idle ────────────────► Head ─────────────────────► Busy ─────────────────────► Idle
//!   90 s                   30 s                        4 h, and 2 min without a byte taken
//! ```
//!
//! It also knows whether what was given to the connection is on its way: see [`Pace::poll_flushed`].

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// Upstream's limit between requests.
const IDLE_LIMIT: Duration = Duration::from_secs(90);
const HEAD_LIMIT: Duration = Duration::from_secs(30);
/// Upstream's limit for one answer, e.g. a log that is followed.
const ANSWER_LIMIT: Duration = Duration::from_secs(4 * 60 * 60);
const STALL_LIMIT: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    Head,
    Busy,
}

#[derive(Clone, Copy, Debug)]
struct State {
    phase: Phase,
    since: Instant,
    /// Since when the client takes nothing although there is something to send.
    stalled_since: Option<Instant>,
    has_asked: bool,
}

/// What was given to the connection and may still lie in its buffers.
#[derive(Debug, Default)]
struct Unflushed {
    is_there: bool,
    waiter: Option<Waker>,
}

/// Shared by a connection's stream, its requests and whoever watches the clock.
#[derive(Debug)]
pub(crate) struct Pace {
    // Both are held for a few assignments, never across an await.
    state: Mutex<State>,
    unflushed: Mutex<Unflushed>,
}

impl Pace {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                phase: Phase::Idle,
                since: Instant::now(),
                stalled_since: None,
                has_asked: false,
            }),
            unflushed: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, phase: Phase) {
        let mut state = self.state();
        state.phase = phase;
        state.since = Instant::now();
    }

    fn bytes_arrived(&self) {
        if self.state().phase == Phase::Idle {
            self.enter(Phase::Head);
        }
    }

    pub(crate) fn request_began(&self) {
        self.enter(Phase::Busy);
        self.state().has_asked = true;
    }

    /// Whether the client has ever asked for anything, and since when it has not; nothing while it is being served.
    pub(crate) fn waiting(&self) -> Option<(bool, Instant)> {
        let state = *self.state();
        match state.phase {
            Phase::Idle | Phase::Head => Some((state.has_asked, state.since)),
            Phase::Busy => None,
        }
    }

    pub(crate) fn answer_ended(&self) {
        self.enter(Phase::Idle);
    }

    fn wrote(&self, waits: bool) {
        let now = Instant::now();
        let mut state = self.state();
        if waits {
            state.stalled_since.get_or_insert(now);
            return;
        }
        let went_on = state.stalled_since.take().is_some();
        if state.phase == Phase::Idle && went_on {
            // The end of an answer may be on its way long after the answer was made.
            state.since = now;
        }
    }

    fn unflushed(&self) -> MutexGuard<'_, Unflushed> {
        self.unflushed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A piece of an answer is in the connection's hands.
    pub(crate) fn piece_given(&self) {
        self.unflushed().is_there = true;
    }

    /// Waits until every piece that was given is out of the connection's buffers.
    pub(crate) fn poll_flushed(&self, context: &Context<'_>) -> Poll<()> {
        let mut unflushed = self.unflushed();
        if unflushed.is_there {
            unflushed.waiter = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    /// The connection flushes its stream only when its own buffers are empty.
    fn flushed(&self) {
        let waiter = {
            let mut unflushed = self.unflushed();
            unflushed.is_there = false;
            unflushed.waiter.take()
        };
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    }

    /// What the connection did for too long, if it did.
    pub(crate) fn overdue(&self, now: Instant) -> Option<&'static str> {
        let state = *self.state();
        let (since, limit, what) = match (state.stalled_since, state.phase) {
            (Some(since), Phase::Idle | Phase::Busy) => {
                (since, STALL_LIMIT, "the client does not take the answer")
            }
            (None, Phase::Idle) => (state.since, IDLE_LIMIT, "no request"),
            (_, Phase::Head) => (state.since, HEAD_LIMIT, "the request does not come to its end"),
            (None, Phase::Busy) => (state.since, ANSWER_LIMIT, "the answer does not come to its end"),
        };
        (now.saturating_duration_since(since) >= limit).then_some(what)
    }
}

/// A stream that tells its pace.
pub(crate) struct PacedStream<T> {
    stream: T,
    pace: Arc<Pace>,
}

impl<T> PacedStream<T> {
    pub(crate) fn new(stream: T, pace: Arc<Pace>) -> Self {
        Self { stream, pace }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for PacedStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.pace.bytes_arrived();
        }
        result
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for PacedStream<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.pace.wrote(result.is_pending());
        result
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(context);
        self.pace.wrote(result.is_pending());
        if result.is_ready() {
            self.pace.flushed();
        }
        result
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_phase_has_its_limit() {
        let check = |act: &dyn Fn(&Pace), allowed: Duration| {
            let pace = Pace::new();
            act(&pace);
            let start = Instant::now();
            assert_eq!(pace.overdue(start + allowed - Duration::from_secs(1)), None);
            assert!(pace.overdue(start + allowed).is_some());
        };
        check(&|_| {}, IDLE_LIMIT);
        check(&Pace::bytes_arrived, HEAD_LIMIT);
        check(&Pace::request_began, ANSWER_LIMIT);
        check(
            &|pace| {
                pace.request_began();
                // Read ahead while the answer is under way.
                pace.bytes_arrived();
            },
            ANSWER_LIMIT,
        );
        check(
            &|pace| {
                pace.request_began();
                pace.wrote(true);
                pace.wrote(true);
            },
            STALL_LIMIT,
        );
        check(
            &|pace| {
                pace.request_began();
                pace.wrote(true);
                pace.wrote(false);
                pace.answer_ended();
            },
            IDLE_LIMIT,
        );
    }
}
