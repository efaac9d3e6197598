//! Making one connection: TCP, through a proxy if there is one, and TLS.
//!
//! Owns its deadline, and the line by which connections are cut: each ends at once when the channel that made it gives it up.
//! A connection that showed a replaced client certificate is not cut: it ends with the last request on it.

use std::error::Error as StdError;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::{HeaderValue, Uri};
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use rubelet_proxy::{Proxy, ProxyScheme};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tower::{Service, ServiceExt, service_fn};

use crate::identity::ClientIdentity;
use crate::tls::{H2, Tls};

/// One connection, TLS included, as long as a heartbeat may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// For servers without HTTP/2, where no ping finds a dead connection.
const TCP_KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const TCP_KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const TCP_KEEPALIVE_PROBES: u32 = 3;
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(25);

/// What is read from a connection that was cut.
pub(crate) const GIVEN_UP: &str = "the connection was given up";

/// Why there is no connection.
#[derive(Debug, Error)]
pub(crate) enum DialError {
    #[error("cannot connect")]
    Connect(#[source] Box<dyn StdError + Send + Sync>),
    #[error("no TLS connection")]
    Tls(#[source] io::Error),
    #[error("no TLS connection to the proxy {proxy}")]
    ProxyTls {
        proxy: Uri,
        #[source]
        source: io::Error,
    },
    #[error("no connection within {} s", CONNECT_TIMEOUT.as_secs())]
    TimedOut,
    #[error("the server speaks HTTP/1.1 only")]
    OnlyHttp1,
}

/// Dials for one channel; all channels share the parts.
#[derive(Clone)]
pub(crate) struct Dialler {
    pub(crate) route: Route,
    /// `None` where neither the server nor the proxy has TLS.
    pub(crate) tls: Option<Arc<Tls>>,
    /// `None` for a server without TLS.
    pub(crate) server_name: Option<ServerName<'static>>,
    pub(crate) identity: ClientIdentity,
}

/// How connections are made, up to where the server's own TLS begins.
#[derive(Clone)]
pub(crate) struct Route {
    tcp: HttpConnector,
    proxy: Option<Proxy>,
    /// The name of a proxy that is reached over TLS.
    proxy_name: Option<ServerName<'static>>,
}

impl Route {
    pub(crate) fn new(proxy: Option<Proxy>, proxy_name: Option<ServerName<'static>>) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(TCP_KEEPALIVE_IDLE));
        tcp.set_keepalive_interval(Some(TCP_KEEPALIVE_INTERVAL));
        tcp.set_keepalive_retries(Some(TCP_KEEPALIVE_PROBES));
        tcp.set_tcp_user_timeout(Some(TCP_USER_TIMEOUT));
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        Self {
            tcp,
            proxy,
            proxy_name,
        }
    }

    /// Whether the proxy itself is reached over TLS.
    pub(crate) fn has_tls_proxy(&self) -> bool {
        self.proxy_name.is_some()
    }

    async fn connect(self, server: Uri, tls: Option<&Tls>) -> Result<Box<dyn Stream>, DialError> {
        let failed = |error| DialError::Connect(Box::new(error));
        let next = self.proxy.as_ref().map_or(&server, Proxy::uri).clone();
        let stream = self.tcp.oneshot(next).await.map_err(failed)?.into_inner();
        let Some(proxy) = self.proxy else {
            return Ok(Box::new(stream));
        };
        let (Some(name), Some(tls)) = (self.proxy_name, tls) else {
            return through(&proxy, stream, server).await.map_err(DialError::Connect);
        };
        let stream = TlsConnector::from(tls.config(true)).connect(name, stream).await;
        let stream = stream.map_err(|source| DialError::ProxyTls {
            proxy: proxy.uri().clone(),
            source,
        })?;
        through(&proxy, stream, server).await.map_err(DialError::Connect)
    }
}

/// Lets the proxy at the other end connect to the server.
async fn through(
    proxy: &Proxy,
    stream: impl Stream + 'static,
    server: Uri,
) -> Result<Box<dyn Stream>, Box<dyn StdError + Send + Sync>> {
    let mut connected = Some(TokioIo::new(stream));
    let connector = service_fn(move |_: Uri| {
        let stream = connected.take();
        std::future::ready(stream.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)))
    });
    let stream = match proxy.scheme() {
        ProxyScheme::Http | ProxyScheme::Https => {
            let tunnel = Tunnel::new(proxy.uri().clone(), connector);
            let tunnel = match proxy.authorization() {
                Some(authorization) => tunnel.with_auth(HeaderValue::try_from(authorization)?),
                None => tunnel,
            };
            tunnel.oneshot(server).await?
        }
        ProxyScheme::Socks5 => {
            let socks = SocksV5::new(proxy.uri().clone(), connector);
            let socks = match proxy.credentials() {
                Some((user, password)) => socks.with_auth(user.to_owned(), password.to_owned()),
                None => socks,
            };
            socks.oneshot(server).await?
        }
    };
    Ok(Box::new(stream.into_inner()))
}

