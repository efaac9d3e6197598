//! Metrics of status and event reports to the API server, from the figures of `rubelet-reporting`.

use std::sync::Arc;

use anyhow::{Context, Result};
use prometheus::Registry;
use rubelet_reporting::events::ApiEvents;
use rubelet_reporting::{DELAY_BOUNDS_MILLIS, Reporter};

use super::sampled::{Reading, Sampled, cumulated, register};

const DELAYS: Sampled = Sampled::histogram(
    "kubelet_pod_status_sync_duration_seconds",
    &[],
    "[ALPHA] Seconds from a change of a pod's status to the API server having it.",
);

/// Upstream counts none of them.
const EVENTS: Sampled = Sampled::counter(
    "rubelet_events_total",
    &["outcome"],
    "[ALPHA] Events by what became of them: sent; dropped, too many waited; filtered, too many of one object; failed, not taken by the API server.",
);

pub(crate) fn show_events(registry: &Registry, events: &Arc<ApiEvents>) -> Result<()> {
    let events = Arc::clone(events);
    register(registry, &[EVENTS], move || {
        let figures = events.figures();
        let outcomes = [
            ("dropped", figures.dropped),
            ("failed", figures.failed),
            ("filtered", figures.filtered),
            ("sent", figures.sent),
        ];
        let series = outcomes.map(|(outcome, count)| {
            #[expect(clippy::cast_precision_loss, reason = "metrics are of this type")]
            let count = Reading::Number(count as f64);
            (vec![outcome.to_owned()], count)
        });
        vec![EVENTS.family(series)]
    })
    .context("register metrics of events")
}

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
