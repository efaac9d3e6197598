//! Metrics of the calls, under upstream's names.
//!
//! Owns the five metrics and the clock that times calls. They live in the registry that the program passes in; there is
//! nothing global. A call that is dropped before its answer counts as failed, like a cancelled one upstream.

use std::time::Instant;

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry, exponential_buckets};

/// Counters and histograms of the calls to the runtime.
#[derive(Clone, Debug)]
pub struct CriMetrics {
    operations: IntCounterVec,
    errors: IntCounterVec,
    durations: HistogramVec,
    sandbox_errors: IntCounterVec,
    sandbox_durations: HistogramVec,
}

impl CriMetrics {
    /// Makes the metrics and registers them.
    ///
    /// # Errors
    /// When the registry has metrics of these names already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let metrics = Self {
            operations: IntCounterVec::new(
                Opts::new(
                    "kubelet_runtime_operations_total",
                    "[ALPHA] Calls to the container runtime, by operation.",
                ),
                &["operation_type"],
            )?,
            errors: IntCounterVec::new(
                Opts::new(
                    "kubelet_runtime_operations_errors_total",
                    "[ALPHA] Failed calls to the container runtime, by operation.",
                ),
                &["operation_type"],
            )?,
            durations: HistogramVec::new(
                HistogramOpts::new(
                    "kubelet_runtime_operations_duration_seconds",
                    "[ALPHA] Duration of the calls to the container runtime in seconds, by operation.",
                )
                .buckets(exponential_buckets(0.005, 2.5, 14)?),
                &["operation_type"],
            )?,
            sandbox_errors: IntCounterVec::new(
                Opts::new(
                    "kubelet_run_podsandbox_errors_total",
                    "[ALPHA] Sandboxes that failed to start, by runtime handler.",
                ),
                &["runtime_handler"],
            )?,
            sandbox_durations: HistogramVec::new(
                HistogramOpts::new(
                    "kubelet_run_podsandbox_duration_seconds",
                    "[ALPHA] Duration of sandbox starts in seconds, by runtime handler.",
                ),
                &["runtime_handler"],
            )?,
        };
        registry.register(Box::new(metrics.operations.clone()))?;
        registry.register(Box::new(metrics.errors.clone()))?;
        registry.register(Box::new(metrics.durations.clone()))?;
        registry.register(Box::new(metrics.sandbox_errors.clone()))?;
        registry.register(Box::new(metrics.sandbox_durations.clone()))?;
        Ok(metrics)
    }

    pub(crate) fn start(&self, operation: &'static str) -> CallTimer {
        CallTimer {
            metrics: self.clone(),
            start: Instant::now(),
            label: Label::Operation(operation),
            failed: true,
        }
    }

    pub(crate) fn start_sandbox(&self, runtime_handler: &str) -> CallTimer {
        let label = Label::SandboxHandler(runtime_handler.to_owned());
        CallTimer {
            metrics: self.clone(),
            start: Instant::now(),
            label,
            failed: true,
        }
    }
}

#[derive(Debug)]
enum Label {
    Operation(&'static str),
    SandboxHandler(String),
}

/// Times one call, and counts it when dropped.
#[derive(Debug)]
pub(crate) struct CallTimer {
    metrics: CriMetrics,
    start: Instant,
    label: Label,
    failed: bool,
}

impl CallTimer {
    pub(crate) fn finish<T, E>(mut self, result: &Result<T, E>) {
        self.failed = result.is_err();
    }
}

impl Drop for CallTimer {
    fn drop(&mut self) {
        let seconds = self.start.elapsed().as_secs_f64();
        let metrics = &self.metrics;
        match &self.label {
            Label::Operation(operation) => {
                metrics.operations.with_label_values(&[operation]).inc();
                metrics.durations.with_label_values(&[operation]).observe(seconds);
                if self.failed {
                    metrics.errors.with_label_values(&[operation]).inc();
                }
            }
            Label::SandboxHandler(handler) => {
                metrics
                    .sandbox_durations
                    .with_label_values(&[handler])
                    .observe(seconds);
                if self.failed {
                    metrics.sandbox_errors.with_label_values(&[handler]).inc();
                }
            }
        }
    }
}
