//! Metrics of calls to the API server, under upstream's names.
//!
//! Owns the metrics and which parts of a call are measured. They live in the registry that the program passes in; there is nothing
//! global, and several clients may share them. Watches count as requests and are not timed: how long one lasts is no measure of the server.

use std::time::Duration;

use http::{Method, Request, StatusCode, Uri};
use prometheus::{HistogramVec, IntCounterVec, Registry};
use rubelet_ports::Meters;

const SECONDS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
const BYTES: [f64; 11] = [
    64.0,
    256.0,
    512.0,
    1024.0,
    4096.0,
    16384.0,
    65536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
];
/// In place of a status where there was no answer: the messages of failures are unbounded.
const NO_ANSWER: &str = "<error>";

#[derive(Clone, Debug)]
pub struct ApiServerMetrics {
    requests: IntCounterVec,
    durations: HistogramVec,
    request_sizes: HistogramVec,
    response_sizes: HistogramVec,
    waits: HistogramVec,
}

impl ApiServerMetrics {
    /// Makes the metrics and registers them.
    ///
    /// # Errors
    /// When the registry has metrics of these names already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let meters = Meters::new(registry);
        let histogram = |name: &str, help: &str, buckets: &[f64]| {
            meters.histograms(name, &["verb", "host"], buckets, help)
        };
        Ok(Self {
            requests: meters.counters(
                "rest_client_requests_total",
                &["code", "method", "host"],
                "[ALPHA] Requests to the API server, by the status of the answer, method and host.",
            )?,
            durations: histogram(
                "rest_client_request_duration_seconds",
                "[ALPHA] Seconds from sending a request to the end of its answer, by method and host.",
                &SECONDS,
            )?,
            request_sizes: histogram(
                "rest_client_request_size_bytes",
                "[ALPHA] Sizes of the bodies of requests, by method and host.",
                &BYTES,
            )?,
            response_sizes: histogram(
                "rest_client_response_size_bytes",
                "[ALPHA] Sizes of the bodies of answers, by method and host.",
                &BYTES,
            )?,
            waits: histogram(
                "rest_client_rate_limiter_duration_seconds",
                "[ALPHA] Seconds that requests waited for the client's own rate limit, by method and host.",
                &SECONDS,
            )?,
        })
    }
}

/// The metrics of one client.
#[derive(Clone, Debug)]
pub(crate) struct ClientMetrics {
    metrics: ApiServerMetrics,
    host: String,
}

impl ClientMetrics {
    pub(crate) fn new(metrics: ApiServerMetrics, server: &Uri) -> Self {
        let host = server.host().unwrap_or_default();
        let host = match server.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        };
        Self { metrics, host }
    }

    pub(crate) fn waited(&self, method: &Method, took: Duration) {
        let waits = &self.metrics.waits;
        waits
            .with_label_values(&self.labels(method))
            .observe(took.as_secs_f64());
    }

    /// A request is about to be sent.
    pub(crate) fn sends<T>(&self, request: &Request<T>) -> CountedRequest<'_> {
        CountedRequest {
            client: self,
            method: request.method().clone(),
            status: None,
        }
    }

    /// A call is over.
    pub(crate) fn ended(&self, method: &Method, sent_bytes: usize, got_bytes: Option<usize>, took: Duration) {
        let (metrics, labels) = (&self.metrics, self.labels(method));
        metrics
            .durations
            .with_label_values(&labels)
            .observe(took.as_secs_f64());
        metrics
            .request_sizes
            .with_label_values(&labels)
            .observe(number(sent_bytes));
        if let Some(bytes) = got_bytes {
            metrics
                .response_sizes
                .with_label_values(&labels)
                .observe(number(bytes));
        }
    }

    fn labels<'a>(&'a self, method: &'a Method) -> [&'a str; 2] {
        [method.as_str(), self.host.as_str()]
    }
}

/// Counts when it is dropped, also when the caller has given up.
pub(crate) struct CountedRequest<'a> {
    client: &'a ClientMetrics,
    method: Method,
    /// Of the answer, once there is one.
    pub(crate) status: Option<StatusCode>,
}

impl Drop for CountedRequest<'_> {
    fn drop(&mut self) {
        let code = self.status.as_ref().map_or(NO_ANSWER, StatusCode::as_str);
        let labels = [code, self.method.as_str(), self.client.host.as_str()];
        self.client.metrics.requests.with_label_values(&labels).inc();
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "sizes of bodies are far below where it begins"
)]
fn number(bytes: usize) -> f64 {
    bytes as f64
}
