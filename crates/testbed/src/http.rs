//! One HTTP exchange at a time with a server on this machine or in a pod: enough to push an image and to ask a test server.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, Result};

const DEADLINE: Duration = Duration::from_secs(30);

/// What to send.
pub struct Request<'a> {
    pub method: &'a str,
    pub path: &'a str,
    pub headers: Vec<(&'a str, String)>,
    pub body: &'a [u8],
}

/// What came back.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    /// The value of a header, whatever the spelling of its name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Asks for a path with GET.
pub fn get(address: &str, path: &str) -> Result<Response> {
    exchange(
        address,
        &Request {
            method: "GET",
            path,
            headers: Vec::new(),
            body: &[],
        },
    )
}

/// Sends a request to `host:port` on a connection of its own.
pub fn exchange(address: &str, request: &Request<'_>) -> Result<Response> {
    let target = address
        .to_socket_addrs()?
        .next()
        .with_context(|| format!("{address} is no address"))?;
    let mut stream =
        TcpStream::connect_timeout(&target, DEADLINE).with_context(|| format!("connect to {address}"))?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.set_write_timeout(Some(DEADLINE))?;
    let headers: String = request
        .headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    // HTTP/1.0: the answer ends with the connection and comes in one piece.
    let head = format!(
        "{} {} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n",
        request.method,
        request.path,
        request.body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(request.body)?;
    let mut answer = Vec::new();
    stream
        .read_to_end(&mut answer)
        .with_context(|| format!("read the answer of {address}"))?;
    parse(&answer).with_context(|| format!("{address} does not speak HTTP"))
}

fn parse(answer: &[u8]) -> Option<Response> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect();
    Some(Response {
        status,
        headers,
        body: answer[end + 4..].to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_taken_apart() {
        let answer =
            parse(b"HTTP/1.1 202 Accepted\r\nLocation: /v2/x?a=b\r\nEmpty:\r\n\r\nbody\r\n\r\nmore").unwrap();
        assert_eq!(answer.status, 202);
        assert_eq!(answer.header("location"), Some("/v2/x?a=b"));
        assert_eq!(answer.header("empty"), Some(""));
        assert_eq!(answer.text(), "body\r\n\r\nmore");
        assert!(parse(b"SSH-2.0-x\r\n").is_none());
        assert!(parse(b"\r\n\r\n").is_none());
    }
}
