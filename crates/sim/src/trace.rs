//! What happened, in order, for people who look at a failed seed.
//!
//! Owns the lines and their hash: two runs of one seed have the same hash, or the simulation is not deterministic.

use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::dice::{hash_bytes, hash_start};

/// Who a line is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actor {
    /// The scenario: edits, crashes, clock jumps.
    Scenario,
    /// Calls to the runtime and their answers.
    Runtime,
    /// What containers do by themselves.
    Process,
    /// Files that are read and written.
    Files,
    /// What rubelet says: events and published statuses.
    Rubelet,
    /// What rubelet logs; only in runs that ask for it.
    Log,
    /// The checks.
    Check,
}

impl Actor {
    fn as_str(self) -> &'static str {
        match self {
            Self::Scenario => "scenario",
            Self::Runtime => "runtime",
            Self::Process => "process",
            Self::Files => "files",
            Self::Rubelet => "rubelet",
            Self::Log => "log",
            Self::Check => "check",
        }
    }
}

#[derive(Debug)]
struct Lines {
    lines: Vec<(Duration, Actor, String)>,
    hash: u64,
}

/// The trace of one run.
#[derive(Clone, Debug)]
pub struct Trace(Arc<Mutex<Lines>>);

impl Default for Trace {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Lines {
            lines: Vec::new(),
            hash: hash_start(),
        })))
    }
}

impl Trace {
    fn lock(&self) -> MutexGuard<'_, Lines> {
        // One thread runs a simulation; the lock only makes the trace shareable.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn say(&self, at: Duration, actor: Actor, text: impl Into<String>) {
        let text = text.into();
        let mut lines = self.lock();
        lines.hash = hash_bytes(lines.hash, &at.as_nanos().to_le_bytes());
        lines.hash = hash_bytes(lines.hash, text.as_bytes());
        lines.lines.push((at, actor, text));
    }

    #[must_use]
    pub fn hash(&self) -> u64 {
        self.lock().hash
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().lines.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The last `limit` lines.
    #[must_use]
    pub fn text(&self, limit: usize) -> String {
        let lines = self.lock();
        let skipped = lines.lines.len().saturating_sub(limit);
        let mut text = String::new();
        if skipped > 0 {
            let _ = writeln!(text, "… {skipped} lines before");
        }
        for (at, actor, line) in lines.lines.iter().skip(skipped) {
            let _ = writeln!(text, "{:>11.4}s {:<8} {line}", at.as_secs_f64(), actor.as_str());
        }
        text
    }
}
