//! What all calls share: credentials, rate limit, deadline, decoding and error messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, DATE, USER_AGENT};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use k8s_openapi::Resource;
use k8s_openapi::jiff::fmt::rfc2822;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rubelet_ports::api::{ApiError, ApiErrorKind};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::answer::{self, AnswerError, Limits};
use crate::channel::Channel;
use crate::credentials::Credentials;
use crate::decode;
use crate::failure::{
    AskedObject, describe_decode_error, from_answer, from_transport, leaves_connection_alone,
};
use crate::limiter::Limiter;
use crate::metrics::ClientMetrics;
use crate::reachability::Reachability;
use crate::watch_pool::WatchPool;

/// Far beyond any list that a node asks for.
const MAX_ANSWER_BYTES: usize = 128 * 1024 * 1024;
const MAX_FAILURE_BYTES: usize = 64 * 1024;

/// The deadline of a large answer that makes progress all the time.
const LONGEST_ANSWER: Duration = Duration::from_secs(600);

/// Longer than the rate limit delays any caller but one with thousands of requests at once.
const MAX_TURN_WAIT: Duration = Duration::from_secs(60);

/// Characters that a path does not escape in a name.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// As kube-rs builds them: a path without server.
pub(crate) type Built = Result<Request<Vec<u8>>, kube_core::request::Error>;

/// Calls of one purpose.
pub(crate) struct Lane {
    pub(crate) channel: Arc<Channel>,
    pub(crate) limiter: Option<Limiter>,
    pub(crate) timeout: Duration,
}

/// The parts of an [`ApiServer`](crate::ApiServer).
pub(crate) struct Core {
    pub(crate) server: Uri,
    /// The server in messages: without a path.
    pub(crate) server_name: String,
    pub(crate) headers: HeaderMap,
    pub(crate) credentials: Credentials,
    pub(crate) reachability: Reachability,
    pub(crate) calls: Lane,
    /// Statuses of pods and the deletions that end them share the calls' connection and not their limit: `rubelet-reporting` bounds
    /// how many are under way, and a node whose pods all change has to report that at once.
    pub(crate) statuses: Lane,
    /// Token reviews. Unauthenticated clients of the node cause these, in any number: they have a connection and a limit of their own, so
    /// that no other call waits behind them.
    pub(crate) token_reviews: Lane,
    /// Access reviews. Authenticated clients cause most of these: they share the token reviews' connection and not their limit.
    pub(crate) access_reviews: Lane,
    pub(crate) heartbeats: Lane,
    pub(crate) events: Lane,
    pub(crate) watches: WatchPool,
    pub(crate) metrics: Option<ClientMetrics>,
    /// The server has refused a streaming list.
    pub(crate) lacks_streams: AtomicBool,
}

impl Core {
    /// Whether streaming lists are worth a try.
    pub(crate) fn has_streams(&self) -> bool {
        !self.lacks_streams.load(Ordering::Relaxed)
    }

    pub(crate) fn note_no_streams(&self, error: &ApiError) {
        if !self.lacks_streams.swap(true, Ordering::Relaxed) {
            tracing::info!(%error, "the API server has no streaming lists; objects are listed and then watched");
        }
    }

    /// A call that answers with an object.
    pub(crate) async fn call<T>(&self, lane: &Lane, operation: String, request: Built) -> Result<T, ApiError>
    where
        T: DeserializeOwned + Resource,
    {
        let body = self.exchange(lane, &operation, request).await?;
        decode::object(&body).map_err(|error| malformed::<T>(operation, &error))
    }

    /// A call whose whole answer is wanted. Waiting for the rate limit does not count towards the deadline.
    pub(crate) async fn exchange(
        &self,
        lane: &Lane,
        operation: &str,
        request: Built,
    ) -> Result<Bytes, ApiError> {
        self.exchange_within(lane, lane.timeout, operation, request).await
    }

    /// A call whose answer may be large, over a poor link: it has to make progress, and has much longer for all of it.
    pub(crate) async fn exchange_large(
        &self,
        lane: &Lane,
        operation: &str,
        request: Built,
    ) -> Result<Bytes, ApiError> {
        self.exchange_within(lane, LONGEST_ANSWER, operation, request)
            .await
    }

