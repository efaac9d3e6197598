//! The server's side of a WebSocket: its handshake and its frames.
//!
//! Owns what RFC 6455 requires of a server (decision 0041 says why no crate does it). A message is given piece by piece as it
//! comes, so that its length costs no memory. What messages mean is known in `translate`.

use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::HeaderMap;
use http::header::{
    CONNECTION, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use sha1::{Digest as _, Sha1};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// What is appended to a client's key to prove that its handshake was understood.
const HANDSHAKE_SALT: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const VERSION: &[u8] = b"13";
const KEY_BYTES: usize = 16;
/// What a piece of a message has at most.
const PIECE_BYTES: usize = 32 * 1024;
/// What a frame that is no message may carry.
const CONTROL_BYTES: u64 = 125;
const FINAL: u8 = 0x80;
const RESERVED: u8 = 0x70;
const MASKED: u8 = 0x80;
const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
const NORMAL_CLOSURE: [u8; 2] = 1000_u16.to_be_bytes();

/// The headers of the answer that accepts a handshake, with one of the client's protocols.
pub(crate) fn accept(headers: &HeaderMap, protocol: &str) -> Result<HeaderMap, &'static str> {
    if headers.get(SEC_WEBSOCKET_VERSION).map(HeaderValue::as_bytes) != Some(VERSION) {
        return Err("missing or bad WebSocket Version");
    }
    let key = headers.get(SEC_WEBSOCKET_KEY).map(HeaderValue::as_bytes);
    let is_key = |key: &&[u8]| BASE64.decode(key).is_ok_and(|key| key.len() == KEY_BYTES);
    let key = key.filter(is_key).ok_or("mismatch challenge/response")?;
    let proof = BASE64.encode(
        Sha1::new()
            .chain_update(key)
            .chain_update(HANDSHAKE_SALT)
            .finalize(),
    );
    let value = |text: &str| HeaderValue::from_str(text).map_err(|_| "the protocol has no name");
    Ok([
        (UPGRADE, HeaderValue::from_static("websocket")),
        (CONNECTION, HeaderValue::from_static("Upgrade")),
        (SEC_WEBSOCKET_ACCEPT, value(&proof)?),
        (SEC_WEBSOCKET_PROTOCOL, value(protocol)?),
    ]
    .into_iter()
    .collect())
}

/// What a client sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Of a message; a message that is empty is one piece without bytes.
    Message {
        begins: bool,
        bytes: Vec<u8>,
    },
    Ping(Vec<u8>),
    /// A close frame.
    Close,
}

/// Reads what a client sends.
pub(crate) struct Reader<R> {
    from: R,
    /// Of the frame that is being read.
    frame: Option<Frame>,
    /// A message has begun that has not ended.
    is_within_message: bool,
}

struct Frame {
    left_bytes: u64,
    mask: [u8; 4],
    /// Where the mask stands.
    place: usize,
    begins_message: bool,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub(crate) fn new(from: R) -> Self {
        Self {
            from,
            frame: None,
            is_within_message: false,
        }
    }

    /// The next piece. Not cancel-safe: it may have read a part of it.
    pub(crate) async fn next(&mut self) -> io::Result<Piece> {
        loop {
            if let Some(mut frame) = self.frame.take() {
                let bytes = self.read_masked(&mut frame, PIECE_BYTES).await?;
                let begins = std::mem::replace(&mut frame.begins_message, false);
                if frame.left_bytes > 0 {
                    self.frame = Some(frame);
                }
                return Ok(Piece::Message { begins, bytes });
            }
            if let Some(control) = self.read_head().await? {
                return Ok(control);
            }
        }
    }

