//! Following a set of objects: list, watch, resume, list again.
//!
//! Owns the state of the watch, like a reflector of client-go: when to list, when to watch, how long to pause. `replica` has the objects and
//! the resource version. A consumer sees the whole set, its changes, and whether the set may be stale.
//!
//! ```text
//!          All delivered             opened
//!    List ───────────────► Open ──────────────────► Watching ──┐ an event: delivered
//!     ▲ ▲                  │ ▲ │                      │ │ ▲    │
//!     │ └───── 410 ────────┘ │ │    ended, broken     │ │ └────┘
//!     │ └──────────────────────┼───────── 410 ────────┼─┘
//!     │                      └─┼──────────────────────┘
//!     │ pause: list            │ failed: Broken delivered
//!     └──────── Pause ◄────────┘
//!                 └─ pause: open ──► Open, then Resumed is delivered
//! ```
//!
//! A watch that ends or breaks is opened again from the last version that was delivered. When the server does not answer, the set
//! is `Broken`; the watch is opened from the same version as soon as the server answers, and the set is listed only when the server
//! has dropped that version (410). A pause ends early when any other request of this client gets an answer again.
//!
//! Where the server can, a set is listed by the watch itself ("streaming list"): one request instead of two, and none that
//! waits for the rate limit.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use hyper::body::Incoming;
use rubelet_ports::api::{ApiError, ApiErrorKind, Changes};
use tokio::time::Instant;

use crate::call::{Core, too_late};
use crate::failure::leaves_connection_alone;
use crate::watch_lines::{LineError, WatchLines};
use crate::watch_pool::Seat;

mod kind;
mod pace;
mod replica;
mod requests;
mod wire;

pub(crate) use kind::Object;
use kind::{AnyChange, Item, Kind};
use replica::{Event, Objects, Replica};
use requests::History;
use wire::Page;

/// The client ends a watch that the server does not end in time, after this.
const WATCH_GRACE: Duration = Duration::from_secs(30);

/// The longest pause that a server may ask for.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(120);

/// A watch that ends sooner without having delivered anything counts as failed.
const SHORT_WATCH: Duration = Duration::from_secs(1);

/// A set of objects.
#[derive(Default)]
pub(crate) struct Followed {
    /// Paths of the same collection in versions of its API, the wanted one first.
    pub(crate) paths: Vec<String>,
    /// `spec.nodeName=node-1`
    pub(crate) field_selector: Option<String>,
    /// As messages name it: `pods of node node-1`.
    pub(crate) what: String,
    /// Not every server serves this API: a 404 for the path means that there are no objects. For all other sets a 404 is a failure of the
    /// server or of a proxy, and the objects stay.
    pub(crate) may_be_unserved: bool,
    /// Listed by its watch where the server can.
    pub(crate) is_streamed: bool,
    /// An object that was never decoded is delivered without its `spec`, instead of being left out.
    pub(crate) keeps_unreadable: bool,
}

pub(crate) fn follow<T: Object>(core: &Arc<Core>, followed: Followed) -> Changes<T> {
    let follower = Follower {
        core: Arc::clone(core),
        is_streamed: followed.is_streamed,
        followed,
        path: 0,
        state: State::List,
        failures: 0,
        is_broken: false,
        is_absence_delivered: false,
        replica: Replica::empty(Kind::of::<T>()),
    };
    let changes = stream::unfold(follower, |mut follower| async move {
        let change = follower.next().await;
        Some((change, follower))
    });
    Box::pin(changes.filter_map(|change| ready(change.typed())))
}

struct Follower {
    core: Arc<Core>,
    followed: Followed,
    /// Which of the paths the server has.
    path: usize,
    state: State,
    failures: u32,
    /// The last change that was delivered is [`AnyChange::Broken`].
    is_broken: bool,
    is_absence_delivered: bool,
    /// The next list is tried as a stream.
    is_streamed: bool,
    replica: Replica,
}

enum State {
    List,
    Open,
    Watching(Box<Watch>),
    Pause(Pause),
}

struct Pause {
    until: Instant,
    /// What follows the pause: a list, or the watch from the same version.
    is_for_list: bool,
    /// There was no connection: the pause ends when the server answers another request.
    ends_with_outage: bool,
}

