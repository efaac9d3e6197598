//! Servers that we do not believe.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use rubelet_apiserver::ApiServer;
use rubelet_ports::api::{ApiError, ApiErrorKind, NodeReader};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::scene::{Authority, Faults, Pair, Scene, connect, soon};

async fn refused(api: &ApiServer) -> ApiError {
    let error = soon("the failure", api.node("n")).await.unwrap_err();
    assert_eq!(error.kind, ApiErrorKind::Tls, "{error}");
    assert!(!api.is_reachable());
    error
}

#[tokio::test]
async fn a_wrong_authority_says_so() {
    let scene = Scene::new().await;
    let path = scene.kubeconfig_trusting(&Authority::new().pem, &json!({}));
    let api = connect(&path, |_| {}).unwrap();
    let error = refused(&api).await;
    assert!(
        error.message.contains("not signed by an authority that we trust"),
        "{error}"
    );
}

/// One of the certificates that plain openssl made, by its name.
fn plain_certificate(name: &str) -> String {
    let all = include_str!("../../../x509/testdata/certificates.pem");
    let mut parts = all.split("# ").filter_map(|part| part.split_once('\n'));
    let found = parts.find(|(own, _)| *own == name);
    found.expect("a certificate of that name").1.to_owned()
}

#[tokio::test]
async fn a_server_certificate_of_plain_openssl_holds_as_for_go() {
    // `openssl req -x509` makes it an authority of its own, and administrators serve with it.
    let certificate = plain_certificate("self-signed");
    let pair = Pair {
        certificate: certificate.clone(),
        key: include_str!("../../../x509/testdata/self-signed.key").to_owned(),
    };
    let faults = Faults {
        pair: Some(pair),
        ..Faults::default()
    };
    let mut scene = Scene::with(faults).await;
    let path = scene.kubeconfig_trusting(&certificate, &json!({}));
    let api = connect(&path, |_| {}).unwrap();
    let server = async {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
        scene.ask().await.json(&node);
    };
    let (answer, ()) = tokio::join!(api.node("n"), server);
    answer.unwrap();
    // Trusted by another authority only, it is refused, and the message says what to do.
    let path = scene.kubeconfig_trusting(&plain_certificate("root"), &json!({}));
    let error = refused(&connect(&path, |_| {}).unwrap()).await;
    let expected =
        "is not accepted: it is an authority's own (CA:TRUE), and no trusted authority signed it directly";
    assert!(error.message.contains(expected), "{error}");
}

#[tokio::test]
async fn the_right_authority_is_found_when_its_file_changes() {
    let mut scene = Scene::new().await;
    let path = scene.kubeconfig_trusting(&Authority::new().pem, &json!({}));
    let api = connect(&path, |_| {}).unwrap();
    refused(&api).await;
    scene.write("new.crt", &scene.authority.pem);
    fs::rename(scene.path("new.crt"), scene.path("ca.crt")).unwrap();
    let server = async {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
        scene.ask().await.json(&node);
    };
    let (answer, ()) = tokio::join!(api.node("n"), server);
    answer.unwrap();
}

#[tokio::test]
async fn an_expired_server_certificate_says_so() {
    let faults = Faults {
        is_expired: true,
        ..Faults::default()
    };
    let scene = Scene::with(faults).await;
    let error = refused(&scene.client()).await;
    assert!(
        error.message.contains("expired at 2021-01-01T00:00:00Z"),
        "{error}"
    );
    assert!(error.message.contains("this node's clock says 20"), "{error}");
}

#[tokio::test]
async fn a_certificate_for_another_name_says_so() {
    let faults = Faults {
        host: "elsewhere.example",
        ..Faults::default()
    };
    let mut scene = Scene::with(faults).await;
    let error = refused(&scene.client()).await;
    assert!(error.message.contains("is not for 127.0.0.1"), "{error}");
    assert!(error.message.contains("elsewhere.example"), "{error}");

    // The kubeconfig may know better.
    let path = scene.kubeconfig(&json!({}));
    let text = fs::read_to_string(&path).unwrap();
    let text = text.replace(
        r#""server":"#,
        r#""tls-server-name":"elsewhere.example","server":"#,
    );
    fs::write(&path, text).unwrap();
    let api = connect(&path, |_| {}).unwrap();
    let server = async {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
        scene.ask().await.json(&node);
    };
    let (answer, ()) = tokio::join!(api.node("n"), server);
    answer.unwrap();
}

