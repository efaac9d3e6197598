//! Copies bytes between a client and the runtime in both directions, until one of them ends.
//!
//! Owns the copying: nothing is read before what was read last has gone out, so a slow side slows the other and memory stays as it
//! is. It must not look into the bytes.
//!
//! ```text
//!             one side ends              the other ends, or is silent for a while
//!   both ways ─────────────► one way ─────────────────────────────────────────► over
//!       │                                                                        ▲
//!       └── a connection breaks, nothing moves for the idle limit, the server stops
//! ```

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::time::Instant;

/// What one direction holds at most.
const BUFFER_BYTES: usize = 16 * 1024;
/// How long one side may go on after the other has ended, counted from its last byte. Both protocols end in both directions at
/// once; this is for bytes in transit.
const HALF_CLOSED_LIMIT: Duration = Duration::from_secs(10);
/// How long closing both sides may take.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// How a session came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Client,
    Runtime,
    /// Nothing moved for too long.
    Idle,
    Stopped,
}

/// Copies until the end, which also closes both sides.
pub(super) async fn splice<C, R>(
    client: C,
    runtime: R,
    idle_limit: Option<Duration>,
    stopping: impl Future<Output = ()>,
) -> End
where
    C: AsyncRead + AsyncWrite,
    R: AsyncRead + AsyncWrite,
{
    let (from_client, mut to_client) = split(client);
    let (from_runtime, mut to_runtime) = split(runtime);
    let end = both_ways(
        (from_client, &mut to_client),
        (from_runtime, &mut to_runtime),
        idle_limit,
        stopping,
    )
    .await;
    // A side that was not closed before is closed now, so that it does not take the end for a broken connection.
    let closing = async { tokio::join!(to_client.shutdown(), to_runtime.shutdown()) };
    drop(tokio::time::timeout(CLOSE_LIMIT, closing).await);
    end
}

async fn both_ways(
    (from_client, to_client): (impl AsyncRead + Unpin, impl AsyncWrite + Unpin),
    (from_runtime, to_runtime): (impl AsyncRead + Unpin, impl AsyncWrite + Unpin),
    idle_limit: Option<Duration>,
    stopping: impl Future<Output = ()>,
) -> End {
    let movement = Movement::new();
    let mut up = pin!(copy(from_client, to_runtime, &movement));
    let mut down = pin!(copy(from_runtime, to_client, &movement));
    let mut stopping = pin!(stopping);
    let (end, result) = tokio::select! {
        biased;
        () = stopping.as_mut() => return End::Stopped,
        // Nothing is polled again once it has ended; the other direction goes on below.
        result = down.as_mut() => (End::Runtime, result),
        result = up.as_mut() => (End::Client, result),
        () = movement.rests(idle_limit) => return End::Idle,
    };
    if result.is_err() {
        return end;
    }
    movement.note();
    let rest = async {
        // An error is an end like any other here.
        match end {
            End::Client => drop(down.await),
            End::Runtime | End::Idle | End::Stopped => drop(up.await),
        }
    };
    tokio::select! {
        biased;
        () = stopping => {}
        () = rest => {}
        () = movement.rests(Some(HALF_CLOSED_LIMIT)) => {}
    }
    end
}

/// To the end of what comes in, which is passed on.
async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    movement: &Movement,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let length = from.read(&mut buffer).await?;
        if length == 0 {
            return to.shutdown().await;
        }
        movement.note();
        to.write_all(&buffer[..length]).await?;
        to.flush().await?;
        movement.note();
    }
}

/// When something moved last.
pub(super) struct Movement {
    start: Instant,
    last_millis: AtomicU64,
}

impl Movement {
    pub(super) fn new() -> Self {
        Self {
            start: Instant::now(),
            last_millis: AtomicU64::new(0),
        }
    }

    pub(super) fn note(&self) {
        let millis = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_millis.store(millis, Ordering::Relaxed);
    }

    fn last(&self) -> Instant {
        self.start + Duration::from_millis(self.last_millis.load(Ordering::Relaxed))
    }

