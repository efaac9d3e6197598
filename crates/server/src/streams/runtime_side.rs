//! The connection to the runtime's streaming server.
//!
//! Owns dialling it and passing the client's upgrade request on. Credentials of the client must not reach the runtime, and the
//! address must not reach any client or log.

use std::time::Duration;

use bytes::Bytes;
use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HeaderName, HeaderValue,
    SEC_WEBSOCKET_PROTOCOL, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::Problem;
use super::address::StreamingAddress;
use crate::access::protocols_without_token;
use crate::response::{Answer, Body};

/// From dialling to the answer's head; sessions are prepared already, so a runtime has nothing to wait for.
const OPEN_LIMIT: Duration = Duration::from_secs(30);
/// The longest refusal of a runtime that is passed on.
const REFUSAL_LIMIT_BYTES: usize = 64 * 1024;

/// What the runtime did with the request.
pub(super) enum Opened {
    /// It has switched to the client's protocol; the client gets the headers of its answer.
    Session(HeaderMap, Upgraded),
    /// It refused, with its own text.
    Refused(Answer),
}

pub(super) async fn open(
    address: &StreamingAddress,
    method: &Method,
    headers: &HeaderMap,
) -> Result<Opened, Problem> {
    let late = || Problem::line("the container runtime's streaming server does not answer".to_owned());
    tokio::time::timeout(OPEN_LIMIT, exchange(address, method, headers))
        .await
        .unwrap_or_else(|_| Err(late()))
}

async fn exchange(
    address: &StreamingAddress,
    method: &Method,
    headers: &HeaderMap,
) -> Result<Opened, Problem> {
    let dialling = |error: &dyn std::fmt::Display| Problem::line(format!("error dialing backend: {error}"));
    let stream = TcpStream::connect(address.host_and_port())
        .await
        .map_err(|error| dialling(&error))?;
    // Keystrokes must not wait for the kernel to fill a packet.
    stream.set_nodelay(true).map_err(|error| dialling(&error))?;
    let request = request(address, method, headers)?;
    let broken = |error: hyper::Error| {
        Problem::line(format!(
            "the container runtime's streaming server hung up: {error}"
        ))
    };
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(broken)?;
        match response.status() {
            StatusCode::SWITCHING_PROTOCOLS => {
                let headers = response.headers().clone();
                let upgraded = hyper::upgrade::on(response).await.map_err(broken)?;
                Ok(Opened::Session(headers, upgraded))
            }
            status if status.is_client_error() || status.is_server_error() => {
                refusal(response).await.map(Opened::Refused)
            }
            status => Err(Problem::line(format!(
                "invalid upgrade response: status code {}",
                status.as_u16()
            ))),
        }
    };
    let driver = async {
        // The request that waits for the answer sees how the connection ends.
        drop(connection.with_upgrades().await);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased;
        answer = answer => answer,
        () = driver => Err(Problem::line("the container runtime's streaming server hung up".to_owned())),
    }
}

fn request(
    address: &StreamingAddress,
    method: &Method,
    headers: &HeaderMap,
) -> Result<Request<Body>, Problem> {
    const OWN: [HeaderName; 7] = [
        AUTHORIZATION,
        COOKIE,
        // A body was read already, if there was one.
        CONTENT_LENGTH,
        TRANSFER_ENCODING,
        EXPECT,
        SEC_WEBSOCKET_PROTOCOL,
        HeaderName::from_static("proxy-authorization"),
    ];
    let mut request = Request::builder().method(method).uri(address.secret());
    for (name, value) in headers {
        if !OWN.contains(name) {
            request = request.header(name, value);
        }
    }
    let protocols = protocols_without_token(headers);
    if !protocols.is_empty() {
        request = request.header(SEC_WEBSOCKET_PROTOCOL, protocols);
    }
    // Not the error itself: it may repeat the address.
    request
        .body(Body::whole(Bytes::new()))
        .map_err(|_| Problem::line("the upgrade request cannot be passed on".to_owned()))
}

/// The runtime's own answer, without the headers of its connection.
async fn refusal(response: Response<Incoming>) -> Result<Answer, Problem> {
    let (mut head, body) = response.into_parts();
    let body = Limited::new(body, REFUSAL_LIMIT_BYTES).collect().await;
    let body = body.map_err(|error| {
        Problem::line(format!(
            "the container runtime's streaming server refused and hung up: {error}"
        ))
    })?;
    for name in [CONNECTION, UPGRADE, CONTENT_LENGTH, TRANSFER_ENCODING] {
        head.headers.remove(name);
    }
    head.headers.insert(CONNECTION, HeaderValue::from_static("close"));
    Ok(Response::from_parts(head, Body::whole(body.to_bytes())))
}
