//! How long changes of cgroups take and what memory the kernel keeps for pods, under upstream's names.
//!
//! Owns the metrics and a writer that measures another one. They live in the registry that the program passes in; there is
//! nothing global.

use std::sync::Arc;

use async_trait::async_trait;
use prometheus::{DEFAULT_BUCKETS, HistogramVec, IntGauge, Registry};
use rubelet_model::cgroup::{CgroupPlace, CgroupValues};
use rubelet_ports::{CgroupError, CgroupWriter, Clock, Meters, Moment};
use rubelet_resources::tiers::ProtectedMemory;

#[derive(Clone, Debug)]
pub struct CgroupMetrics {
    durations: HistogramVec,
}

impl CgroupMetrics {
    /// Makes the metric and registers it.
    ///
    /// # Errors
    /// When the registry has a metric of this name already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let meters = Meters::new(registry);
        let durations = meters.histograms(
            "kubelet_cgroup_manager_duration_seconds",
            &["operation_type"],
            DEFAULT_BUCKETS,
            "[ALPHA] Duration of changes of cgroups in seconds, by what was done.",
        )?;
        Ok(Self { durations })
    }
}

/// The memory that the kernel keeps for pods, for nodes with the gate `MemoryQoS`.
#[derive(Clone, Debug)]
pub struct MemoryMetrics {
    min: IntGauge,
    low: IntGauge,
}

impl MemoryMetrics {
    /// Makes the metrics and registers them.
    ///
    /// # Errors
    /// When the registry has a metric of one of these names already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let meters = Meters::new(registry);
        Ok(Self {
            min: meters.gauge(
                "kubelet_memory_qos_node_memory_min_bytes",
                "[ALPHA] Memory in bytes that the kernel never takes from Guaranteed pods.",
            )?,
            low: meters.gauge(
                "kubelet_memory_qos_node_memory_low_bytes",
                "[ALPHA] Memory in bytes that the kernel takes last from Burstable pods.",
            )?,
        })
    }

    pub(crate) fn show(&self, protected: ProtectedMemory) {
        self.min.set(protected.min_bytes);
        self.low.set(protected.low_bytes);
    }
}

/// Measures what another writer does.
pub struct MeasuredWriter {
    pub writer: Arc<dyn CgroupWriter>,
    pub clock: Arc<dyn Clock>,
    pub metrics: CgroupMetrics,
}

impl MeasuredWriter {
    fn measure(&self, operation: &'static str, began: Moment) {
        let took = self.clock.moment().since(began);
        let durations = &self.metrics.durations;
        durations
            .with_label_values(&[operation])
            .observe(took.as_secs_f64());
    }
}

#[async_trait]
impl CgroupWriter for MeasuredWriter {
    async fn create(&self, cgroup: CgroupValues) -> Result<Vec<String>, CgroupError> {
        let began = self.clock.moment();
        let result = self.writer.create(cgroup).await;
        self.measure("create", began);
        result
    }

    async fn update(&self, cgroup: CgroupValues) -> Result<(), CgroupError> {
        let began = self.clock.moment();
        let result = self.writer.update(cgroup).await;
        self.measure("update", began);
        result
    }

    async fn remove(&self, place: CgroupPlace) -> Result<(), CgroupError> {
        let began = self.clock.moment();
        let result = self.writer.remove(place).await;
        self.measure("destroy", began);
        result
    }
}
