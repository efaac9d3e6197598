//! The node's log files, as upstream's file server gives them.
//!
//! Owns lists of directories, redirects between names with and without a slash, the type of a file and parts of it. A file is
//! sent as long as it was when it was opened.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderMap, HeaderValue, IF_MODIFIED_SINCE,
    IF_RANGE, LAST_MODIFIED, LOCATION, RANGE,
};
use http::request::Parts;
use http::{Response, StatusCode};
use k8s_openapi::jiff;
use rubelet_model::Timestamp;
use rubelet_ports::{
    DirectoryEntry, FileContent, FileError, FileErrorKind, FileKind, NodeLog, NodeLogFile, NodeLogReader,
};

use super::{PIECE_BYTES, channel};
use crate::response::{Answer, Body, error_line, escaped_html, escaped_path, location};

/// How much of a file is read to find its type.
const SAMPLE_BYTES: usize = 512;
const INDEX: &str = "index.html";

/// Answers for a path below the directory of logs, with its slash at the end if it has one.
pub(super) async fn answer(reader: &dyn NodeLogReader, head: &Parts, path: &str) -> Answer {
    let is_folder_path = path.is_empty() || path.ends_with('/');
    let path = path.trim_matches('/');
    let base = path.rsplit('/').next().unwrap_or_default();
    let query = head.uri.query().unwrap_or_default();
    if base == INDEX && !is_folder_path {
        return moved("./", query);
    }
    match reader.open(path).await {
        Ok(NodeLog::Directory(_)) if !is_folder_path => moved(&format!("{base}/"), query),
        Ok(NodeLog::Directory(entries)) => {
            let index = format!("{path}/{INDEX}");
            match reader.open(index.trim_start_matches('/')).await {
                Ok(NodeLog::File(file)) => whole_or_part(&head.headers, INDEX, file).await,
                Ok(NodeLog::Directory(_)) | Err(_) => list(&entries),
            }
        }
        Ok(NodeLog::File(_)) if is_folder_path => moved(&format!("../{base}"), query),
        Ok(NodeLog::File(file)) => whole_or_part(&head.headers, base, file).await,
        Err(error) => refusal(&error),
    }
}

fn refusal(error: &FileError) -> Answer {
    match error.kind {
        FileErrorKind::NotFound => error_line(StatusCode::NOT_FOUND, "404 page not found"),
        FileErrorKind::PermissionDenied => error_line(StatusCode::FORBIDDEN, "403 Forbidden"),
        FileErrorKind::TooLarge
        | FileErrorKind::NoSpace
        | FileErrorKind::WrongKind
        | FileErrorKind::Mounted
        | FileErrorKind::TimedOut
        | FileErrorKind::Other => {
            tracing::info!(%error, "A log of the node cannot be opened");
            error_line(StatusCode::INTERNAL_SERVER_ERROR, "500 Internal Server Error")
        }
    }
}

/// Redirects the client to a path relative to the one it requested.
fn moved(to: &str, query: &str) -> Answer {
    let location = location(to, query);
    let mut answer = Response::new(Body::whole(Bytes::new()));
    *answer.status_mut() = StatusCode::MOVED_PERMANENTLY;
    if let Ok(location) = HeaderValue::from_str(&location) {
        answer.headers_mut().insert(LOCATION, location);
    }
    answer
}

fn list(entries: &[DirectoryEntry]) -> Answer {
    let mut page =
        String::from("<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n");
    for entry in entries {
        let slash = if entry.kind == FileKind::Directory {
            "/"
        } else {
            ""
        };
        let name = format!("{}{slash}", entry.name);
        // A colon in the first part would make a scheme of it.
        let here = if name.contains(':') { "./" } else { "" };
        let link = escaped_path(&name);
        let shown = escaped_html(&name);
        page.push_str(&format!("<a href=\"{here}{link}\">{shown}</a>\n"));
    }
    page.push_str("</pre>\n");
    let mut answer = Response::new(Body::whole(page));
    let html = HeaderValue::from_static("text/html; charset=utf-8");
    answer.headers_mut().insert(CONTENT_TYPE, html);
    answer
}

