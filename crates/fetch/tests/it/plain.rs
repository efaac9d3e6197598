//! HTTP: bodies, redirects, limits, deadlines, and what errors say.

use std::sync::Arc;
use std::time::Duration;

use rubelet_fetch::UrlFetcher;
use rubelet_ports::{FetchError, HttpFetcher};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::server::{Server, ok, redirect};

fn headers() -> Vec<(String, String)> {
    vec![
        ("X-Key".to_owned(), "a secret".to_owned()),
        ("X-Key".to_owned(), "another".to_owned()),
        ("Host".to_owned(), "ignored".to_owned()),
    ]
}

fn impatient() -> UrlFetcher {
    let config = ClientConfig::builder()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    UrlFetcher::with(Arc::new(config), Duration::from_millis(200))
}

async fn get(server: &Server, path: &str, limit_bytes: u64) -> Result<Vec<u8>, FetchError> {
    UrlFetcher::default()
        .get(&server.url(path), &headers(), limit_bytes)
        .await
}

#[tokio::test]
async fn a_document_is_read_with_its_headers() {
    let server = Server::start(None, |_| Some(ok(b"a document"))).await;
    assert_eq!(get(&server, "/pods?x=y", 10).await.unwrap(), b"a document");
    let asked = server.asked().remove(0).to_lowercase();
    assert!(asked.starts_with("get /pods?x=y http/1.1\r\n"), "{asked}");
    for line in [
        format!("host: 127.0.0.1:{}", server.port),
        "x-key: a secret".to_owned(),
        "x-key: another".to_owned(),
        "user-agent: rubelet".to_owned(),
    ] {
        assert!(asked.contains(&format!("\r\n{line}\r\n")), "{line} in {asked}");
    }
    assert!(!asked.contains("ignored"));
}

#[tokio::test]
async fn a_body_may_come_in_chunks_or_until_the_end() {
    let answers = [
        &b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"[..],
        b"HTTP/1.0 200 OK\r\n\r\nabcde",
    ];
    for answer in answers {
        let server = Server::start(None, move |_| Some(answer.to_vec())).await;
        assert_eq!(get(&server, "/", 5).await.unwrap(), b"abcde");
        assert!(matches!(
            get(&server, "/", 4).await,
            Err(FetchError::TooLarge { limit_bytes: 4, .. })
        ));
    }
    let server = Server::start(None, |_| Some(ok(b""))).await;
    assert_eq!(
        get(&server, "/", 5).await.unwrap(),
        b"",
        "an empty document is one"
    );
}

#[tokio::test]
async fn redirects_are_followed_and_counted() {
    let server = Server::start(None, |head| {
        let path = head.split(' ').nth(1)?;
        Some(match path.trim_start_matches('/').parse::<u32>() {
            Ok(0) => ok(b"found"),
            Ok(left) => redirect(&format!("{}", left - 1)),
            Err(_) => redirect(""),
        })
    })
    .await;
    assert_eq!(get(&server, "/10", 9).await.unwrap(), b"found");
    assert!(
        server.asked().iter().all(|head| head.contains("a secret")),
        "the same host"
    );
    let error = get(&server, "/11", 9).await.unwrap_err().to_string();
    assert!(error.contains("more than 10 redirects"), "{error}");
    let no_location = Server::start(None, |_| {
        Some(b"HTTP/1.1 301 Moved\r\nContent-Length: 0\r\n\r\n".to_vec())
    })
    .await;
    assert!(matches!(
        get(&no_location, "/", 9).await,
        Err(FetchError::Failed { .. })
    ));
}

#[tokio::test]
async fn another_host_does_not_see_the_headers() {
    let other = Server::start(None, |_| Some(ok(b"from the other"))).await;
    let target = format!("http://localhost:{}/x", other.port);
    let first = Server::start(None, move |_| Some(redirect(&target))).await;
    assert_eq!(get(&first, "/", 99).await.unwrap(), b"from the other");
    assert!(first.asked()[0].contains("a secret"));
    assert!(!other.asked()[0].contains("a secret"), "{}", other.asked()[0]);
}

#[tokio::test]
async fn a_user_in_the_address_is_sent_but_never_shown() {
    let server = Server::start(None, |_| {
        Some(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n".to_vec())
    })
    .await;
    let url = format!("http://me:word@127.0.0.1:{}/a?token=word", server.port);
    let error = UrlFetcher::default().get(&url, &[], 9).await.unwrap_err();
    let shown = format!("http://127.0.0.1:{}/a?…", server.port);
    assert_eq!(
        error,
        FetchError::Status {
            url: shown,
            status: 503
        }
    );
    assert!(
        server.asked()[0]
            .to_lowercase()
            .contains("authorization: basic bwu6d29yza=="),
        "{}",
        server.asked()[0]
    );
}

#[tokio::test]
async fn troubles_are_named_without_secrets() {
    let server = Server::start(None, |_| Some(b"this is no HTTP\r\n\r\n".to_vec())).await;
    let cut = Server::start(None, |_| {
        Some(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nshort".to_vec())
    })
    .await;
    let bad_header = [("X-Key".to_owned(), "a secret\n".to_owned())];
    let bad_name = [("no name".to_owned(), "a secret".to_owned())];
    let url = server.url("/");
    let fetcher = UrlFetcher::default();
    let errors = [
        fetcher.get(&url, &headers(), 9).await.unwrap_err(),
        fetcher.get(&cut.url("/"), &headers(), 999).await.unwrap_err(),
        fetcher.get(&url, &bad_header, 9).await.unwrap_err(),
        fetcher.get(&url, &bad_name, 9).await.unwrap_err(),
        fetcher
            .get("http://127.0.0.1:1/?a%20secret", &headers(), 9)
            .await
            .unwrap_err(),
        fetcher
            .get("gopher://a secret@host", &headers(), 9)
            .await
            .unwrap_err(),
    ];
    for (error, words) in errors.iter().zip([
        "no usable answer",
        "broke off",
        "header \"X-Key\"",
        "\"no name\"",
        "cannot connect",
        "no usable address",
    ]) {
        let text = error.to_string();
        assert!(text.contains(words) && !text.contains("secret"), "{text}");
    }
}

#[tokio::test]
async fn a_silent_server_costs_the_deadline_and_no_connection() {
    let mut server = Server::start(None, |_| None).await;
    let error = impatient()
        .get(&server.url("/?q"), &headers(), 9)
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "http://127.0.0.1:{}/?…: no whole answer within 0.2 s",
            server.port
        )
    );
    let left = server.left.wait_for(|count| *count == 1);
    tokio::time::timeout(Duration::from_secs(20), left)
        .await
        .unwrap()
        .unwrap();
}