    /// Ends when nothing has moved for this long. Cancel-safe: it only looks.
    pub(super) async fn rests(&self, limit: Option<Duration>) {
        let Some(limit) = limit else {
            return std::future::pending().await;
        };
        loop {
            let Some(end) = self.last().checked_add(limit) else {
                return std::future::pending().await;
            };
            if end <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(end).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex};
    use tokio::task::JoinHandle;

    use super::*;

    const IDLE: Duration = Duration::from_secs(60);

    /// The client's end, the runtime's end, and the session between them.
    fn begin(buffer: usize) -> (DuplexStream, DuplexStream, JoinHandle<End>) {
        let (client, client_side) = duplex(buffer);
        let (runtime, runtime_side) = duplex(buffer);
        let session = splice(client_side, runtime_side, Some(IDLE), std::future::pending());
        (client, runtime, tokio::spawn(session))
    }

    async fn read(side: &mut DuplexStream, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        side.read_exact(&mut bytes).await.unwrap();
        bytes
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_go_both_ways_and_a_half_that_ends_lets_the_other_finish() {
        let (mut client, mut runtime, session) = begin(1024);
        client.write_all(b"to the runtime").await.unwrap();
        assert_eq!(read(&mut runtime, 14).await, b"to the runtime");
        runtime.write_all(b"to the client").await.unwrap();
        assert_eq!(read(&mut client, 13).await, b"to the client");
        client.shutdown().await.unwrap();
        assert_eq!(runtime.read(&mut [0; 1]).await.unwrap(), 0);
        runtime.write_all(b"the rest").await.unwrap();
        assert_eq!(read(&mut client, 8).await, b"the rest");
        drop(runtime);
        assert_eq!(session.await.unwrap(), End::Client);
    }

    #[tokio::test(start_paused = true)]
    async fn either_side_that_goes_ends_the_other() {
        let (mut client, runtime, session) = begin(1024);
        drop(runtime);
        assert_eq!(client.read(&mut [0; 1]).await.unwrap(), 0);
        drop(client);
        assert_eq!(session.await.unwrap(), End::Runtime);

        let (client, mut runtime, session) = begin(1024);
        drop(client);
        assert_eq!(runtime.read(&mut [0; 1]).await.unwrap(), 0);
        // It keeps its own half open and says nothing.
        let start = Instant::now();
        assert_eq!(session.await.unwrap(), End::Client);
        assert_eq!(start.elapsed().as_secs(), HALF_CLOSED_LIMIT.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_that_rests_too_long_ends_and_one_that_moves_does_not() {
        let (mut client, mut runtime, session) = begin(1024);
        for _ in 0..5 {
            tokio::time::sleep(IDLE - Duration::from_secs(1)).await;
            client.write_all(b"x").await.unwrap();
            assert_eq!(read(&mut runtime, 1).await, b"x");
        }
        let start = Instant::now();
        assert_eq!(session.await.unwrap(), End::Idle);
        assert_eq!(start.elapsed().as_secs(), IDLE.as_secs());
        assert_eq!(client.read(&mut [0; 1]).await.unwrap(), 0);
        assert_eq!(runtime.read(&mut [0; 1]).await.unwrap(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_side_that_does_not_read_holds_the_other_back() {
        let (mut client, mut runtime, session) = begin(1024);
        let sent = tokio::spawn(async move {
            let mut sent = 0;
            while tokio::time::timeout(Duration::from_secs(5), runtime.write_all(&[7; 1024]))
                .await
                .is_ok()
            {
                sent += 1024;
            }
            (sent, runtime)
        });
        let (sent, runtime) = sent.await.unwrap();
        assert!(sent <= BUFFER_BYTES + 4 * 1024, "{sent} bytes were taken");
        let got = read(&mut client, sent).await;
        assert!(got.iter().all(|byte| *byte == 7));
        drop(runtime);
        drop(client);
        session.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_stops_ends_its_sessions() {
        let (mut client, client_side) = duplex(16);
        let (mut runtime, runtime_side) = duplex(16);
        let stopping = tokio::time::sleep(Duration::from_secs(1));
        assert_eq!(
            splice(client_side, runtime_side, None, stopping).await,
            End::Stopped
        );
        assert_eq!(client.read(&mut [0; 1]).await.unwrap(), 0);
        assert_eq!(runtime.read(&mut [0; 1]).await.unwrap(), 0);
    }
}
