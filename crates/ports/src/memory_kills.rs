//! Containers that the kernel killed because memory ran out.
//!
//! Owns the shape of the edge. Runtimes learn of it beside a container's end, and some of them too late or never; the kernel
//! reports it before the process is dead.

use async_trait::async_trait;

use crate::FileError;

/// Calls that change nothing.
#[async_trait]
pub trait MemoryKills: Send + Sync {
    /// Whether a process of this container was killed for its memory, as far back as the kernel remembers.
    async fn was_killed(&self, container_id: &str) -> Result<bool, FileError>;
}

/// For nodes where the kernel is not asked.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoMemoryKills;

#[async_trait]
impl MemoryKills for NoMemoryKills {
    async fn was_killed(&self, _container_id: &str) -> Result<bool, FileError> {
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails to compile when the port can no longer be used as a trait object.
    #[test]
    fn the_port_is_object_safe() {
        fn takes(_: Option<&dyn MemoryKills>) {}
        takes(None);
    }
}
