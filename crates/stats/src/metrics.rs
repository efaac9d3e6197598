//! Metrics on the node's page that come with statistics: volumes of claims, logs, and how long volumes took to measure.
//!
//! Owns the series and their end: one that is not shown again goes, and no scrape sees a half of them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus::{DEFAULT_BUCKETS, HistogramVec, IntGaugeVec, Registry};
use rubelet_ports::Meters;
use rubelet_usage::summary::FsStats;

const CLAIM_LABELS: [&str; 2] = ["namespace", "persistentvolumeclaim"];
const LOG_LABELS: [&str; 4] = ["uid", "namespace", "pod", "container"];
/// Where figures of containers come from, in upstream's words.
const CGROUPS: &str = "cadvisor";
const RUNTIME: &str = "cri";

/// Metrics of this crate. Clones are the same ones.
#[derive(Clone)]
pub struct StatisticsMetrics {
    claims: Arc<[(Shown, Figure)]>,
    logs: Arc<Shown>,
    provider: IntGaugeVec,
    measured: HistogramVec,
}

type Figure = fn(&FsStats) -> Option<u64>;

/// The volume of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClaimedVolume {
    pub(crate) namespace: String,
    pub(crate) claim: String,
    pub(crate) fs: FsStats,
}

/// What the logs of a container take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogUse {
    /// In the order of the labels.
    pub(crate) labels: [String; 4],
    pub(crate) bytes: u64,
}

/// How a volume was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricSource {
    /// By all its files.
    Walk,
}

impl StatisticsMetrics {
    /// Makes the metrics and registers them.
    ///
    /// # Errors
    /// When the registry has metrics of these names already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let meters = Meters::new(registry);
        let claims: [(&str, &str, Figure); 6] = [
            (
                "capacity_bytes",
                "Bytes of the filesystem of a claim's volume.",
                |fs| fs.capacity_bytes,
            ),
            (
                "available_bytes",
                "Bytes that are left of a claim's volume.",
                |fs| fs.available_bytes,
            ),
            ("used_bytes", "Bytes that are used of a claim's volume.", |fs| {
                fs.used_bytes
            }),
            ("inodes", "Inodes of the filesystem of a claim's volume.", |fs| {
                fs.inodes
            }),
            ("inodes_free", "Inodes that are left of a claim's volume.", |fs| {
                fs.inodes_free
            }),
            ("inodes_used", "Inodes that are used of a claim's volume.", |fs| {
                fs.inodes_used
            }),
        ];
        let claims = claims.into_iter().map(|(name, help, figure)| {
            let (name, help) = (format!("kubelet_volume_stats_{name}"), format!("[ALPHA] {help}"));
            Ok((Shown::new(meters.gauges(&name, &CLAIM_LABELS, &help)?), figure))
        });
        let logs = meters.gauges(
            "kubelet_container_log_filesystem_used_bytes",
            &LOG_LABELS,
            "[ALPHA] Bytes that the logs of a container take.",
        )?;
        let provider = meters.gauges(
            "kubelet_metrics_provider",
            &["provider"],
            "[ALPHA] Always 1, with where figures of containers come from: cadvisor stands for their cgroups, cri for the runtime.",
        )?;
        provider.with_label_values(&[CGROUPS]).set(1);
        Ok(Self {
            claims: claims.collect::<prometheus::Result<Vec<_>>>()?.into(),
            logs: Arc::new(Shown::new(logs)),
            provider,
            measured: meters.histograms(
                "kubelet_volume_metric_collection_duration_seconds",
                &["metric_source"],
                DEFAULT_BUCKETS,
                "[ALPHA] Seconds that it took to measure a volume.",
            )?,
        })
    }

    /// The page of containers has the runtime's own metrics.
    pub(crate) fn show_runtime_as_provider(&self) {
        self.provider.reset();
        self.provider.with_label_values(&[RUNTIME]).set(1);
    }

    /// Shows these instead of those before. Of several volumes of a claim the first counts.
    pub(crate) fn show(&self, volumes: &[ClaimedVolume], logs: &[LogUse]) {
        let mut claims = BTreeSet::new();
        let volumes: Vec<&ClaimedVolume> = volumes
            .iter()
            .filter(|volume| claims.insert((&volume.namespace, &volume.claim)))
            .collect();
        for (shown, figure) in self.claims.iter() {
            shown.replace(volumes.iter().filter_map(|volume| {
                let labels = vec![volume.namespace.clone(), volume.claim.clone()];
                Some((labels, figure(&volume.fs)?))
            }));
        }
        self.logs
            .replace(logs.iter().map(|log| (log.labels.to_vec(), log.bytes)));
    }

    pub(crate) fn measured(&self, source: MetricSource, took: Duration) {
        let source = match source {
            MetricSource::Walk => "du",
        };
        self.measured
            .with_label_values(&[source])
            .observe(took.as_secs_f64());
    }
}

