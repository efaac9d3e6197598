//! What the HTTP endpoints answer.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::server::{Server, ask, get};

#[test]
fn endpoints_answer_as_asked() -> Result<()> {
    let mut server = Server::start(&["--http", "0"])?;
    let address = server.line("http on ")?;
    let check = |path: &str, status: u16, body: &str| -> Result<()> {
        let answer = get(&address, path)?;
        ensure!(answer == (status, body.to_owned()), "{path}: {answer:?}");
        Ok(())
    };
    check("/", 200, "ok\n")?;
    check("/status/418", 418, "418\n")?;
    check("/status/99", 404, "no such thing\n")?;
    check("/nothing", 404, "no such thing\n")?;
    check("/body/5", 200, "xxxxx")?;
    check("/ready", 200, "ok\n")?;
    check("/ready/off", 200, "ready is off\n")?;
    check("/ready", 503, "failing\n")?;
    check("/live", 200, "ok\n")?;
    check("/live/off", 200, "live is off\n")?;
    check("/live", 503, "failing\n")?;
    check("/live/on", 200, "live is on\n")?;
    check("/live", 200, "ok\n")?;
    check("/client", 200, "127.0.0.1\n")?;
    check("/file/no/such/file", 404, "entity not found\n")?;
    check("/memory/1048576", 200, "took 1048576 bytes\n")?;
    ensure!(get(&address, "/hits")?.1.contains("3 /live\n"));
    check("/circle", 302, "")?;
    ensure!(get(&address, "/reset").is_err());
    check("/arrive/a", 200, "ok\n")?;
    let arrivals = get(&address, "/arrivals")?.1;
    ensure!(
        arrivals.starts_with("a 1") && arrivals.ends_with('\n'),
        "{arrivals}"
    );
    check("/arrivals", 200, "")?;
    let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname")?;
    check("/hostname", 200, &hostname)?;
    check("/file/proc/sys/kernel/hostname", 200, &hostname)?;
    check("/exit/9", 200, "bye\n")?;
    ensure!(server.wait()?.code() == Some(9));
    Ok(())
}

#[test]
fn requests_are_echoed() -> Result<()> {
    let server = Server::start(&["--http", "0", "--not-ready"])?;
    let address = server.line("http on ")?;
    let (_, headers) = ask(&address, "GET /headers HTTP/1.1\r\nHost: test\r\nX-Probe: yes")?;
    ensure!(
        headers.starts_with("GET /headers\n") && headers.contains("X-Probe: yes\n"),
        "{headers}"
    );
    let echoed = ask(&address, "POST /echo HTTP/1.1\r\nContent-Length: 0")?;
    ensure!(echoed == (200, String::new()), "{echoed:?}");
    ensure!(get(&address, "/ready")?.0 == 503);

    let mut stream = TcpStream::connect(&address)?;
    stream.write_all(b"POST /echo HTTP/1.1\r\nContent-Length: 5\r\n\r\nfirstGET /redirect/302?to=/x HTTP/1.1\r\nConnection: close\r\n\r\n")?;
    let mut answers = String::new();
    stream.read_to_string(&mut answers)?;
    ensure!(
        answers.contains("\r\n\r\nfirstHTTP/1.1 302") && answers.contains("Location: /x\r\n"),
        "{answers}"
    );
    Ok(())
}

#[test]
fn an_answer_can_be_late() -> Result<()> {
    let server = Server::start(&["--http", "0"])?;
    let address = server.line("http on ")?;
    let start = Instant::now();
    ensure!(get(&address, "/delay/200")?.0 == 200);
    ensure!(start.elapsed() >= Duration::from_millis(200));
    Ok(())
}

#[test]
fn tcp_gives_back_what_it_gets() -> Result<()> {
    let server = Server::start(&["--tcp", "0"])?;
    let mut stream = TcpStream::connect(server.line("tcp on ")?)?;
    stream.write_all(b"hello")?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(answer == "hello");
    Ok(())
}
