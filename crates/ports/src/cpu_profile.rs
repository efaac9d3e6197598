//! Where this process spends its processor time.
//!
//! Owns the shape of the edge. A profile is bytes in pprof's form, zipped; they are not read here.

use std::time::Duration;

use async_trait::async_trait;
use thiserror::Error;

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProfileError {
    /// With the message of Go's profiler, which clients know.
    #[error("cpu profiling already in use")]
    InUse,
    #[error("{0}")]
    Failed(String),
}

#[async_trait]
pub trait CpuProfiler: Send + Sync {
    /// Looks at the process for so long and gives its profile. There is one at a time; dropping the future ends it.
    async fn profile(&self, time: Duration) -> Result<Vec<u8>, ProfileError>;
}
