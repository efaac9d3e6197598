//! A container's termination message.
//!
//! Owns the limits, the choice between message file and log, and the division of a pod's total. The caller reads the files.

use std::borrow::Cow;

/// The message is this much of the end of the message file.
pub const MAX_FILE_BYTES: usize = 4096;
/// The message is this much of the end of the log.
pub const MAX_LOG_BYTES: usize = 2048;
pub const MAX_LOG_LINES: usize = 80;
/// Over all containers of a pod.
pub const MAX_POD_BYTES: usize = 12_288;
const FALLBACK: &str = "FallbackToLogsOnError";
/// The reason of a container that the runtime could not start, so that there is no log.
const CANNOT_RUN: &str = "ContainerCannotRun";

/// What is known of the message file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageFile<'a> {
    /// The container has none mounted, or it is gone.
    Absent,
    Content(&'a [u8]),
    /// It exists and cannot be read.
    Unreadable {
        path: &'a str,
        problem: &'a str,
    },
}

/// Where the message comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Message(String),
    /// Read the end of the log with `message_of_log`.
    Log,
}

/// Whether the end of the log is used where the message is empty.
pub fn falls_back_to_log(policy: &str, exit_code: i32, reason: &str) -> bool {
    policy == FALLBACK && exit_code != 0 && reason != CANNOT_RUN
}

/// The message of the file, or [`Source::Log`].
pub fn message_of_file(file: &MessageFile<'_>, falls_back: bool) -> Source {
    match file {
        MessageFile::Content(bytes) if !bytes.is_empty() => {
            Source::Message(text(end_of(bytes, MAX_FILE_BYTES)))
        }
        MessageFile::Unreadable { path, problem } => Source::Message(format!(
            "the termination message {path} cannot be read: {problem}"
        )),
        MessageFile::Absent | MessageFile::Content(_) if falls_back => Source::Log,
        MessageFile::Absent | MessageFile::Content(_) => Source::Message(String::new()),
    }
}

/// The last lines of a log in the CRI's format; lines that are not in it are left out.
pub fn message_of_log(log: &[u8]) -> String {
    text(end_of(&last_records(log).0, MAX_LOG_BYTES))
}

/// The same from the end of a log, which may begin within a line. `None`: more of the log is needed.
pub fn message_of_log_end(end: &[u8]) -> Option<String> {
    let line_begin = end.iter().position(|byte| *byte == b'\n')? + 1;
    let (content, line_count) = last_records(&end[line_begin..]);
    let is_enough = line_count >= MAX_LOG_LINES || content.len() >= MAX_LOG_BYTES;
    is_enough.then(|| text(end_of(&content, MAX_LOG_BYTES)))
}

/// The same when no more of the log is read: the line that `end` begins in may be longer than the limit of reading.
pub fn message_of_cut_log(end: &[u8]) -> String {
    let first_line_end = end.iter().position(|byte| *byte == b'\n').unwrap_or(end.len());
    let (first_line, rest) = end.split_at(first_line_end);
    let mut content = first_line.to_vec();
    content.push(b'\n');
    content.extend(last_records(rest.strip_prefix(b"\n").unwrap_or(rest)).0);
    text(end_of(&content, MAX_LOG_BYTES))
}

/// The content of the last lines, and their number.
fn last_records(log: &[u8]) -> (Vec<u8>, usize) {
    let lines = log.strip_suffix(b"\n").unwrap_or(log);
    let lines: Vec<&[u8]> = lines.split(|byte| *byte == b'\n').collect();
    let first = lines.len().saturating_sub(MAX_LOG_LINES);
    let content = lines[first..].iter().flat_map(|line| record(line)).collect();
    (content, lines.len())
}

/// `<time> <stream> <tags> <content>`; a partial record has no line end.
fn record(line: &[u8]) -> Vec<u8> {
    let mut parts = line.splitn(4, |byte| *byte == b' ');
    let (Some(_), Some(b"stdout" | b"stderr"), Some(tags)) = (parts.next(), parts.next(), parts.next())
    else {
        return Vec::new();
    };
    let mut content = parts.next().unwrap_or_default().to_vec();
    if tags.split(|byte| *byte == b':').next() != Some(b"P") {
        content.push(b'\n');
    }
    content
}

fn end_of(bytes: &[u8], limit: usize) -> &[u8] {
    &bytes[bytes.len().saturating_sub(limit)..]
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The runtime's own message, followed by the container's.
pub fn combined(runtime_message: &str, container_message: &str) -> String {
    match (runtime_message, container_message) {
        (runtime, "") => runtime.to_owned(),
        ("", container) => container.to_owned(),
        (runtime, container) => format!("{runtime}: {container}"),
    }
}

/// The length of each container's message, when the pod has this many containers of all kinds.
pub fn bytes_per_container(container_count: usize) -> usize {
    MAX_POD_BYTES
        .checked_div(container_count)
        .unwrap_or(MAX_POD_BYTES)
}

/// The message's beginning, never cut within a character.
pub fn cut(message: &str, limit_bytes: usize) -> Cow<'_, str> {
    Cow::Borrowed(&message[..message.floor_char_boundary(limit_bytes)])
}

/// The message file's path in the container, by which its mount is recognised.
pub fn path_in_container(termination_message_path: &str) -> Option<String> {
    (!termination_message_path.is_empty()).then(|| super::container::absolute(termination_message_path))
}
