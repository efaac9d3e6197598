//! Which proxy leads to an address.
//!
//! Owns how `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY` are read, which is how Go's HTTP client reads them, because nodes are set up
//! for that, and how the URL of a proxy is read. The caller connects. A proxy's URL may hold a password:
//! it appears in no error and not in `Debug`.

mod exceptions;

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::Uri;
use percent_encoding::percent_decode_str;
use rubelet_model::address::split_host_port;
use thiserror::Error;

use crate::exceptions::Exceptions;

/// The proxy variables of the environment, which the program reads; an empty one is not set.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ProxyEnvironment {
    /// `HTTPS_PROXY`
    pub https_proxy: String,
    /// `HTTP_PROXY`
    pub http_proxy: String,
    /// `NO_PROXY`
    pub no_proxy: String,
}

impl ProxyEnvironment {
    /// The proxy on the way to this address. `None` is none: this machine's own addresses are always reached without one.
    ///
    /// # Errors
    /// When the proxy that applies cannot be used.
    pub fn proxy_for(&self, url: &Uri) -> Result<Option<Proxy>, ProxyEnvironmentError> {
        let (variable, proxy, default_port) = match url.scheme_str() {
            Some("https") => ("HTTPS_PROXY", &self.https_proxy, 443),
            Some("http") => ("HTTP_PROXY", &self.http_proxy, 80),
            Some(_) | None => return Ok(None),
        };
        let port = url.port_u16().unwrap_or(default_port);
        let host = without_brackets(url.host().unwrap_or_default());
        if proxy.is_empty() || Exceptions::parse(&self.no_proxy).contain(host, port) {
            return Ok(None);
        }
        // Go takes a mere `host:port` for a proxy over HTTP.
        let read = Proxy::parse(proxy).or_else(|problem| match problem {
            ProxyError::NotAUrl | ProxyError::NoHost => {
                Proxy::parse(&format!("http://{proxy}")).map_err(|_| problem)
            }
            ProxyError::UnsupportedScheme | ProxyError::Port => Err(problem),
        });
        read.map(Some)
            .map_err(|problem| ProxyEnvironmentError { variable, problem })
    }
}

impl fmt::Debug for ProxyEnvironment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ProxyEnvironment")
            .field("no_proxy", &self.no_proxy)
            .finish_non_exhaustive()
    }
}

/// The environment names a proxy that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the proxy in the environment variable {variable} {problem}")]
pub struct ProxyEnvironmentError {
    pub variable: &'static str,
    pub problem: ProxyError,
}

/// Why a text is no proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ProxyError {
    #[error("is no URL")]
    NotAUrl,
    #[error("names no host")]
    NoHost,
    #[error("is neither http://, https:// nor socks5://")]
    UnsupportedScheme,
    #[error("has a port that is not a number up to 65535")]
    Port,
}

/// The protocol to the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyScheme {
    Http,
    /// HTTP over TLS, on the way to the proxy itself.
    Https,
    /// `socks5` and `socks5h`, which are one for Go: the proxy looks names up.
    Socks5,
}

#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    scheme: ProxyScheme,
    uri: Uri,
    /// User and password.
    credentials: Option<(String, String)>,
}

impl Proxy {
    /// Reads a proxy's URL.
    ///
    /// # Errors
    /// When it is none.
    pub fn parse(url: &str) -> Result<Self, ProxyError> {
        let given: Uri = url.parse().map_err(|_| ProxyError::NotAUrl)?;
        let scheme = given.scheme_str().ok_or(ProxyError::NotAUrl)?;
        let (scheme, name, default_port) = match scheme.to_ascii_lowercase().as_str() {
            "http" => (ProxyScheme::Http, "http", 80),
            "https" => (ProxyScheme::Https, "https", 443),
            "socks5" | "socks5h" => (ProxyScheme::Socks5, "socks5", 1080),
            _ => return Err(ProxyError::UnsupportedScheme),
        };
        let host = given.host().filter(|host| !matches!(*host, "" | "[]"));
        let host = host.ok_or(ProxyError::NoHost)?;
        let authority = given.authority().map_or("", |authority| authority.as_str());
        let place = authority.rsplit_once('@').map_or(authority, |(_, place)| place);
        let (_, port) = split_host_port(place).ok_or(ProxyError::Port)?;
        let port = port.unwrap_or(default_port);
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let credentials = authority.rsplit_once('@').map(|(user, _)| {
            let (name, password) = user.split_once(':').unwrap_or((user, ""));
            (decoded(name), decoded(password))
        });
        Ok(Self {
            scheme,
            uri: format!("{name}://{host}:{port}/")
                .parse()
                .map_err(|_| ProxyError::NotAUrl)?,
            credentials,
        })
    }

