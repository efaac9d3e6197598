//! Accepting connections, a bounded number at a time.
//!
//! Owns the accept loop and the tasks of its connections; a panic in one of them ends that connection only.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use crate::ServerError;
use crate::connection::{Handler, Peer, serve};
use crate::connection_slots::{ConnectionSlots, Slot};
use crate::stopping::Stopping;

const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// After an error such as "too many open files".
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// TCP keep-alive finds clients that vanished: the interval of probes and how many may stay unanswered, as in upstream's library.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEP_ALIVE_QUESTIONS: u32 = 9;
/// Answers that are not complete this long after the stop are cut off.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// Where connections come from.
#[async_trait]
pub(crate) trait Listener: Send + 'static {
    type Stream: Send + 'static;

    async fn next(&self) -> io::Result<Self::Stream>;
}

#[async_trait]
impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn next(&self) -> io::Result<TcpStream> {
        let (stream, _) = self.accept().await?;
        // Without it a follower of a log waits for the kernel to fill a packet.
        stream.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, KEEP_ALIVE_INTERVAL)?;
        sockopt::set_tcp_keepintvl(&stream, KEEP_ALIVE_INTERVAL)?;
        sockopt::set_tcp_keepcnt(&stream, KEEP_ALIVE_QUESTIONS)?;
        Ok(stream)
    }
}

#[async_trait]
impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn next(&self) -> io::Result<UnixStream> {
        Ok(self.accept().await?.0)
    }
}

/// Serves one accepted stream to its end. Its slot is free as soon as the port no longer serves it.
pub(crate) trait Greeter<S>: Send + Sync + 'static {
    fn serve(&self, stream: S, stopping: Stopping, slot: Slot) -> BoxFuture<'static, ()>;
}

pub(crate) struct Plain(pub(crate) Arc<dyn Handler>);

impl Greeter<TcpStream> for Plain {
    fn serve(&self, stream: TcpStream, stopping: Stopping, slot: Slot) -> BoxFuture<'static, ()> {
        Box::pin(serve(
            stream,
            Peer::default(),
            Arc::clone(&self.0),
            stopping,
            slot,
        ))
    }
}

pub(crate) struct Tls {
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) configuration: Arc<ServerConfig>,
}

impl Greeter<TcpStream> for Tls {
    fn serve(&self, stream: TcpStream, stopping: Stopping, mut slot: Slot) -> BoxFuture<'static, ()> {
        let acceptor = TlsAcceptor::from(Arc::clone(&self.configuration));
        let handler = Arc::clone(&self.handler);
        Box::pin(async move {
            let address = stream.peer_addr().ok().map(|address| address.ip());
            let handshake = tokio::time::timeout(HANDSHAKE_LIMIT, acceptor.accept(stream));
            let greeted = tokio::select! {
                biased;
                greeted = handshake => greeted,
                () = slot.needed() => return tracing::debug!("A TLS handshake was closed: other connections need its slot"),
            };
            let stream = match greeted {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => return tracing::debug!(%error, "A TLS handshake failed"),
                Err(_) => return tracing::debug!("A TLS handshake took too long"),
            };
            let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
            let peer = Peer {
                address,
                certificates: certificates.to_vec(),
            };
            serve(stream, peer, handler, stopping, slot).await;
        })
    }
}

/// A local socket that only root and rubelet's own user may use.
pub(crate) struct Local(pub(crate) Arc<dyn Handler>);

impl Greeter<UnixStream> for Local {
    fn serve(&self, stream: UnixStream, stopping: Stopping, slot: Slot) -> BoxFuture<'static, ()> {
        let handler = Arc::clone(&self.0);
        Box::pin(async move {
            let own = rustix::process::geteuid().as_raw();
            match stream.peer_cred() {
                Ok(peer) if peer.uid() == 0 || peer.uid() == own => {
                    serve(stream, Peer::default(), handler, stopping, slot).await;
                }
                Ok(peer) => tracing::warn!(
                    uid = peer.uid(),
                    "Refused a connection to the socket of rubelet why: the user is neither root nor rubelet's own"
                ),
                Err(error) => {
                    tracing::warn!(%error, "Refused a connection to the socket of rubelet why: its user cannot be determined");
                }
            }
        })
    }
}

/// Listens on an address that a setting gave.
pub(crate) async fn listen(setting: &'static str, address: SocketAddr) -> Result<TcpListener, ServerError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| ServerError::Listen {
            setting,
            address,
            source,
        })
}

/// Serves until `stopping`, then waits until the answers in flight are complete.
pub(crate) async fn accept_connections<L: Listener>(
    name: &'static str,
    listener: L,
    limit: usize,
    greeter: impl Greeter<L::Stream>,
    mut stopping: Stopping,
) {
    let slots = ConnectionSlots::new(limit);
    let for_connections = stopping.clone();
    let mut connections = JoinSet::new();
    // Accepted, and without a slot yet.
    let mut newcomer: Option<L::Stream> = None;
    loop {
        tokio::select! {
            biased;
            () = stopping.begun() => break,
            // Cancel-safe: what ended stays in the set.
            Some(ended) = connections.join_next(), if !connections.is_empty() => {
                if let Err(error) = ended {
                    tracing::error!(%error, server = name, "A connection's task failed");
                }
            }
            // Cancel-safe: a slot that is dropped becomes free again; the connection waits in `newcomer`.
            slot = slots.enter(), if newcomer.is_some() => {
                if let Some(stream) = newcomer.take() {
                    connections.spawn(greeter.serve(stream, for_connections.clone(), slot));
                }
            }
            // Cancel-safe: a connection that is not accepted stays in the kernel's queue.
            accepted = listener.next(), if newcomer.is_none() => match accepted {
                Ok(stream) => newcomer = Some(stream),
                Err(error) => {
                    tracing::warn!(%error, server = name, "A connection cannot be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    // New connections are refused from here on.
    drop((listener, newcomer));
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN_LIMIT, all).await.is_err() {
        tracing::warn!(server = name, "Answers were cut off at the stop");
    }
}
