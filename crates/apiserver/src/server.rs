//! The client of one API server: its options and its construction.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use http::{HeaderValue, Uri};
use rubelet_proxy::{Proxy, ProxyEnvironment, ProxyScheme};
use tokio_rustls::rustls::pki_types::ServerName;

use crate::call::{Core, Lane, common_headers};
use crate::channel::Channel;
use crate::credentials::Credentials;
use crate::dial::{Dialler, Route};
use crate::identity::ClientIdentity;
use crate::kubeconfig::{Access, ConnectError, Trust};
use crate::limiter::{Limiter, RateLimit};
use crate::metrics::{ApiServerMetrics, ClientMetrics};
use crate::reachability::Reachability;
use crate::tls::Tls;
use crate::watch_pool::WatchPool;

/// Events and reviews are bursts; between them their connections are closed.
const BURSTS_IDLE_TIMEOUT: Duration = Duration::from_secs(90);

/// When a connection counts as dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Liveness {
    /// After this long without a frame from the server it is pinged.
    pub ping_interval: Duration,
    /// How long it has for the answer.
    pub ping_timeout: Duration,
}

impl Default for Liveness {
    /// A dead connection is found within 20 s; upstream takes 45 s.
    fn default() -> Self {
        Self {
            ping_interval: Duration::from_secs(10),
            ping_timeout: Duration::from_secs(10),
        }
    }
}

/// What an [`ApiServer`] is made from.
#[derive(Clone, Debug)]
pub struct ApiServerOptions {
    /// `--kubeconfig`, or `--bootstrap-kubeconfig` for a client that only asks for the first certificate.
    pub kubeconfig: PathBuf,
    /// See [`user_agent`].
    pub user_agent: String,
    /// `kubeAPIQPS` and `kubeAPIBurst`, for normal calls, for token reviews and for access reviews each; `None` is no limit.
    pub calls: Option<RateLimit>,
    /// `eventRecordQPS` and `eventBurst`; `None` is no limit.
    pub events: Option<RateLimit>,
    /// The deadline of normal calls and events.
    pub call_timeout: Duration,
    /// The deadline of heartbeats: the shorter of `nodeStatusUpdateFrequency` and the lease's duration.
    pub heartbeat_timeout: Duration,
    pub liveness: Liveness,
    /// Used unless the kubeconfig names a proxy. Upstream's client takes both alike.
    pub proxy: ProxyEnvironment,
    /// The client certificate may be missing or broken at first: another component passes one to [`ApiServer::identity`], or writes
    /// the file that the kubeconfig names.
    pub may_lack_certificate: bool,
    /// Where calls are counted, if they are.
    pub metrics: Option<ApiServerMetrics>,
}

impl ApiServerOptions {
    /// Upstream's defaults for this kubeconfig.
    #[must_use]
    pub fn new(kubeconfig: impl Into<PathBuf>, user_agent: impl Into<String>) -> Self {
        let fifty = RateLimit {
            per_second: 50,
            burst: 100,
        };
        Self {
            kubeconfig: kubeconfig.into(),
            user_agent: user_agent.into(),
            calls: Some(fifty),
            events: Some(fifty),
            call_timeout: Duration::from_secs(30),
            heartbeat_timeout: Duration::from_secs(10),
            liveness: Liveness::default(),
            proxy: ProxyEnvironment::default(),
            may_lack_certificate: false,
            metrics: None,
        }
    }
}

/// The user agent, as audit logs show it: upstream's form with rubelet's own name.
#[must_use]
pub fn user_agent(kubernetes_version: &str) -> String {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!(
        "kubelet/{kubernetes_version} (linux/{architecture}) rubelet/{}",
        env!("CARGO_PKG_VERSION")
    )
}

/// The API server behind every trait of `ports::api`. Clones are the same client; connections live as long as one of them, or
/// something that is followed.
#[derive(Clone)]
pub struct ApiServer {
    pub(crate) core: Arc<Core>,
}

