//! The pages that the server gives out.

use std::sync::Arc;

use async_trait::async_trait;
use rubelet_agent::AgentHandle;
use rubelet_ports::{MetricsPage, MetricsPages, NodeStatistics};

use super::{Registries, text};

pub(crate) struct Pages {
    pub(crate) registries: Registries,
    /// Counts the pods right before a page shows them.
    pub(crate) agent: AgentHandle,
    pub(crate) statistics: Arc<dyn NodeStatistics>,
}

#[async_trait]
impl MetricsPages for Pages {
    async fn page(&self, page: MetricsPage) -> String {
        let registry = match page {
            MetricsPage::Node => {
                self.statistics.renew_metrics();
                if self.agent.take_census().await.is_err() {
                    tracing::debug!(
                        "The agent does not answer with its count of pods; the page shows the last count"
                    );
                }
                &self.registries.node
            }
            MetricsPage::Probes => &self.registries.probes,
            MetricsPage::HealthChecks => &self.registries.health_checks,
        };
        text::render(&registry.gather())
    }
}
