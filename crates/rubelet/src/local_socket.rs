//! One question to the rubelet that runs on this node, over its local socket.
//!
//! Owns the connection, its deadline, and the errors that a person reads. What is asked is the commands' concern.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rubelet_server::{SOCKET_NAME, short_path};
use serde_json::Value;

const DEADLINE: Duration = Duration::from_secs(10);
/// Far above what the texts and records of all pods can add up to; a peer that sends more is not rubelet.
const ANSWER_LIMIT_BYTES: u64 = 1 << 30;

pub(crate) fn ask(root_dir: &Path, path: &str) -> Result<Value> {
    let shown = root_dir.join(SOCKET_NAME);
    let stream = connect(root_dir).map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => anyhow::anyhow!(
            "rubelet does not run here: no process listens on {} (is --root-dir the one it runs with?)",
            shown.display()
        ),
        ErrorKind::PermissionDenied => {
            anyhow::anyhow!("only root may ask: {} cannot be opened", shown.display())
        }
        _ => anyhow::Error::from(error).context(format!("connect to {}", shown.display())),
    })?;
    let answer = exchange(stream, path).with_context(|| format!("ask {}", shown.display()))?;
    let (status, body) =
        parse(&answer).with_context(|| format!("{} does not speak HTTP", shown.display()))?;
    if status != 200 {
        bail!("{}", String::from_utf8_lossy(body).trim_end());
    }
    serde_json::from_slice(body).context("the answer is no JSON")
}

fn connect(root_dir: &Path) -> std::io::Result<UnixStream> {
    let directory = File::open(root_dir)?;
    UnixStream::connect(short_path(&directory, SOCKET_NAME))
}

fn exchange(mut stream: UnixStream, path: &str) -> Result<Vec<u8>> {
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.set_write_timeout(Some(DEADLINE))?;
    // HTTP/1.0: the answer comes in one piece and ends with the connection.
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut answer = Vec::new();
    let read = stream.take(ANSWER_LIMIT_BYTES).read_to_end(&mut answer);
    match read {
        Ok(length) if length as u64 == ANSWER_LIMIT_BYTES => {
            bail!("the answer is longer than {ANSWER_LIMIT_BYTES} bytes: this is not rubelet")
        }
        Ok(_) if answer.is_empty() => bail!("it gave no answer (only root and rubelet's own user get one)"),
        Ok(_) => Ok(answer),
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            bail!("no answer within {} s: rubelet hangs", DEADLINE.as_secs())
        }
        Err(error) => Err(error.into()),
    }
}

fn parse(answer: &[u8]) -> Option<(u16, &[u8])> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = str::from_utf8(&answer[..end]).ok()?;
    let status = head.strip_prefix("HTTP/")?.split(' ').nth(1)?.parse().ok()?;
    Some((status, &answer[end + 4..]))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// What no other program gets may be long: a node can have thousands of pods, and each a text for its last error.
    #[test]
    fn a_long_answer_is_read_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join(SOCKET_NAME)).unwrap();
        let text = "x".repeat(65 << 20);
        let answer = format!("HTTP/1.0 200 OK\r\n\r\n[\"{text}\"]");
        let peer = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream
                .read_exact(&mut [0; b"GET /why HTTP/1.0\r\n\r\n".len()])
                .unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
        });
        let answer = ask(folder.path(), "/why").unwrap();
        peer.join().unwrap();
        assert_eq!(answer[0].as_str().map(str::len), Some(text.len()));
    }

    #[test]
    fn answers_are_taken_apart() {
        let check = |answer: &[u8], expected: Option<(u16, &[u8])>| assert_eq!(parse(answer), expected);
        check(
            b"HTTP/1.0 200 OK\r\na: b\r\n\r\nx\r\n\r\ny",
            Some((200, b"x\r\n\r\ny")),
        );
        check(b"HTTP/1.1 404 Not Found\r\n\r\n", Some((404, b"")));
        check(b"SSH-2.0\r\n\r\n", None);
        check(b"HTTP/1.0 200 OK", None);
    }
}
