//! The connection to one socket.
//!
//! Owns dialling: lazily, on the first call and on the first call after a break, with backoff between attempts. A call
//! made while an attempt is not yet due fails at once with the last reason, as upstream's calls do. It logs when the
//! connection is lost and when it is back, and must not log per call.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

use crate::backoff::Backoff;
use crate::endpoint::RuntimeEndpoint;

/// How long one attempt may take, as upstream; a socket with a full backlog does not answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// One stream may hold this much unread, so that a list is not sent in thousands of small steps.
const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;

/// All streams together: a reader that stalls on the events must not stop the other calls.
const CONNECTION_WINDOW_BYTES: u32 = 8 * 1024 * 1024;

/// What the dialler and the calls know about one connection.
#[derive(Debug)]
pub(crate) struct Link {
    socket: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    backoff: Backoff,
    last_failure: Option<String>,
}

impl Link {
    fn new(socket: &Path) -> Arc<Self> {
        Arc::new(Self {
            socket: socket.to_owned(),
            state: Mutex::default(),
        })
    }

    /// The runtime sent an answer, an error as well.
    pub(crate) fn answered(&self) {
        let mut state = self.state();
        if state.backoff.answered() {
            state.last_failure = None;
            tracing::info!(socket = %self.socket.display(), "connected to the container runtime");
        }
    }

    /// The connection broke or could not be made. Each new reason is logged once.
    pub(crate) fn broke(&self, reason: &str) {
        let mut state = self.state();
        if state.last_failure.as_deref() != Some(reason) {
            tracing::warn!(socket = %self.socket.display(), reason, "no connection to the container runtime");
            state.last_failure = Some(reason.to_owned());
        }
    }

    async fn dial(self: Arc<Self>) -> io::Result<TokioIo<UnixStream>> {
        self.book_attempt()?;
        match tokio::time::timeout(CONNECT_TIMEOUT, UnixStream::connect(&self.socket)).await {
            Ok(Ok(stream)) => Ok(TokioIo::new(stream)),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the socket does not accept connections",
            )),
        }
    }

    fn book_attempt(&self) -> io::Result<()> {
        let mut state = self.state();
        state.backoff.attempt(Instant::now()).map_err(|wait| {
            let last = state.last_failure.as_deref().unwrap_or("the last attempt failed");
            // No figure that changes from call to call: repeated errors must be recognisable as the same.
            tracing::trace!(wait_ms = wait.as_millis(), "too early for an attempt to connect");
            io::Error::new(io::ErrorKind::NotConnected, last.to_owned())
        })
    }

    // A panic while the lock is held would leave nothing half-changed here.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A channel that connects by itself when it is used, and what is known about its connection.
pub(crate) fn open(endpoint: &RuntimeEndpoint) -> (Channel, Arc<Link>) {
    let link = Link::new(endpoint.socket());
    let dialler = Arc::clone(&link);
    // The authority that upstream's client sends; unix sockets have none of their own.
    let channel = Endpoint::from_static("http://localhost")
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .connect_with_connector_lazy(tower::service_fn(move |_: Uri| dial(&dialler)));
    (channel, link)
}

fn dial(link: &Arc<Link>) -> impl Future<Output = io::Result<TokioIo<UnixStream>>> + Send + use<> {
    Arc::clone(link).dial()
}
