//! A body that never ends, cut into lines.

use bytes::{Buf, Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Body;

/// An object is at most a few MiB; a line that is longer is none.
const MAX_LINE_BYTES: usize = 16 * 1024 * 1024;

pub(crate) struct WatchLines<B> {
    body: B,
    buffer: BytesMut,
    /// There is no line end before this.
    searched: usize,
}

#[derive(Debug)]
pub(crate) enum LineError<E> {
    Broken(E),
    TooLong,
}

impl<B: Body<Data = Bytes> + Unpin> WatchLines<B> {
    pub(crate) fn new(body: B) -> Self {
        Self {
            body,
            buffer: BytesMut::new(),
            searched: 0,
        }
    }

    /// `None` at the end of the body; a last line without end is not a line. Cancelling loses nothing.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, LineError<B::Error>> {
        loop {
            if let Some(line) = self.take_line() {
                return Ok(Some(line));
            }
            if self.buffer.len() > MAX_LINE_BYTES {
                return Err(LineError::TooLong);
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(LineError::Broken(error)),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }

    fn take_line(&mut self) -> Option<Bytes> {
        loop {
            let fresh = &self.buffer[self.searched..];
            let Some(offset) = fresh.iter().position(|byte| *byte == b'\n') else {
                self.searched = self.buffer.len();
                return None;
            };
            let line = self.buffer.split_to(self.searched + offset).freeze();
            self.buffer.advance(1);
            self.searched = 0;
            if self.buffer.is_empty() {
                // An idle watch holds no memory.
                self.buffer = BytesMut::new();
            }
            if !line.is_empty() {
                return Some(line);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http_body_util::StreamBody;
    use hyper::body::Frame;

    use super::*;

    async fn lines(pieces: &[&str]) -> Vec<String> {
        let frames: Vec<Result<Frame<Bytes>, &str>> = pieces
            .iter()
            .map(|piece| match *piece {
                "!" => Err("broken"),
                piece => Ok(Frame::data(Bytes::copy_from_slice(piece.as_bytes()))),
            })
            .collect();
        let mut lines = WatchLines::new(StreamBody::new(stream::iter(frames)));
        let mut found = Vec::new();
        loop {
            match lines.next().await {
                Ok(Some(line)) => found.push(String::from_utf8(line.to_vec()).unwrap()),
                Ok(None) => break,
                Err(LineError::Broken(error)) => {
                    found.push(error.to_owned());
                    break;
                }
                Err(LineError::TooLong) => unreachable!("the pieces are short"),
            }
        }
        found
    }

    #[tokio::test]
    async fn pieces_become_lines() {
        assert_eq!(lines(&["a\nb", "c\n", "\n\n", "d\n"]).await, ["a", "bc", "d"]);
        assert_eq!(lines(&["a", "b", "\n", "rest"]).await, ["ab"]);
        assert_eq!(lines(&["a\n", "!"]).await, ["a", "broken"]);
        assert!(lines(&[]).await.is_empty());
    }

    #[tokio::test]
    async fn a_line_without_end_is_refused() {
        let piece = Bytes::from(vec![b'x'; 1024 * 1024]);
        let frames = stream::repeat_with(move || Ok::<_, String>(Frame::data(piece.clone())));
        let mut lines = WatchLines::new(StreamBody::new(frames));
        assert!(matches!(lines.next().await, Err(LineError::TooLong)));
    }
}
