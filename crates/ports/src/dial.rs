//! Talking to a pod's containers over the network: what probes and lifecycle hooks need.
//!
//! Owns the shape of the calls. The caller decides whether an answer means success. Header values may be secret: they
//! appear in no error and not in `Debug`.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use rubelet_model::observation::PodUid;
use thiserror::Error;

/// Bytes of an answer's body that are read and handed on; the rest is left unread.
pub const BODY_LIMIT_BYTES: usize = 10 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpScheme {
    Http,
    /// Whatever certificate the server shows is taken.
    Https,
}

impl HttpScheme {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

/// The purpose of the call; the server sees it in `User-Agent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpPurpose {
    Probe,
    LifecycleHook,
}

impl HttpPurpose {
    /// Of the Kubernetes version whose behaviour this is.
    #[must_use]
    pub fn user_agent(self) -> &'static str {
        match self {
            Self::Probe => "kube-probe/1.37",
            Self::LifecycleHook => "kube-lifecycle/1.37",
        }
    }
}

/// Why there is nothing to call.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PortError {
    #[error("port {0:?} not found")]
    NotFound(String),
    #[error("invalid port number: {0}")]
    Invalid(i32),
}

/// The number of a port that is given as a number or as the name of one of the container's ports.
///
/// # Errors
/// When no port has the name, and when the number is no port.
pub fn container_port(port: &IntOrString, container: &Container) -> Result<u16, PortError> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            container
                .ports
                .iter()
                .flatten()
                .find(|port| port.name.as_deref() == Some(name))
                .ok_or_else(|| PortError::NotFound(name.clone()))?
                .container_port
        }
    };
    match u16::try_from(number) {
        Ok(number) if number > 0 => Ok(number),
        Ok(_) | Err(_) => Err(PortError::Invalid(number)),
    }
}

/// `host:port`, with an IPv6 address in brackets.
#[must_use]
pub fn host_and_port(host: &str, port: u16) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// One GET over a connection of its own.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpCall {
    /// The pod on whose behalf it is made.
    pub pod: PodUid,
    pub scheme: HttpScheme,
    /// A name or an address, without brackets. An empty one is this machine.
    pub host: String,
    pub port: u16,
    /// Path and query, beginning with a slash and fit to be sent.
    pub target: String,
    /// Everything but `Host` and what belongs to the connection.
    pub headers: Vec<(String, String)>,
    /// The `Host` header, where it is not that of the address.
    pub host_header: Option<String>,
    /// For the whole exchange: redirects and body included.
    pub timeout: Option<Duration>,
}

impl HttpCall {
    /// The call that a pod's `httpGet` describes. Without a host of its own it goes to `pod_ip`.
    ///
    /// # Errors
    /// When the port cannot be found.
    pub fn of_action(
        pod: PodUid,
        action: &HTTPGetAction,
        container: &Container,
        pod_ip: &str,
        purpose: HttpPurpose,
        timeout: Option<Duration>,
    ) -> Result<Self, PortError> {
        let is_https = action
            .scheme
            .as_deref()
            .is_some_and(|scheme| scheme.eq_ignore_ascii_case("https"));
        let host = action.host.as_deref().filter(|host| !host.is_empty());
        let (headers, host_header) = headers_of(action, purpose);
        Ok(Self {
            pod,
            scheme: if is_https {
                HttpScheme::Https
            } else {
                HttpScheme::Http
            },
            host: host.unwrap_or(pod_ip).to_owned(),
            port: container_port(&action.port, container)?,
            target: request_target(action.path.as_deref().unwrap_or_default()),
            headers,
            host_header,
            timeout,
        })
    }

    /// The same call without TLS, for a server that answered HTTPS with plain HTTP. Credentials stay behind.
    #[must_use]
    pub fn without_tls(&self) -> Self {
        let mut call = self.clone();
        call.scheme = HttpScheme::Http;
        call.headers
            .retain(|(name, _)| !name.eq_ignore_ascii_case("Authorization"));
        call
    }

    /// `host:port`
    #[must_use]
    pub fn authority(&self) -> String {
        host_and_port(&self.host, self.port)
    }

    #[must_use]
    pub fn url(&self) -> String {
        format!("{}://{}{}", self.scheme.as_str(), self.authority(), self.target)
    }
}

impl fmt::Debug for HttpCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("HttpCall")
            .field("url", &self.url())
            .field("headers", &names)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// The headers as they are sent, and the host apart.
