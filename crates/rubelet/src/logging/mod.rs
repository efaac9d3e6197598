//! The log: upstream's text and JSON line formats on standard error, filtered by `-v` and `--vmodule`.
//!
//! Levels map to upstream's verbosity: errors, warnings and info are always there, debug is 4, trace is 6.

mod filter;
mod format;

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

pub(crate) use filter::{Verbosity, VmoduleRule};
pub(crate) use format::Format;

/// The verbosity of `-v`, or the one that was set since. A process has one log.
static GENERAL: AtomicU32 = AtomicU32::new(0);

/// Replaces the verbosity of `-v`; `--vmodule` stays.
pub(crate) fn set_verbosity(general: u32) {
    GENERAL.store(general, Ordering::Relaxed);
    // Callsites cache whether their lines are written.
    tracing::callsite::rebuild_interest_cache();
}

/// Installs the log for the whole process.
pub(crate) fn init(format: Format, verbosity: Verbosity) -> Result<(), TryInitError> {
    GENERAL.store(verbosity.general, Ordering::Relaxed);
    let lines = format::Lines::new(format, io::stderr);
    let filter = tracing_subscriber::filter::filter_fn(move |metadata| {
        verbosity.enables(metadata, GENERAL.load(Ordering::Relaxed))
    });
    tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .try_init()
}
