//! Reads a whole answer: compressed or not, up to a limit, for as long as it makes progress.

use std::io::{self, Write};
use std::time::Duration;

use bytes::Bytes;
use flate2::write::MultiGzDecoder;
use http::HeaderMap;
use http::header::CONTENT_ENCODING;
use http_body_util::BodyExt;
use hyper::body::Body;

pub(crate) struct Limits {
    /// After decompression.
    pub(crate) bytes: usize,
    /// The longest pause between two parts.
    pub(crate) no_progress: Duration,
}

#[derive(Debug)]
pub(crate) enum AnswerError<E> {
    Broken(E),
    TooLong,
    /// It does not have the compression that its header names, or is cut off.
    BadEncoding,
    Stalled,
}

/// The text of an answer so far.
enum Text {
    Plain(Capped),
    Compressed(Box<MultiGzDecoder<Capped>>),
}

struct Capped {
    text: Vec<u8>,
    limit: usize,
    is_full: bool,
}

impl Write for Capped {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.text.len() + data.len() > self.limit {
            self.is_full = true;
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        self.text.extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Text {
    fn push(&mut self, data: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(text) => text.write_all(data),
            Self::Compressed(text) => text.write_all(data),
        }
    }

    fn problem<E>(&self) -> AnswerError<E> {
        let capped = match self {
            Self::Plain(text) => text,
            Self::Compressed(text) => text.get_ref(),
        };
        if capped.is_full {
            AnswerError::TooLong
        } else {
            AnswerError::BadEncoding
        }
    }

    fn finish<E>(mut self) -> Result<Bytes, AnswerError<E>> {
        // The decoder may hold back what it has already decompressed.
        if let Self::Compressed(text) = &mut self
            && text.try_finish().is_err()
        {
            return Err(self.problem());
        }
        match self {
            Self::Plain(text) => Ok(text.text.into()),
            Self::Compressed(text) => match text.finish() {
                Ok(text) => Ok(text.text.into()),
                Err(_) => Err(AnswerError::BadEncoding),
            },
        }
    }
}

/// Only `gzip` is asked for.
pub(crate) fn is_compressed(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_ENCODING)
        .is_some_and(|encoding| encoding.as_bytes().eq_ignore_ascii_case(b"gzip"))
}

pub(crate) async fn read<B: Body<Data = Bytes> + Unpin>(
    mut body: B,
    is_compressed: bool,
    limits: &Limits,
) -> Result<Bytes, AnswerError<B::Error>> {
    let capped = Capped {
        text: Vec::new(),
        limit: limits.bytes,
        is_full: false,
    };
    let mut text = if is_compressed {
        Text::Compressed(Box::new(MultiGzDecoder::new(capped)))
    } else {
        Text::Plain(capped)
    };
    loop {
        let frame = match tokio::time::timeout(limits.no_progress, body.frame()).await {
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(error))) => return Err(AnswerError::Broken(error)),
            Ok(None) => return text.finish(),
            Err(_) => return Err(AnswerError::Stalled),
        };
        let Ok(data) = frame.into_data() else { continue };
        if text.push(&data).is_err() {
            return Err(text.problem());
        }
    }
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use futures_util::stream::{self, StreamExt as _};
    use http_body_util::StreamBody;
    use hyper::body::Frame;

    use super::*;

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    /// Reads parts that come 20 s after each other, with a limit of 30 s on a pause.
    async fn read_parts(parts: Vec<Vec<u8>>, is_compressed: bool) -> Result<Bytes, AnswerError<io::Error>> {
        let frames = stream::iter(parts).then(|part| async move {
            tokio::time::sleep(Duration::from_secs(20)).await;
            Ok(Frame::data(Bytes::from(part)))
        });
        let limits = Limits {
            bytes: 1000,
            no_progress: Duration::from_secs(30),
        };
        read(Box::pin(StreamBody::new(frames)), is_compressed, &limits).await
    }

    #[tokio::test(start_paused = true)]
    async fn parts_become_one_text_however_long_they_take() {
        let parts = vec![b"one ".to_vec(), b"two ".to_vec(), b"three".to_vec()];
        assert_eq!(&read_parts(parts, false).await.unwrap()[..], b"one two three");
        let text = gzip(b"one two three");
        let parts = text.chunks(3).map(<[u8]>::to_vec).collect();
        assert_eq!(&read_parts(parts, true).await.unwrap()[..], b"one two three");
        assert!(read_parts(Vec::new(), false).await.unwrap().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_too_long_or_broken_is_refused() {
        let long = vec![b'x'; 1001];
        let refused = read_parts(vec![long.clone()], false).await;
        assert!(matches!(refused, Err(AnswerError::TooLong)), "{refused:?}");
        let refused = read_parts(vec![gzip(&long)], true).await;
        assert!(matches!(refused, Err(AnswerError::TooLong)), "{refused:?}");
        let refused = read_parts(vec![b"no gzip".to_vec()], true).await;
        assert!(matches!(refused, Err(AnswerError::BadEncoding)), "{refused:?}");
        let mut cut = gzip(&long[..500]);
        cut.truncate(cut.len() - 4);
        let refused = read_parts(vec![cut], true).await;
        assert!(matches!(refused, Err(AnswerError::BadEncoding)), "{refused:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_without_progress_is_given_up() {
        let frames = stream::iter([Ok::<_, io::Error>(Frame::data(Bytes::from_static(b"x")))]);
        let body = StreamBody::new(frames.chain(stream::pending()));
        let limits = Limits {
            bytes: 1000,
            no_progress: Duration::from_secs(30),
        };
        let stalled = read(body, false, &limits).await;
        assert!(matches!(stalled, Err(AnswerError::Stalled)), "{stalled:?}");
    }
}