async fn whole_or_part(headers: &HeaderMap, name: &str, file: NodeLogFile) -> Answer {
    let NodeLogFile {
        size_bytes,
        modified,
        content,
    } = file;
    let changed = http_date(modified);
    if not_modified(headers, modified) {
        let mut answer = Response::new(Body::whole(Bytes::new()));
        *answer.status_mut() = StatusCode::NOT_MODIFIED;
        insert(&mut answer, LAST_MODIFIED, &changed);
        return answer;
    }
    let sample = match content.read_at(0, SAMPLE_BYTES).await {
        Ok(sample) => sample,
        Err(error) => return refusal(&error),
    };
    let range = headers
        .get(RANGE)
        .filter(|_| may_be_a_part(headers, &changed))
        .and_then(|range| range.to_str().ok());
    let part = match range.map(|range| wanted_part(range, size_bytes)) {
        None | Some(Wanted::Everything) => None,
        Some(Wanted::Part(start, end)) => Some((start, end)),
        Some(Wanted::Nothing) => {
            let mut answer = error_line(
                StatusCode::RANGE_NOT_SATISFIABLE,
                "invalid range: failed to overlap",
            );
            insert(&mut answer, CONTENT_RANGE, &format!("bytes */{size_bytes}"));
            return answer;
        }
    };
    let (start, end) = part.unwrap_or((0, size_bytes));
    let (sender, receiver) = channel();
    tokio::spawn(copy(content, start, end, sender));
    let mut answer = Response::new(Body::pieces(receiver));
    if part.is_some() {
        *answer.status_mut() = StatusCode::PARTIAL_CONTENT;
        let last = end.saturating_sub(1);
        insert(
            &mut answer,
            CONTENT_RANGE,
            &format!("bytes {start}-{last}/{size_bytes}"),
        );
    }
    insert(&mut answer, CONTENT_TYPE, kind(name, &sample));
    insert(&mut answer, ACCEPT_RANGES, "bytes");
    insert(&mut answer, LAST_MODIFIED, &changed);
    insert(&mut answer, CONTENT_LENGTH, &(end - start).to_string());
    answer
}

fn insert(answer: &mut Answer, name: http::HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        answer.headers_mut().insert(name, value);
    }
}

/// Sends the bytes of a file. One that has become shorter ends the connection: its length is sent already.
async fn copy(content: Arc<dyn FileContent>, start: u64, end: u64, sender: tokio::sync::mpsc::Sender<Bytes>) {
    let mut offset = start;
    while offset < end {
        let limit = usize::try_from(end - offset)
            .unwrap_or(PIECE_BYTES)
            .min(PIECE_BYTES);
        let piece = match content.read_at(offset, limit).await {
            Ok(piece) if piece.is_empty() => return,
            Ok(piece) => piece,
            Err(error) => return tracing::info!(%error, "A log of the node could not be read to its end"),
        };
        offset += piece.len() as u64;
        if sender.send(piece.into()).await.is_err() {
            return;
        }
    }
}

fn http_date(instant: Timestamp) -> String {
    jiff::Timestamp::from_second(instant.unix_nanos() / 1_000_000_000)
        .map(|instant| instant.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string())
        .unwrap_or_default()
}

fn not_modified(headers: &HeaderMap, modified: Timestamp) -> bool {
    let since = headers
        .get(IF_MODIFIED_SINCE)
        .and_then(|since| since.to_str().ok());
    since
        .and_then(|since| jiff::fmt::rfc2822::parse(since).ok())
        .is_some_and(|since| modified.unix_nanos() / 1_000_000_000 <= since.timestamp().as_second())
}

/// A part of a file that has changed since the client got the other part is of no use.
fn may_be_a_part(headers: &HeaderMap, changed: &str) -> bool {
    headers
        .get(IF_RANGE)
        .is_none_or(|since| since.as_bytes() == changed.as_bytes())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Everything,
    /// Without its end.
    Part(u64, u64),
    Nothing,
}

