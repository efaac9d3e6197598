//! The kernel's hint that memory runs short.
//!
//! Owns the shape of the edge. A hint decides nothing: it only says that the signals are worth a reading now.

use async_trait::async_trait;
use futures_util::future::pending;

use crate::SignalError;

/// How much a cgroup may use before the kernel gives a hint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryMark {
    /// By its path below the root.
    pub cgroup: String,
    pub usage_bytes: u64,
}

#[async_trait]
pub trait MemoryAlarm: Send + Sync {
    /// Where the next hints come from, in place of the marks before. A kernel that watches no amounts takes none of them and gives
    /// its hints when programs wait for memory.
    ///
    /// # Errors
    /// When the kernel gives no hints, or not these.
    async fn set(&self, marks: Vec<MemoryMark>) -> Result<(), SignalError>;

    /// Ends with the next hint. Without any it does not end.
    async fn rings(&self);
}

/// For nodes where the kernel gives no hints.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoMemoryAlarm;

#[async_trait]
impl MemoryAlarm for NoMemoryAlarm {
    async fn set(&self, _: Vec<MemoryMark>) -> Result<(), SignalError> {
        Ok(())
    }

    async fn rings(&self) {
        pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails to compile when the port can no longer be used as a trait object.
    #[test]
    fn the_port_is_object_safe() {
        fn takes(_: Option<&dyn MemoryAlarm>) {}
        takes(None);
    }
}
