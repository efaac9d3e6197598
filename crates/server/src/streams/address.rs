//! The address of a session at the runtime's streaming server.
//!
//! Owns the parsing of the runtime's URL into an address to dial. The path in it opens the session to any client, so the
//! text must not appear in a log, an error or `Debug` output.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::Uri;
use rubelet_model::address::split_host_port;
use thiserror::Error;

#[derive(Clone, PartialEq, Eq)]
pub(super) struct StreamingAddress {
    host: String,
    port: u16,
    /// Path and query.
    secret: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum AddressProblem {
    #[error("the container runtime gave an address for its stream that is none")]
    Malformed,
    #[error(
        "the container runtime serves streams over {0}, which rubelet does not speak: let its streaming server listen on the \
         loopback interface without TLS"
    )]
    Scheme(String),
}

impl StreamingAddress {
    pub(super) fn parse(address: &str) -> Result<Self, AddressProblem> {
        let uri: Uri = address.parse().map_err(|_| AddressProblem::Malformed)?;
        match uri.scheme_str() {
            Some("http") => {}
            Some(scheme) => return Err(AddressProblem::Scheme(scheme.to_owned())),
            None => return Err(AddressProblem::Malformed),
        }
        // Not `Uri::host` and `Uri::port_u16`: the one gives `]` as the host of `[@]`, the other gives no port for one that is too
        // large.
        let authority = uri.authority().ok_or(AddressProblem::Malformed)?.as_str();
        let (host, port) = split_host_port(authority).ok_or(AddressProblem::Malformed)?;
        let host = match host.parse::<IpAddr>() {
            // Brackets are for addresses of IPv6 alone.
            Ok(IpAddr::V4(_)) | Err(_) if authority.starts_with('[') => {
                return Err(AddressProblem::Malformed);
            }
            // Where a server listens everywhere it is reached on this machine.
            Ok(IpAddr::V4(Ipv4Addr::UNSPECIFIED)) => Ipv4Addr::LOCALHOST.to_string(),
            Ok(IpAddr::V6(Ipv6Addr::UNSPECIFIED)) => Ipv6Addr::LOCALHOST.to_string(),
            Ok(_) | Err(_) => host.to_owned(),
        };
        let secret = match uri.path_and_query().map_or("/", |path| path.as_str()) {
            query if query.starts_with('?') => format!("/{query}"),
            path => path.to_owned(),
        };
        Ok(Self {
            host,
            port: port.unwrap_or(80),
            secret,
        })
    }

    pub(super) fn host_and_port(&self) -> (&str, u16) {
        (&self.host, self.port)
    }

    /// The request target.
    pub(super) fn secret(&self) -> &str {
        &self.secret
    }
}

impl fmt::Debug for StreamingAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StreamingAddress({}:{})", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_runtimes_are_understood() {
        let check = |address: &str, expected: Result<(&str, u16, &str), AddressProblem>| {
            let found = StreamingAddress::parse(address);
            let found = found
                .as_ref()
                .map(|found| (found.host.as_str(), found.port, found.secret()));
            assert_eq!(found, expected.as_ref().copied(), "{address}");
        };
        check(
            "http://127.0.0.1:10010/exec/t0ken",
            Ok(("127.0.0.1", 10010, "/exec/t0ken")),
        );
        check("http://0.0.0.0:1/a?b=c", Ok(("127.0.0.1", 1, "/a?b=c")));
        check("http://[::]:1/exec/t", Ok(("::1", 1, "/exec/t")));
        check("http://[fe80::1]:1/exec/t", Ok(("fe80::1", 1, "/exec/t")));
        check("http://node-a/exec/t", Ok(("node-a", 80, "/exec/t")));
        check("http://node-a", Ok(("node-a", 80, "/")));
        check("http://node-a:/exec/t", Ok(("node-a", 80, "/exec/t")));
        check("http://node-a:65535?t", Ok(("node-a", 65535, "/?t")));
        for malformed in [
            "",
            "/exec/t",
            "127.0.0.1:1",
            "http:///exec/t",
            "http://a b/",
            "http://node-a:65536/exec/t",
            "http://node-a:+80/exec/t",
            "http://node-a:x/exec/t",
            "http://:80/exec/t",
            "http://]@[/exec/t",
            "http://[@]/exec/t",
            "http://[]:80/exec/t",
            "http://[0.0.0.0]:80/exec/t",
            "http://[127.0.0.1]:80/exec/t",
            "http://[node-a]:80/exec/t",
            "http://user:pass@node-a:80/exec/t",
            "http://@/exec/t",
        ] {
            check(malformed, Err(AddressProblem::Malformed));
        }
        for scheme in ["https", "unix", "ftp"] {
            let problem = AddressProblem::Scheme(scheme.to_owned());
            check(&format!("{scheme}://127.0.0.1:1/exec/t"), Err(problem));
        }
    }

    #[test]
    fn nothing_shows_the_secret() {
        let address = StreamingAddress::parse("http://127.0.0.1:1/exec/t0ken?x=t0ken").unwrap();
        assert_eq!(format!("{address:?}"), "StreamingAddress(127.0.0.1:1)");
        let problem = StreamingAddress::parse("https://127.0.0.1/exec/t0ken").unwrap_err();
        assert!(!problem.to_string().contains("t0ken") && !format!("{problem:?}").contains("t0ken"));
    }
}
