//! A way to the API server that takes time: what goes through it arrives later, in order, in both directions.
//!
//! It delays and does not limit: any number of bytes may be under way, as on a long line.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

/// Pieces under way in one direction; far more than what a kubelet says within a delay.
const PIECES_UNDER_WAY: usize = 4096;
const PIECE_BYTES: usize = 16 << 10;

/// A listening relay. Dropping it cuts every connection.
pub(super) struct Relay {
    address: SocketAddr,
    acceptor: JoinHandle<()>,
}

impl Relay {
    /// Every connection goes on to `target`, each direction late by `delay`.
    pub(super) async fn start(target: SocketAddr, delay: Duration) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .context("listen for those who take the long way")?;
        let address = listener.local_addr()?;
        let acceptor = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(async move {
                    // Without a server the client sees its connection closed.
                    if let Ok(server) = TcpStream::connect(target).await {
                        connect(client, server, delay).await;
                    }
                });
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self { address, acceptor })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

async fn connect(client: TcpStream, server: TcpStream, delay: Duration) {
    // The delay is ours alone.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::join!(
        carry(from_client, to_server, delay),
        carry(from_server, to_client, delay),
    );
}

async fn carry(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, delay: Duration) {
    let (sender, mut pieces) = mpsc::channel::<(Instant, Vec<u8>)>(PIECES_UNDER_WAY);
    let reading = async move {
        let mut buffer = vec![0; PIECE_BYTES];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            let piece = (Instant::now() + delay, buffer[..length].to_vec());
            if sender.send(piece).await.is_err() {
                return;
            }
        }
    };
    let writing = async move {
        while let Some((due, piece)) = pieces.recv().await {
            sleep_until(due).await;
            if to.write_all(&piece).await.is_err() {
                return;
            }
        }
        let _ = to.shutdown().await;
    };
    tokio::join!(reading, writing);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_said_arrives_whole_and_not_before_its_time() {
        let echo = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let target = echo.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = echo.accept().await.unwrap();
            let (mut from, mut to) = stream.split();
            tokio::io::copy(&mut from, &mut to).await.unwrap();
        });
        let delay = Duration::from_millis(40);
        let relay = Relay::start(target, delay).await.unwrap();
        let mut client = TcpStream::connect(relay.address()).await.unwrap();
        let words: Vec<u8> = (0..PIECE_BYTES * 3).map(|number| number as u8).collect();
        let begin = Instant::now();
        client.write_all(&words).await.unwrap();
        client.shutdown().await.unwrap();
        let mut heard = Vec::new();
        client.read_to_end(&mut heard).await.unwrap();
        assert!(
            begin.elapsed() >= delay * 2,
            "it came after {:?}",
            begin.elapsed()
        );
        assert!(heard == words, "{} of {} bytes", heard.len(), words.len());
    }
}
