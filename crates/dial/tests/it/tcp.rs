//! Plain connections, and what is left of them.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rubelet_dial::NetworkDialer;
use rubelet_ports::Dialer;
use tokio::io::AsyncReadExt as _;
use tokio::sync::mpsc;

use crate::servers::{server, tcp};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_connection_ends_in_order() {
    let (ends, mut end) = mpsc::channel(8);
    let address = server(move |_, mut stream| {
        let ends = ends.clone();
        async move {
            let read = stream.read(&mut [0; 8]).await;
            ends.send(read.map_err(|error| error.kind())).await.unwrap();
        }
    })
    .await;
    let dialer = NetworkDialer::new();
    dialer
        .connect(&tcp("127.0.0.1", address.port(), SECOND))
        .await
        .unwrap();
    assert_eq!(end.recv().await, Some(Ok(0)), "the server reads an orderly end");
    // Without a host it is this machine.
    dialer.connect(&tcp("", address.port(), SECOND)).await.unwrap();
    dialer
        .connect(&tcp("localhost", address.port(), 20 * SECOND))
        .await
        .unwrap();
}

#[tokio::test]
async fn no_connection_is_told() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let dialer = NetworkDialer::new();
    let refused = dialer.connect(&tcp("127.0.0.1", port, SECOND)).await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        format!("dial tcp 127.0.0.1:{port}: connect: connection refused")
    );
    let nowhere = dialer
        .connect(&tcp("no-such-host.invalid", 1, 60 * SECOND))
        .await
        .unwrap_err();
    assert!(
        nowhere.to_string().contains("lookup no-such-host.invalid"),
        "{nowhere}"
    );
}

/// A full queue of a server that accepts nothing drops what comes, so that a connection hangs.
#[tokio::test]
async fn a_connection_has_the_timeout() {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut queue = Vec::new();
    let short = Duration::from_millis(200);
    let begun = Instant::now();
    let text = loop {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "every connection is taken"
        );
        // Those that are held open fill the queue.
        match tokio::time::timeout(short, tokio::net::TcpStream::connect(address)).await {
            Ok(stream) => queue.push(stream.unwrap()),
            Err(_) => {
                let dialer = NetworkDialer::new();
                break dialer
                    .connect(&tcp("127.0.0.1", address.port(), short))
                    .await
                    .unwrap_err();
            }
        }
    };
    assert_eq!(text.to_string(), format!("dial tcp {address}: i/o timeout"));
}

/// The side that closes first would keep its port in TIME-WAIT for a minute.
#[tokio::test]
async fn no_port_is_left_behind() {
    let address = server(|_, mut stream| async move {
        let _ = stream.read(&mut [0; 8]).await;
    })
    .await;
    let dialer = NetworkDialer::new();
    for _ in 0..200 {
        dialer
            .connect(&tcp("127.0.0.1", address.port(), SECOND))
            .await
            .unwrap();
    }
    let begun = Instant::now();
    while let left @ 1.. = connections_to(address) {
        assert!(begun.elapsed() < 10 * SECOND, "{left} connections are left");
        tokio::task::yield_now().await;
    }
}

/// Of our side, in whatever state.
fn connections_to(address: SocketAddr) -> usize {
    let wanted = format!("0100007F:{:04X}", address.port());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    table
        .lines()
        .filter(|line| line.split_whitespace().nth(2) == Some(wanted.as_str()))
        .count()
}
