//! The headers of a request that upgrades its connection.

use http::HeaderMap;
use http::Version;
use http::header::{CONNECTION, UPGRADE};
use http::request::Parts;

/// Whether the client wants another protocol on this connection.
pub(crate) fn is_upgrade(headers: &HeaderMap) -> bool {
    headers
        .get_all(CONNECTION)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.to_ascii_lowercase().contains("upgrade"))
}

pub(crate) fn is_websocket(headers: &HeaderMap) -> bool {
    is_upgrade(headers)
        && headers
            .get(UPGRADE)
            .is_some_and(|protocol| protocol.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

/// Whether the connection can be handed over at all; without a named protocol and on HTTP/1.0 it cannot.
pub(crate) fn can_upgrade(request: &Parts) -> bool {
    is_upgrade(&request.headers)
        && request.headers.contains_key(UPGRADE)
        && request.version == Version::HTTP_11
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    #[test]
    fn requests_are_told_apart() {
        let check = |version: Version, lines: &[(&str, &str)], upgrade: bool, websocket: bool| {
            let mut request = Request::builder().version(version);
            for (name, value) in lines {
                request = request.header(*name, *value);
            }
            let (request, ()) = request.body(()).unwrap().into_parts();
            assert_eq!(can_upgrade(&request), upgrade, "{lines:?}");
            assert_eq!(is_websocket(&request.headers), websocket, "{lines:?}");
        };
        let new = Version::HTTP_11;
        check(new, &[], false, false);
        check(
            new,
            &[("connection", "Upgrade"), ("upgrade", "SPDY/3.1")],
            true,
            false,
        );
        check(
            new,
            &[("connection", "keep-alive, Upgrade"), ("upgrade", "WebSocket")],
            true,
            true,
        );
        check(
            new,
            &[
                ("connection", "keep-alive"),
                ("connection", "upgrade"),
                ("upgrade", "websocket"),
            ],
            true,
            true,
        );
        check(new, &[("connection", "Upgrade")], false, false);
        check(new, &[("upgrade", "websocket")], false, false);
        let old = Version::HTTP_10;
        check(
            old,
            &[("connection", "Upgrade"), ("upgrade", "SPDY/3.1")],
            false,
            false,
        );
    }
}
