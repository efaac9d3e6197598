//! HTTP without TLS.

use std::time::Duration;

use rubelet_dial::NetworkDialer;
use rubelet_ports::{BODY_LIMIT_BYTES, Dialer, HttpAnswer, HttpCallError};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::servers::{Heads, call, read_head, server};

async fn answer(mut stream: TcpStream, text: &str) {
    read_head(&mut stream).await;
    stream.write_all(text.as_bytes()).await.unwrap();
}

fn message(result: Result<HttpAnswer, HttpCallError>) -> String {
    result.expect_err("no answer").to_string()
}

#[tokio::test]
async fn a_get_is_what_servers_know_from_upstream() {
    let heads = Heads::default();
    let seen = heads.clone();
    let address = server(move |_, mut stream| {
        let seen = seen.clone();
        async move {
            seen.add(read_head(&mut stream).await);
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")
                .await
                .unwrap();
        }
    })
    .await;
    let dialer = NetworkDialer::new();
    let answer = dialer.http_get(&call(address, "/healthz?full=1")).await.unwrap();
    assert_eq!((answer.status, answer.body.as_slice()), (200, b"ok".as_slice()));
    let mut special = call(address, "/");
    special.host_header = Some("example.com".to_owned());
    special.headers = vec![
        ("X-Many".to_owned(), "1".to_owned()),
        ("x-many".to_owned(), "2".to_owned()),
        ("Content-Length".to_owned(), "7".to_owned()),
    ];
    dialer.http_get(&special).await.unwrap();
    let [plain, special] = heads.all().try_into().unwrap();
    assert_eq!(
        plain,
        format!(
            "GET /healthz?full=1 HTTP/1.1\r\nHost: {address}\r\nUser-Agent: kube-probe/1.37\r\nAccept: */*\r\n\
             Connection: close\r\n\r\n"
        )
    );
    assert_eq!(
        special,
        "GET / HTTP/1.1\r\nHost: example.com\r\nX-Many: 1\r\nX-Many: 2\r\nConnection: close\r\n\r\n"
    );
}

#[tokio::test]
async fn statuses_are_handed_on() {
    let address = server(|_, stream| async {
        answer(
            stream,
            "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy",
        )
        .await;
    })
    .await;
    let answer = NetworkDialer::new().http_get(&call(address, "/")).await.unwrap();
    assert_eq!((answer.status, answer.body.as_slice()), (503, b"busy".as_slice()));
}

#[tokio::test]
async fn a_head_may_be_long() {
    let check = async |fields: usize, bytes_each: usize, is_answer: bool| {
        let address = server(move |_, stream| async move {
            let field = |number| format!("X-Field-{number}: {}\r\n", "x".repeat(bytes_each));
            let fields: String = (0..fields).map(field).collect();
            answer(
                stream,
                &format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: 2\r\n\r\nok"),
            )
            .await;
        })
        .await;
        let result = NetworkDialer::new().http_get(&call(address, "/")).await;
        assert_eq!(result.is_ok(), is_answer, "{fields} x {bytes_each}: {result:?}");
    };
    check(101, 1, true).await;
    check(900, 1000, true).await;
    check(900, 5000, false).await;
}

#[tokio::test]
async fn a_huge_body_is_not_read() {
    let address = server(|_, mut stream| async move {
        read_head(&mut stream).await;
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 100 << 20);
        stream.write_all(head.as_bytes()).await.unwrap();
        let chunk = vec![b'x'; 1 << 20];
        for _ in 0..100 {
            if stream.write_all(&chunk).await.is_err() {
                return;
            }
        }
        panic!("100 MB were read");
    })
    .await;
    let answer = NetworkDialer::new().http_get(&call(address, "/")).await.unwrap();
    assert_eq!((answer.status, answer.body.len()), (200, BODY_LIMIT_BYTES));
}

#[tokio::test]
async fn slow_servers_have_the_timeout() {
    let address = server(|_, mut stream| async move {
        read_head(&mut stream).await;
        std::future::pending::<()>().await;
    })
    .await;
    let mut slow = call(address, "/x");
    slow.timeout = Some(Duration::from_millis(200));
    let text = message(NetworkDialer::new().http_get(&slow).await);
    assert_eq!(
        text,
        format!(
            "Get \"http://{address}/x\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
        )
    );
}

