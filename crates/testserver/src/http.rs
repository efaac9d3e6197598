//! Just enough of HTTP/1.1 for probes and for tests: answers, delays and failures on request.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::memory;
use crate::serve::Shared;

const MAX_HEAD_BYTES: usize = 64 << 10;
const MAX_BODY_BYTES: usize = 16 << 20;

struct Request {
    method: String,
    path: String,
    query: String,
    /// As they came, one a line.
    headers: Vec<String>,
    body: Vec<u8>,
    peer: SocketAddr,
}

impl Request {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

struct Answer {
    status: u16,
    location: Option<String>,
    body: Vec<u8>,
    delay: Duration,
    /// The process ends with this code once the answer is out.
    exit: Option<u8>,
    rudeness: Option<Rudeness>,
}

/// What a server does that should not.
#[derive(Clone, Copy)]
enum Rudeness {
    /// Hangs up without an answer.
    Reset,
    /// Answers with as much as anybody takes, up to 100 MB.
    Endless,
}

const ENDLESS_BYTES: usize = 100 << 20;

impl Answer {
    fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status,
            location: None,
            body: body.into(),
            delay: Duration::ZERO,
            exit: None,
            rudeness: None,
        }
    }

    fn rude(rudeness: Rudeness) -> Self {
        Self {
            rudeness: Some(rudeness),
            ..Self::new(200, "")
        }
    }
}

pub(crate) async fn serve(listener: TcpListener, shared: Shared) {
    while let Ok((stream, peer)) = listener.accept().await {
        tokio::spawn(converse(stream, peer, shared.clone()));
    }
}

async fn converse(mut stream: TcpStream, peer: SocketAddr, shared: Shared) {
    let mut unread = Vec::new();
    while let Some(request) = read_request(&mut stream, &mut unread, peer).await {
        let answer = answer(&request, &shared);
        tokio::time::sleep(answer.delay).await;
        let close = request
            .header("connection")
            .is_some_and(|value| value.eq_ignore_ascii_case("close"));
        match answer.rudeness {
            Some(Rudeness::Reset) => {
                let _ = stream.set_zero_linger();
                return;
            }
            Some(Rudeness::Endless) => {
                let _ = write_endless(&mut stream).await;
                return;
            }
            None => {}
        }
        let written = write_answer(&mut stream, &answer, request.method == "HEAD").await;
        if let Some(code) = answer.exit {
            println!("exit {code}");
            std::process::exit(code.into());
        }
        if close || written.is_err() {
            return;
        }
    }
}

/// The next request, or nothing when the peer is done or does not speak HTTP.
async fn read_request(stream: &mut TcpStream, unread: &mut Vec<u8>, peer: SocketAddr) -> Option<Request> {
    let end = loop {
        if let Some(at) = unread.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
        if unread.len() > MAX_HEAD_BYTES || stream.read_buf(unread).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&unread[..end]).into_owned();
    unread.drain(..end + 4);
    let mut lines = head.split("\r\n").map(str::to_owned);
    let first = lines.next()?;
    let mut words = first.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let (path, query) = (path.to_owned(), query.to_owned());
    let mut request = Request {
        method,
        path,
        query,
        headers: lines.collect(),
        body: Vec::new(),
        peer,
    };
    let length = request
        .header("content-length")
        .map_or(Some(0), |value| value.parse::<usize>().ok())?;
    if length > MAX_BODY_BYTES {
        return None;
    }
    while unread.len() < length {
        if stream.read_buf(unread).await.ok()? == 0 {
            return None;
        }
    }
    request.body = unread.drain(..length).collect();
    Some(request)
}

async fn write_answer(stream: &mut TcpStream, answer: &Answer, head_only: bool) -> std::io::Result<()> {
    let location = answer
        .location
        .as_ref()
        .map(|to| format!("Location: {to}\r\n"))
        .unwrap_or_default();
    let (status, length) = (answer.status, answer.body.len());
    let head = format!(
        "HTTP/1.1 {status} Status\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n{location}\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    if !head_only {
        stream.write_all(&answer.body).await?;
    }
    stream.flush().await
}

