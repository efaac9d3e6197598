//! One request and its answer on a connection of their own, over HTTP/1.1 or HTTP/2.
//!
//! The future that waits for the answer also drives the connection, so that a probe is one task and its end closes the connection.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::error_text;
use crate::tls::FirstBytes;

/// Go's client counts the bytes of an answer's head and not its fields; this many are more than servers send.
const MAX_RESPONSE_HEADERS: usize = 1024;
/// The bytes of an answer's head.
const MAX_HEAD_BYTES: usize = 1 << 20;
/// How long the orderly close of an encrypted connection may take.
const CLOSE_LIMIT: Duration = Duration::from_millis(100);

/// A connection, encrypted or not.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {
    fn tcp(&self) -> &TcpStream;
}

impl Stream for TcpStream {
    fn tcp(&self) -> &TcpStream {
        self
    }
}

impl Stream for TlsStream<FirstBytes> {
    fn tcp(&self) -> &TcpStream {
        self.get_ref().0.stream()
    }
}

type Http1 = http1::Connection<TokioIo<Box<dyn Stream>>, Empty<Bytes>>;
type Http2 = h2::client::Connection<Box<dyn Stream>, Bytes>;

/// The answer up to its body.
pub(crate) struct Head {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Body,
}

/// A body that is still on its way.
pub(crate) enum Body {
    Http1 {
        connection: Driven<Http1>,
        incoming: Incoming,
        path: String,
    },
    Http2 {
        connection: Driven<Http2>,
        stream: h2::RecvStream,
    },
}

/// `read tcp 10.0.0.1:40000->10.0.0.2:80`
fn path_of(stream: &TcpStream) -> String {
    match (stream.local_addr(), stream.peer_addr()) {
        (Ok(local), Ok(peer)) => format!("read tcp {local}->{peer}"),
        (Ok(_), Err(_)) | (Err(_), _) => "read tcp".to_owned(),
    }
}

/// Sends a GET over HTTP/1.1. The error is what stands after the address in a message.
pub(crate) async fn http1(stream: Box<dyn Stream>, request: Request<Empty<Bytes>>) -> Result<Head, String> {
    let path = path_of(stream.tcp());
    let (mut sender, connection) = http1::Builder::new()
        .title_case_headers(true)
        .max_headers(MAX_RESPONSE_HEADERS)
        .max_buf_size(MAX_HEAD_BYTES)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| http1_problem(&error, &path))?;
    let mut connection = Driven::new(connection);
    let response = connection
        .alongside(sender.send_request(request))
        .await
        .map_err(|error| http1_problem(&error, &path))?;
    let (parts, incoming) = response.into_parts();
    Ok(Head {
        status: parts.status,
        headers: parts.headers,
        body: Body::Http1 {
            connection,
            incoming,
            path,
        },
    })
}

/// Sends a GET over HTTP/2.
pub(crate) async fn http2(stream: Box<dyn Stream>, request: Request<()>) -> Result<Head, String> {
    let (sender, connection) = h2::client::Builder::new()
        .enable_push(false)
        .handshake::<_, Bytes>(stream)
        .await
        .map_err(|error| http2_problem(&error))?;
    let mut connection = Driven::new(connection);
    let response = connection.alongside(async {
        let mut sender = sender.ready().await?;
        let (response, _) = sender.send_request(request, true)?;
        response.await
    });
    let response = response.await.map_err(|error| http2_problem(&error))?;
    let (parts, stream) = response.into_parts();
    Ok(Head {
        status: parts.status,
        headers: parts.headers,
        body: Body::Http2 { connection, stream },
    })
}

impl Body {
    /// The beginning of the body; the rest is left where it is.
    pub(crate) async fn read(self, limit_bytes: usize) -> Result<Vec<u8>, String> {
        let mut content = Vec::new();
        match self {
            Self::Http1 {
                mut connection,
                mut incoming,
                path,
            } => loop {
                match connection.alongside(incoming.frame()).await {
                    Some(Ok(frame)) => {
                        if let Ok(data) = frame.into_data()
                            && take(&mut content, &data, limit_bytes)
                        {
                            return Ok(content);
                        }
                    }
                    Some(Err(error)) => return Err(http1_problem(&error, &path)),
                    None => {
                        drop(incoming);
                        connection.finish().await;
                        return Ok(content);
                    }
                }
            },
            Self::Http2 {
                mut connection,
                mut stream,
            } => loop {
                match connection.alongside(stream.data()).await {
                    Some(Ok(data)) => {
                        // An error means that the connection has ended, which needs no window any more.
                        let _ = stream.flow_control().release_capacity(data.len());
                        if take(&mut content, &data, limit_bytes) {
                            return Ok(content);
                        }
                    }
                    Some(Err(error)) => return Err(http2_problem(&error)),
                    None => {
                        drop(stream);
                        connection.finish().await;
                        return Ok(content);
                    }
                }
            },
        }
    }
}

/// The answer is whether the limit is reached.
fn take(content: &mut Vec<u8>, data: &[u8], limit_bytes: usize) -> bool {
    let room = limit_bytes - content.len();
    content.extend_from_slice(&data[..data.len().min(room)]);
    data.len() >= room
}

fn http1_problem(error: &hyper::Error, path: &str) -> String {
    if error.is_incomplete_message() || error.is_canceled() {
        return "EOF".to_owned();
    }
    if let Some(cause) = error_text::io_error(error) {
        return match error_text::cause(cause).as_str() {
            "EOF" => "EOF".to_owned(),
            cause => format!("{path}: read: {cause}"),
        };
    }
    if error.is_parse() {
        return format!("net/http: HTTP/1.x transport connection broken: malformed HTTP response ({error})");
    }
    error.to_string()
}

pub(crate) fn http2_problem(error: &h2::Error) -> String {
    match error.get_io() {
        Some(cause) => error_text::cause(cause),
        None => format!("http2: {error}"),
    }
}

/// A connection that is polled together with the future that waits for its answer.
pub(crate) struct Driven<C> {
    connection: Pin<Box<C>>,
    is_over: bool,
}

impl<C: Future> Driven<C> {
    pub(crate) fn new(connection: C) -> Self {
        Self {
            connection: Box::pin(connection),
            is_over: false,
        }
    }

    pub(crate) async fn alongside<T>(&mut self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        poll_fn(|cx| {
            // The future that waits for the answer gets the same error.
            if !self.is_over && self.connection.as_mut().poll(cx).is_ready() {
                self.is_over = true;
            }
            future.as_mut().poll(cx)
        })
        .await
    }

    /// Closes the connection in order: TLS servers otherwise report a missing `close_notify`.
    pub(crate) async fn finish(self) {
        if !self.is_over {
            let _ = tokio::time::timeout(CLOSE_LIMIT, self.connection).await;
        }
    }
}
