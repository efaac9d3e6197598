//! The pages of statistics, for the HTTP API.
//!
//! Owns the calls. A page is made when it is asked for; clients that ask at the same time share it.

use std::sync::Arc;

use async_trait::async_trait;
use thiserror::Error;

/// How much of a summary is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SummaryExtent {
    /// Processors, memory and swap.
    CpuAndMemory,
    Everything,
}

/// There is no summary without a list of pods: an empty one would be taken for a node without pods.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("failed to list pod stats: {0}")]
pub struct NoSummary(pub String);

/// A page in pieces, which are made as they are asked for.
pub type PagePieces = Box<dyn Iterator<Item = Vec<u8>> + Send>;

#[async_trait]
pub trait NodeStatistics: Send + Sync {
    /// `/metrics/resource`, in Prometheus' text format, version 0.0.4. A failure shows on the page.
    async fn resource_page(&self) -> Arc<[u8]>;

    /// `/metrics/cadvisor`, in the same format. It has megabytes on a full node. A failure shows on the page.
    async fn container_page(&self) -> PagePieces;

    /// Renews the metrics of volumes and logs on the node's page, in the background: the page shows the last ones.
    fn renew_metrics(&self);

    /// `/stats/summary`, as JSON. A part that cannot be read is missing.
    async fn summary(&self, extent: SummaryExtent) -> Result<Arc<[u8]>, NoSummary>;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails to compile when the port can no longer be used as a trait object.
    #[test]
    fn the_port_is_object_safe() {
        fn takes(_: Option<&dyn NodeStatistics>) {}
        takes(None);
    }
}
