//! Metrics of the server, under upstream's names.
//!
//! Owns the metrics of requests and of health checks, and the label of each path and method: their number is bounded for all
//! requests. They live in the registries that the program passes in; there is nothing global.

use std::sync::Arc;

use http::Method;
use prometheus::{DEFAULT_BUCKETS, HistogramVec, IntCounterVec, IntGaugeVec, Registry};
use rubelet_ports::{Clock, Meters, Moment};

use crate::streams::Session;

const REQUEST_LABELS: [&str; 4] = ["method", "path", "server_type", "long_running"];
const OTHER: &str = "other";
/// As upstream names them, which is why port forwarding is not among them.
const LONG_RUNNING: [&str; 3] = ["exec", "attach", "debug"];
/// The kind of all health checks of a node.
const HEALTHZ: &str = "healthz";

#[derive(Clone, Debug)]
pub struct ServerMetrics {
    requests: IntCounterVec,
    durations: HistogramVec,
    in_flight: IntGaugeVec,
    translated: IntCounterVec,
    health: IntGaugeVec,
    health_checks: IntCounterVec,
}

impl ServerMetrics {
    /// Makes the metrics and registers them: requests on the node's page, health checks on a page of their own.
    ///
    /// # Errors
    /// When a registry has metrics of these names already.
    pub fn register(node: &Registry, health_checks: &Registry) -> prometheus::Result<Self> {
        let (node, health_checks) = (Meters::new(node), Meters::new(health_checks));
        Ok(Self {
            requests: node.counters(
                "kubelet_http_requests_total",
                &REQUEST_LABELS,
                "[ALPHA] Requests to the node's HTTP API.",
            )?,
            durations: node.histograms(
                "kubelet_http_requests_duration_seconds",
                &REQUEST_LABELS,
                DEFAULT_BUCKETS,
                "[ALPHA] Seconds from a request's arrival to the end of its answer or session.",
            )?,
            in_flight: node.gauges(
                "kubelet_http_inflight_requests",
                &REQUEST_LABELS,
                "[ALPHA] Requests whose answer or session is not over.",
            )?,
            translated: node.counters(
                "kubelet_websocket_streaming_requests_total",
                &["subresource"],
                "[ALPHA] Sessions of WebSocket clients that are translated for the container runtime.",
            )?,
            health: health_checks.gauges(
                "kubernetes_healthcheck",
                &["name", "type"],
                "[STABLE] Whether a health check passed when it was last made.",
            )?,
            health_checks: health_checks.counters(
                "kubernetes_healthchecks_total",
                &["name", "type", "status"],
                "[STABLE] Health checks that were made, by how they ended.",
            )?,
        })
    }

    /// A request has come. It counts as in flight until what is returned is dropped.
    pub(crate) fn begin(
        &self,
        port: CountedPort,
        request: RequestLabels,
        clock: &Arc<dyn Clock>,
    ) -> RequestInHand {
        let RequestLabels { method, path } = request;
        let long_running = if LONG_RUNNING.contains(&path) {
            "true"
        } else {
            "false"
        };
        let labels = [method_label(&method), path, port.label(), long_running];
        self.requests.with_label_values(&labels).inc();
        self.in_flight.with_label_values(&labels).inc();
        RequestInHand {
            metrics: self.clone(),
            labels,
            began: clock.moment(),
            clock: Arc::clone(clock),
        }
    }

    /// A session begins whose protocol the runtime does not support.
    pub(crate) fn translates(&self, session: Session) {
        let subresource = match session {
            Session::Exec | Session::Run => "exec",
            Session::Attach => "attach",
            Session::PortForward => "portforward",
        };
        self.translated.with_label_values(&[subresource]).inc();
    }

    pub(crate) fn checked(&self, name: &str, passed: bool) {
        self.health
            .with_label_values(&[name, HEALTHZ])
            .set(i64::from(passed));
        let status = if passed { "success" } else { "error" };
        self.health_checks
            .with_label_values(&[name, HEALTHZ, status])
            .inc();
    }

    /// Begins to count health checks anew.
    pub(crate) fn reset_health_checks(&self) {
        self.health.reset();
        self.health_checks.reset();
    }
}

/// The ports whose requests are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountedPort {
    Authenticated,
    ReadOnly,
}

impl CountedPort {
    fn label(self) -> &'static str {
        match self {
            Self::Authenticated => "readwrite",
            Self::ReadOnly => "readonly",
        }
    }
}

/// What is counted of a request.
#[derive(Clone, Debug)]
pub(crate) struct RequestLabels {
    pub(crate) method: Method,
    /// See `Paths::label`.
    pub(crate) path: &'static str,
}

/// A request whose answer or session is not over.
pub(crate) struct RequestInHand {
    metrics: ServerMetrics,
    labels: [&'static str; 4],
    began: Moment,
    clock: Arc<dyn Clock>,
}

impl Drop for RequestInHand {
    fn drop(&mut self) {
        self.metrics.in_flight.with_label_values(&self.labels).dec();
        let took = self.clock.moment().since(self.began);
        self.metrics
            .durations
            .with_label_values(&self.labels)
            .observe(took.as_secs_f64());
    }
}

fn method_label(method: &Method) -> &'static str {
    const KNOWN: [&str; 8] = [
        "OPTIONS", "GET", "HEAD", "POST", "PUT", "DELETE", "TRACE", "CONNECT",
    ];
    let known = KNOWN.iter().find(|known| **known == method.as_str());
    known.copied().unwrap_or(OTHER)
}

/// The part of a path that names the endpoint: the first segment, below `/metrics` the first two.
pub(crate) fn root(path: &str) -> &str {
    let path = path.strip_prefix('/').unwrap_or(path);
    let mut ends = path.match_indices('/').map(|(at, _)| at);
    let first = ends.next().unwrap_or(path.len());
    if &path[..first] != "metrics" {
        return &path[..first];
    }
    &path[..ends.next().unwrap_or(path.len())]
}

/// Upstream counts this one among unknown paths.
pub(crate) fn path_label(known: Option<&'static str>) -> &'static str {
    known.filter(|root| *root != "metrics/slis").unwrap_or(OTHER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_counts_by_its_root() {
        let check = |path: &str, expected: &str| assert_eq!(root(path), expected, "{path}");
        check("/pods", "pods");
        check("/pods/", "pods");
        check("/exec/ns/pod/container", "exec");
        check("/metrics", "metrics");
        check("/metrics/probes", "metrics/probes");
        check("/metrics/probes/x/y", "metrics/probes");
        check("/metrics/", "metrics/");
        check("/", "");
        check("", "");
        check("//x", "");
    }

    #[test]
    fn methods_that_nobody_knows_count_together() {
        let check = |method: &str, expected: &str| {
            let method = Method::from_bytes(method.as_bytes()).expect("a method");
            assert_eq!(method_label(&method), expected);
        };
        check("GET", "GET");
        check("PATCH", "other");
        check("BREW", "other");
    }
}