    #[must_use]
    pub fn scheme(&self) -> ProxyScheme {
        self.scheme
    }

    /// Scheme, host and port, without credentials.
    #[must_use]
    pub fn uri(&self) -> &Uri {
        &self.uri
    }

    /// A name or an address, without brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        without_brackets(self.uri.host().unwrap_or_default())
    }

    /// User and password.
    #[must_use]
    pub fn credentials(&self) -> Option<(&str, &str)> {
        let (user, password) = self.credentials.as_ref()?;
        Some((user, password))
    }

    /// The value of a `Proxy-Authorization` header. It is secret.
    #[must_use]
    pub fn authorization(&self) -> Option<String> {
        let (user, password) = self.credentials.as_ref()?;
        let encoded = BASE64_STANDARD.encode(format!("{user}:{password}"));
        Some(format!("Basic {encoded}"))
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Proxy({})", self.uri)
    }
}

fn without_brackets(host: &str) -> &str {
    host.strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(environment: &ProxyEnvironment, url: &str) -> Result<Option<String>, String> {
        let found = environment.proxy_for(&url.parse().unwrap());
        found
            .map(|proxy| proxy.map(|proxy| proxy.uri().to_string()))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_scheme_of_the_address_chooses_the_variable() {
        let environment = ProxyEnvironment {
            https_proxy: "http://secure:1".to_owned(),
            http_proxy: "plain:2".to_owned(),
            no_proxy: "10.0.0.0/8,.internal".to_owned(),
        };
        let check = |url: &str, expected: Option<&str>| {
            assert_eq!(found(&environment, url), Ok(expected.map(str::to_owned)), "{url}");
        };
        check("https://api:6443", Some("http://secure:1/"));
        check("http://api:8080", Some("http://plain:2/"));
        check("https://10.1.2.3:6443", None);
        check("https://api.internal", None);
        check("ftp://api", None);
        assert_eq!(found(&ProxyEnvironment::default(), "https://api"), Ok(None));
    }

    #[test]
    fn proxies_are_read_as_go_reads_them() {
        let check = |proxy: &str, expected: Result<&str, &str>| {
            let environment = ProxyEnvironment {
                http_proxy: proxy.to_owned(),
                ..ProxyEnvironment::default()
            };
            let expected = match expected {
                Ok(uri) => Ok(Some(uri.to_owned())),
                Err(problem) => Err(format!(
                    "the proxy in the environment variable HTTP_PROXY {problem}"
                )),
            };
            assert_eq!(found(&environment, "http://api"), expected, "{proxy}");
        };
        check("http://p", Ok("http://p:80/"));
        check("https://p", Ok("https://p:443/"));
        check("https://user:hunter2@p:8443/ignored", Ok("https://p:8443/"));
        check("socks5://p", Ok("socks5://p:1080/"));
        check("socks5h://[fd00::1]:9", Ok("socks5://[fd00::1]:9/"));
        check("p:3128", Ok("http://p:3128/"));
        check("10.0.0.1", Ok("http://10.0.0.1:80/"));
        check("user:hunter2@p:3128", Ok("http://p:3128/"));
        check(
            "ftp://user:hunter2@p",
            Err("is neither http://, https:// nor socks5://"),
        );
        check("a b", Err("is no URL"));
        check("p:65536", Err("is no URL"));
        for port in ["http://p:65536", "socks5://user:hunter2@[fd00::1]:70000"] {
            check(port, Err("has a port that is not a number up to 65535"));
        }
    }

    #[test]
    fn credentials_are_decoded_and_never_shown() {
        let proxy = Proxy::parse("https://us%40er:hunter%3A2@p").unwrap();
        assert_eq!(proxy.credentials(), Some(("us@er", "hunter:2")));
        let expected = format!("Basic {}", BASE64_STANDARD.encode("us@er:hunter:2"));
        assert_eq!(proxy.authorization(), Some(expected));
        let environment = ProxyEnvironment {
            https_proxy: "https://user:hunter2@p".to_owned(),
            ..ProxyEnvironment::default()
        };
        let shown = format!("{proxy:?} {environment:?}");
        assert!(!shown.contains("hunter"), "{shown}");
        assert_eq!(Proxy::parse("http://p").unwrap().authorization(), None);
    }
}