struct Watch {
    lines: WatchLines<Incoming>,
    opened_at: Instant,
    ends_at: Instant,
    has_delivered: bool,
    /// Which connection of its channel it is on.
    connection: u64,
    seat: Seat,
}

/// Why a watch did not give the whole set.
enum StreamError {
    Unsupported,
    Failed(ApiError),
}

impl Follower {
    async fn next(&mut self) -> AnyChange {
        loop {
            // While it is taken the state is one from which going on is right, should this panic.
            match std::mem::replace(&mut self.state, State::List) {
                State::Pause(pause) => {
                    self.sit_out(&pause).await;
                    self.state = if pause.is_for_list {
                        State::List
                    } else {
                        State::Open
                    };
                }
                State::List => {
                    if let Some(change) = self.list().await {
                        return change;
                    }
                }
                State::Open => match self.open(false).await {
                    Ok(watch) => {
                        self.state = State::Watching(Box::new(watch));
                        if std::mem::take(&mut self.is_broken) {
                            // Should the server have dropped the version, the list is not delayed by the outage's failures.
                            self.failures = 0;
                            return AnyChange::Resumed;
                        }
                    }
                    Err(error) if error.kind == ApiErrorKind::Gone => self.start_over(),
                    Err(error) => {
                        let is_for_list = !may_resume_after(error.kind);
                        return self.broken(error, is_for_list);
                    }
                },
                State::Watching(mut watch) => match self.watch(&mut watch).await {
                    Event::Changed(change) => {
                        self.state = State::Watching(watch);
                        return change;
                    }
                    Event::Nothing | Event::Listed(_) => self.state = State::Watching(watch),
                    Event::Ended => self.resume(&watch),
                    Event::Gone => self.start_over(),
                },
            }
        }
    }

    /// Waits for the end of a pause. After an outage a random delay keeps all clients from sending at the same moment.
    async fn sit_out(&self, pause: &Pause) {
        let mut recoveries = self.core.reachability.recoveries();
        let over = tokio::time::sleep_until(pause.until);
        if !pause.ends_with_outage {
            return over.await;
        }
        let recovered = async {
            if recoveries.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(pace::spread()).await;
        };
        // Both may be dropped: the next request finds out whether the server answers.
        tokio::select! {
            () = over => {}
            () = recovered => {}
        }
    }

    async fn list(&mut self) -> Option<AnyChange> {
        let change = self.list_once().await;
        if matches!(change, Some(AnyChange::All(_))) {
            self.is_broken = false;
        }
        change
    }

    async fn list_once(&mut self) -> Option<AnyChange> {
        if self.is_streamed && self.core.has_streams() {
            match self.list_by_watch().await {
                Ok(watch) => {
                    self.state = State::Watching(Box::new(watch));
                    return Some(AnyChange::All(self.replica.objects()));
                }
                Err(StreamError::Failed(error)) => return Some(self.list_failed(error)),
                Err(StreamError::Unsupported) => {}
            }
        }
        let mut listed = Err(ApiError::new("list", ApiErrorKind::NotFound, ""));
        for path in 0..self.followed.paths.len() {
            listed = self.list_at(path).await;
            let is_absent = matches!(&listed, Err(error) if error.kind == ApiErrorKind::NotFound);
            if !is_absent {
                self.path = path;
                break;
            }
        }
        match listed {
            Ok(objects) => {
                self.is_absence_delivered = false;
                self.state = State::Open;
                Some(AnyChange::All(objects))
            }
            Err(error) if error.kind == ApiErrorKind::NotFound && self.followed.may_be_unserved => {
                self.replica.clear();
                self.state = State::Pause(Pause {
                    until: Instant::now() + pace::not_served_pause(),
                    is_for_list: true,
                    ends_with_outage: false,
                });
                let is_news = !std::mem::replace(&mut self.is_absence_delivered, true);
                is_news.then(|| AnyChange::All(Vec::new()))
            }
            Err(error) => Some(self.list_failed(error)),
        }
    }

    fn list_failed(&mut self, error: ApiError) -> AnyChange {
        if matches!(self.replica.history, History::At(_)) {
            // The version may be one that this server never had, after a restore of its database.
            self.replica.history = History::Lost;
        }
        self.broken(error, true)
    }

