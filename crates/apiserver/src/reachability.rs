//! Whether the API server answers, told in the log when that changes and not per call.

use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
pub(crate) struct Reachability {
    server: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// `None` before the first answer or failure.
    answers: Option<bool>,
    last_reason: String,
}

impl Reachability {
    pub(crate) fn new(server: String) -> Self {
        Self {
            server,
            state: Mutex::default(),
        }
    }

    pub(crate) fn is_reachable(&self) -> bool {
        self.state().answers == Some(true)
    }

    /// The server sent an answer, whatever it says.
    pub(crate) fn answered(&self) {
        let mut state = self.state();
        if state.answers != Some(true) {
            state.answers = Some(true);
            state.last_reason.clear();
            tracing::info!(server = self.server, "connected to the API server");
        }
    }

    /// No connection. Each new reason is told once.
    pub(crate) fn broke(&self, reason: &str) {
        let mut state = self.state();
        state.answers = Some(false);
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
