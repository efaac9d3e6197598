//! HTTPS with certificates that no authority signed.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use rubelet_dial::NetworkDialer;
use rubelet_ports::{Dialer, HttpCall, HttpCallError, HttpScheme};
use tokio::io::AsyncWriteExt as _;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;

use crate::servers::{Heads, call, read_head, server};

fn acceptor(protocols: &[&str]) -> TlsAcceptor {
    let signed = rcgen::generate_simple_self_signed(["other.example".to_owned()]).unwrap();
    let key = PrivatePkcs8KeyDer::from(signed.signing_key.serialize_der());
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![signed.cert.der().clone()], key.into())
        .unwrap();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    TlsAcceptor::from(Arc::new(config))
}

fn https(address: SocketAddr, target: &str) -> HttpCall {
    let mut call = call(address, target);
    call.scheme = HttpScheme::Https;
    call
}

#[tokio::test]
async fn any_certificate_will_do() {
    let acceptor = acceptor(&["http/1.1"]);
    let heads = Heads::default();
    let seen = heads.clone();
    let address = server(move |_, stream| {
        let (acceptor, seen) = (acceptor.clone(), seen.clone());
        async move {
            let mut stream = acceptor.accept(stream).await.unwrap();
            seen.add(read_head(&mut stream).await);
            let reply = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
            stream.write_all(reply).await.unwrap();
            stream.shutdown().await.unwrap();
        }
    })
    .await;
    let answer = NetworkDialer::new()
        .http_get(&https(address, "/x"))
        .await
        .unwrap();
    assert_eq!((answer.status, answer.body.as_slice()), (200, b"ok".as_slice()));
    assert!(heads.all()[0].starts_with("GET /x HTTP/1.1\r\n"));
}

#[tokio::test]
async fn servers_that_prefer_http_2_get_it() {
    let acceptor = acceptor(&["h2"]);
    let address = server(move |_, stream| {
        let acceptor = acceptor.clone();
        async move {
            let stream = acceptor.accept(stream).await.unwrap();
            let mut connection = h2::server::handshake(stream).await.unwrap();
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                let text = format!("{} {}", request.method(), request.uri());
                let head = http::Response::builder().status(203).body(()).unwrap();
                let mut body = respond.send_response(head, false).unwrap();
                body.send_data(Bytes::from(text), true).unwrap();
            }
        }
    })
    .await;
    let answer = NetworkDialer::new()
        .http_get(&https(address, "/x?y"))
        .await
        .unwrap();
    let text = String::from_utf8(answer.body).unwrap();
    assert_eq!((answer.status, text), (203, format!("GET https://{address}/x?y")));
}

#[tokio::test]
async fn plain_http_is_recognised() {
    let address = server(|_, mut stream| async move {
        stream
            .write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
            .await
            .unwrap();
        // Unread bytes at the end would be a reset.
        while read_head(&mut stream).await.ends_with('\n') {}
    })
    .await;
    let error = NetworkDialer::new()
        .http_get(&https(address, "/"))
        .await
        .unwrap_err();
    assert_eq!(
        error,
        HttpCallError::NoAnswer {
            message: format!("Get \"https://{address}/\": http: server gave HTTP response to HTTPS client"),
            spoke_plain_http: true,
        }
    );
}

#[tokio::test]
async fn other_nonsense_is_a_failure() {
    let address = server(|_, mut stream| async move {
        stream.write_all(b"220 mail.example ESMTP\r\n").await.unwrap();
        while read_head(&mut stream).await.ends_with('\n') {}
    })
    .await;
    let error = NetworkDialer::new()
        .http_get(&https(address, "/"))
        .await
        .unwrap_err();
    assert!(
        matches!(&error, HttpCallError::NoAnswer { message, spoke_plain_http: false } if message.contains("tls: ")),
        "{error:?}"
    );
}
