//! How fast statuses get to the API server, from what their reporter counts.

use std::sync::Arc;

use anyhow::{Context, Result};
use prometheus::Registry;
use rubelet_reporting::{DELAY_BOUNDS_MILLIS, Reporter};

use super::sampled::{Reading, Sampled, cumulated, register};

const DELAYS: Sampled = Sampled::histogram(
    "kubelet_pod_status_sync_duration_seconds",
    &[],
    "[ALPHA] Seconds from a change of a pod's status to the API server having it.",
);

pub(crate) fn show_reporting(registry: &Registry, reporter: &Arc<Reporter>) -> Result<()> {
    let reporter = Arc::clone(reporter);
    register(registry, &[DELAYS], move || {
        let figures = reporter.figures();
        #[expect(clippy::cast_precision_loss, reason = "bounds are small numbers")]
        let ends = DELAY_BOUNDS_MILLIS.map(|millis| millis as f64 / 1000.0);
        let delays = Reading::Distribution {
            buckets: cumulated(ends, &figures.delays),
            count: figures.delays.iter().sum(),
            sum: figures.delays_sum.as_secs_f64(),
        };
        vec![DELAYS.family([(Vec::new(), delays)])]
    })
    .context("register metrics of reports")
}