/// Why the last attempt failed, for all callers that waited for it.
pub(crate) type LastFailure = Arc<Mutex<Option<Arc<DialError>>>>;

/// A [`Dialler`] for one connection of a channel.
#[derive(Clone)]
pub(crate) struct ChannelDialler {
    pub(crate) dialler: Dialler,
    pub(crate) only_http1: bool,
    pub(crate) last_failure: LastFailure,
    /// A value on it cuts the connections. Dropping its sender does not.
    pub(crate) line: watch::Receiver<()>,
}

impl ChannelDialler {
    async fn dial(self, uri: Uri) -> Result<TokioIo<Wire>, DialError> {
        let cut = cut(self.line.clone());
        let tls = self.dialler.tls.as_deref();
        let stream = self.dialler.route.clone().connect(uri, tls).await?;
        let (Some(tls), Some(name)) = (tls, &self.dialler.server_name) else {
            return Ok(TokioIo::new(Wire::new(stream, false, cut)));
        };
        let stream = TlsConnector::from(tls.config(self.only_http1))
            .connect(name.clone(), stream)
            .await
            .map_err(DialError::Tls)?;
        let is_h2 = stream.get_ref().1.alpn_protocol() == Some(H2);
        if !is_h2 && !self.only_http1 {
            return Err(DialError::OnlyHttp1);
        }
        Ok(TokioIo::new(Wire::new(Box::new(stream), is_h2, cut)))
    }
}

impl Service<Uri> for ChannelDialler {
    type Response = TokioIo<Wire>;
    type Error = Arc<DialError>;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let last_failure = Arc::clone(&self.last_failure);
        let dialling = self.clone().dial(uri);
        Box::pin(async move {
            let dialled = tokio::time::timeout(CONNECT_TIMEOUT, dialling).await;
            let dialled = dialled.unwrap_or(Err(DialError::TimedOut)).map_err(Arc::new);
            // A panic while the lock is held would leave nothing half-changed here.
            let mut last = last_failure.lock().unwrap_or_else(PoisonError::into_inner);
            *last = dialled.as_ref().err().map(Arc::clone);
            dialled
        })
    }
}

async fn cut(mut line: watch::Receiver<()>) {
    if line.changed().await.is_err() {
        // The channel has a newer connection, or is gone. Requests that are under way here end by themselves.
        std::future::pending::<()>().await;
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// A connection that can be cut.
pub(crate) struct Wire {
    stream: Box<dyn Stream>,
    is_h2: bool,
    /// `None` once it was cut.
    cut: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Wire {
    fn new(stream: Box<dyn Stream>, is_h2: bool, cut: impl Future<Output = ()> + Send + 'static) -> Self {
        Self {
            stream,
            is_h2,
            cut: Some(Box::pin(cut)),
        }
    }

    fn was_cut(&mut self, context: &mut Context<'_>) -> bool {
        let is_cut = match &mut self.cut {
            None => return true,
            Some(cut) => cut.as_mut().poll(context).is_ready(),
        };
        if is_cut {
            self.cut = None;
        }
        is_cut
    }
}

fn given_up() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, GIVEN_UP)
}

impl Connection for Wire {
    fn connected(&self) -> Connected {
        let connected = Connected::new();
        if self.is_h2 {
            connected.negotiated_h2()
        } else {
            connected
        }
    }
}

impl AsyncRead for Wire {
    // The owner of a connection always reads, so this is where being cut wakes it.
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.was_cut(context) {
            return Poll::Ready(Err(given_up()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.cut.is_none() {
            return Poll::Ready(Err(given_up()));
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.cut.is_none() {
            return Poll::Ready(Err(given_up()));
        }
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.cut.is_none() {
            // A peer that is silent must not hold up the end.
            return Poll::Ready(Ok(()));
        }
        ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
        Poll::Ready(Ok(()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.cut.is_none() {
            return Poll::Ready(Err(given_up()));
        }
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
