//! HTTPS: trusted, not trusted, and no way down to plain HTTP with secrets.

use std::sync::Arc;
use std::time::Duration;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rubelet_fetch::UrlFetcher;
use rubelet_ports::HttpFetcher;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::server::{Server, ok, redirect};

/// A server's side and a fetcher that trusts it.
fn pair() -> (TlsAcceptor, UrlFetcher) {
    pair_for(&["localhost"])
}

pub(crate) fn pair_for(names: &[&str]) -> (TlsAcceptor, UrlFetcher) {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(names).unwrap();
    let certificate: CertificateDer<'static> = cert.der().clone();
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let provider = Arc::new(aws_lc_rs::default_provider());
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let fetcher = UrlFetcher::with(Arc::new(client), Duration::from_secs(20));
    (TlsAcceptor::from(Arc::new(server)), fetcher)
}

#[tokio::test]
async fn a_trusted_server_is_read() {
    let (acceptor, fetcher) = pair();
    let server = Server::start(Some(acceptor), |_| Some(ok(b"over TLS"))).await;
    let url = format!("https://localhost:{}/pods", server.port);
    assert_eq!(fetcher.get(&url, &[], 99).await.unwrap(), b"over TLS");
    let error = fetcher
        .get(&format!("https://127.0.0.1:{}/", server.port), &[], 9)
        .await;
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("no TLS connection"),
        "another name than the certificate's: {error}"
    );
}

#[tokio::test]
async fn an_unknown_server_is_not_read() {
    let (acceptor, _) = pair();
    let server = Server::start(Some(acceptor), |_| Some(ok(b"over TLS"))).await;
    let (_, stranger) = pair();
    let url = format!("https://localhost:{}/", server.port);
    let headers = [("X-Key".to_owned(), "a secret".to_owned())];
    let error = stranger.get(&url, &headers, 99).await.unwrap_err().to_string();
    assert!(
        error.contains("no TLS connection") && !error.contains("secret"),
        "{error}"
    );
    assert!(server.asked().is_empty());
}

#[tokio::test]
async fn headers_do_not_go_down_to_plain_http() {
    let (acceptor, fetcher) = pair();
    let plain = Server::start(None, |_| Some(ok(b"plain"))).await;
    let target = format!("http://localhost:{}/", plain.port);
    let server = Server::start(Some(acceptor), move |_| Some(redirect(&target))).await;
    let url = format!("https://localhost:{}/", server.port);
    let headers = [("X-Key".to_owned(), "a secret".to_owned())];
    assert_eq!(fetcher.get(&url, &headers, 99).await.unwrap(), b"plain");
    assert!(server.asked()[0].contains("a secret"));
    assert!(!plain.asked()[0].contains("a secret"));
}
