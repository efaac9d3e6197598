//! The pages of metrics for a collector.

use async_trait::async_trait;

/// The pages that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsPage {
    /// `/metrics`
    Node,
    /// `/metrics/probes`: series by pod, which come and go with it.
    Probes,
    /// `/metrics/slis`: how the health checks fare.
    HealthChecks,
}

#[async_trait]
pub trait MetricsPages: Send + Sync {
    /// A page in Prometheus' text format, version 0.0.4.
    async fn page(&self, page: MetricsPage) -> String;
}