impl ApiServer {
    /// Reads the kubeconfig and what it names. It connects with the first call, which must be made inside a tokio runtime.
    ///
    /// # Errors
    /// When the kubeconfig cannot be used; the message names the file and the field.
    pub fn connect(options: &ApiServerOptions) -> Result<Self, ConnectError> {
        let path = &options.kubeconfig;
        let access = Access::read(path)?;
        let may_lack = options.may_lack_certificate;
        let credentials = Credentials::new(path, access.login, access.certificate, may_lack)?;
        let identity = credentials.identity().clone();
        let server_name = match access.server.scheme_str() {
            Some("https") => {
                let name = access.server_name.or_else(|| tls_name(&access.server));
                Some(name.ok_or_else(|| {
                    ConnectError::Unusable(format!("{} has no name for TLS", access.server))
                })?)
            }
            _ => None,
        };
        let route = route(access.proxy, &options.proxy, &access.server)?;
        // As for Go's client, the proxy's certificate is checked against what the kubeconfig trusts.
        let tls = if server_name.is_some() || route.has_tls_proxy() {
            Some(Arc::new(new_tls(path, access.trust, &identity)?))
        } else {
            None
        };
        let dialler = Dialler {
            route,
            tls,
            server_name,
            identity,
        };
        let user_agent = HeaderValue::from_str(&options.user_agent)
            .map_err(|_| ConnectError::Unusable("the user agent cannot be sent in a header".to_owned()))?;
        let shown_server = shown(&access.server);
        let lane = |idle_timeout, limit: Option<RateLimit>, timeout| Lane {
            channel: Arc::new(Channel::new(&dialler, options.liveness, idle_timeout)),
            limiter: limit.map(Limiter::new),
            timeout,
        };
        let calls = lane(None, options.calls, options.call_timeout);
        let token_reviews = lane(Some(BURSTS_IDLE_TIMEOUT), options.calls, options.call_timeout);
        let core = Core {
            statuses: Lane {
                channel: Arc::clone(&calls.channel),
                limiter: None,
                timeout: options.call_timeout,
            },
            access_reviews: Lane {
                channel: Arc::clone(&token_reviews.channel),
                limiter: options.calls.map(Limiter::new),
                timeout: options.call_timeout,
            },
            token_reviews,
            calls,
            heartbeats: lane(None, None, options.heartbeat_timeout),
            events: lane(Some(BURSTS_IDLE_TIMEOUT), options.events, options.call_timeout),
            watches: WatchPool::new(&dialler, options.liveness),
            reachability: Reachability::new(shown_server.clone()),
            server_name: shown_server,
            metrics: options
                .metrics
                .clone()
                .map(|metrics| ClientMetrics::new(metrics, &access.server)),
            server: access.server,
            headers: common_headers(user_agent, access.impersonation),
            credentials,
            lacks_streams: AtomicBool::new(false),
        };
        Ok(Self { core: Arc::new(core) })
    }

    /// The client certificate: to replace it, and to know when it expires.
    #[must_use]
    pub fn identity(&self) -> ClientIdentity {
        self.core.credentials.identity().clone()
    }

    /// `https://host:port`
    #[must_use]
    pub fn server_url(&self) -> &str {
        &self.core.server_name
    }

    /// Whether the last attempt to talk to the server got an answer.
    #[must_use]
    pub fn is_reachable(&self) -> bool {
        self.core.reachability.is_reachable()
    }
}

impl fmt::Debug for ApiServer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ApiServer")
            .field("server", &self.core.server_name)
            .finish_non_exhaustive()
    }
}

/// The route to the server: the kubeconfig's proxy comes before that of the environment.
fn route(given: Option<Proxy>, environment: &ProxyEnvironment, server: &Uri) -> Result<Route, ConnectError> {
    let of_environment = || {
        let found = environment.proxy_for(server);
        found.map_err(|error| ConnectError::Unusable(error.to_string()))
    };
    let proxy = given.map_or_else(of_environment, |proxy| Ok(Some(proxy)))?;
    let proxy_name = match &proxy {
        Some(proxy) if proxy.scheme() == ProxyScheme::Https => {
            let name = tls_name(proxy.uri());
            Some(name.ok_or_else(|| {
                ConnectError::Unusable(format!("the proxy {} has no name for TLS", proxy.uri()))
            })?)
        }
        Some(_) | None => None,
    };
    Ok(Route::new(proxy, proxy_name))
}

fn new_tls(
    kubeconfig: &std::path::Path,
    trust: Trust,
    identity: &ClientIdentity,
) -> Result<Tls, ConnectError> {
    Tls::new(trust, identity.clone()).map_err(|(field, problem)| match field {
        Some(field) => ConnectError::Field {
            path: kubeconfig.to_owned(),
            field,
            problem,
        },
        None => ConnectError::Unusable(problem),
    })
}

fn tls_name(server: &Uri) -> Option<ServerName<'static>> {
    let host = server.host()?;
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    ServerName::try_from(bare.to_owned()).ok()
}

/// Without path, and without a password that may stand before the host.
fn shown(server: &Uri) -> String {
    let scheme = server.scheme_str().unwrap_or("https");
    let host = server.host().unwrap_or_default();
    match server.port() {
        Some(port) => format!("{scheme}://{host}:{port}"),
        None => format!("{scheme}://{host}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_agent_has_upstreams_form() {
        let text = user_agent("v1.37.1");
        assert!(text.starts_with("kubelet/v1.37.1 (linux/"), "{text}");
        assert!(text.contains(") rubelet/"), "{text}");
    }

    #[test]
    fn the_server_is_shown_without_path_and_password() {
        let check = |given: &'static str, expected: &str| {
            assert_eq!(shown(&Uri::from_static(given)), expected);
        };
        check("https://api:6443/k8s/clusters/c", "https://api:6443");
        check("https://user:hunter2@api", "https://api");
        check("https://[::1]:6443", "https://[::1]:6443");
    }

    #[test]
    fn a_certificate_is_asked_for_the_host() {
        let name = tls_name(&Uri::from_static("https://[::1]:6443"));
        assert_eq!(name, ServerName::try_from("::1").ok());
        let name = tls_name(&Uri::from_static("https://api.example:6443"));
        assert_eq!(name, ServerName::try_from("api.example").ok());
    }
}
