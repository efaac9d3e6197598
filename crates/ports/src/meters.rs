//! Making metrics in a registry.
//!
//! Owns the few lines that each component with metrics would otherwise repeat: make a metric, register it, keep it.

use prometheus::core::Collector;
use prometheus::{
    Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, Result,
};

/// Makes metrics in one registry. Every method fails when the registry has a metric of that name already.
#[derive(Clone, Copy, Debug)]
pub struct Meters<'a> {
    registry: &'a Registry,
}

#[expect(clippy::missing_errors_doc, reason = "documented once, for all methods")]
impl<'a> Meters<'a> {
    #[must_use]
    pub fn new(registry: &'a Registry) -> Self {
        Self { registry }
    }

    fn kept<T: Collector + Clone + 'static>(self, made: Result<T>) -> Result<T> {
        let made = made?;
        self.registry.register(Box::new(made.clone()))?;
        Ok(made)
    }

    pub fn counter(self, name: &str, help: &str) -> Result<IntCounter> {
        self.kept(IntCounter::with_opts(Opts::new(name, help)))
    }

    pub fn counters(self, name: &str, labels: &[&str], help: &str) -> Result<IntCounterVec> {
        self.kept(IntCounterVec::new(Opts::new(name, help), labels))
    }

    /// Of whole numbers.
    pub fn gauge(self, name: &str, help: &str) -> Result<IntGauge> {
        self.kept(IntGauge::with_opts(Opts::new(name, help)))
    }

    pub fn gauges(self, name: &str, labels: &[&str], help: &str) -> Result<IntGaugeVec> {
        self.kept(IntGaugeVec::new(Opts::new(name, help), labels))
    }

    /// Of any numbers.
    pub fn fine_gauge(self, name: &str, help: &str) -> Result<Gauge> {
        self.kept(Gauge::with_opts(Opts::new(name, help)))
    }

    pub fn histogram(self, name: &str, buckets: &[f64], help: &str) -> Result<Histogram> {
        let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.kept(Histogram::with_opts(options))
    }

    pub fn histograms(
        self,
        name: &str,
        labels: &[&str],
        buckets: &[f64],
        help: &str,
    ) -> Result<HistogramVec> {
        let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.kept(HistogramVec::new(options, labels))
    }
}
