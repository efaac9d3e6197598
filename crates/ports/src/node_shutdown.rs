//! The service that shuts the machine down, and the lock that makes it wait for the pods.
//!
//! Owns the shape of the edge and its errors. On a node with systemd the service is logind; its locks of mode `delay` hold a
//! shutdown up for a limited time.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use thiserror::Error;

/// Why the service did not do what it was asked for. What to do is the same for all causes: try again later.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct ShutdownError(pub String);

/// The machine's shutdown waits while this exists. Dropping it releases it.
pub struct ShutdownLock {
    _held: Box<dyn Send>,
}

impl ShutdownLock {
    /// What is dropped to release the lock.
    #[must_use]
    pub fn new(held: impl Send + 'static) -> Self {
        Self {
            _held: Box::new(held),
        }
    }
}

impl fmt::Debug for ShutdownLock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ShutdownLock")
    }
}

/// What the service announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownNews {
    /// The machine shuts down as soon as all locks are released, or when the longest delay has passed.
    Begins,
    /// It does not shut down after all.
    Cancelled,
    /// Another process of the service runs now; it may not know the locks of the one before.
    ServiceRestarted,
}

#[async_trait]
pub trait ShutdownService: Send + Sync {
    /// Connects to the service. From then on the connection gets its news.
    async fn connect(&self) -> Result<Box<dyn ShutdownConnection>, ShutdownError>;

    /// Writes the setting by which locks may delay a shutdown for this long. It counts after [`ShutdownConnection::reload`].
    async fn allow_delay(&self, delay: Duration) -> Result<(), ShutdownError>;
}

#[async_trait]
pub trait ShutdownConnection: Send + Sync {
    /// How long locks may delay a shutdown.
    async fn longest_delay(&self) -> Result<Duration, ShutdownError>;

    /// Lets the service read its settings again. It may do so after the answer.
    async fn reload(&self) -> Result<(), ShutdownError>;

    /// Takes a lock. The service refuses it while the machine shuts down.
    async fn take_lock(&self) -> Result<ShutdownLock, ShutdownError>;

    /// Whether the machine shuts down just now.
    async fn is_shutting_down(&self) -> Result<bool, ShutdownError>;

    /// The next news; `None` when the connection is lost. Dropping the future loses nothing.
    async fn next(&mut self) -> Option<ShutdownNews>;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails to compile when the ports can no longer be used as trait objects.
    #[test]
    fn the_ports_are_object_safe() {
        fn takes(_: Option<&dyn ShutdownService>, _: Option<&dyn ShutdownConnection>) {}
        takes(None, None);
    }
}
