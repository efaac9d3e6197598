//! The protocol of a session towards the runtime.
//!
//! Owns the choice, and the two handshakes where they differ: the request to the runtime and the answer to the client.

use std::borrow::Cow;

use http::header::{CONNECTION, DATE, HOST, HeaderName, HeaderValue, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};

use super::{Problem, Session, websocket};
use crate::access::protocols_without_token;
use crate::upgrade::is_websocket;

const V5: &str = "v5.channel.k8s.io";
const V4: HeaderValue = HeaderValue::from_static("v4.channel.k8s.io");
/// A protocol over SPDY, wrapped in WebSocket messages, is named with this in front.
const TUNNEL_PREFIX: &str = "SPDY/3.1+";
const TUNNEL_SUFFIX: &str = ".k8s.io";
const SPDY: HeaderValue = HeaderValue::from_static("SPDY/3.1");
const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StreamProtocol {
    /// The client's own protocol.
    PassedThrough,
    /// The client sends a command's streams in WebSocket messages of version 5, the runtime gets SPDY.
    Translated,
    /// SPDY in WebSocket messages, with one of these protocols.
    Tunnelled(Vec<String>),
}

impl StreamProtocol {
    pub(super) fn of(session: Session, headers: &HeaderMap, translates: bool) -> Self {
        if !translates || !is_websocket(headers) {
            return Self::PassedThrough;
        }
        let protocols = protocols_without_token(headers);
        let mut protocols = protocols.split(',');
        match session {
            Session::Exec | Session::Attach | Session::Run => match protocols.any(|name| name == V5) {
                true => Self::Translated,
                false => Self::PassedThrough,
            },
            Session::PortForward => {
                let wrapped = |name: &str| {
                    let name = name.strip_prefix(TUNNEL_PREFIX)?;
                    name.ends_with(TUNNEL_SUFFIX).then(|| name.to_owned())
                };
                let wrapped: Vec<String> = protocols.filter_map(wrapped).collect();
                match wrapped.is_empty() {
                    true => Self::PassedThrough,
                    false => Self::Tunnelled(wrapped),
                }
            }
        }
    }

    /// Whether the client's handshake can be answered, before any request to the runtime.
    pub(super) fn check(&self, asked: &HeaderMap) -> Result<(), Problem> {
        match self {
            Self::PassedThrough => Ok(()),
            Self::Translated | Self::Tunnelled(_) => accept(asked, V5).map(drop),
        }
    }

    /// The request to the runtime.
    pub(super) fn request<'h>(&self, head: &'h Parts) -> (&'h Method, Cow<'h, HeaderMap>) {
        const POST: Method = Method::POST;
        let spdy = |protocols: Vec<HeaderValue>| {
            let mut headers = HeaderMap::new();
            headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
            headers.insert(UPGRADE, SPDY);
            let host = head.headers.get(HOST).cloned();
            headers.insert(HOST, host.unwrap_or(HeaderValue::from_static("localhost")));
            for protocol in protocols {
                headers.append(STREAM_PROTOCOL, protocol);
            }
            (&POST, Cow::Owned(headers))
        };
        match self {
            Self::PassedThrough => (&head.method, Cow::Borrowed(&head.headers)),
            Self::Translated => spdy(vec![V4]),
            // They were a header's text before.
            Self::Tunnelled(protocols) => {
                spdy(protocols.iter().filter_map(|name| name.parse().ok()).collect())
            }
        }
    }

    /// The headers for the client, from those of the runtime's answer.
    pub(super) fn answer(&self, asked: &HeaderMap, mut answered: HeaderMap) -> Result<HeaderMap, Problem> {
        let chosen = answered
            .get(STREAM_PROTOCOL)
            .and_then(|chosen| chosen.to_str().ok());
        let chosen = chosen.unwrap_or_default();
        let protocol = match self {
            Self::PassedThrough => {
                // The server writes its own.
                answered.remove(DATE);
                return Ok(answered);
            }
            Self::Translated if answered.get(STREAM_PROTOCOL) == Some(&V4) => V5.to_owned(),
            Self::Translated => {
                let message =
                    format!("the container runtime's streaming server does not speak {V4:?} but {chosen:?}");
                return Err(Problem::line(message));
            }
            Self::Tunnelled(_) => format!("{TUNNEL_PREFIX}{chosen}"),
        };
        accept(asked, &protocol)
    }
}

fn accept(asked: &HeaderMap, protocol: &str) -> Result<HeaderMap, Problem> {
    websocket::accept(asked, protocol).map_err(|problem| Problem {
        status: StatusCode::BAD_REQUEST,
        message: problem.to_owned(),
        as_line: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_no_runtime_speaks_is_translated() {
        let check =
            |session: Session, upgrade: &str, protocols: &str, translates: bool, expected: StreamProtocol| {
                let mut headers = HeaderMap::new();
                headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
                headers.insert(UPGRADE, upgrade.parse().unwrap());
                headers.insert("sec-websocket-protocol", protocols.parse().unwrap());
                assert_eq!(
                    StreamProtocol::of(session, &headers, translates),
                    expected,
                    "{session:?} {protocols}"
                );
            };
        let tunnel = "SPDY/3.1+portforward.k8s.io";
        let tunnelled = || StreamProtocol::Tunnelled(vec!["portforward.k8s.io".to_owned()]);
        let secret = "base64url.bearer.authorization.k8s.io.c2VjcmV0";
        for session in [Session::Exec, Session::Attach] {
            check(
                session,
                "websocket",
                "v4.channel.k8s.io",
                true,
                StreamProtocol::PassedThrough,
            );
            check(
                session,
                "websocket",
                "v5.channel.k8s.io, v4.channel.k8s.io",
                true,
                StreamProtocol::Translated,
            );
            check(
                session,
                "websocket",
                &format!("{secret}, v5.channel.k8s.io"),
                true,
                StreamProtocol::Translated,
            );
            check(
                session,
                "websocket",
                "v5.channel.k8s.io",
                false,
                StreamProtocol::PassedThrough,
            );
            check(
                session,
                "SPDY/3.1",
                "v5.channel.k8s.io",
                true,
                StreamProtocol::PassedThrough,
            );
            check(session, "websocket", tunnel, true, StreamProtocol::PassedThrough);
        }
        check(Session::PortForward, "websocket", tunnel, true, tunnelled());
        check(
            Session::PortForward,
            "websocket",
            &format!("{secret},v4.channel.k8s.io,{tunnel}"),
            true,
            tunnelled(),
        );
        check(
            Session::PortForward,
            "websocket",
            "SPDY/3.1+portforward.example.com",
            true,
            StreamProtocol::PassedThrough,
        );
        check(
            Session::PortForward,
            "websocket",
            "v4.channel.k8s.io",
            true,
            StreamProtocol::PassedThrough,
        );
        check(
            Session::PortForward,
            "websocket",
            tunnel,
            false,
            StreamProtocol::PassedThrough,
        );
    }
}
