//! The client of the guest's agent (`testbed/virtual-node/rootfs/usr/local/sbin/node-agent` describes the protocol): one
//! connection per script, so that several run side by side and a stuck one hurts nobody else.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// What the guest gets on top of a script's deadline to start it and to send the answer.
const OVERHEAD: Duration = Duration::from_secs(60);
/// Exit status of `timeout` when it had to end the script, and when that took SIGKILL.
const TIMED_OUT: [i32; 2] = [124, 137];
/// More than this is a script gone wild.
const MAX_ANSWER_BYTES: usize = 256 << 20;

/// What a script did.
#[derive(Debug)]
pub struct Output {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: i32,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
}

impl From<Answer> for Output {
    fn from(answer: Answer) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            status: answer.status,
            stdout: text(&answer.stdout),
            stderr: text(&answer.stderr),
        }
    }
}

pub(super) struct Agent {
    address: SocketAddr,
}

impl Agent {
    pub(super) fn new(port: u16) -> Self {
        Self {
            address: SocketAddr::from(([127, 0, 0, 1], port)),
        }
    }

    /// Runs a script in the guest; fails if it has not ended within `deadline`.
    pub(super) fn call(&self, script: &str, input: &[u8], deadline: Duration) -> Result<Answer> {
        let deadline = deadline.max(Duration::from_secs(1));
        let start = Instant::now();
        let end = start + deadline + OVERHEAD;
        let mut stream =
            TcpStream::connect_timeout(&self.address, deadline).context("reach the node's agent")?;
        stream.set_write_timeout(Some(deadline + OVERHEAD))?;
        let header = format!("{} {} {}\n", deadline.as_secs(), script.len(), input.len());
        stream
            .write_all(header.as_bytes())
            .context("send a script to the node")?;
        stream
            .write_all(script.as_bytes())
            .context("send a script to the node")?;
        stream
            .write_all(input)
            .context("send a script's input to the node")?;
        stream
            .shutdown(Shutdown::Write)
            .context("finish a request to the node")?;
        let answer = parse(&read_to_end(&mut stream, end)?)?;
        if TIMED_OUT.contains(&answer.status) && start.elapsed() >= deadline {
            bail!(
                "not finished after {deadline:?}; it said: {}",
                String::from_utf8_lossy(&answer.stderr)
            );
        }
        Ok(answer)
    }
}

fn read_to_end(stream: &mut TcpStream, end: Instant) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut chunk = vec![0; 64 << 10];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        ensure!(!left.is_zero(), "no whole answer from the node's agent in time");
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut chunk) {
            Ok(0) => return Ok(bytes),
            Ok(count) => bytes.extend_from_slice(&chunk[..count]),
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) => {}
            Err(error) => return Err(error).context("read the answer of the node's agent"),
        }
        ensure!(
            bytes.len() <= MAX_ANSWER_BYTES,
            "the script printed more than {MAX_ANSWER_BYTES} bytes"
        );
    }
}

fn parse(bytes: &[u8]) -> Result<Answer> {
    let cut = bytes
        .iter()
        .position(|byte| *byte == b'\n')
        .context("the node's agent hung up without an answer")?;
    let header = std::str::from_utf8(&bytes[..cut]).context("the agent's answer is not text")?;
    let mut numbers = header.split(' ').map(str::parse::<usize>);
    let mut next = || {
        numbers
            .next()
            .and_then(Result::ok)
            .with_context(|| format!("bad answer {header:?} of the node's agent"))
    };
    let (status, stdout_bytes, stderr_bytes) = (next()?, next()?, next()?);
    let body = &bytes[cut + 1..];
    ensure!(
        stdout_bytes.checked_add(stderr_bytes) == Some(body.len()),
        "the agent's answer broke off: {} bytes after {header:?}",
        body.len()
    );
    let (stdout, stderr) = body.split_at(stdout_bytes);
    Ok(Answer {
        status: i32::try_from(status)?,
        stdout: stdout.to_vec(),
        stderr: stderr.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_whole_or_refused() {
        fn check(bytes: &[u8], expected: Option<(i32, &str, &str)>) {
            let got = parse(bytes).ok();
            let expected = expected.map(|(status, stdout, stderr)| Answer {
                status,
                stdout: stdout.into(),
                stderr: stderr.into(),
            });
            assert_eq!(got, expected, "{:?}", String::from_utf8_lossy(bytes));
        }
        check(b"0 0 0\n", Some((0, "", "")));
        check(b"3 2 4\noutfail", None);
        check(b"3 3 4\noutfail", Some((3, "out", "fail")));
        check(b"0 2 0\na\n", Some((0, "a\n", "")));
        check(b"0 5 0\nab", None);
        check(b"0 0 0\nextra", None);
        check(b"0 x 0\n", None);
        check(b"0 0\n", None);
        check(b"", None);
        check(b"0 18446744073709551615 1\n", None);
    }
}
