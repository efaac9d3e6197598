//! The whole set as the first events of a watch.
//!
//! Owns how a streaming list begins and ends: events of what is there, then a bookmark that says that this was all. The watch goes on
//! behind it. A server that has no streaming lists says so, or never sends the bookmark; the set is listed as ever then.

use rubelet_ports::api::{ApiError, ApiErrorKind, Change};

use super::{Event, Follower, History, Known, Object, Watch};
use crate::call::too_late;
use crate::watch_lines::LineError;

/// Why a watch did not give the whole set.
pub(super) enum StreamError {
    Unsupported,
    Failed(ApiError),
}

impl<T: Object> Follower<T> {
    pub(super) async fn list_by_watch(&mut self) -> Result<Watch, StreamError> {
        let mut watch = match self.open(true).await {
            Ok(watch) => watch,
            Err(error) if error.kind == ApiErrorKind::Invalid => {
                self.core.note_no_streams(&error);
                return Err(StreamError::Unsupported);
            }
            Err(error) => return Err(StreamError::Failed(error)),
        };
        let mut listed = Known::none();
        loop {
            let Some(event) = self.initial_event(&mut watch).await? else {
                tracing::debug!(what = self.followed.what, "no end of the initial events; listing");
                self.is_streamed = false;
                return Err(StreamError::Unsupported);
            };
            match event {
                Event::Changed(Change::Applied(object)) => listed.put(&object),
                Event::Changed(Change::Deleted(object)) => listed.remove(&object),
                Event::Changed(Change::All(_) | Change::Broken(_) | Change::Resumed) | Event::Nothing => {}
                Event::Listed(version) => {
                    self.history = History::At(version);
                    self.known = listed;
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
                    self.history = History::Lost;
                    return Err(self.stream_failed(ApiErrorKind::Gone, "the server forgot this version"));
                }
            }
        }
    }

    /// The next event; `None` when none comes in time.
    async fn initial_event(&mut self, watch: &mut Watch) -> Result<Option<Event<T>>, StreamError> {
        let limit = self.core.calls.timeout;
        match tokio::time::timeout(limit, watch.lines.next()).await {
            Ok(Ok(Some(line))) => Ok(Some(self.event(&line))),
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
}
