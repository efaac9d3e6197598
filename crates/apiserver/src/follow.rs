//! Following a set of objects: list, watch, resume, list again.
//!
//! Owns the position in the server's history. A consumer sees a whole set, changes of it, and whether it may be old.
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
//! Where the server can, a set is listed by the watch itself ("streaming list", in `initial`): one request instead of two, and none that
//! waits for the rate limit.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::Request;
use hyper::body::Incoming;
use k8s_openapi::Metadata;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rubelet_ports::api::{ApiError, ApiErrorKind, Change, Changes};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::call::{Core, too_late};
use crate::decode;
use crate::failure::{decode_words, from_watch_error, leaves_connection_alone};
use crate::watch_lines::{LineError, WatchLines};
use crate::watch_pool::Seat;

mod initial;
mod known;
mod pace;
mod wire;

use initial::StreamError;
use known::Known;
use wire::{Line, Page};

const PAGE_OBJECTS: u32 = 500;

/// A watch that the server does not end is ended by us this much later.
const WATCH_GRACE: Duration = Duration::from_secs(30);

/// The longest pause that a server may ask for.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(120);

/// A watch that ends sooner without having delivered anything counts as failed.
const SHORT_WATCH: Duration = Duration::from_secs(1);

/// The annotation of the bookmark behind the initial events of a watch.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// So many objects that cannot be decoded are named in the log.
const MAX_NAMED: usize = 64;

/// A set of objects.
#[derive(Default)]
pub(crate) struct Followed {
    /// Paths of the same collection in versions of its API, the wanted one first.
    pub(crate) paths: Vec<String>,
    /// `spec.nodeName=node-1`
    pub(crate) field_selector: Option<String>,
    /// In words: `pods of node node-1`.
    pub(crate) what: String,
    /// Not every server has this API: one that does not know the path has none of the objects. Of all others such an answer is a
    /// failure, of the server or of something before it, and says nothing about the objects.
    pub(crate) may_be_unserved: bool,
    /// Listed by its watch where the server can.
    pub(crate) is_streamed: bool,
    /// An object that was never decoded is delivered without its `spec`, instead of being left out.
    pub(crate) keeps_unreadable: bool,
}

/// What can be followed.
pub(crate) trait Object:
    Clone + DeserializeOwned + Metadata<Ty = ObjectMeta> + Send + Sync + 'static
{
}

impl<T: Clone + DeserializeOwned + Metadata<Ty = ObjectMeta> + Send + Sync + 'static> Object for T {}

pub(crate) fn follow<T: Object>(core: &Arc<Core>, followed: Followed) -> Changes<T> {
    let follower = Follower::<T> {
        core: Arc::clone(core),
        is_streamed: followed.is_streamed,
        followed,
        path: 0,
        history: History::Unknown,
        state: State::List,
        failures: 0,
        is_broken: false,
        is_absence_told: false,
        named: BTreeSet::new(),
        known: Known::none(),
    };
    Box::pin(stream::unfold(follower, |mut follower| async move {
        let change = follower.next().await;
        Some((change, follower))
    }))
}

struct Follower<T> {
    core: Arc<Core>,
    followed: Followed,
    /// Which of the paths the server has.
    path: usize,
    history: History,
    state: State,
    failures: u32,
    /// The last change that was delivered is [`Change::Broken`].
    is_broken: bool,
    is_absence_told: bool,
    /// The next list is tried as a stream.
    is_streamed: bool,
    /// Objects that cannot be decoded and have been named in the log.
    named: BTreeSet<String>,
    known: Known<T>,
}

/// From where a list may come.
enum History {
    /// We know nothing yet: whatever the server has at hand.
    Unknown,
    /// Nothing older than what we told already.
    At(String),
    /// What we know is of no use to the server.
    Lost,
}

enum State {
    List,
    Open,
    Watching(Box<Watch>),
    Pause(Pause),
}

struct Pause {
    until: Instant,
    /// What comes behind it: a list, or the watch from where it was.
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
    life: u64,
    seat: Seat,
}

enum Event<T> {
    Changed(Change<T>),
    /// Everything before this is the whole set at this version.
    Listed(String),
    Nothing,
    Ended,
    Gone,
}

