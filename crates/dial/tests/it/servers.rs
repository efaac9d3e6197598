//! Servers of the tests' own, each on a port that the kernel chose.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use rubelet_ports::{HttpCall, HttpPurpose, HttpScheme, TcpCall};
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};

/// Gives every connection to `serve`, with its number.
pub(crate) async fn server<F>(serve: impl Fn(usize, TcpStream) -> F + Send + 'static) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        for number in 0.. {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(serve(number, stream));
        }
    });
    address
}

/// The head of a request, as it came.
pub(crate) async fn read_head(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        let byte = stream.read_u8().await;
        match byte {
            Ok(byte) => bytes.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(bytes).unwrap()
}

/// What was asked, in order.
#[derive(Clone, Default)]
pub(crate) struct Heads(Arc<Mutex<Vec<String>>>);

impl Heads {
    pub(crate) fn add(&self, head: String) {
        self.0.lock().unwrap().push(head);
    }

    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

pub(crate) fn tcp(host: &str, port: u16, timeout: Duration) -> TcpCall {
    TcpCall {
        pod: "u".into(),
        host: host.to_owned(),
        port,
        timeout,
    }
}

pub(crate) fn call(address: SocketAddr, target: &str) -> HttpCall {
    let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    HttpCall {
        pod: "u".into(),
        scheme: HttpScheme::Http,
        host: address.ip().to_string(),
        port: address.port(),
        target: target.to_owned(),
        headers: vec![
            header("User-Agent", HttpPurpose::Probe.user_agent()),
            header("Accept", "*/*"),
        ],
        host_header: None,
        timeout: Some(Duration::from_secs(5)),
    }
}
