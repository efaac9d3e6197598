//! A server that answers with prepared bytes and remembers what it was asked.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// From the request's head to the raw bytes of the answer; nothing is no answer at all.
pub(crate) type Answer = dyn Fn(&str) -> Option<Vec<u8>> + Send + Sync;

pub(crate) struct Server {
    pub(crate) port: u16,
    asked: Arc<Mutex<Vec<String>>>,
    /// Connections that were closed by the client before an answer.
    pub(crate) left: tokio::sync::watch::Receiver<usize>,
}

impl Server {
    pub(crate) async fn start(
        acceptor: Option<TlsAcceptor>,
        answer: impl Fn(&str) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (leaving, left) = tokio::sync::watch::channel(0);
        let (leaving, answer): (_, Arc<Answer>) = (Arc::new(leaving), Arc::new(answer));
        let remembered = Arc::clone(&asked);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (answer, asked, leaving) =
                    (Arc::clone(&answer), Arc::clone(&remembered), Arc::clone(&leaving));
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let left = match acceptor {
                        None => serve(stream, &*answer, &asked).await,
                        Some(acceptor) => match acceptor.accept(stream).await {
                            Ok(stream) => serve(stream, &*answer, &asked).await,
                            Err(_) => false,
                        },
                    };
                    leaving.send_modify(|count| *count += usize::from(left));
                });
            }
        });
        Self { port, asked, left }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

/// Whether the client left without an answer.
async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    answer: &Answer,
    asked: &Mutex<Vec<String>>,
) -> bool {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return true,
        }
    }
    let head = String::from_utf8(head).unwrap();
    asked.lock().unwrap().push(head.clone());
    match answer(&head) {
        Some(bytes) => {
            // Who does not want all of it may close early.
            let _ = stream.write_all(&bytes).await;
            let _ = stream.shutdown().await;
            false
        }
        None => stream.read_u8().await.is_err(),
    }
}

pub(crate) fn ok(body: &[u8]) -> Vec<u8> {
    let mut answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes();
    answer.extend_from_slice(body);
    answer
}

pub(crate) fn redirect(location: &str) -> Vec<u8> {
    format!("HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n").into_bytes()
}