impl<T: Object> Follower<T> {
    async fn next(&mut self) -> Change<T> {
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
                            return Change::Resumed;
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

    /// Waits for the end of a pause. Clients that an outage's end wakes up do not all ask in the same moment.
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

    async fn list(&mut self) -> Option<Change<T>> {
        let change = self.list_once().await;
        if matches!(change, Some(Change::All(_))) {
            self.is_broken = false;
        }
        change
    }

    async fn list_once(&mut self) -> Option<Change<T>> {
        if self.is_streamed && self.core.has_streams() {
            match self.list_by_watch().await {
                Ok(watch) => {
                    self.state = State::Watching(Box::new(watch));
                    return Some(Change::All(self.known.objects()));
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
                self.is_absence_told = false;
                self.state = State::Open;
                Some(Change::All(objects))
            }
            Err(error) if error.kind == ApiErrorKind::NotFound && self.followed.may_be_unserved => {
                self.known.replace(&[]);
                self.state = State::Pause(Pause {
                    until: Instant::now() + pace::not_served_pause(),
                    is_for_list: true,
                    ends_with_outage: false,
                });
                let is_news = !std::mem::replace(&mut self.is_absence_told, true);
                is_news.then(|| Change::All(Vec::new()))
            }
            Err(error) => Some(self.list_failed(error)),
        }
    }

    fn list_failed(&mut self, error: ApiError) -> Change<T> {
        if matches!(self.history, History::At(_)) {
            // The version may be one that this server never had, after a restore of its database.
            self.history = History::Lost;
        }
        self.broken(error, true)
    }

    async fn list_at(&mut self, path: usize) -> Result<Vec<Arc<T>>, ApiError> {
        let operation = format!("list {}", self.followed.what);
        let mut objects = Vec::new();
        let mut next_page: Option<String> = None;
        loop {
            let request = self.list_request(path, next_page.as_deref());
            let request = request.map_err(kube_core::request::Error::BuildRequest);
            let body = self
                .core
                .exchange_large(&self.core.calls, &operation, request)
                .await
                .inspect_err(|error| {
                    if error.kind == ApiErrorKind::Gone {
                        self.history = History::Lost;
                    }
                })?;
            let page = Page::read(&body, T::KIND)
                .map_err(|message| ApiError::new(operation.clone(), ApiErrorKind::Malformed, message))?;
            for item in page.items.unwrap_or_default() {
                objects.extend(self.read(path, &item));
            }
            next_page = page.metadata.r#continue.filter(|token| !token.is_empty());
            if next_page.is_none() {
                let version = page.metadata.resource_version.unwrap_or_default();
                self.history = History::At(version);
                self.known.replace(&objects);
                return Ok(objects);
            }
        }
    }

    fn list_request(&self, path: usize, next_page: Option<&str>) -> Result<Request<Vec<u8>>, http::Error> {
        let page = PAGE_OBJECTS.to_string();
        match (next_page, &self.history) {
            (Some(token), _) => self.request(path, &[("limit", &page), ("continue", token)]),
            (None, History::Unknown) => {
                let pairs = [("limit", page.as_str()), ("resourceVersion", "0")];
                self.request(path, &pairs)
            }
            (None, History::At(version)) => {
                let pairs = [
                    ("resourceVersion", version.as_str()),
                    ("resourceVersionMatch", "NotOlderThan"),
                ];
                self.request(path, &pairs)
            }
            (None, History::Lost) => self.request(path, &[("limit", &page)]),
        }
    }

    fn watch_request(&self, seconds: u64, lists: bool) -> Result<Request<Vec<u8>>, http::Error> {
        let version = match &self.history {
            History::At(version) => version,
            History::Unknown if lists => "0",
            History::Unknown | History::Lost => "",
        };
        let seconds = seconds.to_string();
        let mut pairs = vec![
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", &seconds),
            ("resourceVersion", version),
        ];
        if lists {
            pairs.extend([
                ("sendInitialEvents", "true"),
                ("resourceVersionMatch", "NotOlderThan"),
            ]);
        }
        self.request(self.path, &pairs)
    }

    fn request(&self, path: usize, pairs: &[(&str, &str)]) -> Result<Request<Vec<u8>>, http::Error> {
        let url = format!("{}?", self.followed.paths[path]);
        let start = url.len();
        let mut query = form_urlencoded::Serializer::for_suffix(url, start);
        if let Some(selector) = &self.followed.field_selector {
            query.append_pair("fieldSelector", selector);
        }
        query.extend_pairs(pairs);
        Request::get(query.finish()).body(Vec::new())
    }

    /// `lists`: the watch begins with the whole set.
    async fn open(&mut self, lists: bool) -> Result<Watch, ApiError> {
        let operation = format!("watch {}", self.followed.what);
        let seconds = pace::watch_seconds();
        let request = self
            .watch_request(seconds, lists)
            .map_err(|error| ApiError::new(operation.clone(), ApiErrorKind::Invalid, error.to_string()))?;
        let seat = self.core.watches.seat();
        let life = seat.channel().life();
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
            life,
            seat,
        })
    }

