//! `/logs/`: the node's own logs, as files and, where the settings allow it, as a query.
//!
//! Owns the choice between the two, with upstream's codes. What a path or a link may lead to is bound by the port.

mod files;
mod query;
mod services;

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use http::request::Parts;
use rubelet_config::Settings;
use rubelet_ports::{FileErrorKind, NodeLogReader};
use tokio::sync::{Semaphore, mpsc};

use crate::response::{Answer, error_line, too_many};
use query::NodeLogQuery;

/// Pieces that wait to be sent.
const PIECES_UNDER_WAY: usize = 2;
const PIECE_BYTES: usize = 64 * 1024;
/// Queries at a time: each runs a program that may read a whole journal.
const QUERIES: usize = 16;

pub(crate) struct NodeLogs {
    reader: Arc<dyn NodeLogReader>,
    takes_queries: bool,
    queries: Arc<Semaphore>,
}

impl NodeLogs {
    pub(crate) fn new(settings: &Settings, reader: Arc<dyn NodeLogReader>) -> Self {
        Self {
            reader,
            takes_queries: settings.configuration().enable_system_log_query == Some(true),
            queries: Arc::new(Semaphore::new(QUERIES)),
        }
    }

    /// Answers for a path below `/logs/`, with its slash at the end if it has one.
    pub(crate) async fn answer(&self, head: &Parts, path: &str) -> Answer {
        let query = head.uri.query().unwrap_or_default();
        let query = if self.takes_queries {
            match NodeLogQuery::parse(query) {
                Ok(query) => query,
                Err(problem) => return error_line(StatusCode::BAD_REQUEST, &problem),
            }
        } else {
            None
        };
        let Some(query) = query else {
            return files::answer(self.reader.as_ref(), head, path).await;
        };
        if !path.is_empty() {
            return error_line(StatusCode::NOT_ACCEPTABLE, "path not allowed in query mode");
        }
        let mut problems = query.problems();
        if let Some(file) = query.single_file() {
            problems.extend(self.unreachable(file).await);
        }
        if !problems.is_empty() {
            return error_line(StatusCode::NOT_ACCEPTABLE, &query::together(&problems));
        }
        if let Some(file) = query.single_file() {
            return files::answer(self.reader.as_ref(), head, file).await;
        }
        let Ok(place) = Arc::clone(&self.queries).try_acquire_owned() else {
            return too_many(format!(
                "{QUERIES} queries of logs are under way on this node, and no more at a time; try again later"
            ));
        };
        services::answer(Arc::clone(&self.reader), &head.headers, query, place)
    }

    /// Why a file cannot be read, with upstream's text.
    async fn unreachable(&self, file: &str) -> Option<String> {
        let escapes = "path escapes from parent";
        let why = if file.starts_with('/') {
            escapes.to_owned()
        } else {
            match self.reader.open(file.trim_end_matches('/')).await {
                Ok(_) => return None,
                Err(error) if error.kind == FileErrorKind::NotFound => "no such file or directory".to_owned(),
                Err(error) if error.kind == FileErrorKind::PermissionDenied => escapes.to_owned(),
                Err(error) => error.message,
            }
        };
        Some(query::invalid_files(
            &[file.to_owned()],
            &format!("statat {file}: {why}"),
        ))
    }
}

fn channel() -> (mpsc::Sender<Bytes>, mpsc::Receiver<Bytes>) {
    mpsc::channel(PIECES_UNDER_WAY)
}
