//! The way through proxies. The servers have names that only the proxies know.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use rubelet_fetch::UrlFetcher;
use rubelet_ports::HttpFetcher;
use rubelet_proxy::ProxyEnvironment;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::server::{Server, ok};
use crate::tls::pair_for;

const SERVER: &str = "pods.example";
const PROXY: &str = "localhost";

/// Leads everything to one server.
struct TestProxy {
    port: u16,
    /// What it was asked first on each connection.
    asked: Arc<Mutex<Vec<String>>>,
}

impl TestProxy {
    async fn start(acceptor: Option<TlsAcceptor>, is_socks: bool, server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = SocketAddr::from(([127, 0, 0, 1], server.port));
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let asks = Arc::clone(&asked);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, asks) = (acceptor.clone(), Arc::clone(&asks));
                tokio::spawn(async move {
                    match acceptor {
                        Some(acceptor) => lead(acceptor.accept(stream).await.unwrap(), server, &asks).await,
                        None if is_socks => lead_socks(stream, server, &asks).await,
                        None => lead(stream, server, &asks).await,
                    }
                });
            }
        });
        Self { port, asked }
    }

    fn environment(&self, scheme: &str) -> ProxyEnvironment {
        let proxy = format!("{scheme}://user:hunter2@{PROXY}:{}", self.port);
        ProxyEnvironment {
            https_proxy: proxy.clone(),
            http_proxy: proxy,
            no_proxy: String::new(),
        }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

async fn lead(
    mut client: impl AsyncRead + AsyncWrite + Unpin,
    server: SocketAddr,
    asks: &Mutex<Vec<String>>,
) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.unwrap());
    }
    let mut server = TcpStream::connect(server).await.unwrap();
    if head.starts_with(b"CONNECT ") {
        client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
    } else {
        server.write_all(&head).await.unwrap();
    }
    asks.lock().unwrap().push(String::from_utf8(head).unwrap());
    let _ = copy_bidirectional(&mut client, &mut server).await;
}

async fn lead_socks(mut client: TcpStream, server: SocketAddr, asks: &Mutex<Vec<String>>) {
    let mut greeting = [0; 2];
    client.read_exact(&mut greeting).await.unwrap();
    client.read_exact(&mut vec![0; greeting[1].into()]).await.unwrap();
    // With user and password.
    client.write_all(&[5, 2]).await.unwrap();
    let word = async |client: &mut TcpStream| {
        let mut word = vec![0; client.read_u8().await.unwrap().into()];
        client.read_exact(&mut word).await.unwrap();
        String::from_utf8(word).unwrap()
    };
    assert_eq!(client.read_u8().await.unwrap(), 1);
    let (user, password) = (word(&mut client).await, word(&mut client).await);
    client.write_all(&[1, 0]).await.unwrap();
    let mut request = [0; 4];
    client.read_exact(&mut request).await.unwrap();
    assert_eq!(request, [5, 1, 0, 3], "connect to a name");
    let host = word(&mut client).await;
    let port = client.read_u16().await.unwrap();
    asks.lock()
        .unwrap()
        .push(format!("{user} {password} {host}:{port}"));
    client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await.unwrap();
    let mut server = TcpStream::connect(server).await.unwrap();
    let _ = copy_bidirectional(&mut client, &mut server).await;
}

const BASIC: &str = "proxy-authorization: basic dxnlcjpodw50zxiy";

#[tokio::test]
async fn a_document_over_http_is_asked_of_the_proxy() {
    for scheme in ["http", "https"] {
        let server = Server::start(None, |_| Some(ok(b"pods"))).await;
        let (acceptor, fetcher) = pair_for(&[PROXY]);
        let acceptor = (scheme == "https").then_some(acceptor);
        let proxy = TestProxy::start(acceptor, false, &server).await;
        let fetcher = fetcher.through(proxy.environment(scheme));
        let url = format!("http://me:word@{SERVER}/a/b?c=d");
        assert_eq!(fetcher.get(&url, &[], 99).await.unwrap(), b"pods", "{scheme}");
        let asked = proxy.asked()[0].to_lowercase();
        assert!(
            asked.starts_with("get http://pods.example/a/b?c=d http/1.1\r\n"),
            "{asked}"
        );
        assert!(asked.contains("\r\nhost: pods.example\r\n"), "{asked}");
        assert!(asked.contains(BASIC), "{asked}");
        assert!(asked.contains("\r\nauthorization: basic "), "{asked}");
    }
}

