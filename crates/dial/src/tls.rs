//! TLS that takes any certificate: a probe asks whether a server works, not who it is.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, aws_lc_rs};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};

use crate::error_text;

/// What a server that speaks HTTP without TLS begins its answer with.
const PLAIN_HTTP: &[u8] = b"HTTP/";

const H2: &[u8] = b"h2";
const HTTP_1_1: &[u8] = b"http/1.1";

/// Why there is no encrypted connection.
pub(crate) struct TlsFailure {
    pub(crate) message: String,
    pub(crate) spoke_plain_http: bool,
}

/// Made on first need: most nodes have no probe over HTTPS.
#[derive(Default)]
pub(crate) struct AnyCertificate {
    config: OnceLock<Result<Arc<ClientConfig>, String>>,
}

impl AnyCertificate {
    /// The connection, and whether the server prefers HTTP/2.
    pub(crate) async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> Result<(TlsStream<FirstBytes>, bool), TlsFailure> {
        let failed = |message: String| TlsFailure {
            message,
            spoke_plain_http: false,
        };
        let config = self.config.get_or_init(config).clone().map_err(failed)?;
        let name = server_name(host, &stream)
            .ok_or_else(|| failed(format!("{host:?} is no name that a server could have")))?;
        let mut first_bytes = Vec::new();
        let watched = FirstBytes {
            stream,
            seen: Vec::new(),
        };
        let connecting = TlsConnector::from(config).connect(name, watched).into_fallible();
        match connecting.await {
            Ok(stream) => {
                let is_h2 = stream.get_ref().1.alpn_protocol() == Some(H2);
                Ok((stream, is_h2))
            }
            Err((error, watched)) => {
                first_bytes.extend_from_slice(&watched.seen);
                Err(self::failed(&error, &first_bytes))
            }
        }
    }
}

fn failed(error: &io::Error, first_bytes: &[u8]) -> TlsFailure {
    let spoke_plain_http = first_bytes == PLAIN_HTTP;
    let own = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    let message = match own {
        _ if spoke_plain_http => "http: server gave HTTP response to HTTPS client".to_owned(),
        Some(Error::AlertReceived(alert)) => format!("remote error: tls: {alert:?}"),
        Some(error) => format!("tls: {error}"),
        None => error_text::cause(error),
    };
    TlsFailure {
        message,
        spoke_plain_http,
    }
}

/// Without a name the address stands in for it, and is not sent.
fn server_name(host: &str, stream: &TcpStream) -> Option<ServerName<'static>> {
    if host.is_empty() {
        let peer = stream.peer_addr().ok()?;
        return Some(ServerName::IpAddress(peer.ip().into()));
    }
    ServerName::try_from(host.to_owned()).ok()
}

fn config() -> Result<Arc<ClientConfig>, String> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = Arc::new(Indifferent(Arc::clone(&provider)));
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = vec![H2.to_vec(), HTTP_1_1.to_vec()];
    // Every probe makes a full handshake.
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

#[derive(Debug)]
struct Indifferent(Arc<CryptoProvider>);

impl ServerCertVerifier for Indifferent {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// A connection that remembers how the server's answer began.
pub(crate) struct FirstBytes {
    stream: TcpStream,
    seen: Vec<u8>,
}

impl FirstBytes {
    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }
}

impl AsyncRead for FirstBytes {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let result = Pin::new(&mut this.stream).poll_read(cx, buffer);
        let missing = PLAIN_HTTP.len().saturating_sub(this.seen.len());
        this.seen
            .extend(buffer.filled().iter().skip(before).take(missing));
        result
    }
}

impl AsyncWrite for FirstBytes {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
