//! A relay before the API server that says of service account tokens that they end sooner than they do.
//!
//! No API server issues a token for less than ten minutes, and a kubelet asks for the next one after eight of them: too long for
//! a test to wait. Tokens are real and good for their ten minutes; all else passes untouched.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use http::header::{ACCEPT, CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderValue, Method, Request, Response, Version};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use kube::client::Body;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use super::kubeconfig::API_NAME;
use super::pki::{Authority, Credentials};
use super::place::LOOPBACK;

/// Serves whoever has a certificate of the authority, in the name of `client`, as long as the test's runtime lives.
pub(super) async fn start(authority: &Authority, client: Client, life: Duration) -> Result<SocketAddr> {
    let serving = authority.server("token-relay", &[], vec![API_NAME.to_owned()])?;
    let acceptor = TlsAcceptor::from(Arc::new(tls(authority, &serving)?));
    let listener = TcpListener::bind((LOOPBACK, 0)).await.context("listen")?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, acceptor.clone(), client.clone(), life));
        }
    });
    Ok(address)
}

fn tls(authority: &Authority, serving: &Credentials) -> Result<ServerConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(authority.certificate_der().to_vec()))?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build()?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(
                serving.certificate_pem.as_bytes(),
            )?],
            PrivateKeyDer::from_pem_slice(serving.key_pem.as_bytes())?,
        )?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// A connection that fails is seen by whoever opened it.
async fn serve(stream: TcpStream, acceptor: TlsAcceptor, client: Client, life: Duration) {
    let Ok(stream) = acceptor.accept(stream).await else {
        return;
    };
    let service = service_fn(move |request| pass_on(client.clone(), request, life));
    let _ = auto::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn pass_on(client: Client, request: Request<Incoming>, life: Duration) -> Result<Response<Body>> {
    let (mut head, body) = request.into_parts();
    let is_for_token = head.method == Method::POST && head.uri.path().ends_with("/token");
    if is_for_token {
        head.headers
            .insert(ACCEPT, HeaderValue::from_static("application/json"));
    }
    head.version = Version::HTTP_11;
    head.uri = head.uri.path_and_query().context("a path")?.as_str().parse()?;
    let body = body.collect().await?.to_bytes();
    let answer = client.send(Request::from_parts(head, Body::from(body))).await?;
    let (mut head, body) = answer.into_parts();
    // Of one connection each, and unknown to HTTP/2.
    head.headers.remove(CONNECTION);
    head.headers.remove(TRANSFER_ENCODING);
    if !is_for_token || !head.status.is_success() {
        return Ok(Response::from_parts(head, body));
    }
    let answer = body.collect_bytes().await?;
    head.headers.remove(CONTENT_LENGTH);
    Ok(Response::from_parts(head, Body::from(shortened(&answer, life)?)))
}

fn shortened(answer: &[u8], life: Duration) -> Result<Vec<u8>> {
    let mut answer: TokenRequest = serde_json::from_slice(answer).context("an answer with a token")?;
    let Time(issued) = answer
        .metadata
        .creation_timestamp
        .clone()
        .context("when it was issued")?;
    let status = answer.status.as_mut().context("a token")?;
    status.expiration_timestamp = Some(Time(issued.checked_add(life)?));
    Ok(serde_json::to_vec(&answer)?)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn only_the_end_of_a_token_is_changed() {
        let answer = json!({
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": { "name": "default", "creationTimestamp": "2030-01-02T03:04:05Z" },
            "spec": { "audiences": ["a"], "expirationSeconds": 600 },
            "status": { "token": "t", "expirationTimestamp": "2030-01-02T03:14:05Z" },
        });
        let changed = shortened(answer.to_string().as_bytes(), Duration::from_secs(15)).unwrap();
        let mut expected = answer;
        expected["status"]["expirationTimestamp"] = json!("2030-01-02T03:04:20Z");
        assert_eq!(serde_json::from_slice::<Value>(&changed).unwrap(), expected);
        assert!(shortened(b"{}", Duration::from_secs(15)).is_err());
    }
}
