//! A unix socket on the host whose connections go on to a loopback port: clients of the runtime speak unix sockets only.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};

const CONNECT_DEADLINE: Duration = Duration::from_secs(10);

pub(super) struct Relay {
    socket: PathBuf,
    stop: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
}

impl Relay {
    pub(super) fn start(socket: &Path, port: u16) -> Result<Self> {
        let listener =
            UnixListener::bind(socket).with_context(|| format!("listen on {}", socket.display()))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let target = SocketAddr::from(([127, 0, 0, 1], port));
        let acceptor = std::thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                // A node that is off refuses; the client then sees its connection closed, as from a runtime that is down.
                std::thread::spawn(move || {
                    if let Ok(server) = TcpStream::connect_timeout(&target, CONNECT_DEADLINE) {
                        carry(client, server);
                    }
                });
            }
        });
        Ok(Self {
            socket: socket.to_owned(),
            stop,
            acceptor: Some(acceptor),
        })
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes the acceptor. If that fails it is gone already.
        let _ = UnixStream::connect(&self.socket);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        let _ = fs::remove_file(&self.socket);
    }
}

/// Copies both ways until either side is done.
fn carry(client: UnixStream, server: TcpStream) {
    let _ = server.set_nodelay(true);
    let (Ok(mut from_client), Ok(mut to_server)) = (client.try_clone(), server.try_clone()) else {
        return;
    };
    let upstream = std::thread::spawn(move || {
        copy(&mut from_client, &mut to_server);
        let _ = to_server.shutdown(Shutdown::Write);
    });
    let (mut from_server, mut to_client) = (server, client);
    copy(&mut from_server, &mut to_client);
    let _ = to_client.shutdown(Shutdown::Both);
    let _ = from_server.shutdown(Shutdown::Both);
    let _ = upstream.join();
}

fn copy(from: &mut impl Read, to: &mut impl Write) {
    // Either side going away ends the copy; the caller closes both, and the client sees that.
    let _ = std::io::copy(from, to);
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn bytes_pass_both_ways_and_closing_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Relay::start(&dir.path().join("s"), server.local_addr().unwrap().port()).unwrap();
        let mut client = UnixStream::connect(relay.socket()).unwrap();
        let (mut peer, _) = server.accept().unwrap();
        client.write_all(b"question").unwrap();
        let mut asked = [0; 8];
        peer.read_exact(&mut asked).unwrap();
        assert_eq!(&asked, b"question");
        peer.write_all(b"answer").unwrap();
        drop(peer);
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "answer");
    }

    #[test]
    fn a_closed_port_closes_the_client_and_the_socket_goes_with_the_relay() {
        let dir = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let relay = Relay::start(&dir.path().join("s"), port).unwrap();
        let mut client = UnixStream::connect(relay.socket()).unwrap();
        assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
        let socket = relay.socket().to_owned();
        drop(relay);
        assert!(!socket.exists());
    }
}
