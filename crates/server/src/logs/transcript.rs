//! From the lines of a log file to what a client gets.
//!
//! Owns the two formats, the joining of partial lines, and the limits of the request. It is a pure machine: bytes in, bytes
//! out. It holds at most one line, and of a longer line only its beginning.

use rubelet_model::Timestamp;
use serde::Deserialize;

use super::options::{LogOptions, LogStream};
use crate::rfc3339;

/// Runtimes cut lines at 16 KiB; longer ones are passed on as they come.
const LINE_LIMIT_BYTES: usize = 256 * 1024;
/// How much of a line that makes no sense is shown.
const SAMPLE_BYTES: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// `<time> stdout|stderr F|P[:…] <content>`
    Cri,
    /// `{"log": "…", "stream": "…", "time": "…"}`
    DockerJson,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    More,
    /// The limit of the request is reached.
    Done,
}

/// One entry of the log, taken apart.
struct Entry<'a> {
    time: &'a str,
    instant: Timestamp,
    stream: LogStream,
    content: std::borrow::Cow<'a, [u8]>,
    is_partial: bool,
}

/// The rest of a line whose beginning was too long to wait for its end.
#[derive(Clone, Copy, Debug)]
struct LongLine {
    is_shown: bool,
    is_partial: bool,
}

pub(super) struct Transcript {
    format: Option<Format>,
    since: Option<Timestamp>,
    single_stream: Option<LogStream>,
    timestamps: bool,
    lines_left: Option<u64>,
    bytes_left: Option<u64>,
    at_line_start: bool,
    /// A line whose end has not come yet.
    pending: Vec<u8>,
    long_line: Option<LongLine>,
}

impl Transcript {
    pub(super) fn new(options: &LogOptions) -> Self {
        Self {
            format: None,
            since: options.since,
            single_stream: options.single_stream,
            timestamps: options.timestamps,
            // A follower gets everything after the last lines, too.
            lines_left: options.tail_lines.filter(|_| !options.follow),
            bytes_left: options.limit_bytes,
            at_line_start: true,
            pending: Vec::new(),
            long_line: None,
        }
    }

    /// Takes the next bytes of the file and appends what is to be sent. The error is upstream's text for a file that is no log.
    pub(super) fn take(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Result<Progress, String> {
        while !bytes.is_empty() {
            if self.lines_left == Some(0) {
                return Ok(Progress::Done);
            }
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let (piece, rest) = bytes.split_at(end.map_or(bytes.len(), |end| end + 1));
            bytes = rest;
            if self.take_piece(piece, end.is_some(), out)? == Progress::Done {
                return Ok(Progress::Done);
            }
        }
        Ok(if self.lines_left == Some(0) {
            Progress::Done
        } else {
            Progress::More
        })
    }

    /// The file has ended: what is left of it is a line, too.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), String> {
        let line = std::mem::take(&mut self.pending);
        if !line.is_empty() && self.lines_left != Some(0) {
            self.take_line(&line, out)?;
        }
        Ok(())
    }

    /// Forgets the beginning of a line: another file begins.
    pub(super) fn begin_file(&mut self) {
        self.pending.clear();
        self.long_line = None;
    }

    fn take_piece(&mut self, piece: &[u8], is_end: bool, out: &mut Vec<u8>) -> Result<Progress, String> {
        if let Some(line) = self.long_line {
            return Ok(self.take_more_of(line, piece, is_end, out));
        }
        if is_end && self.pending.is_empty() {
            return self.take_line(piece, out);
        }
        self.pending.extend_from_slice(piece);
        if is_end {
            let line = std::mem::take(&mut self.pending);
            let progress = self.take_line(&line, out);
            // The buffer is used again, unless it has grown large.
            if line.capacity() <= 2 * LINE_LIMIT_BYTES {
                self.pending = line;
                self.pending.clear();
            }
            return progress;
        }
        if self.pending.len() > LINE_LIMIT_BYTES {
            let line = std::mem::take(&mut self.pending);
            return self.begin_long_line(&line, out);
        }
        Ok(Progress::More)
    }

    fn take_line(&mut self, line: &[u8], out: &mut Vec<u8>) -> Result<Progress, String> {
        let format = match self.format {
            Some(format) => format,
            None => *self.format.insert(detect(line)?),
        };
        let Some(entry) = parse(format, line) else {
            tracing::debug!(
                line = sample(line),
                "A line of a log makes no sense and is left out"
            );
            return Ok(Progress::More);
        };
        let progress = self.show(&entry, out);
        self.count_line();
        self.at_line_start = entry.content.last().is_none_or(|byte| *byte == b'\n');
        Ok(progress)
    }

