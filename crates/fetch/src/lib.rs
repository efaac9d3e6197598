//! Reading a document over HTTP or HTTPS.
//!
//! An adapter: it owns the connection, the way through a proxy, the redirects and the limits, and knows nothing of what it reads.
//! Header values and what stands before the host or after the path of an address may be secret, so that no error repeats them.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "an adapter is where the network is used"
)]

mod address;
mod proxied;
mod roots;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{AUTHORIZATION, HOST, LOCATION, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Body as _, Incoming};
use hyper_util::rt::TokioIo;
use rubelet_ports::{FetchError, HttpFetcher};
use rubelet_proxy::{Proxy, ProxyEnvironment, ProxyScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::address::Address;

/// Upstream's limit on the whole exchange, redirects and body included.
const DEADLINE: Duration = Duration::from_secs(10);
const MAX_REDIRECTS: usize = 10;

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// One connection per document: it is read every few seconds at most, and nothing stays open between.
#[derive(Default)]
pub struct UrlFetcher {
    proxies: ProxyEnvironment,
    /// Made on first need: most nodes read no manifest over HTTPS.
    tls: OnceCell<Arc<ClientConfig>>,
    deadline: Option<Duration>,
}

impl UrlFetcher {
    /// Trusts the certificate authorities of the machine, as `SSL_CERT_FILE` and `SSL_CERT_DIR` or the distribution name them.
    /// Goes through the proxies of the environment, as upstream's client does.
    #[must_use]
    pub fn new(proxies: ProxyEnvironment) -> Self {
        Self {
            proxies,
            ..Self::default()
        }
    }

    /// With a trust of one's own and another deadline.
    #[must_use]
    pub fn with(tls: Arc<ClientConfig>, deadline: Duration) -> Self {
        Self {
            proxies: ProxyEnvironment::default(),
            tls: OnceCell::new_with(Some(tls)),
            deadline: Some(deadline),
        }
    }

    /// The same through proxies.
    #[must_use]
    pub fn through(self, proxies: ProxyEnvironment) -> Self {
        Self { proxies, ..self }
    }

    /// Follows an address to its document.
    async fn follow(&self, url: &str, headers: HeaderMap, limit_bytes: u64) -> Result<Vec<u8>, FetchError> {
        let first = parse(url)?;
        let mut address = first.clone();
        for _ in 0..=MAX_REDIRECTS {
            // The headers may hold credentials: they are sent only to the first host or one below it, and never over less protection.
            let is_trusted = address.may_see_what_is_for(&first);
            let headers = if is_trusted {
                headers.clone()
            } else {
                HeaderMap::new()
            };
            let response = self.ask(&address, headers).await?;
            match response.status() {
                StatusCode::OK => return body(response, &address, limit_bytes).await,
                StatusCode::MOVED_PERMANENTLY
                | StatusCode::FOUND
                | StatusCode::SEE_OTHER
                | StatusCode::TEMPORARY_REDIRECT
                | StatusCode::PERMANENT_REDIRECT => address = redirected(&response, &address)?,
                status => {
                    return Err(FetchError::Status {
                        url: address.to_string(),
                        status: status.as_u16(),
                    });
                }
            }
        }
        Err(failed(&first, format!("more than {MAX_REDIRECTS} redirects")))
    }

    async fn ask(&self, address: &Address, headers: HeaderMap) -> Result<Response<Incoming>, FetchError> {
        let mut request = request(address, headers)?;
        let proxy = self.proxies.proxy_for(address.uri());
        let proxy = proxy.map_err(|error| failed(address, error.to_string()))?;
        let stream: Box<dyn Stream> = match &proxy {
            None => {
                let connected = TcpStream::connect((address.host(), address.port())).await;
                Box::new(connected.map_err(|error| failed(address, format!("cannot connect: {error}")))?)
            }
            Some(proxy) => {
                if proxied::forwards(proxy, address) {
                    proxied::address_to_proxy(&mut request, address, proxy)
                        .map_err(|problem| failed(address, problem))?;
                }
                let connected = self.connect_through(proxy, address).await;
                connected
                    .map_err(|problem| failed(address, format!("the proxy {}: {problem}", proxy.uri())))?
            }
        };
        if !address.is_https() {
            return exchange(TokioIo::new(stream), request, address).await;
        }
        let stream = self
            .encrypt(stream, address.host())
            .await
            .map_err(|problem| failed(address, problem))?;
        exchange(TokioIo::new(Box::new(stream)), request, address).await
    }

    async fn connect_through(&self, proxy: &Proxy, address: &Address) -> Result<Box<dyn Stream>, String> {
        let place = (proxy.host(), proxy.uri().port_u16().unwrap_or_default());
        let stream = TcpStream::connect(place)
            .await
            .map_err(|error| format!("cannot connect: {error}"))?;
        match proxy.scheme() {
            ProxyScheme::Http | ProxyScheme::Socks5 => proxied::onward(proxy, stream, address).await,
            ProxyScheme::Https => {
                let stream = self.encrypt(stream, proxy.host()).await?;
                proxied::onward(proxy, stream, address).await
            }
        }
    }

    /// TLS with a server of this name.
    async fn encrypt<S: Stream>(&self, stream: S, host: &str) -> Result<TlsStream<S>, String> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| "the host is no name that a certificate could have".to_owned())?;
        let connected = TlsConnector::from(self.tls().await?).connect(name, stream).await;
        connected.map_err(|error| format!("no TLS connection: {error}"))
    }

    async fn tls(&self) -> Result<Arc<ClientConfig>, String> {
        let config = self.tls.get_or_try_init(|| async {
            // Reads files; the blocking pool of tokio bounds it, and it happens once.
            let loaded = tokio::task::spawn_blocking(roots::client_config).await;
            loaded.unwrap_or_else(|error| Err(error.to_string()))
        });
        config.await.cloned()
    }
}

