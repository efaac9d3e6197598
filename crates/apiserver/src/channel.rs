//! One connection to the API server, made when it is needed and made again when it broke.
//!
//! Owns the one HTTP/2 connection that calls of one purpose share, the pings that find a dead connection, and closing it on demand. A
//! server or proxy without HTTP/2 gets a pool of HTTP/1.1 connections instead, each with TCP keepalive.
//!
//! When the client certificate is replaced, new requests go to a new connection. Requests and watches on the old one are not cut: the
//! old connection closes when the last of them ends.

use std::error::Error as StdError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::sync::watch;

use crate::dial::{ChannelDialler, DialError, Dialler, LastFailure};
use crate::failure::find;
use crate::server::Liveness;

/// How many unread bytes one stream may hold.
const STREAM_WINDOW_BYTES: u32 = 512 * 1024;

/// All streams together: one reader that stalls must not stop the others.
const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;

/// What may wait to be sent on one stream.
const SEND_BUFFER_BYTES: usize = 256 * 1024;

const MAX_HEADER_BYTES: u32 = 64 * 1024;

/// How many idle HTTP/1.1 connections are kept.
const MAX_IDLE: usize = 8;

type HttpClient = Client<ChannelDialler, Full<Bytes>>;

/// Why there is no answer.
pub(crate) type SendError = Box<dyn StdError + Send + Sync>;

pub(crate) struct Channel {
    dialler: Dialler,
    liveness: Liveness,
    /// Without use for this long the connection is closed.
    idle_timeout: Option<Duration>,
    live: Mutex<Live>,
}

struct Live {
    /// Counts the connections of this channel.
    number: u64,
    client: HttpClient,
    last_failure: LastFailure,
    only_http1: bool,
    /// The generation of the client certificate.
    generation: u64,
    /// A value on it cuts the connections.
    line: watch::Sender<()>,
}

impl Channel {
    pub(crate) fn new(dialler: &Dialler, liveness: Liveness, idle_timeout: Option<Duration>) -> Self {
        let live = Live::new(dialler, liveness, idle_timeout, dialler.server_name.is_none());
        Self {
            dialler: dialler.clone(),
            liveness,
            idle_timeout,
            live: Mutex::new(live),
        }
    }

    /// Sends a request. The caller sets the deadline.
    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, SendError> {
        let (client, last_failure) = self.client();
        let again = request.clone();
        let error: SendError = match client.request(request).await {
            Ok(response) => return Ok(response),
            // A request that waited for the connection attempt of another one gets the cause of its failure.
            Err(error) if error.is_connect() && find::<Arc<DialError>>(&error).is_none() => {
                // A panic while the lock is held would leave nothing half-changed here.
                let last = last_failure
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .clone();
                last.map_or_else(|| error.into(), Into::into)
            }
            Err(error) => error.into(),
        };
        let is_refused = |error: &Arc<DialError>| matches!(**error, DialError::OnlyHttp1);
        if !find::<Arc<DialError>>(error.as_ref()).is_some_and(is_refused) {
            return Err(error);
        }
        self.fall_back();
        self.client().0.request(again).await.map_err(Into::into)
    }

    /// Gives up the connection and what runs on it.
    pub(crate) fn reconnect(&self) {
        let mut live = self.live();
        // The server that answers next may have HTTP/2.
        self.cut(&mut live, self.dialler.server_name.is_none());
    }

    /// The number of the connection that the channel uses.
    pub(crate) fn connection_number(&self) -> u64 {
        self.live().number
    }

    /// Gives up a connection that a caller saw break, unless another caller did already: the next request must not try it.
    /// Without HTTP/2 the others are on connections of their own.
    pub(crate) fn give_up(&self, number: u64) {
        let mut live = self.live();
        if live.number == number && !live.only_http1 {
            self.cut(&mut live, false);
        }
    }

    fn client(&self) -> (HttpClient, LastFailure) {
        let mut live = self.live();
        if live.generation != self.dialler.identity.generation() {
            *live = self.after(&live, live.only_http1);
        }
        (live.client.clone(), Arc::clone(&live.last_failure))
    }

    fn fall_back(&self) {
        let mut live = self.live();
        if !live.only_http1 {
            tracing::info!("the API server does not offer HTTP/2; each watch takes a connection of its own");
            self.cut(&mut live, true);
        }
    }

    fn cut(&self, live: &mut Live, only_http1: bool) {
        live.line.send_replace(());
        *live = self.after(live, only_http1);
    }

    fn after(&self, live: &Live, only_http1: bool) -> Live {
        let new = Live::new(&self.dialler, self.liveness, self.idle_timeout, only_http1);
        Live {
            number: live.number.wrapping_add(1),
            ..new
        }
    }

    // A panic while the lock is held would leave nothing half-changed here.
    fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Live {
    fn new(dialler: &Dialler, liveness: Liveness, idle_timeout: Option<Duration>, only_http1: bool) -> Self {
        let (line, receiver) = watch::channel(());
        let generation = dialler.identity.generation();
        let last_failure = LastFailure::default();
        let dialler = ChannelDialler {
            dialler: dialler.clone(),
            only_http1,
            last_failure: Arc::clone(&last_failure),
            line: receiver,
        };
        // With HTTP/2 known beforehand, calls that come together share the first connection instead of making one each.
        let client = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(idle_timeout)
            .pool_max_idle_per_host(MAX_IDLE)
            .http2_only(!only_http1)
            .http2_keep_alive_interval(Some(liveness.ping_interval))
            .http2_keep_alive_timeout(liveness.ping_timeout)
            .http2_keep_alive_while_idle(true)
            .http2_initial_stream_window_size(STREAM_WINDOW_BYTES)
            .http2_initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .http2_max_send_buf_size(SEND_BUFFER_BYTES)
            .http2_max_header_list_size(MAX_HEADER_BYTES)
            .build(dialler);
        Self {
            number: 0,
            client,
            last_failure,
            only_http1,
            generation,
            line,
        }
    }
}