    async fn list_at(&mut self, path: usize) -> Result<Vec<Item>, ApiError> {
        let operation = format!("list {}", self.followed.what);
        let mut objects = Vec::new();
        let mut next_page: Option<String> = None;
        loop {
            let request = self
                .followed
                .list_request(path, &self.replica.history, next_page.as_deref());
            let request = request.map_err(kube_core::request::Error::BuildRequest);
            let body = self
                .core
                .exchange_large(&self.core.calls, &operation, request)
                .await
                .inspect_err(|error| {
                    if error.kind == ApiErrorKind::Gone {
                        self.replica.history = History::Lost;
                    }
                })?;
            let page = Page::read(&body, self.replica.kind.name)
                .map_err(|message| ApiError::new(operation.clone(), ApiErrorKind::Malformed, message))?;
            for item in page.items.unwrap_or_default() {
                objects.extend(self.replica.read(&self.followed, path, &item));
            }
            next_page = page.metadata.r#continue.filter(|token| !token.is_empty());
            if next_page.is_none() {
                let version = page.metadata.resource_version.unwrap_or_default();
                self.replica.replace(Objects::new(&objects), version);
                return Ok(objects);
            }
        }
    }

    /// `lists`: the watch begins with the whole set.
    async fn open(&mut self, lists: bool) -> Result<Watch, ApiError> {
        let operation = format!("watch {}", self.followed.what);
        let seconds = pace::watch_seconds();
        let request = self
            .followed
            .watch_request(self.path, &self.replica.history, seconds, lists)
            .map_err(|error| ApiError::new(operation.clone(), ApiErrorKind::Invalid, error.to_string()))?;
        let seat = self.core.watches.seat();
        let connection = seat.channel().connection_number();
        let timeout = self.core.calls.timeout;
        let opened = self.core.send(seat.channel(), &operation, request);
        let response = tokio::time::timeout(timeout, opened)
            .await
            .unwrap_or_else(|_| Err(too_late(&operation, timeout)))?;
        let opened_at = Instant::now();
        Ok(Watch {
            lines: WatchLines::new(response.into_body()),
            opened_at,
            ends_at: opened_at + Duration::from_secs(seconds) + WATCH_GRACE,
            has_delivered: false,
            connection,
            seat,
        })
    }

    async fn watch(&mut self, watch: &mut Watch) -> Event {
        let line = match tokio::time::timeout_at(watch.ends_at, watch.lines.next()).await {
            Ok(Ok(Some(line))) => line,
            Ok(Ok(None)) => return Event::Ended,
            Ok(Err(LineError::Broken(error))) => {
                if !leaves_connection_alone(&error) {
                    watch.seat.channel().give_up(watch.connection);
                }
                let operation = format!("watch {}", self.followed.what);
                let error = self.core.broken(&operation, &error);
                tracing::debug!(%error, "a watch broke and is resumed");
                return Event::Ended;
            }
            Ok(Err(LineError::TooLong)) => {
                tracing::warn!(
                    what = self.followed.what,
                    "a line of the watch is too long; listing again"
                );
                return Event::Gone;
            }
            Err(_) => {
                tracing::debug!(
                    what = self.followed.what,
                    "the server did not end the watch in time"
                );
                return Event::Ended;
            }
        };
        let event = self.replica.apply(&self.followed, self.path, &line);
        if !matches!(event, Event::Ended | Event::Gone) {
            watch.has_delivered = true;
            self.failures = 0;
        }
        event
    }

