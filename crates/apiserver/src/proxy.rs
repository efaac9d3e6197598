//! Which proxy connections go through: the kubeconfig's, or that of the environment, as for upstream.

use std::fmt;
use std::net::IpAddr;

use http::Uri;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};

/// What the environment says about proxies; empty is nothing. The program reads it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ProxyEnvironment {
    /// `HTTPS_PROXY`
    pub https_proxy: String,
    /// `HTTP_PROXY`
    pub http_proxy: String,
    /// `NO_PROXY`
    pub no_proxy: String,
}

impl fmt::Debug for ProxyEnvironment {
    // The proxies may come with passwords.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ProxyEnvironment")
            .field("no_proxy", &self.no_proxy)
            .finish_non_exhaustive()
    }
}

/// Whether connections can be made through a proxy of this kind.
pub(crate) fn is_supported(proxy: &Uri) -> bool {
    matches!(proxy.scheme_str(), Some("http" | "socks5" | "socks5h"))
}

/// The proxy on the way to the server, or what is wrong with it.
pub(crate) fn choose(
    kubeconfig: Option<&str>,
    environment: &ProxyEnvironment,
    server: &Uri,
) -> Result<Option<Intercept>, String> {
    if let Some(url) = kubeconfig {
        // It was checked when the kubeconfig was read.
        return Ok(Matcher::builder().all(url).build().intercept(server));
    }
    if is_loopback(server) {
        return Ok(None);
    }
    let matcher = Matcher::builder()
        .https(environment.https_proxy.as_str())
        .http(environment.http_proxy.as_str())
        .no(environment.no_proxy.as_str())
        .build();
    match matcher.intercept(server) {
        Some(proxy) if !is_supported(proxy.uri()) => {
            Err("the proxy of the environment is neither http nor socks5".to_owned())
        }
        proxy => Ok(proxy),
    }
}

/// A proxy elsewhere has no way to this machine.
fn is_loopback(server: &Uri) -> bool {
    let host = server.host().unwrap_or_default();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kubeconfig_comes_before_the_environment() {
        let environment = ProxyEnvironment {
            https_proxy: "http://env:1".to_owned(),
            http_proxy: "http://plain:2".to_owned(),
            no_proxy: "10.0.0.0/8,.internal".to_owned(),
        };
        let check = |kubeconfig: Option<&str>, server: &'static str, expected: Option<&str>| {
            let proxy = choose(kubeconfig, &environment, &Uri::from_static(server)).unwrap();
            let found = proxy.map(|proxy| proxy.uri().to_string());
            assert_eq!(found.as_deref(), expected, "{server}");
        };
        check(Some("http://k:3"), "https://api:6443", Some("http://k:3/"));
        check(Some("http://k:3"), "https://127.0.0.1", Some("http://k:3/"));
        check(None, "https://api:6443", Some("http://env:1/"));
        check(None, "http://api:8080", Some("http://plain:2/"));
        check(None, "https://10.1.2.3:6443", None);
        check(None, "https://api.internal", None);
        check(None, "https://127.0.0.1:6443", None);
        check(None, "https://[::1]:6443", None);
        check(None, "https://localhost", None);
    }

    #[test]
    fn a_proxy_that_cannot_be_used_is_an_error_and_its_password_is_not_shown() {
        let environment = ProxyEnvironment {
            https_proxy: "https://user:hunter2@env".to_owned(),
            ..ProxyEnvironment::default()
        };
        let error = choose(None, &environment, &Uri::from_static("https://api")).unwrap_err();
        assert!(!error.contains("hunter2"), "{error}");
        assert!(!format!("{environment:?}").contains("hunter2"));
    }
}