fn headers_of(action: &HTTPGetAction, purpose: HttpPurpose) -> (Vec<(String, String)>, Option<String>) {
    let mut headers = Vec::new();
    let mut host = None;
    for header in action.http_headers.iter().flatten() {
        if header.name.eq_ignore_ascii_case("Host") {
            host.get_or_insert_with(|| header.value.clone());
        } else {
            headers.push((header.name.clone(), header.value.clone()));
        }
    }
    let first = |headers: &[(String, String)], wanted: &str| {
        let found = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted));
        found.map(|(_, value)| value.clone())
    };
    let defaults = [("User-Agent", purpose.user_agent()), ("Accept", "*/*")];
    for (name, default) in defaults {
        match first(&headers, name) {
            None => headers.push((name.to_owned(), default.to_owned())),
            // An empty value is how a pod asks for no such header.
            Some(value) if value.is_empty() => headers.retain(|(one, _)| !one.eq_ignore_ascii_case(name)),
            Some(_) => {}
        }
    }
    (headers, host.filter(|host| !host.is_empty()))
}

/// Path and query as they can be sent: with a slash in front, without fragment, other characters escaped.
#[must_use]
pub fn request_target(path: &str) -> String {
    // A path may be a whole address, of which only path and query count.
    let path = match path.split_once("://") {
        Some((scheme, rest)) if !scheme.is_empty() && scheme.bytes().all(|b| b.is_ascii_alphanumeric()) => {
            rest.find(['/', '?', '#']).map_or("", |end| &rest[end..])
        }
        _ => path,
    };
    let path = path.split('#').next().unwrap_or_default();
    let (path, query) = match path.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (path, None),
    };
    let mut target = String::with_capacity(path.len() + 1);
    if !path.starts_with('/') {
        target.push('/');
    }
    // One broken escape makes every percent sign of the path a plain one.
    escape_into(&mut target, path, has_valid_escapes(path), b"/$&+,:;=@!'()*[]");
    if let Some(query) = query {
        target.push('?');
        escape_into(&mut target, query, true, b"/$&+,:;=@!'()*[]?{}|^`\\\"<>");
    }
    target
}

fn has_valid_escapes(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_hex = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_hexdigit);
    (0..bytes.len()).all(|at| bytes[at] != b'%' || (is_hex(at + 1) && is_hex(at + 2)))
}

fn escape_into(target: &mut String, text: &str, keep_percent: bool, allowed: &[u8]) {
    for byte in text.bytes() {
        let is_plain = byte.is_ascii_alphanumeric()
            || b"-_.~".contains(&byte)
            || allowed.contains(&byte)
            || (byte == b'%' && keep_percent);
        if is_plain {
            target.push(char::from(byte));
        } else {
            target.push_str(&format!("%{byte:02X}"));
        }
    }
}

/// What a server answered at last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAnswer {
    /// A redirect that was not followed, because it leads to another host, shows here.
    pub status: u16,
    /// At most [`BODY_LIMIT_BYTES`] of it.
    pub body: Vec<u8>,
}

/// Why there is no complete answer, with the messages that users know from events.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HttpCallError {
    /// No connection, no answer in time, too many redirects.
    #[error("{message}")]
    NoAnswer {
        message: String,
        /// The server spoke HTTP where TLS was expected.
        spoke_plain_http: bool,
    },
    /// Status and headers came, the body broke off.
    #[error("{message}")]
    BrokenBody { message: String },
    /// The host name was not even looked up in time, because too many others were: the node's fault, not the pod's.
    #[error("{message}")]
    NoPlace { message: String },
}

/// Why a port could not be reached, with the messages that users know from events.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConnectError {
    #[error("{message}")]
    Failed { message: String },
    /// As [`HttpCallError::NoPlace`].
    #[error("{message}")]
    NoPlace { message: String },
}

/// A `tcpSocket` probe's connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpCall {
    /// The pod on whose behalf it is made.
    pub pod: PodUid,
    /// A name or an address, without brackets. An empty one is this machine.
    pub host: String,
    pub port: u16,
    pub timeout: Duration,
}

/// What `grpc.health.v1.Health/Check` came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrpcHealth {
    Serving,
    /// Anything else, with the message that users know from events.
    Unhealthy {
        message: String,
    },
    /// As [`HttpCallError::NoPlace`].
    NoPlace {
        message: String,
    },
}

/// A `grpc` probe's call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrpcCall {
    /// The pod on whose behalf it is made.
    pub pod: PodUid,
    pub host: String,
    pub port: u16,
    /// Empty asks for the server as a whole.
    pub service: String,
    pub timeout: Duration,
}

