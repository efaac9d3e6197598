//! A running server and what to ask it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};

const DEADLINE: Duration = Duration::from_secs(20);

/// The program with these arguments.
pub(crate) fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rubelet-testserver"));
    command.args(arguments);
    command
}

/// A server that ends with the test.
pub(crate) struct Server {
    child: Child,
    lines: Receiver<String>,
}

impl Server {
    /// Starts `serve` on loopback.
    pub(crate) fn start(arguments: &[&str]) -> Result<Self> {
        let mut child = program(&["serve", "--bind", "127.0.0.1"])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()?;
        let lines = read_lines(child.stdout.take().context("no output")?);
        Ok(Self { child, lines })
    }

    /// Waits for a line of output that starts with `prefix` and returns the rest of it.
    pub(crate) fn line(&self, prefix: &str) -> Result<String> {
        loop {
            let line = self
                .lines
                .recv_timeout(DEADLINE)
                .with_context(|| format!("no line {prefix:?}"))?;
            if let Some(rest) = line.strip_prefix(prefix) {
                return Ok(rest.trim().to_owned());
            }
        }
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id())
            .ok()
            .and_then(rustix::process::Pid::from_raw)
            .context("no pid")?;
        Ok(rustix::process::kill_process(pid, signal)?)
    }

    pub(crate) fn wait(&mut self) -> Result<ExitStatus> {
        Ok(self.child.wait()?)
    }

    pub(crate) fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_lines(output: ChildStdout) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// Status and body of a request.
pub(crate) fn ask(address: &str, request: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.write_all(format!("{request}\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let Some((head, body)) = answer.split_once("\r\n\r\n") else {
        bail!("no HTTP: {answer:?}")
    };
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .context("no status")?;
    Ok((status, body.to_owned()))
}

/// Status and body of a GET.
pub(crate) fn get(address: &str, path: &str) -> Result<(u16, String)> {
    ask(address, &format!("GET {path} HTTP/1.1\r\nHost: test"))
}
