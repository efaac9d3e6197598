//! From a request to its answer.
//!
//! Owns the order: where the path leads, who asks and whether they may, which method, then the answer itself. That order is
//! upstream's, so an unknown path is a 404 for everybody and a known one is a 401 for strangers.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use percent_encoding::percent_decode_str;
use rubelet_ports::PodView;

use crate::access::Access;
use crate::connection::{Handler, Peer};
use crate::health::{self, HealthQuery};
use crate::logs::{ContainerLogs, LogTarget};
use crate::paths::{Check, Endpoint, Found, Later, Paths};
use crate::pods::{self, DesiredPods};
use crate::response::{
    Answer, error_line, guarded_json, json, redirect, text, unknown_below, unknown_path, wrong_method,
};
use crate::stopping::Stopping;
use crate::streams::{SessionRequest, Streams};

/// What stands behind a port, or behind several.
pub(crate) struct Api {
    pub(crate) paths: Paths,
    /// `None` where nobody is asked who they are.
    pub(crate) access: Option<Access>,
    pub(crate) checks: &'static [Check],
    pub(crate) pods: Arc<dyn PodView>,
    pub(crate) desired: Arc<DesiredPods>,
    pub(crate) configz: Bytes,
    pub(crate) logs: Arc<ContainerLogs>,
    pub(crate) streams: Arc<Streams>,
    pub(crate) stopping: Stopping,
}

#[async_trait]
impl Handler for Api {
    async fn answer(&self, mut request: Request<Incoming>, peer: &Peer) -> Answer {
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
        match endpoint {
            Endpoint::Session(session) if !session.is_at(rest) => unknown_below(),
            Endpoint::Session(session) if !session.takes(method) => wrong_method(session.methods()),
            Endpoint::Session(session) => {
                let request = SessionRequest { head, body, upgrade };
                self.streams.answer(*session, rest, request).await
            }
            endpoint => {
                let query = head.uri.query().unwrap_or_default();
                self.answer_known(method, endpoint, rest, query).await
            }
        }
    }
}

impl Api {
    async fn answer_known(&self, method: &Method, endpoint: &Endpoint, rest: &str, query: &str) -> Answer {
        match endpoint {
            Endpoint::Healthz => {
                health::summary(&HealthQuery::parse(query), self.checks, |check| self.check(check))
            }
            Endpoint::HealthCheck(check) => health::single(self.check(*check)),
            Endpoint::Configz => guarded_json(self.configz.clone()),
            Endpoint::Disabled(message) => error_line(StatusCode::METHOD_NOT_ALLOWED, message),
            Endpoint::Later(later) => not_yet(later, method, rest),
            // Answered before: these need the connection itself.
            Endpoint::Session(_) => unknown_below(),
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

    fn check(&self, check: Check) -> Result<(), String> {
        match check {
            // The log is written at once by whoever logs: nothing of it can be stuck while this answers.
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

fn not_yet(later: &Later, method: &Method, rest: &str) -> Answer {
    let segments = rest.split('/').filter(|segment| !segment.is_empty()).count();
    if !later.segments.contains(&segments) {
        return unknown_below();
    }
    let allowed = |name: &str| later.methods.split(", ").any(|allowed| allowed == name);
    if !later.methods.is_empty() && !allowed(method.as_str()) {
        return wrong_method(later.methods);
    }
    let message = format!("rubelet does not support {} yet", later.what);
    error_line(StatusCode::NOT_IMPLEMENTED, &message)
}

/// A path as it stands in a header, with the query that was asked.
fn location(path: &str, query: &str) -> String {
    const KEPT: &percent_encoding::AsciiSet = &percent_encoding::NON_ALPHANUMERIC
        .remove(b'/')
        .remove(b'-')
        .remove(b'_')
        .remove(b'.')
        .remove(b'~')
        .remove(b'$')
        .remove(b'&')
        .remove(b'+')
        .remove(b',')
        .remove(b':')
        .remove(b';')
        .remove(b'=')
        .remove(b'@');
    let path = percent_encoding::utf8_percent_encode(path, KEPT);
    if query.is_empty() {
        path.to_string()
    } else {
        format!("{path}?{query}")
    }
}