    async fn exchange_within(
        &self,
        lane: &Lane,
        deadline: Duration,
        operation: &str,
        request: Built,
    ) -> Result<Bytes, ApiError> {
        let mut request =
            request.map_err(|error| ApiError::new(operation, ApiErrorKind::Invalid, error.to_string()))?;
        let (method, sent_bytes) = (request.method().clone(), request.body().len());
        // Not for watches: what compresses them holds events back.
        request
            .headers_mut()
            .insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        if let Some(limiter) = &lane.limiter {
            let began = Instant::now();
            let turn = tokio::time::timeout(MAX_TURN_WAIT, limiter.acquire()).await;
            if let Some(metrics) = &self.metrics {
                metrics.waited(&method, began.elapsed());
            }
            turn.map_err(|_| {
                let retry_after = None;
                let message = "too many calls wait for our own rate limit";
                ApiError::new(operation, ApiErrorKind::Busy { retry_after }, message)
            })?;
        }
        let answer = async {
            let sent = self.send(&lane.channel, operation, request);
            let response = tokio::time::timeout(lane.timeout, sent)
                .await
                .unwrap_or_else(|_| Err(too_late(operation, lane.timeout)))?;
            self.whole(operation, response, lane.timeout).await
        };
        let began = Instant::now();
        let answer = tokio::time::timeout(deadline, answer).await;
        let answer = answer.unwrap_or_else(|_| Err(too_late(operation, deadline)));
        if let Some(metrics) = &self.metrics {
            let got_bytes = answer.as_ref().ok().map(Bytes::len);
            metrics.ended(&method, sent_bytes, got_bytes, began.elapsed());
        }
        answer
    }

    /// Sends a request and returns a good answer whose body has not been read yet.
    pub(crate) async fn send(
        &self,
        channel: &Channel,
        operation: &str,
        request: Request<Vec<u8>>,
    ) -> Result<Response<Incoming>, ApiError> {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let authorization = self
            .credentials
            .authorization()
            .await
            .map_err(|problem| ApiError::new(operation, ApiErrorKind::Credentials, problem))?;
        let request = self
            .addressed(request, authorization)
            .map_err(|error| ApiError::new(operation, ApiErrorKind::Invalid, error.to_string()))?;
        let mut counted = self.metrics.as_ref().map(|metrics| metrics.sends(&request));
        let sent = channel.send(request).await;
        if let (Some(counted), Ok(response)) = (&mut counted, &sent) {
            counted.status = Some(response.status());
        }
        drop(counted);
        let response = match sent {
            Ok(response) => response,
            Err(error) => return Err(self.broken(operation, error.as_ref())),
        };
        self.reachability.answered();
        if response.status().is_success() {
            return Ok(response);
        }
        let object = AskedObject::of(&method, &path);
        Err(self.refused(operation, object, response).await)
    }

    fn addressed(
        &self,
        request: Request<Vec<u8>>,
        authorization: Option<HeaderValue>,
    ) -> Result<Request<Full<Bytes>>, http::Error> {
        let (mut parts, body) = request.into_parts();
        let prefix = self.server.path().trim_end_matches('/');
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let mut uri = self.server.clone().into_parts();
        uri.path_and_query = Some(format!("{prefix}{path}").parse()?);
        parts.uri = Uri::from_parts(uri)?;
        for (name, value) in &self.headers {
            parts.headers.append(name, value.clone());
        }
        if let Some(authorization) = authorization {
            parts.headers.insert(AUTHORIZATION, authorization);
        }
        Ok(Request::from_parts(parts, Full::from(body)))
    }

    async fn refused(
        &self,
        operation: &str,
        object: Option<AskedObject<'_>>,
        response: Response<Incoming>,
    ) -> ApiError {
        let (parts, body) = response.into_parts();
        // The deadline of the call holds.
        let limits = Limits {
            bytes: MAX_FAILURE_BYTES,
            no_progress: LONGEST_ANSWER,
        };
        let is_compressed = answer::is_compressed(&parts.headers);
        let body = answer::read(body, is_compressed, &limits)
            .await
            .unwrap_or_default();
        let (kind, mut message) = from_answer(parts.status, &parts.headers, &body, object);
        if parts.status == StatusCode::UNAUTHORIZED {
            let server_time = parts
                .headers
                .get(DATE)
                .and_then(|value| rfc2822::parse(value.to_str().ok()?).ok())
                .map(|time| time.timestamp().into());
            let cause = self.credentials.rejected(server_time).await;
            if !cause.is_empty() {
                message = format!("{message}: {cause}");
            }
        }
        ApiError::new(operation, kind, message)
    }

