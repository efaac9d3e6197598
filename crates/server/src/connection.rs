//! One connection, from its first byte to its last.
//!
//! Owns HTTP/1.1 on a stream, with limits on size and time. What is answered is the [`Handler`]'s, and so is what happens on a
//! connection that leaves HTTP.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
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

use crate::connection_phase::{ConnectionPhase, TrackedStream};
use crate::connection_slots::Slot;
use crate::response::{Answer, Takeover};
use crate::stopping::Stopping;

/// Upstream takes a megabyte; no client needs it, and each connection could hold that much.
const HEADER_LIMIT_BYTES: usize = 64 * 1024;
const BUFFER_LIMIT_BYTES: usize = 128 * 1024;
/// How often the limits of a connection are checked.
const PACE_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// The client of a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer {
    /// Where it connects from, if that is an address.
    pub(crate) address: Option<IpAddr>,
    /// The certificates that the client sent, its own first. It has proven that it has the key; nothing more is checked yet.
    pub(crate) certificates: Vec<CertificateDer<'static>>,
}

#[async_trait]
pub(crate) trait Handler: Send + Sync {
    /// Reports to `phase` that the client is authorized: until then it can lose its slot to others.
    async fn answer(&self, request: Request<Incoming>, peer: &Peer, phase: &ConnectionPhase) -> Answer;
}

/// Serves a connection to its end. Its slot among the port's connections is free as soon as it leaves HTTP: sessions have
/// bounds of their own.
pub(crate) async fn serve<T>(
    stream: T,
    peer: Peer,
    handler: Arc<dyn Handler>,
    stopping: Stopping,
    mut slot: Slot,
) where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let takeover = serve_http(stream, &peer, &handler, stopping, &mut slot).await;
    drop((slot, peer, handler));
    if let Some(takeover) = takeover {
        takeover.await;
    }
}

