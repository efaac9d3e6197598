//! What a connection is doing, and how long it may take for that.
//!
//! Owns the phases of a connection, their limits, and how much a client would lose with its slot. A reader may pause for hours,
//! as long as no other connection needs the slot.
//!
//! ```text
//!           bytes arrive          head complete             authorized            answer sent
//!   Idle ────────────────► Head ────────────────► Asking ─────────────► Busy ─────────────────► Idle
//!   90 s                   30 s                   4 h                   4 h
//! ```
//!
//! It also knows whether what was given to the connection is flushed: see [`ConnectionPhase::poll_flushed`].

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
/// Upstream's limit for one answer, e.g. a log that is followed, and for a client to take it.
const ANSWER_LIMIT: Duration = Duration::from_secs(4 * 60 * 60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    Head,
    /// There is a request whose client is not authorized yet.
    Asking,
    Busy,
}

/// A client that is not being served at the moment. Those with the least to lose come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Waiting {
    /// It sends no request, and was never authorized.
    Silent,
    /// It has sent a request, and was never authorized.
    Unauthorized,
    /// It was authorized before, and is between two answers.
    Known,
    /// It does not take the answer that is there for it.
    Stalled,
}

#[derive(Clone, Copy, Debug)]
struct State {
    phase: Phase,
    since: Instant,
    /// Since when the client takes nothing although there is something to send.
    stalled_since: Option<Instant>,
    was_admitted: bool,
}

/// What was given to the connection and may still lie in its buffers.
#[derive(Debug, Default)]
struct Unflushed {
    is_there: bool,
    waiter: Option<Waker>,
}

/// Shared by a connection's stream, its requests and the check of its limits.
#[derive(Debug)]
pub(crate) struct ConnectionPhase {
    // Both are held for a few assignments, never across an await.
    state: Mutex<State>,
    unflushed: Mutex<Unflushed>,
}

impl ConnectionPhase {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                phase: Phase::Idle,
                since: Instant::now(),
                stalled_since: None,
                was_admitted: false,
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
        self.enter(Phase::Asking);
    }

    /// The request is authorized.
    pub(crate) fn admitted(&self) {
        self.enter(Phase::Busy);
        self.state().was_admitted = true;
    }

    /// What the client waits for, and since when; nothing while it is being served.
    pub(crate) fn waiting(&self) -> Option<(Waiting, Instant)> {
        let state = *self.state();
        match (state.phase, state.stalled_since) {
            (Phase::Idle | Phase::Busy, Some(since)) if state.was_admitted => Some((Waiting::Stalled, since)),
            (Phase::Busy, _) => None,
            (Phase::Idle | Phase::Head | Phase::Asking, _) if state.was_admitted => {
                Some((Waiting::Known, state.since))
            }
            (Phase::Asking, _) => Some((Waiting::Unauthorized, state.since)),
            (Phase::Idle | Phase::Head, _) => Some((Waiting::Silent, state.since)),
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
            // The end of an answer may be sent long after the answer was made.
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
            (Some(since), Phase::Idle) => (since, ANSWER_LIMIT, "the client does not take the answer"),
            (None, Phase::Idle) => (state.since, IDLE_LIMIT, "no request"),
            (_, Phase::Head) => (state.since, HEAD_LIMIT, "the request does not come to its end"),
            (_, Phase::Asking | Phase::Busy) => {
                (state.since, ANSWER_LIMIT, "the answer does not come to its end")
            }
        };
        (now.saturating_duration_since(since) >= limit).then_some(what)
    }
}

/// A stream that reports its reads and writes.
pub(crate) struct TrackedStream<T> {
    stream: T,
    phase: Arc<ConnectionPhase>,
}

impl<T> TrackedStream<T> {
    pub(crate) fn new(stream: T, phase: Arc<ConnectionPhase>) -> Self {
        Self { stream, phase }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for TrackedStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.phase.bytes_arrived();
        }
        result
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for TrackedStream<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.phase.wrote(result.is_pending());
        result
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(context);
        self.phase.wrote(result.is_pending());
        if result.is_ready() {
            self.phase.flushed();
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
        let check = |act: &dyn Fn(&ConnectionPhase), allowed: Duration| {
            let before = Instant::now();
            let phase = ConnectionPhase::new();
            act(&phase);
            let after = Instant::now();
            assert_eq!(phase.overdue(before + allowed - Duration::from_secs(1)), None);
            assert!(phase.overdue(after + allowed).is_some());
        };
        check(&|_| {}, IDLE_LIMIT);
        check(&ConnectionPhase::bytes_arrived, HEAD_LIMIT);
        check(&ConnectionPhase::request_began, ANSWER_LIMIT);
        check(
            &|phase| {
                phase.request_began();
                // Read ahead while the answer is being made.
                phase.bytes_arrived();
            },
            ANSWER_LIMIT,
        );
        check(
            &|phase| {
                phase.request_began();
                phase.wrote(true);
                phase.wrote(true);
            },
            ANSWER_LIMIT,
        );
        check(
            &|phase| {
                phase.request_began();
                phase.wrote(true);
                // All of it is in the connection's buffers.
                phase.answer_ended();
            },
            ANSWER_LIMIT,
        );
        check(
            &|phase| {
                phase.request_began();
                phase.wrote(true);
                phase.wrote(false);
                phase.answer_ended();
            },
            IDLE_LIMIT,
        );
    }

    #[test]
    fn who_is_not_served_waits_for_something() {
        let check = |act: &dyn Fn(&ConnectionPhase), expected: Option<Waiting>| {
            let phase = ConnectionPhase::new();
            act(&phase);
            assert_eq!(phase.waiting().map(|(waiting, _)| waiting), expected);
        };
        let ask = |phase: &ConnectionPhase| {
            phase.bytes_arrived();
            phase.request_began();
        };
        let serve = |phase: &ConnectionPhase| {
            ask(phase);
            phase.admitted();
        };
        check(&|_| {}, Some(Waiting::Silent));
        check(&ConnectionPhase::bytes_arrived, Some(Waiting::Silent));
        check(&ask, Some(Waiting::Unauthorized));
        check(&serve, None);
        // Refused.
        check(
            &|phase| {
                ask(phase);
                phase.answer_ended();
            },
            Some(Waiting::Silent),
        );
        let served_before = |phase: &ConnectionPhase| {
            serve(phase);
            phase.answer_ended();
        };
        check(&served_before, Some(Waiting::Known));
        check(
            &|phase| {
                served_before(phase);
                ask(phase);
            },
            Some(Waiting::Known),
        );
        let stall = |phase: &ConnectionPhase| {
            serve(phase);
            phase.wrote(true);
        };
        check(&stall, Some(Waiting::Stalled));
        check(
            &|phase| {
                stall(phase);
                phase.wrote(false);
            },
            None,
        );
    }
}
