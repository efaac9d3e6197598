//! One connection, from its first byte to its last.
//!
//! Owns HTTP/1.1 on a stream, with limits on size and time. What is answered is the [`Handler`]'s.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tokio_rustls::rustls::pki_types::CertificateDer;

use crate::pace::{Pace, PacedStream};
use crate::response::Answer;
use crate::stopping::Stopping;

/// Upstream takes a megabyte; nobody needs it, and whoever may connect could hold that much.
const HEADER_LIMIT_BYTES: usize = 64 * 1024;
const BUFFER_LIMIT_BYTES: usize = 128 * 1024;
/// How often the pace of a connection is looked at.
const PACE_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Who is at the other end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer {
    /// The certificates that the client sent, its own first. It has proven that it has the key; nothing more is checked yet.
    pub(crate) certificates: Vec<CertificateDer<'static>>,
}

#[async_trait]
pub(crate) trait Handler: Send + Sync {
    async fn answer(&self, request: Request<Incoming>, peer: &Peer) -> Answer;
}

/// Serves requests until the client goes, takes too long, or `stopping` becomes true and the answer under way is sent.
pub(crate) async fn serve<T>(stream: T, peer: Peer, handler: Arc<dyn Handler>, mut stopping: Stopping)
where
    T: AsyncRead + AsyncWrite + Unpin + Send,
{
    let pace = Pace::new();
    let stream = TokioIo::new(PacedStream::new(stream, Arc::clone(&pace)));
    let peer = &peer;
    let service = service_fn(|request: Request<Incoming>| {
        pace.request_began();
        let (handler, pace) = (Arc::clone(&handler), Arc::clone(&pace));
        async move {
            let answer = handler.answer(request, peer).await;
            Ok::<_, Infallible>(answer.map(|body| body.occupying(pace)))
        }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            // The pace has the times; the builder's own would end idle connections too early.
            .header_read_timeout(None)
            .max_header_size(HEADER_LIMIT_BYTES)
            .max_buf_size(BUFFER_LIMIT_BYTES)
            .serve_connection(stream, service)
    );
    let mut draining = false;
    loop {
        tokio::select! {
            biased;
            result = connection.as_mut() => {
                if let Err(error) = result {
                    tracing::debug!(%error, "A connection ended early");
                }
                return;
            }
            () = stopping.begun(), if !draining => {
                draining = true;
                connection.as_mut().graceful_shutdown();
            }
            // Cancel-safe: the pace is kept elsewhere, this only looks at it.
            () = tokio::time::sleep(PACE_CHECK_INTERVAL) => {
                if let Some(what) = pace.overdue(Instant::now()) {
                    tracing::debug!(what, "A connection is closed because it takes too long");
                    return;
                }
            }
        }
    }
}