/// The part in a `Range` header. Several parts at once are answered with everything, which is allowed.
fn wanted_part(range: &str, size_bytes: u64) -> Wanted {
    let Some(ranges) = range.strip_prefix("bytes=") else {
        return Wanted::Nothing;
    };
    let mut ranges = ranges.split(',').map(str::trim).filter(|range| !range.is_empty());
    let (Some(range), None) = (ranges.next(), ranges.next()) else {
        return Wanted::Everything;
    };
    let Some((first, last)) = range.split_once('-') else {
        return Wanted::Nothing;
    };
    match (first.trim().parse::<u64>(), last.trim()) {
        (Ok(first), "") if first < size_bytes => Wanted::Part(first, size_bytes),
        (Ok(first), last) => match last.parse::<u64>() {
            Ok(last) if first <= last && first < size_bytes => {
                Wanted::Part(first, last.saturating_add(1).min(size_bytes))
            }
            _ => Wanted::Nothing,
        },
        (Err(_), last) if first.trim().is_empty() => match last.parse::<u64>() {
            Ok(length @ 1..) if size_bytes > 0 => Wanted::Part(size_bytes.saturating_sub(length), size_bytes),
            _ => Wanted::Nothing,
        },
        (Err(_), _) => Wanted::Nothing,
    }
}

/// What a file is: by its name, else by its first bytes.
fn kind(name: &str, sample: &[u8]) -> &'static str {
    match name.rsplit_once('.').map(|(_, end)| end) {
        Some("html" | "htm") => return "text/html; charset=utf-8",
        Some("json") => return "application/json",
        Some("xml") => return "text/xml; charset=utf-8",
        Some("css") => return "text/css; charset=utf-8",
        Some("js") => return "text/javascript; charset=utf-8",
        Some("gz") => return "application/gzip",
        Some("txt") => return "text/plain; charset=utf-8",
        _ => {}
    }
    let is_binary = |byte: &u8| matches!(byte, 0x00..=0x08 | 0x0b | 0x0e..=0x1a | 0x1c..=0x1f);
    if sample.starts_with(&[0x1f, 0x8b, 0x08]) {
        "application/x-gzip"
    } else if sample.iter().any(is_binary) {
        "application/octet-stream"
    } else {
        "text/plain; charset=utf-8"
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parts_are_found() {
        let check = |range: &str, size: u64, expected: Wanted| {
            assert_eq!(wanted_part(range, size), expected, "{range}");
        };
        check("bytes=0-0", 10, Wanted::Part(0, 1));
        check("bytes=2-", 10, Wanted::Part(2, 10));
        check("bytes=-3", 10, Wanted::Part(7, 10));
        check("bytes=-30", 10, Wanted::Part(0, 10));
        check("bytes=5-100", 10, Wanted::Part(5, 10));
        check("bytes=10-", 10, Wanted::Nothing);
        check("bytes=5-4", 10, Wanted::Nothing);
        check("bytes=-0", 10, Wanted::Nothing);
        check("bytes=-1", 0, Wanted::Nothing);
        check("bytes=x-y", 10, Wanted::Nothing);
        check("lines=1-2", 10, Wanted::Nothing);
        check("bytes=0-1,3-4", 10, Wanted::Everything);
        check("bytes=", 10, Wanted::Everything);
    }

    #[test]
    fn files_are_told_apart() {
        let check =
            |name: &str, sample: &[u8], expected: &str| assert_eq!(kind(name, sample), expected, "{name}");
        check(
            "a.log",
            b"text\twith \x1b[0m colours\n",
            "text/plain; charset=utf-8",
        );
        check("a.log", b"", "text/plain; charset=utf-8");
        check("wtmp", b"\x00\x01", "application/octet-stream");
        check("a", b"\x1f\x8b\x08x", "application/x-gzip");
        check("a.json", b"{}", "application/json");
    }

    #[test]
    fn dates_are_written_as_headers_want_them() {
        let date = http_date(Timestamp::from_unix_seconds(1_767_225_600));
        assert_eq!(date, "Thu, 01 Jan 2026 00:00:00 GMT");
        let mut headers = HeaderMap::new();
        headers.insert(IF_MODIFIED_SINCE, HeaderValue::from_str(&date).unwrap());
        assert!(not_modified(
            &headers,
            Timestamp::from_unix_seconds(1_767_225_600)
        ));
        assert!(!not_modified(
            &headers,
            Timestamp::from_unix_seconds(1_767_225_601)
        ));
    }

    proptest! {
        #[test]
        fn no_range_upsets_it(range in "(bytes=)?[-0-9, x]{0,30}", size: u64) {
            if let Wanted::Part(start, end) = wanted_part(&range, size) {
                prop_assert!(start < end && end <= size, "{range}");
            }
        }
    }
}
