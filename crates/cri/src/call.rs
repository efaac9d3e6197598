//! What all calls share: the exchange itself, its deadline, its span `cri{method}`, its metric, and plain or streamed lists.
//!
//! Owns one endpoint's calls. It must not know what a message means, and must not retry what the runtime may have seen: every
//! caller plans its next step from a fresh observation anyway.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, select};
use http::uri::PathAndQuery;
use prost::Message;
use rubelet_ports::{RuntimeError, RuntimeErrorKind};
use rubelet_wire::containerd::NAMESPACE_HEADER;
use rubelet_wire::cri::{self, v1};
use tonic::client::Grpc;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};
use tracing::Instrument;

use crate::codec::RawCodec;
use crate::connection::Link;
use crate::deadline::{self, Patience};
use crate::failure::{failure, never_sent};
use crate::method::{self, Method};
use crate::metrics::CriMetrics;
use crate::{MAX_MESSAGE_BYTES, MAX_STREAMED_LIST_BYTES};

/// Makes calls to one endpoint.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) channel: Channel,
    pub(crate) link: Arc<Link>,
    pub(crate) endpoint: Arc<str>,
    pub(crate) metrics: CriMetrics,
    pub(crate) request_timeout: Duration,
    pub(crate) liveness_interval: Duration,
    /// Whether lists are streamed; off for good once the runtime does not know such a call.
    pub(crate) streams_lists: Arc<AtomicBool>,
}

/// A plain or streamed list: the call, its request, and where the items are in an answer.
pub(crate) struct Listing<Q, A, T> {
    pub(crate) method: &'static Method,
    pub(crate) request: Q,
    pub(crate) items: fn(A) -> Vec<T>,
}

impl Caller {
    /// Runs one operation of the port inside its span, and counts it.
    pub(crate) async fn observe<T>(
        &self,
        method: &Method,
        operation: impl Future<Output = Result<T, RuntimeError>>,
    ) -> Result<T, RuntimeError> {
        // Below the level of failures that are logged there is no span, and no cost.
        let span = tracing::debug_span!("cri", method = method.name);
        let timer = self.metrics.start(method.operation);
        let result = async {
            let result = operation.await;
            if let Err(error) = &result {
                tracing::debug!(kind = ?error.kind(), error = error.message(), "call to the container runtime failed");
            }
            result
        }
        .instrument(span)
        .await;
        timer.finish(&result);
        result
    }

    /// A call with one answer, within the ordinary deadline.
    pub(crate) async fn call<Q: Message, A: Message + Default>(
        &self,
        method: &Method,
        request: Q,
    ) -> Result<A, RuntimeError> {
        self.call_within(method, request, Patience::Until(self.request_timeout))
            .await
    }

    /// A call with one answer, counted and in its span.
    pub(crate) async fn call_within<Q: Message, A: Message + Default>(
        &self,
        method: &Method,
        request: Q,
        patience: Patience,
    ) -> Result<A, RuntimeError> {
        self.observe(method, self.exchange(method, request, patience))
            .await
    }

    /// A call with one answer, neither counted nor in a span: for operations that look at the answer.
    pub(crate) async fn exchange<Q: Message, A: Message + Default>(
        &self,
        method: &Method,
        request: Q,
        patience: Patience,
    ) -> Result<A, RuntimeError> {
        let bytes = self.exchange_bytes(method, encoded(&request), patience).await?;
        self.decoded(method, bytes)
    }

    async fn exchange_bytes(
        &self,
        method: &Method,
        request: Bytes,
        patience: Patience,
    ) -> Result<Bytes, RuntimeError> {
        match patience {
            Patience::Until(timeout) => {
                self.within(
                    method,
                    timeout,
                    self.exchange_once(method, request, Some(timeout)),
                )
                .await
            }
            Patience::WhileAlive => {
                self.while_alive(method, self.exchange_once(method, request, None))
                    .await
            }
        }
    }