/// Every call has a connection of its own, and leaves no socket behind that waits for its port to be free again. Host names that
/// take long to look up hold up only the calls of the pods that use them.
#[async_trait]
pub trait Dialer: Send + Sync {
    /// One GET. Up to ten redirects to the same host are followed.
    async fn http_get(&self, call: &HttpCall) -> Result<HttpAnswer, HttpCallError>;

    /// Opens a connection and closes it.
    async fn connect(&self, call: &TcpCall) -> Result<(), ConnectError>;

    /// Asks a server for its health, without TLS.
    async fn grpc_health(&self, call: &GrpcCall) -> GrpcHealth;
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ContainerPort, HTTPHeader};

    use super::*;

    fn container() -> Container {
        let port = |name: &str, number| ContainerPort {
            name: Some(name.to_owned()),
            container_port: number,
            ..ContainerPort::default()
        };
        Container {
            ports: Some(vec![port("web", 8080), port("admin", 9090)]),
            ..Container::default()
        }
    }

    #[test]
    fn ports_are_found_by_number_and_name() {
        let check = |port: IntOrString, expected: Result<u16, &str>| {
            let found = container_port(&port, &container()).map_err(|error| error.to_string());
            assert_eq!(found, expected.map_err(str::to_owned), "{port:?}");
        };
        check(IntOrString::Int(80), Ok(80));
        check(IntOrString::Int(65535), Ok(65535));
        check(IntOrString::String("admin".into()), Ok(9090));
        check(IntOrString::String("none".into()), Err("port \"none\" not found"));
        check(IntOrString::Int(0), Err("invalid port number: 0"));
        check(IntOrString::Int(65536), Err("invalid port number: 65536"));
        check(IntOrString::Int(-1), Err("invalid port number: -1"));
    }

    #[test]
    fn targets_can_be_sent() {
        let check = |path: &str, expected: &str| assert_eq!(request_target(path), expected, "{path:?}");
        check("", "/");
        check("/", "/");
        check("healthz", "/healthz");
        check("/a/b?c=d&e=%20", "/a/b?c=d&e=%20");
        check("/a b", "/a%20b");
        check("/a%2Fb", "/a%2Fb");
        check("/a%zz", "/a%25zz");
        check("/a#part", "/a");
        check("?x=1", "/?x=1");
        check("/\u{e9}", "/%C3%A9");
        check("http://elsewhere:1/path?q", "/path?q");
        check("/redirect?to=http://other/", "/redirect?to=http://other/");
    }

    #[test]
    fn calls_follow_the_pod() {
        let header = |name: &str, value: &str| HTTPHeader {
            name: name.to_owned(),
            value: value.to_owned(),
        };
        let mut action = HTTPGetAction {
            path: Some("/x".to_owned()),
            port: IntOrString::String("web".into()),
            ..HTTPGetAction::default()
        };
        let call = |action: &HTTPGetAction| {
            HttpCall::of_action(
                "u".into(),
                action,
                &container(),
                "fd00::1",
                HttpPurpose::Probe,
                None,
            )
        };
        let plain = call(&action).expect("a port of that name");
        assert_eq!(plain.url(), "http://[fd00::1]:8080/x");
        assert_eq!(
            plain.headers,
            [
                ("User-Agent".to_owned(), "kube-probe/1.37".to_owned()),
                ("Accept".to_owned(), "*/*".to_owned())
            ]
        );
        action.scheme = Some("HTTPS".to_owned());
        action.host = Some("10.0.0.1".to_owned());
        action.http_headers = Some(vec![
            header("host", "example.com"),
            header("accept", ""),
            header("user-agent", "mine"),
            header("Authorization", "secret"),
            header("X-Many", "1"),
            header("X-Many", "2"),
        ]);
        let full = call(&action).expect("a port of that name");
        assert_eq!(full.url(), "https://10.0.0.1:8080/x");
        assert_eq!(full.host_header.as_deref(), Some("example.com"));
        let names: Vec<&str> = full.headers.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["user-agent", "Authorization", "X-Many", "X-Many"]);
        assert!(!format!("{full:?}").contains("secret"), "{full:?}");
        let fallback = full.without_tls();
        assert_eq!(fallback.url(), "http://10.0.0.1:8080/x");
        assert!(fallback.headers.iter().all(|(name, _)| name != "Authorization"));
    }

    /// Fails to compile when the port can no longer be used as a trait object.
    #[test]
    fn the_port_is_object_safe() {
        fn takes(_: Option<&dyn Dialer>) {}
        takes(None);
    }
}
