//! Whether the API server answers, logged when that changes and not per call.
//!
//! Owns the signal that an outage is over: watches that pause after failures try again at once.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// The end of a shorter outage is no signal: pauses are short by then, and a server that answers every second request must not
/// make clients try again all the time.
const SHORTEST_OUTAGE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Reachability {
    server: String,
    state: Mutex<State>,
    recovered: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    /// `None` before the first answer or failure.
    answers: Option<bool>,
    broken_since: Option<Instant>,
    last_reason: String,
}

impl Reachability {
    pub(crate) fn new(server: String) -> Self {
        Self {
            server,
            state: Mutex::default(),
            recovered: watch::Sender::new(()),
        }
    }

    pub(crate) fn is_reachable(&self) -> bool {
        self.state().answers == Some(true)
    }

    /// Sees a value when the server answers again after an outage.
    pub(crate) fn recoveries(&self) -> watch::Receiver<()> {
        self.recovered.subscribe()
    }

    /// The server sent an answer, good or bad.
    pub(crate) fn answered(&self) {
        let mut state = self.state();
        if state.answers != Some(true) {
            state.answers = Some(true);
            state.last_reason.clear();
            tracing::info!(server = self.server, "connected to the API server");
            let broken_since = state.broken_since.take();
            if broken_since.is_some_and(|since| since.elapsed() >= SHORTEST_OUTAGE) {
                self.recovered.send_replace(());
            }
        }
    }

    /// No connection. Each new reason is logged once.
    pub(crate) fn broke(&self, reason: &str) {
        let mut state = self.state();
        state.answers = Some(false);
        state.broken_since.get_or_insert_with(Instant::now);
        if state.last_reason != reason {
            reason.clone_into(&mut state.last_reason);
            tracing::warn!(server = self.server, reason, "no connection to the API server");
        }
    }

    // A panic while the lock is held would leave nothing half-changed here.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
