//! Routes a request through authentication and authorization to its answer.
//!
//! Owns the order: routing, authentication, authorization, the method, then the answer itself. That order is upstream's, so an
//! unknown path is a 404 for every client and a known one a 401 without credentials.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use percent_encoding::percent_decode_str;
use rubelet_ports::{Clock, MetricsPage, MetricsPages, NodeStatistics, PodView};

use crate::access::Access;
use crate::checkpoint::Checkpoints;
use crate::connection::{Handler, Peer};
use crate::connection_phase::ConnectionPhase;
use crate::health::{self, HealthQuery};
use crate::logs::{ContainerLogs, LogTarget};
use crate::metrics::{CountedPort, RequestLabels, ServerMetrics};
use crate::metrics_body;
use crate::node_logs::NodeLogs;
use crate::paths::{Check, Endpoint, Found, Paths};
use crate::pods::{self, DesiredPods};
use crate::profile::Profiles;
use crate::response::{
    Answer, error_line, guarded_json, json, location, redirect, text, unknown_below, unknown_path,
    wrong_method,
};
use crate::statistics;
use crate::stopping::Stopping;
use crate::streams::{SessionRequest, Streams};
use crate::verbosity::{self, SetVerbosity};
use crate::zpages::ZPages;

/// What is counted here, and the pages of everything that is counted.
pub(crate) struct Metrics {
    pub(crate) counts: ServerMetrics,
    pub(crate) pages: Arc<dyn MetricsPages>,
}

/// What stands behind a port, or behind several.
pub(crate) struct Api {
    pub(crate) paths: Paths,
    /// `None` on ports without authentication.
    pub(crate) access: Option<Access>,
    pub(crate) checks: &'static [Check],
    pub(crate) pods: Arc<dyn PodView>,
    pub(crate) desired: Arc<DesiredPods>,
    pub(crate) configz: Bytes,
    pub(crate) logs: Arc<ContainerLogs>,
    pub(crate) streams: Arc<Streams>,
    pub(crate) node_logs: Arc<NodeLogs>,
    pub(crate) checkpoints: Arc<Checkpoints>,
    pub(crate) profiles: Profiles,
    pub(crate) zpages: Arc<ZPages>,
    pub(crate) set_verbosity: Arc<SetVerbosity>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) statistics: Arc<dyn NodeStatistics>,
    /// `None` where requests are not counted.
    pub(crate) counted: Option<CountedPort>,
    pub(crate) stopping: Stopping,
}

#[async_trait]
impl Handler for Api {
    async fn answer(&self, request: Request<Incoming>, peer: &Peer, phase: &ConnectionPhase) -> Answer {
        let Some(port) = self.counted else {
            return self.answer_request(request, peer, phase).await;
        };
        let path = percent_decode_str(request.uri().path()).decode_utf8_lossy();
        let labels = RequestLabels {
            method: request.method().clone(),
            path: self.paths.label(&path),
        };
        drop(path);
        let in_hand = self.metrics.counts.begin(port, labels, &self.clock);
        let answer = self.answer_request(request, peer, phase).await;
        answer.map(|body| body.counting(in_hand))
    }
}

