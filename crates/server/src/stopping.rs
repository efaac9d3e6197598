//! The signal that the server stops.

use tokio::sync::watch;

/// Becomes true once. A server that was dropped counts as stopping, too.
#[derive(Clone, Debug)]
pub(crate) struct Stopping(watch::Receiver<bool>);

impl Stopping {
    pub(crate) fn new(receiver: watch::Receiver<bool>) -> Self {
        Self(receiver)
    }

    /// Waits for the stop. Cancel-safe: the flag stays as it is until it is looked at.
    pub(crate) async fn begun(&mut self) {
        drop(self.0.wait_for(|stopping| *stopping).await);
    }
}
