//! A server for readiness probes that can keep all of them waiting, to answer them at one instant.
//!
//! This is how many pods change at once: the pods' probes come at moments of their own, and none of them is answered before
//! all have come.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// A probe's request is far smaller.
const MAX_REQUEST_BYTES: usize = 8 << 10;
const POLL: Duration = Duration::from_millis(20);

/// What a probe hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Success,
    Failure,
    /// Nothing until this changes.
    Later,
}

#[derive(Clone)]
struct Shared {
    answer: watch::Sender<Answer>,
    /// The paths that were asked for since answers are kept back.
    waiting: Arc<Mutex<BTreeSet<String>>>,
}

impl Shared {
    fn waiting(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A listening server. Dropping it cuts every connection.
pub(super) struct Gate {
    address: SocketAddr,
    shared: Shared,
    acceptor: JoinHandle<()>,
}

impl Gate {
    /// Every probe succeeds at first.
    pub(super) async fn start() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .context("listen for probes")?;
        let address = listener.local_addr()?;
        let shared = Shared {
            answer: watch::Sender::new(Answer::Success),
            waiting: Arc::default(),
        };
        let serving = shared.clone();
        let acceptor = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, serving.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self {
            address,
            shared,
            acceptor,
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers nobody until probes of this many paths wait.
    pub(super) async fn gather(&self, count: usize, deadline: Duration) -> Result<()> {
        self.shared.waiting().clear();
        self.shared.answer.send_replace(Answer::Later);
        let end = Instant::now() + deadline;
        loop {
            let waiting = self.shared.waiting().len();
            if waiting == count {
                return Ok(());
            }
            ensure!(
                Instant::now() < end,
                "{waiting} of {count} probes wait after {deadline:?}"
            );
            tokio::time::sleep(POLL).await;
        }
    }

    /// Answers all that wait, and all that come from now on.
    pub(super) fn answer(&self, is_success: bool) {
        let answer = if is_success {
            Answer::Success
        } else {
            Answer::Failure
        };
        self.shared.answer.send_replace(answer);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

async fn serve(mut stream: TcpStream, shared: Shared) {
    let Some(path) = path_asked_for(&mut stream).await else {
        return;
    };
    let mut changes = shared.answer.subscribe();
    if *changes.borrow() == Answer::Later {
        shared.waiting().insert(path);
    }
    let Ok(answer) = changes
        .wait_for(|answer| *answer != Answer::Later)
        .await
        .map(|answer| *answer)
    else {
        return;
    };
    let status = match answer {
        Answer::Success => "200 OK",
        Answer::Failure | Answer::Later => "503 Service Unavailable",
    };
    let words = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    // A prober that has given up is not there any more.
    let _ = stream.write_all(words.as_bytes()).await;
}

async fn path_asked_for(stream: &mut TcpStream) -> Option<String> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let length = stream.read_buf(&mut request).await.ok()?;
        if length == 0 || request.len() > MAX_REQUEST_BYTES {
            return None;
        }
    }
    let text = String::from_utf8(request).ok()?;
    text.split(' ').nth(1).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn ask(gate: &Gate, path: &str) -> String {
        let mut stream = TcpStream::connect(gate.address()).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer.split(' ').nth(1).unwrap().to_owned()
    }

    #[tokio::test]
    async fn probes_are_kept_waiting_and_answered_together() {
        let gate = Gate::start().await.unwrap();
        assert_eq!(ask(&gate, "/a").await, "200");
        let opened = async {
            gate.gather(2, Duration::from_secs(60)).await.unwrap();
            gate.answer(false);
        };
        // What waits is counted by path, however often it asks.
        let (a, again, b, ()) = tokio::join!(
            ask_late(&gate, "/a"),
            ask_late(&gate, "/a"),
            ask_late(&gate, "/b"),
            opened
        );
        assert_eq!([a.as_str(), &again, &b], ["503"; 3]);
        assert_eq!(ask(&gate, "/a").await, "503");
    }

    /// Asks when answers are kept back.
    async fn ask_late(gate: &Gate, path: &str) -> String {
        let mut changes = gate.shared.answer.subscribe();
        changes
            .wait_for(|answer| *answer != Answer::Success)
            .await
            .unwrap();
        ask(gate, path).await
    }
}