impl Api {
    async fn answer_request(
        &self,
        mut request: Request<Incoming>,
        peer: &Peer,
        phase: &ConnectionPhase,
    ) -> Answer {
        let upgrade = hyper::upgrade::on(&mut request);
        let (head, body) = request.into_parts();
        let method = &head.method;
        let Ok(path) = percent_decode_str(head.uri.path()).decode_utf8() else {
            return unknown_path();
        };
        let path = path.into_owned();
        let (endpoint, rest) = match self.paths.find(&path) {
            Found::Endpoint(endpoint, rest) => (endpoint, rest),
            Found::Redirect(to) => {
                return redirect(method, &location(&to, head.uri.query().unwrap_or_default()));
            }
            Found::Nothing => return unknown_path(),
        };
        if let Some(access) = &self.access
            && let Err(refusal) = access.admit(&head, &path, peer).await
        {
            return refusal;
        }
        phase.admitted();
        match endpoint {
            Endpoint::Session(session) if !session.is_at(rest) => unknown_below(),
            Endpoint::Session(session) if !session.takes(method) => wrong_method(session.methods()),
            Endpoint::Session(session) => {
                let request = SessionRequest { head, body, upgrade };
                self.streams.answer(*session, rest, request).await
            }
            Endpoint::Verbosity => verbosity::answer(method, body, self.set_verbosity.as_ref()).await,
            Endpoint::NodeLogs if method != Method::GET => wrong_method("GET"),
            Endpoint::NodeLogs => {
                let below = path.strip_prefix("/logs/").unwrap_or_default();
                self.node_logs.answer(&head, below).await
            }
            Endpoint::Metrics(page) => self.metrics_page(*page, &head).await,
            Endpoint::Summary => statistics::answer(self.statistics.as_ref(), rest, &head, body).await,
            Endpoint::ResourceMetrics => {
                let page = self.statistics.resource_page().await;
                metrics_body::whole(Bytes::from_owner(page), &head.headers)
            }
            Endpoint::ContainerMetrics => {
                let pieces = self.statistics.container_page().await;
                metrics_body::in_pieces(pieces, &head.headers)
            }
            Endpoint::Flagz => self.zpages.flagz(&head.headers),
            Endpoint::Statusz => self.zpages.statusz(&head.headers, self.clock.now()),
            endpoint => {
                let query = head.uri.query().unwrap_or_default();
                self.answer_known(method, endpoint, rest, query).await
            }
        }
    }

    async fn answer_known(&self, method: &Method, endpoint: &Endpoint, rest: &str, query: &str) -> Answer {
        match endpoint {
            Endpoint::Healthz => {
                let check = |check: Check| {
                    let result = self.check(check);
                    self.metrics.counts.checked(check.name(), result.is_ok());
                    result
                };
                health::summary(&HealthQuery::parse(query), self.checks, check)
            }
            Endpoint::HealthCheck(check) => health::single(self.check(*check)),
            Endpoint::Configz => guarded_json(self.configz.clone()),
            Endpoint::Disabled(message) => error_line(StatusCode::METHOD_NOT_ALLOWED, message),
            // Answered before: these need more of the request.
            Endpoint::Session(_)
            | Endpoint::Verbosity
            | Endpoint::NodeLogs
            | Endpoint::Metrics(_)
            | Endpoint::Summary
            | Endpoint::ResourceMetrics
            | Endpoint::ContainerMetrics
            | Endpoint::Flagz
            | Endpoint::Statusz => unknown_below(),
            Endpoint::Checkpoint => match LogTarget::parse(rest) {
                None => unknown_below(),
                Some(_) if method != Method::POST => wrong_method("POST"),
                Some(target) => self.checkpoints.answer(target, query, self.pods.as_ref()).await,
            },
            Endpoint::Profiles if method != Method::GET => wrong_method("GET"),
            Endpoint::Profiles => self.profiles.answer(rest, query, self.stopping.clone()).await,
            Endpoint::Pods | Endpoint::RunningPods if !rest.is_empty() => unknown_below(),
            Endpoint::Pods | Endpoint::RunningPods if method != Method::GET => wrong_method("GET"),
            Endpoint::Pods => self.pods().await,
            Endpoint::RunningPods => self.running_pods().await,
            Endpoint::ContainerLogs => match LogTarget::parse(rest) {
                None => unknown_below(),
                Some(_) if method != Method::GET => wrong_method("GET"),
                Some(target) => self.logs.answer(target, query, &self.pods, &self.stopping).await,
            },
        }
    }

    /// As for upstream every method reads a page, and deleting the one of health checks begins it anew.
    async fn metrics_page(&self, page: MetricsPage, head: &Parts) -> Answer {
        if page == MetricsPage::HealthChecks && head.method == Method::DELETE {
            self.metrics.counts.reset_health_checks();
            return text(StatusCode::OK, "metrics reset\n");
        }
        let text = self.metrics.pages.page(page).await;
        metrics_body::whole(text, &head.headers)
    }

    fn check(&self, check: Check) -> Result<(), String> {
        match check {
            // Every log line is written at once: none can be stuck while this answers.
            Check::Ping | Check::Log => Ok(()),
            Check::SyncLoop => self.pods.sync_loop_health(),
        }
    }

    async fn pods(&self) -> Answer {
        match self.pods.pods().await {
            Ok(pods) => json(self.desired.encode(&pods)),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        }
    }

    async fn running_pods(&self) -> Answer {
        match self.pods.runtime_pods().await {
            Ok(pods) => json(pods::running(&pods)),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        }
    }
}