    fn begin_long_line(&mut self, beginning: &[u8], out: &mut Vec<u8>) -> Result<Progress, String> {
        let format = match self.format {
            Some(format) => format,
            None => *self.format.insert(detect(beginning)?),
        };
        // Half a JSON object cannot be read, so a line in that format is left out.
        let entry = parse(format, beginning);
        self.long_line = Some(LongLine {
            is_shown: entry.as_ref().is_some_and(|entry| self.is_wanted(entry)),
            is_partial: entry.as_ref().is_some_and(|entry| entry.is_partial),
        });
        let Some(entry) = entry else {
            tracing::warn!(
                line = sample(beginning),
                "A line of a log is too long and is left out"
            );
            return Ok(Progress::More);
        };
        let progress = self.show(&entry, out);
        self.at_line_start = false;
        Ok(progress)
    }

    fn take_more_of(&mut self, line: LongLine, piece: &[u8], is_end: bool, out: &mut Vec<u8>) -> Progress {
        let content = match piece {
            [content @ .., b'\n'] if line.is_partial => content,
            content => content,
        };
        let progress = if line.is_shown {
            self.send(content, out)
        } else {
            Progress::More
        };
        if is_end {
            self.long_line = None;
            self.at_line_start = !line.is_partial;
            if line.is_shown {
                self.count_line();
            }
        }
        progress
    }

    fn count_line(&mut self) {
        if let Some(left) = &mut self.lines_left {
            *left = left.saturating_sub(1);
        }
    }

    fn is_wanted(&self, entry: &Entry<'_>) -> bool {
        self.since.is_none_or(|since| entry.instant >= since)
            && self.single_stream.is_none_or(|stream| entry.stream == stream)
    }

    fn show(&mut self, entry: &Entry<'_>, out: &mut Vec<u8>) -> Progress {
        if !self.is_wanted(entry) {
            return Progress::More;
        }
        if self.timestamps
            && self.at_line_start
            && let Some(time) = rfc3339::with_nanoseconds(entry.time)
            && self.send(format!("{time} ").as_bytes(), out) == Progress::Done
        {
            return Progress::Done;
        }
        self.send(&entry.content, out)
    }

    fn send(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Progress {
        let Some(left) = &mut self.bytes_left else {
            out.extend_from_slice(bytes);
            return Progress::More;
        };
        let length = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
        out.extend_from_slice(&bytes[..length]);
        *left -= length as u64;
        if *left == 0 {
            Progress::Done
        } else {
            Progress::More
        }
    }
}

fn detect(line: &[u8]) -> Result<Format, String> {
    [Format::Cri, Format::DockerJson]
        .into_iter()
        .find(|format| parse(*format, line).is_some())
        .ok_or_else(|| {
            format!(
                "failed to get parse function: unsupported log format: {:?}",
                sample(line)
            )
        })
}

fn sample(line: &[u8]) -> String {
    String::from_utf8_lossy(&line[..line.len().min(SAMPLE_BYTES)]).into_owned()
}

fn parse(format: Format, line: &[u8]) -> Option<Entry<'_>> {
    match format {
        Format::Cri => parse_cri(line),
        Format::DockerJson => parse_docker(line),
    }
}

fn parse_cri(line: &[u8]) -> Option<Entry<'_>> {
    let mut parts = line.splitn(4, |byte| *byte == b' ');
    let time = str::from_utf8(parts.next()?).ok()?;
    let stream = LogStream::in_log(parts.next()?)?;
    let tags = parts.next()?;
    let content = parts.next()?;
    let is_partial = tags.split(|byte| *byte == b':').next() == Some(b"P");
    let content = match content {
        [content @ .., b'\n'] if is_partial => content,
        content => content,
    };
    Some(Entry {
        time,
        instant: rfc3339::parse(time)?,
        stream,
        content: content.into(),
        is_partial,
    })
}

#[derive(Deserialize)]
struct DockerEntry<'a> {
    #[serde(default)]
    log: String,
    #[serde(default)]
    stream: String,
    #[serde(borrow)]
    time: &'a str,
}

fn parse_docker(line: &[u8]) -> Option<Entry<'_>> {
    let entry: DockerEntry<'_> = serde_json::from_slice(line).ok()?;
    Some(Entry {
        time: entry.time,
        instant: rfc3339::parse(entry.time)?,
        stream: LogStream::in_log(entry.stream.as_bytes())?,
        content: entry.log.into_bytes().into(),
        is_partial: false,
    })
}

#[cfg(test)]
mod tests;