    /// Lists the set by a watch that begins with it: an event for each object, then a bookmark that ends the list. The watch goes on
    /// behind the bookmark. A server without streaming lists refuses the request or never sends the bookmark.
    async fn list_by_watch(&mut self) -> Result<Watch, StreamError> {
        let mut watch = match self.open(true).await {
            Ok(watch) => watch,
            Err(error) if error.kind == ApiErrorKind::Invalid => {
                self.core.note_no_streams(&error);
                return Err(StreamError::Unsupported);
            }
            Err(error) => return Err(StreamError::Failed(error)),
        };
        let mut listed = Objects::new(&[]);
        loop {
            let Some(event) = self.initial_event(&mut watch).await? else {
                tracing::debug!(what = self.followed.what, "no end of the initial events; listing");
                self.is_streamed = false;
                return Err(StreamError::Unsupported);
            };
            match event {
                Event::Changed(AnyChange::Applied(object)) => listed.put(&object),
                Event::Changed(AnyChange::Deleted(object)) => listed.remove(object.as_ref()),
                Event::Changed(AnyChange::All(_) | AnyChange::Broken(_) | AnyChange::Resumed)
                | Event::Nothing => {}
                Event::Listed(version) => {
                    self.replica.replace(listed, version);
                    watch.has_delivered = true;
                    self.failures = 0;
                    return Ok(watch);
                }
                Event::Ended => {
                    return Err(self.stream_failed(
                        ApiErrorKind::ServerFailed,
                        "the watch ended before the whole set came",
                    ));
                }
                Event::Gone => {
                    self.replica.history = History::Lost;
                    return Err(self.stream_failed(ApiErrorKind::Gone, "the server forgot this version"));
                }
            }
        }
    }

    /// The next event; `None` when none comes in time.
    async fn initial_event(&mut self, watch: &mut Watch) -> Result<Option<Event>, StreamError> {
        let limit = self.core.calls.timeout;
        match tokio::time::timeout(limit, watch.lines.next()).await {
            Ok(Ok(Some(line))) => Ok(Some(self.replica.apply(&self.followed, self.path, &line))),
            Ok(Ok(None)) => Ok(Some(Event::Ended)),
            Ok(Err(LineError::Broken(error))) => {
                let operation = format!("watch {}", self.followed.what);
                Err(StreamError::Failed(self.core.broken(&operation, &error)))
            }
            Ok(Err(LineError::TooLong)) => {
                Err(self.stream_failed(ApiErrorKind::Malformed, "a line of the watch is too long"))
            }
            Err(_) => {
                let operation = format!("watch {}", self.followed.what);
                tracing::debug!(error = %too_late(&operation, limit), "a streaming list makes no progress");
                Ok(None)
            }
        }
    }

    fn stream_failed(&self, kind: ApiErrorKind, message: &str) -> StreamError {
        StreamError::Failed(ApiError::new(
            format!("watch {}", self.followed.what),
            kind,
            message,
        ))
    }

    fn resume(&mut self, watch: &Watch) {
        let is_short = watch.opened_at.elapsed() < SHORT_WATCH && !watch.has_delivered;
        self.state = if is_short {
            self.pause(false, None)
        } else {
            State::Open
        };
    }

    /// Lists again: at once, and with a pause when it happens repeatedly.
    fn start_over(&mut self) {
        self.replica.history = History::Lost;
        let is_first = self.failures == 0;
        let pause = self.pause(true, None);
        self.state = if is_first { State::List } else { pause };
    }

    fn broken(&mut self, error: ApiError, is_for_list: bool) -> AnyChange {
        self.is_absence_delivered = false;
        self.is_broken = true;
        self.state = self.pause(is_for_list, Some(&error));
        AnyChange::Broken(error)
    }

    fn pause(&mut self, is_for_list: bool, error: Option<&ApiError>) -> State {
        let pause = pace::pause(self.failures);
        let at_least = error.and_then(ApiError::retry_after).unwrap_or_default();
        self.failures = self.failures.saturating_add(1);
        State::Pause(Pause {
            until: Instant::now() + pause.max(at_least.min(LONGEST_RETRY_AFTER)),
            is_for_list,
            ends_with_outage: error.is_some_and(|error| error.kind == ApiErrorKind::Unreachable),
        })
    }
}

/// Whether a refused watch may be opened again from the same version: the failure concerns the connection, the client or the
/// server's load, not the request.
fn may_resume_after(kind: ApiErrorKind) -> bool {
    match kind {
        ApiErrorKind::Unreachable
        | ApiErrorKind::DeadlineExceeded
        | ApiErrorKind::Unauthorized
        | ApiErrorKind::Busy { .. }
        | ApiErrorKind::ServerFailed
        | ApiErrorKind::Tls
        | ApiErrorKind::Credentials => true,
        ApiErrorKind::Forbidden
        | ApiErrorKind::NotFound
        | ApiErrorKind::AlreadyExists
        | ApiErrorKind::Conflict
        | ApiErrorKind::Gone
        | ApiErrorKind::Invalid
        | ApiErrorKind::Malformed => false,
    }
}