#[tokio::test]
async fn without_verification_anybody_is_believed() {
    let faults = Faults {
        is_expired: true,
        ..Faults::default()
    };
    let mut scene = Scene::with(faults).await;
    let path = scene.kubeconfig(&json!({}));
    let text = fs::read_to_string(&path).unwrap();
    let authority = format!(r#""certificate-authority":"{}""#, scene.path("ca.crt").display());
    assert!(text.contains(&authority), "{text}");
    fs::write(
        &path,
        text.replace(&authority, r#""insecure-skip-tls-verify":true"#),
    )
    .unwrap();
    let api = connect(&path, |_| {}).unwrap();
    let server = async {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
        scene.ask().await.json(&node);
    };
    let (answer, ()) = tokio::join!(api.node("n"), server);
    answer.unwrap();
}

#[tokio::test]
async fn a_port_without_tls_says_so() {
    let scene = Scene::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let plain = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 64]).await;
        stream
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .await
            .unwrap();
        stream.shutdown().await.unwrap();
    });
    let path = scene.kubeconfig(&json!({}));
    let text = fs::read_to_string(&path).unwrap();
    fs::write(
        &path,
        text.replace(&scene.address.to_string(), &address.to_string()),
    )
    .unwrap();
    let error = refused(&connect(&path, |_| {}).unwrap()).await;
    assert!(error.message.contains("does not speak TLS"), "{error}");
    plain.await.unwrap();
}

#[tokio::test]
async fn a_kubeconfig_with_a_bad_authority_names_it() {
    let scene = Scene::new().await;
    let path = scene.kubeconfig_trusting("no certificate at all", &json!({}));
    let error = connect(&path, |_| {}).unwrap_err().to_string();
    assert!(
        error.contains("clusters[c].cluster.certificate-authority: there is no certificate in it"),
        "{error}"
    );
}

/// Takes one connection to the server.
async fn lead(mut client: impl AsyncRead + AsyncWrite + Unpin, server: SocketAddr) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    assert!(
        head.starts_with(&format!("CONNECT {server} HTTP/1.1\r\n")),
        "{head}"
    );
    assert!(
        head.to_lowercase().contains("proxy-authorization: basic dtpw"),
        "{head}"
    );
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
    let mut server = tokio::net::TcpStream::connect(server).await.unwrap();
    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
}

/// Writes a kubeconfig that leads through this proxy.
fn kubeconfig_through(scene: &Scene, proxy: &str) -> PathBuf {
    let path = scene.kubeconfig(&json!({}));
    let text = fs::read_to_string(&path).unwrap();
    let text = text.replace(r#""server":"#, &format!(r#""proxy-url":"{proxy}","server":"#));
    fs::write(&path, text).unwrap();
    path
}

#[tokio::test]
async fn a_proxy_is_gone_through() {
    let mut scene = Scene::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = listener.local_addr().unwrap();
    let server_address = scene.address;
    let proxied = tokio::spawn(async move {
        let (client, _) = listener.accept().await.unwrap();
        lead(client, server_address).await;
    });
    let path = kubeconfig_through(&scene, &format!("http://u:p@{proxy}"));
    let api = connect(&path, |_| {}).unwrap();
    let server = async {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
        scene.ask().await.json(&node);
    };
    let (answer, ()) = tokio::join!(api.node("n"), server);
    answer.unwrap();
    proxied.abort();
}

#[tokio::test]
async fn a_proxy_over_tls_is_gone_through_where_its_certificate_holds() {
    let mut scene = Scene::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server_address = scene.address;
    let pair = scene.authority.server("localhost", false);
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap(),
        )
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let proxied = tokio::spawn(async move {
        loop {
            let (client, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                if let Ok(client) = acceptor.accept(client).await {
                    lead(client, server_address).await;
                }
            });
        }
    });
    let path = kubeconfig_through(&scene, &format!("https://u:p@localhost:{port}"));
    let api = connect(&path, |_| {}).unwrap();
    let server = async {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
        let ask = scene.ask().await;
        assert!(ask.is_http2);
        ask.json(&node);
    };
    let (answer, ()) = tokio::join!(api.node("n"), server);
    answer.unwrap();
    // The same proxy under a name that is not in its certificate.
    let path = kubeconfig_through(&scene, &format!("https://u:hunter2@127.0.0.1:{port}"));
    let api = connect(&path, |_| {}).unwrap();
    let error = api.node("n").await.unwrap_err();
    assert_eq!(error.kind, ApiErrorKind::Tls);
    let expected = format!("the certificate of the proxy https://127.0.0.1:{port}/ is not for 127.0.0.1");
    assert!(error.message.starts_with(&expected), "{error}");
    proxied.abort();
}
