//! gRPC's health check.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Response};
use rubelet_dial::NetworkDialer;
use rubelet_ports::{Dialer, GrpcCall, GrpcHealth};
use tokio::io::AsyncWriteExt as _;

use crate::servers::{Heads, read_head, server};

/// What a server says to a check.
#[derive(Clone, Copy)]
enum Reply {
    Status(u8),
    Error(u32, &'static str),
    Http(u16),
    Nothing,
}

async fn grpc_server(reply: Reply, heads: Heads) -> SocketAddr {
    server(move |_, stream| {
        let heads = heads.clone();
        async move {
            let Ok(mut connection) = h2::server::handshake(stream).await else {
                return;
            };
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                let about = request.headers();
                heads.add(format!(
                    "{} {} {:?} {:?}",
                    request.method(),
                    request.uri().path(),
                    about["content-type"],
                    about["user-agent"]
                ));
                let head = Response::builder().header("content-type", "application/grpc");
                match reply {
                    Reply::Status(status) => {
                        let mut body = respond.send_response(head.body(()).unwrap(), false).unwrap();
                        let message = [0, 0, 0, 0, 2, 8, status];
                        body.send_data(Bytes::copy_from_slice(&message), false).unwrap();
                        let mut trailers = HeaderMap::new();
                        trailers.insert("grpc-status", "0".parse().unwrap());
                        body.send_trailers(trailers).unwrap();
                    }
                    Reply::Error(code, message) => {
                        let head = head.header("grpc-status", code).header("grpc-message", message);
                        respond.send_response(head.body(()).unwrap(), true).unwrap();
                    }
                    Reply::Http(code) => {
                        let head = Response::builder().status(code).body(()).unwrap();
                        respond.send_response(head, true).unwrap();
                    }
                    Reply::Nothing => std::future::pending::<()>().await,
                }
            }
        }
    })
    .await
}

async fn check(address: SocketAddr, timeout: Duration) -> GrpcHealth {
    let call = GrpcCall {
        pod: "u".into(),
        host: "127.0.0.1".to_owned(),
        port: address.port(),
        service: "test".to_owned(),
        timeout,
    };
    NetworkDialer::new().grpc_health(&call).await
}

fn unhealthy(health: GrpcHealth) -> String {
    match health {
        GrpcHealth::Serving => panic!("it is serving"),
        GrpcHealth::Unhealthy { message } | GrpcHealth::NoPlace { message } => message,
    }
}

#[tokio::test]
async fn answers_are_understood() {
    let heads = Heads::default();
    let address = grpc_server(Reply::Status(1), heads.clone()).await;
    assert_eq!(check(address, Duration::from_secs(5)).await, GrpcHealth::Serving);
    assert_eq!(
        heads.all(),
        ["POST /grpc.health.v1.Health/Check \"application/grpc\" \"kube-probe/1.37\""]
    );
    let tell = async |reply: Reply, expected: &str| {
        let address = grpc_server(reply, Heads::default()).await;
        assert_eq!(unhealthy(check(address, Duration::from_secs(5)).await), expected);
    };
    tell(
        Reply::Status(2),
        "service unhealthy (responded with \"NOT_SERVING\")",
    )
    .await;
    tell(Reply::Status(0), "service unhealthy (responded with \"UNKNOWN\")").await;
    tell(
        Reply::Error(12, "unknown%20method"),
        "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): unknown method",
    )
    .await;
    tell(
        Reply::Error(5, "unknown service"),
        "error: health rpc probe failed: rpc error: code = NotFound desc = unknown service",
    )
    .await;
    tell(
        Reply::Http(404),
        "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): unexpected HTTP status \
         code received from server: 404 (Not Found)",
    )
    .await;
}

#[tokio::test]
async fn silence_has_the_timeout() {
    let address = grpc_server(Reply::Nothing, Heads::default()).await;
    let text = unhealthy(check(address, Duration::from_millis(200)).await);
    assert_eq!(text, "timeout: health rpc did not complete within 200ms");
}

#[tokio::test]
async fn nobody_listens() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    // No try fits in any more: it ends with the first one's failure, not with the timeout.
    let text = unhealthy(check(address, Duration::from_secs(1)).await);
    assert_eq!(
        text,
        format!(
            "error: failed to connect service at \"{address}\": dial tcp {address}: connect: connection refused"
        )
    );
}

#[tokio::test]
async fn other_protocols_are_failures() {
    let address = server(|_, mut stream| async move {
        stream
            .write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            .await
            .unwrap();
        while read_head(&mut stream).await.ends_with('\n') {}
    })
    .await;
    let text = unhealthy(check(address, Duration::from_secs(20)).await);
    assert!(
        text.starts_with("error: health rpc probe failed: rpc error: code = Unavailable"),
        "{text}"
    );
}