async fn write_endless(stream: &mut TcpStream) -> std::io::Result<()> {
    let head = format!("HTTP/1.1 200 Status\r\nContent-Length: {ENDLESS_BYTES}\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let part = vec![b'x'; 64 << 10];
    for _ in 0..ENDLESS_BYTES / part.len() {
        stream.write_all(&part).await?;
    }
    stream.flush().await
}

fn answer(request: &Request, shared: &Shared) -> Answer {
    *shared.lock().hits.entry(request.path.clone()).or_default() += 1;
    let parts: Vec<&str> = request.path.split('/').skip(1).collect();
    route(&parts, request, shared).unwrap_or_else(|| Answer::new(404, "no such thing\n"))
}

/// Each endpoint by its path; `None` for what does not exist or does not parse.
fn route(parts: &[&str], request: &Request, shared: &Shared) -> Option<Answer> {
    let health = |failing: bool| {
        if failing {
            Answer::new(503, "failing\n")
        } else {
            Answer::new(200, "ok\n")
        }
    };
    Some(match parts {
        [""] => Answer::new(200, "ok\n"),
        ["status", code] => Answer::new(
            code.parse().ok().filter(|code| (200..600).contains(code))?,
            format!("{code}\n"),
        ),
        ["headers"] => Answer::new(
            200,
            format!(
                "{} {}\n{}\n",
                request.method,
                request.path,
                request.headers.join("\n")
            ),
        ),
        ["delay", ms] => Answer {
            delay: Duration::from_millis(ms.parse().ok()?),
            ..Answer::new(200, "ok\n")
        },
        ["body", bytes] => Answer::new(
            200,
            vec![b'x'; bytes.parse().ok().filter(|bytes| *bytes <= MAX_BODY_BYTES)?],
        ),
        ["echo"] => Answer::new(200, request.body.clone()),
        ["redirect", code] => {
            let to = request.query.strip_prefix("to=")?.to_owned();
            Answer {
                location: Some(to),
                ..Answer::new(code.parse().ok()?, "")
            }
        }
        ["circle"] => Answer {
            location: Some("/circle".to_owned()),
            ..Answer::new(302, "")
        },
        ["reset"] => Answer::rude(Rudeness::Reset),
        ["endless"] => Answer::rude(Rudeness::Endless),
        ["ready"] => health(shared.lock().not_ready),
        ["live"] => health(shared.lock().not_live),
        [what @ ("ready" | "live" | "grpc"), to @ ("on" | "off")] => {
            let mut state = shared.lock();
            let failing = match *what {
                "ready" => &mut state.not_ready,
                "live" => &mut state.not_live,
                _ => &mut state.not_serving,
            };
            *failing = *to == "off";
            Answer::new(200, format!("{what} is {to}\n"))
        }
        ["env"] => Answer::new(200, crate::environment()),
        ["hostname"] => Answer::new(200, std::fs::read("/proc/sys/kernel/hostname").ok()?),
        ["client"] => Answer::new(200, format!("{}\n", request.peer.ip())),
        ["signals"] => Answer::new(
            200,
            shared
                .lock()
                .signals
                .iter()
                .map(|name| format!("{name}\n"))
                .collect::<String>(),
        ),
        ["hits"] => {
            let state = shared.lock();
            Answer::new(
                200,
                state
                    .hits
                    .iter()
                    .map(|(path, count)| format!("{count} {path}\n"))
                    .collect::<String>(),
            )
        }
        ["arrive", name] => {
            shared.lock().arrive(name);
            Answer::new(200, "ok\n")
        }
        ["arrivals"] => Answer::new(200, shared.lock().take_arrivals()),
        ["memory", bytes] => {
            let bytes = bytes.parse().ok()?;
            shared.lock().eaten.push(memory::eat(bytes));
            Answer::new(200, format!("took {bytes} bytes\n"))
        }
        ["file", ..] => match std::fs::read(request.path.strip_prefix("/file")?) {
            Ok(content) => Answer::new(200, content),
            Err(error) => Answer::new(404, format!("{}\n", error.kind())),
        },
        ["exit", code] => Answer {
            exit: Some(code.parse().ok()?),
            ..Answer::new(200, "bye\n")
        },
        _ => return None,
    })
}