    /// A frame's head; a control frame is read to its end.
    async fn read_head(&mut self) -> io::Result<Option<Piece>> {
        let first = self.from.read_u8().await?;
        let second = self.from.read_u8().await?;
        let (kind, is_final) = (first & 0x0f, first & FINAL != 0);
        if first & RESERVED != 0 || second & MASKED == 0 {
            return Err(broken("a frame with reserved bits or without a mask"));
        }
        let left_bytes = match second & !MASKED {
            126 => u64::from(self.from.read_u16().await?),
            127 => self.from.read_u64().await?,
            short => u64::from(short),
        };
        let mut frame = Frame {
            left_bytes,
            mask: [0; 4],
            place: 0,
            begins_message: kind != CONTINUATION,
        };
        self.from.read_exact(&mut frame.mask).await?;
        match kind {
            TEXT | BINARY | CONTINUATION if self.is_within_message == (kind == CONTINUATION) => {
                self.is_within_message = !is_final;
                self.frame = Some(frame);
                Ok(None)
            }
            CLOSE | PING | PONG if is_final && left_bytes <= CONTROL_BYTES => {
                let bytes = self.read_masked(&mut frame, PIECE_BYTES).await?;
                Ok(match kind {
                    CLOSE => Some(Piece::Close),
                    PING => Some(Piece::Ping(bytes)),
                    _ => None,
                })
            }
            _ => Err(broken("an unexpected, oversized or fragmented frame")),
        }
    }

    async fn read_masked(&mut self, frame: &mut Frame, limit: usize) -> io::Result<Vec<u8>> {
        let length = usize::try_from(frame.left_bytes).unwrap_or(limit).min(limit);
        let mut bytes = vec![0; length];
        self.from.read_exact(&mut bytes).await?;
        for byte in &mut bytes {
            *byte ^= frame.mask[frame.place % 4];
            frame.place += 1;
        }
        frame.left_bytes -= length as u64;
        Ok(bytes)
    }
}

