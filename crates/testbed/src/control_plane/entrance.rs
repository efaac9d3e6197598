//! One more address of the API server: whatever comes there is passed on, byte for byte. Nodes with a network of their own cannot
//! reach the machine's loopback, which is all that the API server listens on.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use tokio::net::{TcpListener, TcpStream};

/// Passes connections on as long as the test's runtime lives. Port 0 takes any; the answer has the one that it is.
pub(super) async fn open(from: SocketAddr, to: SocketAddr) -> Result<SocketAddr> {
    let listener = TcpListener::bind(from)
        .await
        .with_context(|| format!("listen on {from}"))?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(pass_on(client, to));
        }
    });
    Ok(address)
}

/// A server that is away is one that closes the connection at once.
async fn pass_on(mut client: TcpStream, to: SocketAddr) {
    if let Ok(mut server) = TcpStream::connect(to).await {
        // Either side going away ends it, and the other one sees that.
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    }
}
