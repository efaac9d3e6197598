//! Metrics of probes, from the tallies of `rubelet-probes`; a series is removed with its pod.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use prometheus::Registry;
use prometheus::proto::MetricFamily;
use rubelet_ports::{ProbeFigures, ProbeFiguresReader, ProbeKind};

use super::sampled::{Reading, Sampled, register};

const RESULTS: Sampled = Sampled::counter(
    "prober_probe_total",
    &["probe_type", "result", "container", "pod", "namespace", "pod_uid"],
    "[BETA] Probes that were made of a container, by how they ended.",
);
const DURATIONS: Sampled = Sampled::histogram(
    "prober_probe_duration_seconds",
    &["probe_type", "container", "pod", "namespace"],
    "[ALPHA] Duration of successful probes in seconds.",
);

pub(crate) fn show_probes(registry: &Registry, probes: Arc<dyn ProbeFiguresReader>) -> Result<()> {
    let sample = move || families(&probes.figures());
    register(registry, &[RESULTS, DURATIONS], sample).context("register metrics of probes")
}

fn families(figures: &[ProbeFigures]) -> Vec<MetricFamily> {
    let results = figures.iter().flat_map(|probe| {
        let counts = [("successful", probe.successful), ("failed", probe.failed)];
        counts
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .map(|(result, count)| {
                let labels = [
                    kind(probe.kind),
                    result,
                    &probe.container,
                    &probe.pod,
                    &probe.namespace,
                    probe.pod_uid.as_str(),
                ];
                #[expect(clippy::cast_precision_loss, reason = "no probe runs that often")]
                let count = count as f64;
                (labels.map(str::to_owned).to_vec(), Reading::Number(count))
            })
    });
    // Two pods of one name can follow each other, and their durations have no label that distinguishes them.
    let mut durations: BTreeMap<Vec<String>, Timed> = BTreeMap::new();
    for probe in figures.iter().filter(|probe| probe.successful > 0) {
        let labels = [kind(probe.kind), &probe.container, &probe.pod, &probe.namespace];
        let timed = durations.entry(labels.map(str::to_owned).to_vec()).or_default();
        timed.add(probe);
    }
    let durations = durations
        .into_iter()
        .map(|(labels, timed)| (labels, timed.reading()));
    vec![RESULTS.family(results), DURATIONS.family(durations)]
}

#[derive(Default)]
struct Timed {
    within: [u64; ProbeFigures::LIMITS_SECONDS.len()],
    count: u64,
    took: Duration,
}

impl Timed {
    fn add(&mut self, probe: &ProbeFigures) {
        for (sum, count) in self.within.iter_mut().zip(probe.within) {
            *sum += count;
        }
        self.count += probe.successful;
        self.took += probe.took;
    }

    fn reading(self) -> Reading {
        Reading::Distribution {
            buckets: ProbeFigures::LIMITS_SECONDS
                .into_iter()
                .zip(self.within)
                .collect(),
            count: self.count,
            sum: self.took.as_secs_f64(),
        }
    }
}

fn kind(kind: ProbeKind) -> &'static str {
    match kind {
        ProbeKind::Liveness => "Liveness",
        ProbeKind::Readiness => "Readiness",
        ProbeKind::Startup => "Startup",
    }
}

#[cfg(test)]
mod tests {
    use rubelet_model::observation::PodUid;
    use rubelet_testbed::metrics_text::MetricsText;

    use super::*;
    use crate::metrics::text;

    fn probe(uid: &str, successful: u64, failed: u64) -> ProbeFigures {
        let mut within = [0; ProbeFigures::LIMITS_SECONDS.len()];
        within[3..].fill(successful);
        ProbeFigures {
            kind: ProbeKind::Readiness,
            container: "c".to_owned(),
            pod: "p".to_owned(),
            namespace: "n".to_owned(),
            pod_uid: PodUid::from(uid),
            successful,
            failed,
            within,
            took: Duration::from_millis(30 * successful),
        }
    }

    #[test]
    fn two_pods_of_one_name_share_the_durations_and_nothing_else() {
        let families = families(&[probe("one", 2, 1), probe("two", 3, 0)]);
        let page = MetricsText::parse(&text::render(&families)).unwrap();
        let total = |labels: &[(&str, &str)]| page.sum("prober_probe_total", labels);
        assert_eq!(total(&[("pod_uid", "one"), ("result", "successful")]), Some(2.0));
        assert_eq!(total(&[("pod_uid", "one"), ("result", "failed")]), Some(1.0));
        assert_eq!(total(&[("pod_uid", "two"), ("result", "failed")]), None);
        let durations = page.family("prober_probe_duration_seconds").unwrap();
        assert_eq!(page.sum("prober_probe_duration_seconds_count", &[]), Some(5.0));
        assert_eq!(durations.buckets().len(), 12);
        let bucket = |end: &str| page.sum("prober_probe_duration_seconds_bucket", &[("le", end)]);
        assert_eq!((bucket("0.025"), bucket("0.05")), (Some(0.0), Some(5.0)));
    }

    #[test]
    fn probes_that_never_ran_have_no_series() {
        let families = families(&[probe("one", 0, 0)]);
        assert!(families.iter().all(|family| family.get_metric().is_empty()));
    }
}