fn broken(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Writes to a client.
pub(crate) struct Writer<W>(W);

impl<W: AsyncWrite + Unpin> Writer<W> {
    pub(crate) fn new(to: W) -> Self {
        Self(to)
    }

    /// A binary message of two parts.
    pub(crate) async fn message(&mut self, start: &[u8], rest: &[u8]) -> io::Result<()> {
        self.frame(BINARY, start, rest).await
    }

    pub(crate) async fn pong(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.frame(PONG, &[], bytes).await
    }

    /// Sends a close frame and ends the stream.
    pub(crate) async fn close(&mut self) -> io::Result<()> {
        self.frame(CLOSE, &[], &NORMAL_CLOSURE).await?;
        self.0.shutdown().await
    }

    async fn frame(&mut self, kind: u8, start: &[u8], rest: &[u8]) -> io::Result<()> {
        let length = start.len() + rest.len();
        let mut frame = Vec::with_capacity(length + 10);
        frame.push(FINAL | kind);
        match (u8::try_from(length), u16::try_from(length)) {
            (Ok(short @ 0..126), _) => frame.push(short),
            (_, Ok(medium)) => {
                frame.push(126);
                frame.extend(medium.to_be_bytes());
            }
            _ => {
                frame.push(127);
                frame.extend((length as u64).to_be_bytes());
            }
        }
        frame.extend_from_slice(start);
        frame.extend_from_slice(rest);
        self.0.write_all(&frame).await?;
        self.0.flush().await
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_handshake_is_proven() {
        let check = |version: &str, key: &str, expected: Result<&str, &str>| {
            let mut headers = HeaderMap::new();
            headers.insert(SEC_WEBSOCKET_VERSION, version.parse().unwrap());
            headers.insert(SEC_WEBSOCKET_KEY, key.parse().unwrap());
            let answer = accept(&headers, "v5.channel.k8s.io");
            let proof = answer.map(|answer| {
                assert_eq!(answer[SEC_WEBSOCKET_PROTOCOL], "v5.channel.k8s.io");
                assert_eq!(
                    (&answer[UPGRADE], &answer[CONNECTION]),
                    (&"websocket".parse().unwrap(), &"Upgrade".parse().unwrap())
                );
                answer[SEC_WEBSOCKET_ACCEPT].to_str().unwrap().to_owned()
            });
            assert_eq!(
                proof.as_deref().map_err(|problem| *problem),
                expected,
                "{version} {key}"
            );
        };
        // The example of RFC 6455.
        check(
            "13",
            "dGhlIHNhbXBsZSBub25jZQ==",
            Ok("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
        );
        check(
            "8",
            "dGhlIHNhbXBsZSBub25jZQ==",
            Err("missing or bad WebSocket Version"),
        );
        check("13", "c2hvcnQ=", Err("mismatch challenge/response"));
        check("13", "not base64", Err("mismatch challenge/response"));
    }

    /// A frame as a client sends it.
    fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
        let mask = [7, 77, 177, 1];
        let mut frame = vec![first];
        match payload.len() {
            short @ 0..126 => frame.push(MASKED | u8::try_from(short).unwrap()),
            length => {
                frame.push(MASKED | 127);
                frame.extend((length as u64).to_be_bytes());
            }
        }
        frame.extend(mask);
        frame.extend(
            payload
                .iter()
                .zip(mask.iter().cycle())
                .map(|(byte, mask)| byte ^ mask),
        );
        frame
    }

    async fn read(bytes: &[u8]) -> (Vec<Piece>, io::ErrorKind) {
        let (mut reader, mut pieces) = (Reader::new(bytes), Vec::new());
        loop {
            match reader.next().await {
                Ok(piece) => pieces.push(piece),
                Err(error) => return (pieces, error.kind()),
            }
        }
    }

    fn piece(begins: bool, bytes: &[u8]) -> Piece {
        Piece::Message {
            begins,
            bytes: bytes.to_vec(),
        }
    }

    #[tokio::test]
    async fn frames_are_understood() {
        let check = async |frames: &[Vec<u8>], expected: &[Piece], end: io::ErrorKind| {
            let (pieces, found) = read(&frames.concat()).await;
            assert_eq!((pieces.as_slice(), found), (expected, end), "{frames:?}");
        };
        let (eof, bad) = (io::ErrorKind::UnexpectedEof, io::ErrorKind::InvalidData);
        check(&[masked(FINAL | BINARY, b"hello")], &[piece(true, b"hello")], eof).await;
        check(&[masked(FINAL | TEXT, b"")], &[piece(true, b"")], eof).await;
        // A message in frames, with a ping in between.
        check(
            &[
                masked(BINARY, b"a"),
                masked(FINAL | PING, b"p"),
                masked(FINAL | CONTINUATION, b"b"),
                masked(FINAL | CLOSE, b""),
            ],
            &[
                piece(true, b"a"),
                Piece::Ping(b"p".to_vec()),
                piece(false, b"b"),
                Piece::Close,
            ],
            eof,
        )
        .await;
        let long = vec![5; PIECE_BYTES + 1];
        check(
            &[masked(FINAL | BINARY, &long)],
            &[piece(true, &long[1..]), piece(false, &[5])],
            eof,
        )
        .await;
        // Not masked, reserved bits, a continuation of nothing, a message within a message, a ping that is too long or in parts.
        check(&[vec![FINAL | BINARY, 1, b'x']], &[], bad).await;
        check(&[masked(FINAL | 0x40 | BINARY, b"x")], &[], bad).await;
        check(&[masked(FINAL | CONTINUATION, b"x")], &[], bad).await;
        check(
            &[masked(BINARY, b"x"), masked(BINARY, b"y")],
            &[piece(true, b"x")],
            bad,
        )
        .await;
        check(&[masked(FINAL | PING, &[0; 126])], &[], bad).await;
        check(&[masked(PING, b"")], &[], bad).await;
        check(&[masked(FINAL | 3, b"x")], &[], bad).await;
    }

    #[tokio::test]
    async fn what_is_written_has_its_length() {
        for (length, head) in [
            (0, vec![0x82, 0]),
            (125, vec![0x82, 125]),
            (126, vec![0x82, 126, 0, 126]),
            (65_536, vec![0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0]),
        ] {
            let mut written = Vec::new();
            let payload = vec![9; length];
            let (start, rest) = payload.split_at(length.min(1));
            Writer::new(&mut written).message(start, rest).await.unwrap();
            assert_eq!(written, [head, payload].concat());
        }
        let mut written = Vec::new();
        Writer::new(&mut written).close().await.unwrap();
        assert_eq!(written, [0x88, 2, 3, 232]);
    }

    proptest! {
        #[test]
        fn noise_never_panics_and_always_ends(noise in proptest::collection::vec(any::<u8>(), 0..300)) {
            futures_util::future::FutureExt::now_or_never(read(&noise)).unwrap();
        }
    }
}