/// Serves requests until the client goes, takes too long, leaves HTTP, or `stopping` becomes true and the answer in flight is
/// sent.
async fn serve_http<T>(
    stream: T,
    peer: &Peer,
    handler: &Arc<dyn Handler>,
    mut stopping: Stopping,
    slot: &mut Slot,
) -> Option<Takeover>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let phase = Arc::clone(&slot.phase);
    let stream = TokioIo::new(TrackedStream::new(stream, Arc::clone(&phase)));
    // Held for an assignment, never across an await.
    let takeover: Mutex<Option<Takeover>> = Mutex::new(None);
    let service = service_fn(|request: Request<Incoming>| {
        phase.request_began();
        let (handler, phase, takeover) = (Arc::clone(handler), Arc::clone(&phase), &takeover);
        async move {
            let mut answer = handler.answer(request, peer, &phase).await;
            *takeover.lock().unwrap_or_else(PoisonError::into_inner) = answer.body_mut().take_takeover();
            Ok::<_, Infallible>(answer.map(|body| body.occupying(phase)))
        }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            // The phase has the limits; the builder's own would end idle connections too early.
            .header_read_timeout(None)
            .max_header_size(HEADER_LIMIT_BYTES)
            .max_buf_size(BUFFER_LIMIT_BYTES)
            .serve_connection(stream, service)
            .with_upgrades()
    );
    let mut draining = false;
    loop {
        tokio::select! {
            biased;
            result = connection.as_mut() => match result {
                Ok(()) => break,
                Err(error) => {
                    tracing::debug!(%error, "A connection ended early");
                    return None;
                }
            },
            () = stopping.begun(), if !draining => {
                draining = true;
                connection.as_mut().graceful_shutdown();
            }
            // A request that arrives at this very moment is lost.
            () = slot.needed() => {
                tracing::debug!("A connection is closed because others need its slot");
                return None;
            }
            // Cancel-safe: the phase is kept elsewhere, this only reads it.
            () = tokio::time::sleep(PACE_CHECK_INTERVAL) => {
                if let Some(what) = phase.overdue(Instant::now()) {
                    tracing::debug!(what, "A connection is closed because it takes too long");
                    return None;
                }
            }
        }
    }
    takeover.lock().unwrap_or_else(PoisonError::into_inner).take()
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use bytes::Bytes;
    use http::{Method, StatusCode};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadBuf};
    use tokio::sync::{mpsc, watch};
    use tokio::task::JoinHandle;

    use super::*;
    use crate::response::{stream, text};
    use crate::verbosity;

    /// `/small`, `/large`, `/pieces`, `/body`, which reads it, and `/silent`, whose answer never comes to its end.
    struct Paths(mpsc::Sender<Bytes>);

    #[async_trait]
    impl Handler for Paths {
        async fn answer(&self, request: Request<Incoming>, _: &Peer, phase: &ConnectionPhase) -> Answer {
            phase.admitted();
            match request.uri().path() {
                "/body" => verbosity::answer(&Method::PUT, request.into_body(), &|_| {}).await,
                "/large" => text(StatusCode::OK, vec![b'x'; 1 << 20]),
                "/silent" => {
                    let (sender, receiver) = mpsc::channel(1);
                    let kept = self.0.clone();
                    tokio::spawn(async move {
                        // Held as long as the test runs.
                        kept.closed().await;
                        drop(sender);
                    });
                    stream(receiver)
                }
                "/pieces" => {
                    let (sender, receiver) = mpsc::channel(2);
                    sender.try_send(Bytes::from_static(b"one\n")).unwrap();
                    sender.try_send(Bytes::from_static(b"two\n")).unwrap();
                    stream(receiver)
                }
                _ => text(StatusCode::OK, "ok"),
            }
        }
    }

    /// A served connection: the client's end of it, its task, and what keeps both alive.
    fn begin() -> (DuplexStream, JoinHandle<()>, impl Sized) {
        let (client, server) = tokio::io::duplex(1024);
        let (sender, receiver) = mpsc::channel(1);
        let (stop, stopping) = watch::channel(false);
        let handler: Arc<dyn Handler> = Arc::new(Paths(sender));
        let stopping = Stopping::new(stopping);
        let served = serve(server, Peer::default(), handler, stopping, Slot::of_its_own());
        (client, tokio::spawn(served), (receiver, stop))
    }

    /// How long the server holds a connection on which a client sends this and reads so many bytes; `None` for ever.
    async fn held(sent: &[&str], read_bytes: usize, limit: Duration) -> Option<Duration> {
        let (mut client, served, _alive) = begin();
        let start = Instant::now();
        for part in sent {
            client.write_all(part.as_bytes()).await.unwrap();
        }
        let mut answer = vec![0; read_bytes];
        client.read_exact(&mut answer).await.unwrap();
        let ended = tokio::time::timeout(limit, served).await;
        // Dropped only now: a client that goes ends everything at once.
        drop(client);
        ended.ok().map(|_| start.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn clients_that_take_too_long_lose_their_place() {
        let check = async |sent: &[&str], read_bytes: usize, at_least: u64, at_most: u64| {
            let limit = Duration::from_secs(at_most);
            let held = held(sent, read_bytes, limit).await;
            let held = held.unwrap_or_else(|| panic!("{sent:?}: still there after {limit:?}"));
            assert!(held >= Duration::from_secs(at_least), "{sent:?}: {held:?}");
        };
        check(&[], 0, 90, 101).await;
        check(&["GET /sm"], 0, 30, 41).await;
        check(&["GET /small HTTP/1.1\r\nHost: x\r\n", "X: y"], 0, 30, 41).await;
        // Answered, and then nothing more comes.
        check(&["GET /small HTTP/1.1\r\nHost: x\r\n\r\n"], 20, 90, 101).await;
        // A reader that pauses, as `kubectl logs | less` does.
        for path in ["/large", "/silent"] {
            let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
            check(&[&request], 20, 4 * 60 * 60, 4 * 60 * 60 + 11).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_ends_the_request() {
        for (kind, first) in [
            ("Content-Length: 9", "1"),
            ("Transfer-Encoding: chunked", "1\r\n1\r\n"),
        ] {
            let (mut client, served, _alive) = begin();
            let start = Instant::now();
            let head = format!("PUT /body HTTP/1.1\r\nHost: x\r\n{kind}\r\n\r\n{first}");
            client.write_all(head.as_bytes()).await.unwrap();
            // A byte now and then is not enough.
            tokio::time::sleep(Duration::from_secs(20)).await;
            client.write_all(first.as_bytes()).await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 408 Request Timeout\r\n"), "{answer}");
            let took = start.elapsed().as_secs();
            assert!((30..41).contains(&took), "{kind}: {took}");
            served.await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_merely_slow_gets_everything() {
        let (mut client, served, _alive) = begin();
        client
            .write_all(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
            .await
            .unwrap();
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_secs(600)).await;
            client.read_exact(&mut [0; 4096]).await.unwrap();
        }
        assert!(!served.is_finished());
    }

    /// A stream that seals what was written when it is flushed, as TLS does with its records. Of writing and of flushing the
    /// first so many tries have to be repeated.
    struct Sealing {
        stream: DuplexStream,
        open: Vec<u8>,
        records: Arc<Mutex<Vec<Vec<u8>>>>,
        refusals: (u32, u32),
    }

    fn is_refused(left: &mut u32, context: &Context<'_>) -> bool {
        let is_refused = *left > 0;
        if is_refused {
            *left -= 1;
            context.waker().wake_by_ref();
        }
        is_refused
    }

    impl AsyncRead for Sealing {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_read(context, buffer)
        }
    }

    impl AsyncWrite for Sealing {
        fn poll_write(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            if is_refused(&mut self.refusals.0, context) {
                return Poll::Pending;
            }
            self.open.extend_from_slice(bytes);
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            if is_refused(&mut self.refusals.1, context) {
                return Poll::Pending;
            }
            let record = std::mem::take(&mut self.open);
            if !record.is_empty() {
                self.records.lock().unwrap().push(record);
            }
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn the_end_of_a_stream_is_never_in_one_record_with_its_last_piece() {
        for refusals in [(0, 0), (3, 0), (0, 3), (2, 5)] {
            let (mut client, server) = tokio::io::duplex(1024);
            let records = Arc::default();
            let stream = Sealing {
                stream: server,
                open: Vec::new(),
                records: Arc::clone(&records),
                refusals,
            };
            let request = b"GET /pieces HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
            client.write_all(request).await.unwrap();
            let (sender, _receiver) = mpsc::channel(1);
            let (_stop, stopping) = watch::channel(false);
            let handler: Arc<dyn Handler> = Arc::new(Paths(sender));
            serve(
                stream,
                Peer::default(),
                handler,
                Stopping::new(stopping),
                Slot::of_its_own(),
            )
            .await;
            let records = records.lock().unwrap().clone();
            let all = records.concat();
            assert!(
                all.ends_with(b"4\r\none\n\r\n4\r\ntwo\n\r\n0\r\n\r\n"),
                "{}",
                String::from_utf8_lossy(&all)
            );
            let last = records.last().map(|record| String::from_utf8_lossy(record));
            assert_eq!(last.as_deref(), Some("0\r\n\r\n"), "{refusals:?}");
        }
    }
}
