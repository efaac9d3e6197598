//! gRPC's health check, over HTTP/2 without TLS.
//!
//! One small call with two small messages: written on HTTP/2 itself, because a gRPC client would keep a channel with its own
//! tasks, retries and backoff for it.

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, Method, Request, StatusCode, Uri, Version};
use prost::Message;
use rubelet_model::GoDuration;
use rubelet_ports::{BODY_LIMIT_BYTES, GrpcCall, GrpcHealth, HttpPurpose, host_and_port};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::exchange::{Driven, http2_problem};
use crate::socket::Sockets;
use crate::{before, deadline};

const CHECK: &str = "/grpc.health.v1.Health/Check";
const SERVING: i32 = 1;
const UNIMPLEMENTED: u32 = 12;
const DEADLINE_EXCEEDED: u32 = 4;

/// How gRPC clients wait between two tries to connect.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const RETRY_GROWTH: f64 = 1.6;

#[derive(Clone, PartialEq, Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// How a call ended that is no answer.
#[derive(Debug, PartialEq, Eq)]
struct CallStatus {
    code: u32,
    message: String,
}

impl CallStatus {
    fn unavailable(message: String) -> Self {
        Self { code: 14, message }
    }
}

pub(crate) async fn check(sockets: &Sockets<'_>, call: &GrpcCall) -> GrpcHealth {
    let deadline = deadline(Some(call.timeout));
    let address = host_and_port(&call.host, call.port);
    let timeout = GoDuration::from_nanos(i64::try_from(call.timeout.as_nanos()).unwrap_or(i64::MAX));
    let stream = match before(deadline, connect(sockets, call, deadline)).await {
        Some(Ok(stream)) => stream,
        Some(Err(problem)) => {
            return unhealthy(format!(
                "error: failed to connect service at {address:?}: {problem}"
            ));
        }
        None => {
            return match sockets.no_place(&call.host) {
                Some(message) => GrpcHealth::NoPlace { message },
                None => unhealthy(format!(
                    "timeout: failed to connect service {address:?} within {timeout}: context deadline exceeded"
                )),
            };
        }
    };
    match before(deadline, ask(stream, call, &address)).await {
        Some(Ok(SERVING)) => GrpcHealth::Serving,
        Some(Ok(status)) => unhealthy(format!(
            "service unhealthy (responded with {:?})",
            status_name(status)
        )),
        Some(Err(status)) => unhealthy(match status.code {
            UNIMPLEMENTED => format!(
                "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {}",
                status.message
            ),
            DEADLINE_EXCEEDED => format!("timeout: health rpc did not complete within {timeout}"),
            code => format!(
                "error: health rpc probe failed: rpc error: code = {} desc = {}",
                code_name(code),
                status.message
            ),
        }),
        None => unhealthy(format!("timeout: health rpc did not complete within {timeout}")),
    }
}

fn unhealthy(message: String) -> GrpcHealth {
    GrpcHealth::Unhealthy { message }
}

/// Tries as often as there is time for: a server that is just starting gets the time that it was given.
async fn connect(
    sockets: &Sockets<'_>,
    call: &GrpcCall,
    deadline: Option<Instant>,
) -> Result<TcpStream, String> {
    let mut wait = FIRST_RETRY;
    loop {
        let problem = match sockets.connect(&call.host, call.port).await {
            Ok(stream) => return Ok(stream),
            Err(problem) => problem,
        };
        let again = Instant::now() + wait;
        if deadline.is_none_or(|deadline| again >= deadline) {
            return Err(problem);
        }
        tokio::time::sleep_until(again).await;
        wait = wait.mul_f64(RETRY_GROWTH);
    }
}

async fn ask(stream: TcpStream, call: &GrpcCall, address: &str) -> Result<i32, CallStatus> {
    let broken = |error: h2::Error| CallStatus::unavailable(http2_problem(&error));
    let request = request(call, address)?;
    let (sender, connection) = h2::client::Builder::new()
        .enable_push(false)
        .handshake::<_, Bytes>(stream)
        .await
        .map_err(broken)?;
    let mut connection = Driven::new(connection);
    let exchange = async {
        let mut sender = sender.ready().await.map_err(broken)?;
        let (response, mut body) = sender.send_request(request, false).map_err(broken)?;
        let message = HealthCheckRequest {
            service: call.service.clone(),
        };
        body.send_data(framed(&message), true).map_err(broken)?;
        let response = response.await.map_err(broken)?;
        check_head(response.status(), response.headers())?;
        let mut incoming = response.into_body();
        let mut content = BytesMut::new();
        while let Some(data) = incoming.data().await {
            let data = data.map_err(broken)?;
            // An error means that the connection has ended, which the next read reports.
            let _ = incoming.flow_control().release_capacity(data.len());
            if content.len() + data.len() > BODY_LIMIT_BYTES {
                let message = "the answer is too large".to_owned();
                return Err(CallStatus { code: 8, message });
            }
            content.extend_from_slice(&data);
        }
        let trailers = incoming.trailers().await.map_err(broken)?.unwrap_or_default();
        match call_status(&trailers) {
            Some(status) if status.code != 0 => Err(status),
            Some(_) => parsed(&content),
            None => Err(CallStatus {
                code: 13,
                message: "server closed the stream without sending trailers".to_owned(),
            }),
        }
    };
    let result = connection.alongside(exchange).await;
    if result.is_ok() {
        connection.finish().await;
    }
    result
}