#[tokio::test]
async fn slow_bodies_have_the_timeout_too() {
    let address = server(|_, mut stream| async move {
        read_head(&mut stream).await;
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nx")
            .await
            .unwrap();
        std::future::pending::<()>().await;
    })
    .await;
    let mut slow = call(address, "/");
    // Time enough for the head to come.
    slow.timeout = Some(Duration::from_secs(2));
    let error = NetworkDialer::new().http_get(&slow).await.unwrap_err();
    assert!(
        matches!(&error, HttpCallError::BrokenBody { message } if message.contains("while reading body")),
        "{error:?}"
    );
}

#[tokio::test]
async fn broken_answers_are_told() {
    let check = async |reply: &'static str, expected: &str| {
        let address = server(move |_, stream| answer(stream, reply)).await;
        let text = message(NetworkDialer::new().http_get(&call(address, "/")).await);
        assert!(text.contains(expected), "{reply:?}: {text}");
    };
    check("", ": EOF").await;
    check("HTTP/1.1 200", ": EOF").await;
    check("SSH-2.0-server\r\n\r\n", "malformed HTTP response").await;
    check(
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
        "unexpected EOF",
    )
    .await;
}

#[tokio::test]
async fn a_reset_is_told() {
    let address = server(|_, mut stream| async move {
        read_head(&mut stream).await;
        stream.set_zero_linger().unwrap();
    })
    .await;
    let text = message(NetworkDialer::new().http_get(&call(address, "/")).await);
    assert!(
        text.starts_with(&format!("Get \"http://{address}/\": read tcp 127.0.0.1:"))
            && text.ends_with(&format!("->{address}: read: connection reset by peer")),
        "{text}"
    );
}

#[tokio::test]
async fn nobody_listens() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let text = message(NetworkDialer::new().http_get(&call(address, "/")).await);
    assert_eq!(
        text,
        format!("Get \"http://{address}/\": dial tcp {address}: connect: connection refused")
    );
}

#[tokio::test]
async fn local_redirects_are_followed() {
    let heads = Heads::default();
    let seen = heads.clone();
    let address = server(move |number, mut stream| {
        let seen = seen.clone();
        async move {
            seen.add(read_head(&mut stream).await);
            let reply = match number {
                0 => "HTTP/1.1 302 Found\r\nLocation: /next?x\r\nContent-Length: 0\r\n\r\n",
                _ => "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            };
            stream.write_all(reply.as_bytes()).await.unwrap();
        }
    })
    .await;
    let mut named = call(address, "/first");
    named.host_header = Some("example.com".to_owned());
    let answer = NetworkDialer::new().http_get(&named).await.unwrap();
    assert_eq!(answer.status, 200);
    let heads = heads.all();
    assert!(
        heads[1].starts_with("GET /next?x HTTP/1.1\r\nHost: example.com\r\n"),
        "{heads:?}"
    );
    assert!(
        heads[1].contains(&format!("Referer: http://{address}/first\r\n")),
        "{heads:?}"
    );
}

#[tokio::test]
async fn redirects_to_others_are_not_followed() {
    for location in [
        "http://192.0.2.1/",
        "https://elsewhere.invalid/x",
        "//elsewhere.invalid/",
    ] {
        let address = server(move |_, stream| async move {
            let reply =
                format!("HTTP/1.1 301 Moved\r\nLocation: {location}\r\nContent-Length: 5\r\n\r\nmoved");
            answer(stream, &reply).await;
        })
        .await;
        let answer = NetworkDialer::new().http_get(&call(address, "/")).await.unwrap();
        assert_eq!(
            (answer.status, answer.body.as_slice()),
            (301, b"moved".as_slice()),
            "{location}"
        );
    }
}

#[tokio::test]
async fn a_redirect_without_a_place_is_an_answer() {
    for reply in [
        "HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 304 Not Modified\r\nLocation: /x\r\n\r\n",
    ] {
        let address = server(move |_, stream| answer(stream, reply)).await;
        let answer = NetworkDialer::new().http_get(&call(address, "/")).await.unwrap();
        assert!((300..400).contains(&answer.status), "{answer:?}");
    }
}

#[tokio::test]
async fn loops_end() {
    let heads = Heads::default();
    let seen = heads.clone();
    let address = server(move |_, mut stream| {
        let seen = seen.clone();
        async move {
            seen.add(read_head(&mut stream).await);
            let reply = "HTTP/1.1 302 Found\r\nLocation: /again\r\nContent-Length: 0\r\n\r\n";
            stream.write_all(reply.as_bytes()).await.unwrap();
        }
    })
    .await;
    let text = message(NetworkDialer::new().http_get(&call(address, "/")).await);
    assert_eq!(text, "Get \"/again\": stopped after 10 redirects");
    assert_eq!(heads.all().len(), 10);
}
