//! Going through a proxy, as Go's HTTP client does: documents over HTTP are asked of the proxy itself, and for all others it is asked
//! for a connection.

use std::io;

use bytes::Bytes;
use http::header::PROXY_AUTHORIZATION;
use http::{HeaderValue, Request, Uri};
use http_body_util::Empty;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::rt::TokioIo;
use rubelet_proxy::{Proxy, ProxyScheme};
use tower::{ServiceExt as _, service_fn};

use crate::Stream;
use crate::address::Address;

/// Whether the proxy is asked for the document itself.
pub(crate) fn forwards(proxy: &Proxy, address: &Address) -> bool {
    !address.is_https() && proxy.scheme() != ProxyScheme::Socks5
}

/// From the proxy's end of a stream to where the request is sent.
pub(crate) async fn onward(
    proxy: &Proxy,
    stream: impl Stream + 'static,
    address: &Address,
) -> Result<Box<dyn Stream>, String> {
    if forwards(proxy, address) {
        return Ok(Box::new(stream));
    }
    tunnel(proxy, stream, address.server()).await
}

/// Makes a request for the address one that the proxy sends on.
pub(crate) fn address_to_proxy(
    request: &mut Request<Empty<Bytes>>,
    address: &Address,
    proxy: &Proxy,
) -> Result<(), &'static str> {
    let uri = format!("http://{}{}", address.authority(), address.path());
    *request.uri_mut() = uri
        .parse()
        .map_err(|_| "the address cannot be sent in a request")?;
    if let Some(authorization) = authorization(proxy)? {
        request.headers_mut().insert(PROXY_AUTHORIZATION, authorization);
    }
    Ok(())
}

/// Lets the proxy at the other end of a stream connect to a server.
async fn tunnel(
    proxy: &Proxy,
    stream: impl Stream + 'static,
    server: Uri,
) -> Result<Box<dyn Stream>, String> {
    let mut connected = Some(TokioIo::new(stream));
    let connector = service_fn(move |_: Uri| {
        let stream = connected.take();
        std::future::ready(stream.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)))
    });
    let stream = match proxy.scheme() {
        ProxyScheme::Http | ProxyScheme::Https => {
            let tunnel = Tunnel::new(proxy.uri().clone(), connector);
            let tunnel = match authorization(proxy)? {
                Some(authorization) => tunnel.with_auth(authorization),
                None => tunnel,
            };
            tunnel.oneshot(server).await.map_err(|error| error.to_string())?
        }
        ProxyScheme::Socks5 => {
            let socks = SocksV5::new(proxy.uri().clone(), connector);
            let socks = match proxy.credentials() {
                Some((user, password)) => socks.with_auth(user.to_owned(), password.to_owned()),
                None => socks,
            };
            socks.oneshot(server).await.map_err(|error| error.to_string())?
        }
    };
    Ok(Box::new(stream.into_inner()))
}

fn authorization(proxy: &Proxy) -> Result<Option<HeaderValue>, &'static str> {
    let Some(text) = proxy.authorization() else {
        return Ok(None);
    };
    let mut value = HeaderValue::try_from(text).map_err(|_| "the credentials of the proxy cannot be sent")?;
    value.set_sensitive(true);
    Ok(Some(value))
}