    async fn exchange_once(
        &self,
        method: &Method,
        request: Bytes,
        timeout: Option<Duration>,
    ) -> Result<Bytes, RuntimeError> {
        self.check_size(method, &request)?;
        self.send(method, || async {
            let mut request = with_deadline(request.clone(), timeout);
            if let Some(namespace) = method.namespace {
                let namespace = MetadataValue::from_static(namespace);
                request.metadata_mut().insert(NAMESPACE_HEADER, namespace);
            }
            self.grpc()
                .await?
                .unary(request, PathAndQuery::from_static(method.path), RawCodec)
                .await
        })
        .await
    }

    /// Opens a call with many answers. It waits for the first one: runtimes send no headers before.
    pub(crate) async fn open_stream(
        &self,
        method: &Method,
        request: Bytes,
        timeout: Option<Duration>,
    ) -> Result<Streaming<Bytes>, RuntimeError> {
        self.send(method, || async {
            let request = with_deadline(request.clone(), timeout);
            self.grpc()
                .await?
                .server_streaming(request, PathAndQuery::from_static(method.path), RawCodec)
                .await
        })
        .await
    }

    /// Sends a request, and once more if the connection turned out to be dead before anything was written.
    async fn send<T, F>(&self, method: &Method, attempt: impl Fn() -> F) -> Result<T, RuntimeError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let mut result = attempt().await;
        if result.as_ref().is_err_and(never_sent) {
            result = attempt().await;
        }
        match result {
            Ok(response) => {
                self.link.answered();
                Ok(response.into_inner())
            }
            Err(status) => Err(self.failed(method, &status)),
        }
    }

    /// A list, streamed if that is switched on and known to the runtime; the whole within the ordinary deadline.
    pub(crate) async fn list<Q, A, SQ, SA, T>(
        &self,
        plain: Listing<Q, A, T>,
        streamed: Listing<SQ, SA, T>,
    ) -> Result<Vec<T>, RuntimeError>
    where
        Q: Message,
        A: Message + Default,
        SQ: Message,
        SA: Message + Default,
    {
        let timeout = self.request_timeout;
        let method = plain.method;
        let whole = async {
            if self.streams_lists.load(Ordering::Relaxed) {
                match self.drain(&streamed, timeout).await {
                    Err(error) if error.kind() == RuntimeErrorKind::Unimplemented => {
                        self.streams_lists.store(false, Ordering::Relaxed);
                        tracing::info!(
                            method = streamed.method.name,
                            "the runtime does not stream lists; using plain lists from now on"
                        );
                    }
                    result => return result,
                }
            }
            let bytes = self
                .exchange_once(method, encoded(&plain.request), Some(timeout))
                .await?;
            self.decoded(method, bytes).map(plain.items)
        };
        self.observe(method, self.within(method, timeout, whole)).await
    }

    async fn drain<Q: Message, A: Message + Default, T>(
        &self,
        listing: &Listing<Q, A, T>,
        timeout: Duration,
    ) -> Result<Vec<T>, RuntimeError> {
        let method = listing.method;
        let mut stream = self
            .open_stream(method, encoded(&listing.request), Some(timeout))
            .await?;
        let (mut items, mut total) = (Vec::new(), 0);
        while let Some(bytes) = stream
            .message()
            .await
            .map_err(|status| self.failed(method, &status))?
        {
            total += bytes.len();
            if total > MAX_STREAMED_LIST_BYTES {
                let message = format!("the list is longer than {MAX_STREAMED_LIST_BYTES} bytes");
                return Err(self.error(method, RuntimeErrorKind::MessageTooLarge, &message));
            }
            items.extend((listing.items)(self.decoded(method, bytes)?));
        }
        Ok(items)
    }

    /// Bounds a call by time.
    async fn within<T>(
        &self,
        method: &Method,
        timeout: Duration,
        call: impl Future<Output = Result<T, RuntimeError>>,
    ) -> Result<T, RuntimeError> {
        let timed_out = || {
            let message = format!("gave up after {timeout:?}");
            Err(self.error(method, RuntimeErrorKind::DeadlineExceeded, &message))
        };
        match tokio::time::timeout(timeout, call).await {
            // tonic watches the same deadline, and may be the first to notice it.
            Ok(Err(error))
                if error.kind() == RuntimeErrorKind::DeadlineExceeded && error.message().is_empty() =>
            {
                timed_out()
            }
            Ok(result) => result,
            Err(_) => timed_out(),
        }
    }

    /// Bounds a call by the runtime's liveness.
    pub(crate) async fn while_alive<T>(
        &self,
        method: &Method,
        call: impl Future<Output = Result<T, RuntimeError>>,
    ) -> Result<T, RuntimeError> {
        match select(pin!(call), pin!(self.silence())).await {
            Either::Left((result, _)) => result,
            Either::Right(((), _)) => {
                let message = format!(
                    "the runtime answers nothing any more, not even Version within {:?}",
                    self.request_timeout
                );
                Err(self.error(method, RuntimeErrorKind::DeadlineExceeded, &message))
            }
        }
    }

    /// Ends when the runtime stops answering. Any answer shows that it is alive, an error as well: an image service need not
    /// know `Version`. A broken connection is left to the call that waits, which fails by it.
    async fn silence(&self) {
        loop {
            tokio::time::sleep(self.liveness_interval).await;
            let method = &method::VERSION;
            let request = encoded(&v1::VersionRequest {
                version: cri::CLIENT_VERSION.to_owned(),
            });
            let ask = self.exchange_once(method, request, Some(self.request_timeout));
            let sign = self
                .observe(method, self.within(method, self.request_timeout, ask))
                .await;
            if sign.is_err_and(|error| error.kind() == RuntimeErrorKind::DeadlineExceeded) {
                return;
            }
        }
    }

    async fn grpc(&self) -> Result<Grpc<Channel>, Status> {
        let mut grpc = Grpc::new(self.channel.clone())
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        grpc.ready()
            .await
            .map_err(|error| Status::from_error(Box::new(error)))?;
        Ok(grpc)
    }

    /// tonic would notice it only in the middle of sending, and report a broken connection.
    fn check_size(&self, method: &Method, request: &Bytes) -> Result<(), RuntimeError> {
        if request.len() <= MAX_MESSAGE_BYTES {
            return Ok(());
        }
        let message = format!(
            "the request has {} bytes, the limit is {MAX_MESSAGE_BYTES}",
            request.len()
        );
        Err(self.error(method, RuntimeErrorKind::MessageTooLarge, &message))
    }

    pub(crate) fn failed(&self, method: &Method, status: &Status) -> RuntimeError {
        let failure = failure(status);
        if failure.from_runtime {
            self.link.answered();
        } else if failure.kind == RuntimeErrorKind::Unavailable {
            self.link.broke(&failure.message);
        }
        self.error(method, failure.kind, &failure.message)
    }

    pub(crate) fn decoded<A: Message + Default>(
        &self,
        method: &Method,
        bytes: Bytes,
    ) -> Result<A, RuntimeError> {
        A::decode(bytes).map_err(|error| {
            self.error(
                method,
                RuntimeErrorKind::MalformedAnswer,
                &format!("cannot be decoded: {error}"),
            )
        })
    }

    pub(crate) fn error(&self, method: &Method, kind: RuntimeErrorKind, message: &str) -> RuntimeError {
        RuntimeError::new(method.name, &self.endpoint, kind, message)
    }
}

pub(crate) fn encoded(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}

/// The request carries the deadline, so that the runtime stops work that nothing waits for.
fn with_deadline(message: Bytes, timeout: Option<Duration>) -> Request<Bytes> {
    let mut request = Request::new(message);
    if let Some(timeout) = timeout {
        request.set_timeout(deadline::sent(timeout));
    }
    request
}