#[tokio::test]
async fn for_a_document_over_https_the_proxy_is_asked_for_a_connection() {
    for scheme in ["http", "https"] {
        let (acceptor, fetcher) = pair_for(&[PROXY, SERVER]);
        let server = Server::start(Some(acceptor.clone()), |_| Some(ok(b"pods"))).await;
        let acceptor = (scheme == "https").then_some(acceptor);
        let proxy = TestProxy::start(acceptor, false, &server).await;
        let fetcher = fetcher.through(proxy.environment(scheme));
        let url = format!("https://{SERVER}/a");
        let headers = [("X-Key".to_owned(), "a secret".to_owned())];
        assert_eq!(
            fetcher.get(&url, &headers, 99).await.unwrap(),
            b"pods",
            "{scheme}"
        );
        let asked = proxy.asked()[0].to_lowercase();
        assert!(
            asked.starts_with("connect pods.example:443 http/1.1\r\n"),
            "{asked}"
        );
        assert!(asked.contains(BASIC) && !asked.contains("a secret"), "{asked}");
        let asked = server.asked()[0].to_lowercase();
        assert!(
            asked.starts_with("get /a http/1.1\r\n") && asked.contains("a secret"),
            "{asked}"
        );
        assert!(!asked.contains("proxy-authorization"), "{asked}");
    }
}

#[tokio::test]
async fn a_socks_proxy_connects_to_the_name() {
    let server = Server::start(None, |_| Some(ok(b"pods"))).await;
    let proxy = TestProxy::start(None, true, &server).await;
    let fetcher = UrlFetcher::new(proxy.environment("socks5"));
    let url = format!("http://{SERVER}:8080/a");
    assert_eq!(fetcher.get(&url, &[], 99).await.unwrap(), b"pods");
    assert_eq!(proxy.asked(), ["user hunter2 pods.example:8080"]);
    assert!(server.asked()[0].starts_with("GET /a HTTP/1.1\r\n"));
}

#[tokio::test]
async fn this_machine_and_exceptions_are_reached_without_the_proxy() {
    let server = Server::start(None, |_| Some(ok(b"pods"))).await;
    let environment = ProxyEnvironment {
        http_proxy: "http://proxy.invalid:1".to_owned(),
        ..ProxyEnvironment::default()
    };
    let fetcher = UrlFetcher::new(environment);
    assert_eq!(fetcher.get(&server.url("/"), &[], 99).await.unwrap(), b"pods");
}

#[tokio::test]
async fn a_proxy_that_is_not_trusted_or_not_usable_is_named_without_its_password() {
    let server = Server::start(None, |_| Some(ok(b"pods"))).await;
    let (acceptor, _) = pair_for(&[PROXY]);
    let (_, stranger) = pair_for(&[PROXY]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        assert!(acceptor.accept(stream).await.is_err());
    });
    let environment = |proxy: String| ProxyEnvironment {
        http_proxy: proxy,
        ..ProxyEnvironment::default()
    };
    let proxy = format!("https://user:hunter2@{PROXY}:{port}");
    let stranger = stranger.through(environment(proxy));
    let url = format!("http://{SERVER}/");
    let error = stranger.get(&url, &[], 99).await.unwrap_err().to_string();
    let expected = format!("http://{SERVER}/: the proxy https://{PROXY}:{port}/: no TLS connection: ");
    assert!(
        error.starts_with(&expected) && !error.contains("hunter2"),
        "{error}"
    );
    let fetcher = UrlFetcher::new(environment("ftp://user:hunter2@p".to_owned()));
    let error = fetcher.get(&url, &[], 99).await.unwrap_err().to_string();
    assert!(
        error.contains("HTTP_PROXY is neither http") && !error.contains("hunter2"),
        "{error}"
    );
    assert!(server.asked().is_empty());
}
