//! What the runtime fetches from registries just now, where it reports that.
//!
//! Owns the shape of the edge. CRI has no such call, and a runtime may have none: then only the time of a pull is known.

use async_trait::async_trait;
use rubelet_model::Timestamp;

use crate::RuntimeError;

/// A blob on its way into the runtime's store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ingest {
    /// The runtime's name of it, one per blob.
    pub reference: String,
    pub arrived_bytes: u64,
    /// `None` while the runtime does not know.
    pub total_bytes: Option<u64>,
    /// When something of it arrived last. What a broken pull left behind is old.
    pub updated_at: Timestamp,
}

/// Calls that change nothing.
#[async_trait]
pub trait PullProgress: Send + Sync {
    /// Everything on its way, of all pulls together; which pull needs what is not to be seen.
    async fn ingests(&self) -> Result<Vec<Ingest>, RuntimeError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails to compile when the port can no longer be used as a trait object.
    #[test]
    fn the_port_is_object_safe() {
        fn takes(_: Option<&dyn PullProgress>) {}
        takes(None);
    }
}
