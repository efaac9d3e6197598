//! The readers of what clients, runtimes and containers send, for the fuzzer. No program is built with this.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::FutureExt as _;
use tokio::io::{AsyncRead, ReadBuf};

use crate::access::subject_text;
use crate::logs::transcript_of;
use crate::streams::{spdy, websocket};

/// Gives at most so many bytes to a read, and never waits.
struct Pieces<'a> {
    bytes: &'a [u8],
    piece_bytes: usize,
}

impl AsyncRead for Pieces<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let length = self.bytes.len().min(self.piece_bytes).min(buffer.remaining());
        let (piece, rest) = self.bytes.split_at(length);
        buffer.put_slice(piece);
        self.bytes = rest;
        Poll::Ready(Ok(()))
    }
}

/// Everything up to the first error, which is the last entry.
macro_rules! read_all {
    ($reader:expr) => {{
        let mut reader = $reader;
        let mut found = Vec::new();
        while let Some(next) = reader.next().now_or_never() {
            found.push(format!("{next:?}"));
            if next.is_err() {
                break;
            }
        }
        found
    }};
}

/// The frames of a runtime's streaming server.
#[must_use]
pub fn spdy_frames(bytes: &[u8], piece_bytes: usize) -> Vec<String> {
    read_all!(spdy::Reader::new(Pieces { bytes, piece_bytes }))
}

/// The pieces of a client's messages.
#[must_use]
pub fn websocket_pieces(bytes: &[u8], piece_bytes: usize) -> Vec<String> {
    read_all!(websocket::Reader::new(Pieces { bytes, piece_bytes }))
}

/// The subject of a client certificate.
pub fn subject(bytes: &[u8]) -> Option<String> {
    subject_text(bytes)
}

/// What a client gets of a log that arrives in these pieces.
pub fn transcript(pieces: &[&[u8]], timestamps: bool) -> Result<Vec<u8>, String> {
    transcript_of(pieces, timestamps)
}