fn request(call: &GrpcCall, address: &str) -> Result<Request<()>, CallStatus> {
    let bad = |error: http::Error| CallStatus {
        code: 13,
        message: error.to_string(),
    };
    // An empty host is this machine.
    let authority = if call.host.is_empty() {
        format!("localhost{address}")
    } else {
        address.to_owned()
    };
    let uri = Uri::builder()
        .scheme("http")
        .authority(authority)
        .path_and_query(CHECK)
        .build()
        .map_err(bad)?;
    Request::builder()
        .method(Method::POST)
        .version(Version::HTTP_2)
        .uri(uri)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", HttpPurpose::Probe.user_agent())
        .header("grpc-timeout", format!("{}m", call.timeout.as_millis()))
        .body(())
        .map_err(bad)
}

/// A message with gRPC's five bytes before it.
fn framed(message: &HealthCheckRequest) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(length + 5);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // A growing buffer always has room.
    let _ = message.encode(&mut bytes);
    bytes.freeze()
}

fn parsed(content: &[u8]) -> Result<i32, CallStatus> {
    let internal = |message: String| CallStatus { code: 13, message };
    let (prefix, rest) = content
        .split_at_checked(5)
        .ok_or_else(|| internal("the answer has no message".to_owned()))?;
    if prefix[0] != 0 {
        return Err(CallStatus {
            code: UNIMPLEMENTED,
            message: "the answer is compressed, which was not asked for".to_owned(),
        });
    }
    HealthCheckResponse::decode(rest)
        .map(|answer| answer.status)
        .map_err(|error| internal(error.to_string()))
}

/// An answer that is no gRPC, or that has no body.
fn check_head(status: StatusCode, headers: &HeaderMap) -> Result<(), CallStatus> {
    if let Some(status) = call_status(headers).filter(|status| status.code != 0) {
        return Err(status);
    }
    if status == StatusCode::OK {
        return Ok(());
    }
    let code = match status.as_u16() {
        400 => 13,
        401 => 16,
        403 => 7,
        404 => UNIMPLEMENTED,
        429 | 502 | 503 | 504 => 14,
        _ => 2,
    };
    let reason = status.canonical_reason().unwrap_or_default();
    Err(CallStatus {
        code,
        message: format!(
            "unexpected HTTP status code received from server: {} ({reason})",
            status.as_u16()
        ),
    })
}

fn call_status(headers: &HeaderMap) -> Option<CallStatus> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let code = text("grpc-status")?.parse().unwrap_or(2);
    let message = unescaped(text("grpc-message").unwrap_or_default());
    Some(CallStatus { code, message })
}

/// `%20` is a space; what is no escape stays as it is.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let escape = tail
            .get(..2)
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match (first, escape) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn status_name(status: i32) -> String {
    match status {
        0 => "UNKNOWN".to_owned(),
        1 => "SERVING".to_owned(),
        2 => "NOT_SERVING".to_owned(),
        3 => "SERVICE_UNKNOWN".to_owned(),
        other => other.to_string(),
    }
}

fn code_name(code: u32) -> String {
    const NAMES: [&str; 17] = [
        "OK",
        "Canceled",
        "Unknown",
        "InvalidArgument",
        "DeadlineExceeded",
        "NotFound",
        "AlreadyExists",
        "PermissionDenied",
        "ResourceExhausted",
        "FailedPrecondition",
        "Aborted",
        "OutOfRange",
        "Unimplemented",
        "Internal",
        "Unavailable",
        "DataLoss",
        "Unauthenticated",
    ];
    let name = usize::try_from(code).ok().and_then(|code| NAMES.get(code));
    name.map_or_else(|| format!("Code({code})"), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_framed_and_read() {
        let asked = HealthCheckRequest {
            service: "test".to_owned(),
        };
        assert_eq!(framed(&asked)[..], *b"\0\0\0\0\x06\x0a\x04test");
        assert_eq!(parsed(b"\0\0\0\0\x02\x08\x01"), Ok(SERVING));
        // Zero is not sent.
        assert_eq!(parsed(b"\0\0\0\0\0"), Ok(0));
        assert_eq!(parsed(b"\0\0").map_err(|status| status.code), Err(13));
        assert_eq!(parsed(b"\x01\0\0\0\0").map_err(|status| status.code), Err(12));
    }

    #[test]
    fn statuses_have_their_words() {
        let check = |code: u32, expected: &str| assert_eq!(code_name(code), expected);
        check(5, "NotFound");
        check(16, "Unauthenticated");
        check(99, "Code(99)");
        assert_eq!(status_name(2), "NOT_SERVING");
        assert_eq!(status_name(7), "7");
        assert_eq!(unescaped("unknown%20service%"), "unknown service%");
    }

    proptest::proptest! {
        #[test]
        fn no_message_breaks_anything(text in "\\PC{0,20}", bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..40)) {
            let _ = unescaped(&text);
            let _ = parsed(&bytes);
        }
    }
}
