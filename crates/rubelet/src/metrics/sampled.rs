//! Metrics that are made when a page is read, from figures that another crate keeps.

use std::collections::HashMap;

use prometheus::Registry;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};

/// A family of such series.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sampled {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) kind: MetricType,
    pub(super) labels: &'static [&'static str],
}

/// The value of a series.
pub(super) enum Reading {
    Number(f64),
    Distribution {
        /// Upper ends and how many are at or below each.
        buckets: Vec<(f64, u64)>,
        count: u64,
        sum: f64,
    },
}

impl Sampled {
    const fn new(
        kind: MetricType,
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self {
            name,
            help,
            kind,
            labels,
        }
    }

    pub(super) const fn counter(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self::new(MetricType::COUNTER, name, labels, help)
    }

    pub(super) const fn gauge(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self::new(MetricType::GAUGE, name, labels, help)
    }

    pub(super) const fn histogram(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self::new(MetricType::HISTOGRAM, name, labels, help)
    }

    /// The family with these series; values of labels are in the order of their names.
    pub(super) fn family(&self, series: impl IntoIterator<Item = (Vec<String>, Reading)>) -> MetricFamily {
        let mut family = MetricFamily::default();
        family.set_name(self.name.to_owned());
        family.set_help(self.help.to_owned());
        family.set_field_type(self.kind);
        family.set_metric(
            series
                .into_iter()
                .map(|(values, reading)| self.series(values, reading))
                .collect(),
        );
        family
    }

    /// The family of one number without labels.
    pub(super) fn number(&self, value: f64) -> MetricFamily {
        self.family([(Vec::new(), Reading::Number(value))])
    }

    fn series(&self, values: Vec<String>, reading: Reading) -> Metric {
        let mut labels: Vec<LabelPair> = self
            .labels
            .iter()
            .zip(values)
            .map(|(name, value)| {
                let mut label = LabelPair::default();
                label.set_name((*name).to_owned());
                label.set_value(value);
                label
            })
            .collect();
        labels.sort_by(|left, right| left.name().cmp(right.name()));
        let mut metric = Metric::from_label(labels);
        match reading {
            Reading::Number(value) if self.kind == MetricType::COUNTER => {
                let mut counter = Counter::default();
                counter.set_value(value);
                metric.set_counter(counter);
            }
            Reading::Number(value) => {
                let mut gauge = Gauge::default();
                gauge.set_value(value);
                metric.set_gauge(gauge);
            }
            Reading::Distribution { buckets, count, sum } => {
                let mut histogram = Histogram::default();
                histogram.set_sample_count(count);
                histogram.set_sample_sum(sum);
                histogram.set_bucket(buckets.into_iter().map(bucket).collect());
                metric.set_histogram(histogram);
            }
        }
        metric
    }
}

fn bucket((end, count): (f64, u64)) -> Bucket {
    let mut bucket = Bucket::default();
    bucket.set_upper_bound(end);
    bucket.set_cumulative_count(count);
    bucket
}

/// Running sums of what is in each bucket.
pub(super) fn cumulated(ends: impl IntoIterator<Item = f64>, counts: &[u64]) -> Vec<(f64, u64)> {
    let sums = counts.iter().scan(0_u64, |sum, count| {
        *sum += count;
        Some(*sum)
    });
    ends.into_iter().zip(sums).collect()
}

struct SampledCollector<F> {
    descriptions: Vec<Desc>,
    sample: F,
}

impl<F: Fn() -> Vec<MetricFamily> + Send + Sync> Collector for SampledCollector<F> {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut families = (self.sample)();
        // A family without series is none.
        families.retain(|family| !family.get_metric().is_empty());
        families
    }
}

/// Registers families that `sample` makes whenever a page is read.
pub(super) fn register(
    registry: &Registry,
    families: &[Sampled],
    sample: impl Fn() -> Vec<MetricFamily> + Send + Sync + 'static,
) -> prometheus::Result<()> {
    let describe = |family: &Sampled| {
        let labels = family.labels.iter().map(|label| (*label).to_owned()).collect();
        Desc::new(
            family.name.to_owned(),
            family.help.to_owned(),
            labels,
            HashMap::new(),
        )
    };
    let descriptions = families.iter().map(describe).collect::<prometheus::Result<_>>()?;
    registry.register(Box::new(SampledCollector { descriptions, sample }))
}