    async fn watch(&mut self, watch: &mut Watch) -> Event<T> {
        let line = match tokio::time::timeout_at(watch.ends_at, watch.lines.next()).await {
            Ok(Ok(Some(line))) => line,
            Ok(Ok(None)) => return Event::Ended,
            Ok(Err(LineError::Broken(error))) => {
                if !leaves_connection_alone(&error) {
                    watch.seat.channel().give_up(watch.life);
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
        let event = self.event(&line);
        if !matches!(event, Event::Ended | Event::Gone) {
            watch.has_delivered = true;
            self.failures = 0;
        }
        event
    }

    fn event(&mut self, line: &Bytes) -> Event<T> {
        let line: Line<'_> = match serde_json::from_slice(line) {
            Ok(line) => line,
            Err(error) => {
                let problem = decode_words(&error);
                tracing::warn!(
                    what = self.followed.what,
                    problem,
                    "a line of the watch is no event; listing again"
                );
                return Event::Gone;
            }
        };
        let is_deletion = match line.r#type.as_str() {
            "ADDED" | "MODIFIED" => false,
            "DELETED" => true,
            "BOOKMARK" => {
                let metadata = decode::metadata(line.object.get().as_bytes());
                let version = metadata.resource_version.unwrap_or_default();
                let annotations = metadata.annotations.unwrap_or_default();
                if annotations
                    .get(INITIAL_EVENTS_END)
                    .is_some_and(|end| end == "true")
                {
                    return Event::Listed(version);
                }
                if self.is_behind(&version) {
                    tracing::warn!(
                        what = self.followed.what,
                        "the server is older than what it gave before; listing again"
                    );
                    return Event::Gone;
                }
                self.seen(&version);
                return Event::Nothing;
            }
            "ERROR" => {
                let (kind, message) = from_watch_error(line.object.get().as_bytes());
                tracing::debug!(what = self.followed.what, message, "the server ended a watch");
                return match kind {
                    ApiErrorKind::Gone => Event::Gone,
                    _ => Event::Ended,
                };
            }
            other => {
                tracing::warn!(
                    what = self.followed.what,
                    r#type = other,
                    "an unknown event of a watch"
                );
                return Event::Nothing;
            }
        };
        let Some(object) = self.read(self.path, line.object) else {
            return Event::Nothing;
        };
        self.seen(object.metadata().resource_version.as_deref().unwrap_or_default());
        if is_deletion {
            self.known.remove(&object);
            return Event::Changed(Change::Deleted(object));
        }
        self.known.put(&object);
        Event::Changed(Change::Applied(object))
    }

    /// One object that cannot be decoded must not hide the others, nor its own deletion: it keeps the content that was decoded last
    /// and has the metadata of now. The log names it once.
    fn read(&mut self, path: usize, raw: &RawValue) -> Option<Arc<T>> {
        let text = raw.get().as_bytes();
        let decoded = match path {
            0 => decode::object::<T>(text),
            _ => decode::older_object::<T>(text, T::API_VERSION),
        };
        let error = match decoded {
            Ok(object) => return Some(Arc::new(object)),
            Err(error) => error,
        };
        let metadata = decode::metadata(text);
        self.name_unreadable(&metadata, &error);
        if let Some(mut object) = self.known.get(&metadata) {
            *Arc::make_mut(&mut object).metadata_mut() = metadata;
            return Some(object);
        }
        self.seen(metadata.resource_version.as_deref().unwrap_or_default());
        if !self.followed.keeps_unreadable {
            return None;
        }
        decode::without_spec(text).ok().map(Arc::new)
    }

    fn name_unreadable(&mut self, metadata: &ObjectMeta, error: &serde_json::Error) {
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let name = metadata.name.as_deref().unwrap_or_default();
        if self.named.len() < MAX_NAMED && self.named.insert(format!("{namespace}/{name}")) {
            tracing::error!(
                kind = T::KIND,
                namespace,
                name,
                problem = decode_words(error),
                "an object cannot be decoded: only its metadata is followed"
            );
        }
    }

    /// Whether a server of now knows less than we do, as after a restore of its database: it would be silent until it has caught up.
    fn is_behind(&self, version: &str) -> bool {
        let History::At(known) = &self.history else {
            return false;
        };
        matches!((version.parse::<u64>(), known.parse::<u64>()), (Ok(new), Ok(known)) if new < known)
    }

    fn seen(&mut self, version: &str) {
        if !version.is_empty() && matches!(self.history, History::At(_)) {
            self.history = History::At(version.to_owned());
        }
    }

    fn resume(&mut self, watch: &Watch) {
        let is_short = watch.opened_at.elapsed() < SHORT_WATCH && !watch.has_delivered;
        self.state = if is_short {
            self.pause(false, None)
        } else {
            State::Open
        };
    }

    /// At once, unless this happens again and again.
    fn start_over(&mut self) {
        self.history = History::Lost;
        let is_first = self.failures == 0;
        let pause = self.pause(true, None);
        self.state = if is_first { State::List } else { pause };
    }

    fn broken(&mut self, error: ApiError, is_for_list: bool) -> Change<T> {
        self.is_absence_told = false;
        self.is_broken = true;
        self.state = self.pause(is_for_list, Some(&error));
        Change::Broken(error)
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