#[async_trait]
impl HttpFetcher for UrlFetcher {
    async fn get(
        &self,
        url: &str,
        headers: &[(String, String)],
        limit_bytes: u64,
    ) -> Result<Vec<u8>, FetchError> {
        let headers = header_map(url, headers)?;
        let fetched = self.follow(url, headers, limit_bytes);
        let deadline = self.deadline.unwrap_or(DEADLINE);
        match tokio::time::timeout(deadline, fetched).await {
            Ok(result) => result,
            Err(_) => Err(FetchError::Failed {
                url: address::shown(url),
                problem: format!("no whole answer within {} s", deadline.as_secs_f64()),
            }),
        }
    }
}

fn failed(address: &Address, problem: impl Into<String>) -> FetchError {
    FetchError::Failed {
        url: address.to_string(),
        problem: problem.into(),
    }
}

fn parse(url: &str) -> Result<Address, FetchError> {
    Address::parse(url).map_err(|problem| FetchError::BadAddress {
        url: address::shown(url),
        problem: problem.to_owned(),
    })
}

fn header_map(url: &str, headers: &[(String, String)]) -> Result<HeaderMap, FetchError> {
    let bad = |problem: String| FetchError::Failed {
        url: address::shown(url),
        problem,
    };
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let parsed_name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| bad(format!("{name:?} cannot be the name of a header")))?;
        let mut value = HeaderValue::from_str(value).map_err(|_| {
            bad(format!(
                "the value of the header {name:?} has characters that cannot be sent"
            ))
        })?;
        value.set_sensitive(true);
        map.append(parsed_name, value);
    }
    // The host is that of the address, also for upstream.
    map.remove(HOST);
    Ok(map)
}

fn request(address: &Address, mut headers: HeaderMap) -> Result<Request<Empty<Bytes>>, FetchError> {
    let bad = |_| failed(address, "the address cannot be sent in a request");
    headers.insert(HOST, HeaderValue::from_str(&address.authority()).map_err(bad)?);
    if !headers.contains_key(USER_AGENT) {
        headers.insert(USER_AGENT, HeaderValue::from_static("rubelet"));
    }
    if let (false, Some(credentials)) = (headers.contains_key(AUTHORIZATION), address.basic_credentials()) {
        let mut value = HeaderValue::from_str(&credentials).map_err(bad)?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = address.path().clone().into();
    *request.headers_mut() = headers;
    Ok(request)
}

/// One request on a connection of its own. The connection is driven by a task that ends with it.
async fn exchange(
    stream: TokioIo<Box<dyn Stream>>,
    request: Request<Empty<Bytes>>,
    address: &Address,
) -> Result<Response<Incoming>, FetchError> {
    let broken = |error: hyper::Error| failed(address, format!("no usable answer: {error}"));
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream)
        .await
        .map_err(broken)?;
    // Its error is also the response's; the task ends when the response is read or dropped.
    tokio::spawn(async move { drop(connection.await) });
    sender.send_request(request).await.map_err(broken)
}

async fn body(
    response: Response<Incoming>,
    address: &Address,
    limit_bytes: u64,
) -> Result<Vec<u8>, FetchError> {
    let too_large = || FetchError::TooLarge {
        url: address.to_string(),
        limit_bytes,
    };
    let mut body = response.into_body();
    if body.size_hint().lower() > limit_bytes {
        return Err(too_large());
    }
    let mut content = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| failed(address, format!("the answer broke off: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if (content.len() as u64).saturating_add(data.len() as u64) > limit_bytes {
            return Err(too_large());
        }
        content.extend_from_slice(&data);
    }
    Ok(content)
}

fn redirected(response: &Response<Incoming>, address: &Address) -> Result<Address, FetchError> {
    let location = response.headers().get(LOCATION);
    let location = location.and_then(|value| value.to_str().ok());
    let location = location.ok_or_else(|| failed(address, "a redirect without a usable Location"))?;
    address.join(location).map_err(|problem| {
        failed(
            address,
            format!("redirected to a place that cannot be used: {problem}"),
        )
    })
}