/// Series that come and go.
struct Shown {
    gauges: IntGaugeVec,
    // A std mutex: it is held for steps in memory.
    labels: Mutex<BTreeSet<Vec<String>>>,
}

impl Shown {
    fn new(gauges: IntGaugeVec) -> Self {
        Self {
            gauges,
            labels: Mutex::default(),
        }
    }

    fn replace(&self, series: impl Iterator<Item = (Vec<String>, u64)>) {
        let mut before = self.labels.lock().unwrap_or_else(PoisonError::into_inner);
        let mut labels = BTreeSet::new();
        for (of_series, value) in series {
            let gauge = self.gauges.with_label_values(&of_series);
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
            labels.insert(of_series);
        }
        for gone in before.difference(&labels) {
            // It is there: nothing else removes series.
            let _ = self.gauges.remove_label_values(gone);
        }
        *before = labels;
    }
}

#[cfg(test)]
mod tests {
    use prometheus::TextEncoder;
    use rubelet_model::Timestamp;
    use rubelet_testbed::metrics_text::MetricsText;
    use rubelet_usage::summary::ShownTime;

    use super::*;

    fn volume(claim: &str, bytes: u64) -> ClaimedVolume {
        ClaimedVolume {
            namespace: "default".to_owned(),
            claim: claim.to_owned(),
            fs: FsStats {
                time: ShownTime(Timestamp::EPOCH),
                capacity_bytes: Some(10 * bytes),
                available_bytes: Some(9 * bytes),
                used_bytes: Some(bytes),
                inodes: Some(30),
                inodes_free: Some(20),
                inodes_used: Some(10),
            },
        }
    }

    fn log(container: &str, bytes: u64) -> LogUse {
        LogUse {
            labels: ["u", "default", "web", container].map(str::to_owned),
            bytes,
        }
    }

    #[test]
    fn series_are_those_that_were_shown_last() {
        let registry = Registry::new();
        let metrics = StatisticsMetrics::register(&registry).unwrap();
        let page = || {
            let text = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
            MetricsText::parse(&text).unwrap()
        };
        assert_eq!(
            page().sum("kubelet_metrics_provider", &[("provider", "cadvisor")]),
            Some(1.0)
        );
        metrics.show_runtime_as_provider();
        assert_eq!(
            page().sum("kubelet_metrics_provider", &[("provider", "cri")]),
            Some(1.0)
        );
        assert_eq!(page().sum("kubelet_metrics_provider", &[]), Some(1.0));
        assert_eq!(page().sum("kubelet_volume_stats_used_bytes", &[]), None);
        metrics.show(
            &[volume("a", 7), volume("b", 8), volume("a", 9)],
            &[log("main", 4096)],
        );
        let of = |claim: &'static str| [("namespace", "default"), ("persistentvolumeclaim", claim)];
        for (name, expected) in [
            ("capacity_bytes", 70.0),
            ("available_bytes", 63.0),
            ("used_bytes", 7.0),
            ("inodes", 30.0),
            ("inodes_free", 20.0),
            ("inodes_used", 10.0),
        ] {
            let found = page().sum(&format!("kubelet_volume_stats_{name}"), &of("a"));
            assert_eq!(found, Some(expected), "{name}");
        }
        let logs = [
            ("container", "main"),
            ("namespace", "default"),
            ("pod", "web"),
            ("uid", "u"),
        ];
        assert_eq!(
            page().sum("kubelet_container_log_filesystem_used_bytes", &logs),
            Some(4096.0)
        );
        metrics.show(&[volume("b", 5)], &[]);
        assert_eq!(page().sum("kubelet_volume_stats_used_bytes", &of("a")), None);
        assert_eq!(page().sum("kubelet_volume_stats_used_bytes", &of("b")), Some(5.0));
        assert_eq!(
            page().sum("kubelet_container_log_filesystem_used_bytes", &logs),
            None
        );
    }
}
