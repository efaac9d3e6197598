//! One log: what it waits for, and what is being done to its rotated files.
//!
//! Owns the two small state machines of a log. Files are changed by `rotation`.

use std::path::PathBuf;

use futures_util::future::AbortHandle;
use rubelet_ports::{LogThrottle, Moment};

use crate::rotation::{Log, RotationError};

/// What a log is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// To grow.
    Watched,
    /// For a free worker, or for its rotation to end.
    Due,
    /// For the next interval, after a failure.
    Resting,
}

/// What is being done to the rotated files of a log. Two of these at a time would remove each other's files.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Tidying {
    Nothing,
    Looking {
        /// A rotation has happened meanwhile.
        again: bool,
    },
    Compressing(String),
}

pub(super) struct Tracked {
    pub(super) log: Log,
    pub(super) state: State,
    watch: Option<AbortHandle>,
    tidying: Tidying,
    /// Tidied again in the next interval: a file was still written, or something failed.
    is_untidy: bool,
    throttle: LogThrottle,
}

impl Tracked {
    pub(super) fn new(id: String, path: PathBuf) -> Self {
        Self {
            log: Log { id, path },
            state: State::Watched,
            watch: None,
            tidying: Tidying::Nothing,
            is_untidy: false,
            throttle: LogThrottle::default(),
        }
    }

    /// Waits for the log to grow. `None` ends the wait.
    pub(super) fn set_watch(&mut self, watch: Option<AbortHandle>) {
        if let Some(earlier) = std::mem::replace(&mut self.watch, watch) {
            earlier.abort();
        }
    }

    /// Whether work on the log is under way or left.
    pub(super) fn is_worked_on(&self) -> bool {
        self.state == State::Due || self.tidying != Tidying::Nothing || self.is_untidy
    }

    /// The rotated file that is being compressed.
    pub(super) fn compressing(&self) -> Option<&str> {
        match &self.tidying {
            Tidying::Compressing(file) => Some(file),
            Tidying::Nothing | Tidying::Looking { .. } => None,
        }
    }

    /// Whether a look at the rotated files begins. If one is under way, another one follows it.
    pub(super) fn begin_tidying(&mut self) -> bool {
        match &mut self.tidying {
            Tidying::Nothing => {
                self.tidying = Tidying::Looking { again: false };
                return true;
            }
            Tidying::Looking { again } => *again = true,
            // Its end looks again.
            Tidying::Compressing(_) => {}
        }
        false
    }

    pub(super) fn begin_compressing(&mut self, file: &str) {
        self.tidying = Tidying::Compressing(file.to_owned());
    }

    /// Whether a look has to follow the one that has ended.
    pub(super) fn end_tidying(&mut self) -> bool {
        let looked = std::mem::replace(&mut self.tidying, Tidying::Nothing);
        looked == (Tidying::Looking { again: true })
    }

    pub(super) fn tidy_later(&mut self) {
        self.is_untidy = true;
    }

    pub(super) fn take_untidy(&mut self) -> bool {
        std::mem::take(&mut self.is_untidy)
    }

    /// Logs a failure, a repeated one with growing gaps.
    pub(super) fn complain(&mut self, error: &RotationError, now: Moment, what: &'static str) {
        if self.throttle.is_due(&error.to_string(), now) {
            let path = self.log.path.display();
            tracing::warn!(container = self.log.id, log = %path, %error, "{what}");
        }
    }

    pub(super) fn at_ease(&mut self) {
        if self.throttle.end() {
            tracing::info!(container = self.log.id, "The log is rotated again");
        }
    }
}
