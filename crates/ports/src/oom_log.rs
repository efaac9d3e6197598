//! The kernel's log of processes that it killed because memory ran out (OOM kills).
//!
//! Owns the shape of the edge.

use futures_util::stream::BoxStream;
use rubelet_usage::OomKill;

use crate::SignalError;

/// What the log has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OomNews {
    Kill(OomKill),
    /// Everything that was in the log at the start was given; this is the number of its last record.
    UpToDate {
        newest: u64,
    },
}

/// Calls that change nothing.
pub trait OomLog: Send + Sync {
    /// Every kill since the kernel was started, as far as it remembers, then each new one. It ends after an error.
    fn follow(&self) -> BoxStream<'static, Result<OomNews, SignalError>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails to compile when the port can no longer be used as a trait object.
    #[test]
    fn the_port_is_object_safe() {
        fn takes(_: Option<&dyn OomLog>) {}
        takes(None);
    }
}
