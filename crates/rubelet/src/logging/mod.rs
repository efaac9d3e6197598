//! The log: upstream's text and JSON line formats on standard error, filtered by `-v` and `--vmodule`.
//!
//! Levels map to upstream's verbosity: errors, warnings and info are always there, debug is 4, trace is 6.

mod filter;
mod format;

use std::io;

use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

pub(crate) use filter::{Verbosity, VmoduleRule};
pub(crate) use format::Format;

/// Installs the log for the whole process.
pub(crate) fn init(format: Format, verbosity: Verbosity) -> Result<(), TryInitError> {
    let lines = format::Lines::new(format, io::stderr);
    let filter = tracing_subscriber::filter::filter_fn(move |metadata| verbosity.enables(metadata));
    tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .try_init()
}