    async fn whole(
        &self,
        operation: &str,
        response: Response<Incoming>,
        no_progress: Duration,
    ) -> Result<Bytes, ApiError> {
        let is_compressed = answer::is_compressed(response.headers());
        let limits = Limits {
            bytes: MAX_ANSWER_BYTES,
            no_progress,
        };
        let malformed = |message: String| ApiError::new(operation, ApiErrorKind::Malformed, message);
        let read = answer::read(response.into_body(), is_compressed, &limits).await;
        read.map_err(|error| match error {
            AnswerError::Broken(error) => self.broken(operation, &error),
            AnswerError::TooLong => malformed(format!("the answer is longer than {MAX_ANSWER_BYTES} bytes")),
            AnswerError::BadEncoding => malformed("the answer is not compressed as it says".to_owned()),
            AnswerError::Stalled => {
                let message = format!("the answer stopped for {} s", no_progress.as_secs_f64());
                ApiError::new(operation, ApiErrorKind::DeadlineExceeded, message)
            }
        })
    }

    /// A connection that could not be made or broke.
    pub(crate) fn broken(&self, operation: &str, error: &(dyn std::error::Error + 'static)) -> ApiError {
        let (kind, message) = from_transport(error, &self.server_name);
        if !leaves_connection_alone(error) {
            self.reachability.broke(&message);
        }
        ApiError::new(operation, kind, message)
    }
}

/// An answer that cannot be decoded.
pub(crate) fn malformed<T: Resource>(operation: String, error: &serde_json::Error) -> ApiError {
    let message = format!(
        "the answer, which should be a {}, {}",
        T::KIND,
        describe_decode_error(error)
    );
    ApiError::new(operation, ApiErrorKind::Malformed, message)
}

pub(crate) fn too_late(operation: &str, timeout: Duration) -> ApiError {
    let message = format!("no answer within {} s", timeout.as_secs_f64());
    ApiError::new(operation, ApiErrorKind::DeadlineExceeded, message)
}

pub(crate) fn common_headers(user_agent: HeaderValue, impersonation: HeaderMap) -> HeaderMap {
    let mut headers = impersonation;
    headers.insert(USER_AGENT, user_agent);
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    headers
}

/// The path of all objects of a type, in one namespace or everywhere.
pub(crate) fn collection<T: Resource>(namespace: Option<&str>) -> String {
    collection_of(T::API_VERSION, T::URL_PATH_SEGMENT, namespace)
}

pub(crate) fn collection_of(api_version: &str, plural: &str, namespace: Option<&str>) -> String {
    let root = if api_version.contains('/') { "apis" } else { "api" };
    match namespace {
        Some(namespace) => format!("/{root}/{api_version}/namespaces/{}/{plural}", segment(namespace)),
        None => format!("/{root}/{api_version}/{plural}"),
    }
}

/// A request about objects of a type, for kube-rs to finish.
pub(crate) fn request<T: Resource>(namespace: Option<&str>) -> kube_core::Request {
    kube_core::Request::new(collection::<T>(namespace))
}

/// A name as part of a path: it must not become two parts, or a query. A name of dots only would move up.
pub(crate) fn segment(name: &str) -> String {
    if name == "." || name == ".." {
        return name.replace('.', "%2E");
    }
    utf8_percent_encode(name, SEGMENT).to_string()
}

pub(crate) fn body<T: serde::Serialize>(object: &T) -> Result<Vec<u8>, kube_core::request::Error> {
    serde_json::to_vec(object).map_err(kube_core::request::Error::SerializeBody)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::coordination::v1::Lease;
    use k8s_openapi::api::core::v1::{Node, Pod};

    use super::*;

    #[test]
    fn paths_are_those_of_the_api() {
        assert_eq!(collection::<Node>(None), "/api/v1/nodes");
        assert_eq!(
            collection::<Pod>(Some("default")),
            "/api/v1/namespaces/default/pods"
        );
        assert_eq!(
            collection::<Lease>(Some("kube-node-lease")),
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        );
    }

    #[test]
    fn no_call_takes_longer_than_everybody_believes() {
        let options = crate::ApiServerOptions::new("kubelet.conf", "test");
        assert!(MAX_TURN_WAIT + options.call_timeout < rubelet_ports::api::LONGEST_CALL);
    }

    #[test]
    fn a_name_stays_one_part_of_the_path() {
        assert_eq!(segment("web-0.example_x~1"), "web-0.example_x~1");
        assert_eq!(segment("a/../b?c#d e"), "a%2F..%2Fb%3Fc%23d%20e");
        assert_eq!(segment(".."), "%2E%2E");
        assert_eq!(segment("system:x"), "system%3Ax");
    }
}
