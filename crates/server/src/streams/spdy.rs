//! The client's side of SPDY/3.1, as far as a runtime's streaming server needs it.
//!
//! Owns the frames. Header blocks are sent as stored (uncompressed) zlib blocks; received ones are skipped. No flow-control windows are
//! used, because neither side of this protocol keeps to them; a slow reader holds the connection back.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

const VERSION: u16 = 3;
const CONTROL: u16 = 0x8000;
const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const FINAL: u8 = 1;
const HEAD_BYTES: usize = 8;
/// What is given of a stream's bytes at a time.
const PIECE_BYTES: usize = 32 * 1024;
/// No frame but one with data is ever longer.
const CONTROL_BYTES: usize = 64 * 1024;
/// The start of a stream that zlib has packed without a dictionary.
const ZLIB_START: [u8; 2] = [0x78, 0x01];
/// A block without bytes. Readers give what they have when they meet it, and may wait for more before.
const ZLIB_FLUSH: [u8; 5] = [0, 0, 0, 0xff, 0xff];

/// A stream's number: odd, and growing, as we open all of them.
pub(crate) type StreamId = u32;

/// What the server sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// It accepts a stream.
    Accepted(StreamId),
    Data {
        stream: StreamId,
        bytes: Vec<u8>,
    },
    /// Nothing more comes on this stream.
    Ended(StreamId),
    Ping(u32),
    /// It will not answer any more.
    Farewell,
}

/// Reads what a server sends.
pub(crate) struct Reader<R> {
    from: R,
    /// The stream whose data is being read, how much is left, and whether it ends with it.
    data: Option<(StreamId, usize, bool)>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub(crate) fn new(from: R) -> Self {
        Self { from, data: None }
    }

    /// The next frame, or a part of a long one. Not cancel-safe: it may have read a part of it.
    pub(crate) async fn next(&mut self) -> io::Result<Frame> {
        loop {
            if let Some((stream, left, is_final)) = self.data.take() {
                if left == 0 {
                    if is_final {
                        return Ok(Frame::Ended(stream));
                    }
                    continue;
                }
                let bytes = self.read(left.min(PIECE_BYTES)).await?;
                self.data = Some((stream, left - bytes.len(), is_final));
                return Ok(Frame::Data { stream, bytes });
            }
            let mut head = [0; HEAD_BYTES];
            self.from.read_exact(&mut head).await?;
            let [a, b, c, d, flags, e, f, g] = head;
            let length = usize::try_from(u32::from_be_bytes([0, e, f, g])).unwrap_or(usize::MAX);
            if u16::from_be_bytes([a, b]) & CONTROL == 0 {
                let stream = u32::from_be_bytes([a, b, c, d]);
                self.data = Some((stream, length, flags & FINAL != 0));
            } else if let Some(frame) = self.control(u16::from_be_bytes([c, d]), flags, length).await? {
                return Ok(frame);
            }
        }
    }

    async fn control(&mut self, kind: u16, flags: u8, length: usize) -> io::Result<Option<Frame>> {
        if length > CONTROL_BYTES {
            return Err(broken("a frame is too long"));
        }
        let bytes = self.read(length).await?;
        let number = || match bytes.first_chunk() {
            Some(number) => Ok(u32::from_be_bytes(*number)),
            None => Err(broken("a frame is too short")),
        };
        Ok(match kind {
            SYN_REPLY => {
                let stream = number()?;
                if flags & FINAL != 0 {
                    self.data = Some((stream, 0, true));
                }
                Some(Frame::Accepted(stream))
            }
            RST_STREAM => Some(Frame::Ended(number()?)),
            PING => Some(Frame::Ping(number()?)),
            GOAWAY => Some(Frame::Farewell),
            // Settings, headers, windows, and whatever else there may be.
            _ => None,
        })
    }

    async fn read(&mut self, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.from.read_exact(&mut bytes).await?;
        Ok(bytes)
    }
}

fn broken(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Writes to a server.
pub(crate) struct Writer<W> {
    to: W,
    last_stream: Option<StreamId>,
}

impl<W: AsyncWrite + Unpin> Writer<W> {
    pub(crate) fn new(to: W) -> Self {
        Self {
            to,
            last_stream: None,
        }
    }

    /// Opens a stream with one header, whose name must be in small letters.
    pub(crate) async fn open(&mut self, name: &str, value: &str) -> io::Result<StreamId> {
        let stream = self.last_stream.map_or(1, |last| last + 2);
        let mut pairs = 1_u32.to_be_bytes().to_vec();
        for text in [name, value] {
            pairs.extend(length_of(text.as_bytes())?.to_be_bytes());
            pairs.extend_from_slice(text.as_bytes());
        }
        let length = u16::try_from(pairs.len()).map_err(|_| broken("a header is too long"))?;
        let mut payload = stream.to_be_bytes().to_vec();
        // It belongs to no other stream, and has no priority.
        payload.extend([0; 6]);
        // All streams share one packed text, which begins once.
        if self.last_stream.is_none() {
            payload.extend(ZLIB_START);
        }
        payload.push(0);
        payload.extend(length.to_le_bytes());
        payload.extend((!length).to_le_bytes());
        payload.extend(pairs);
        payload.extend(ZLIB_FLUSH);
        self.last_stream = Some(stream);
        self.control(SYN_STREAM, &payload).await?;
        Ok(stream)
    }

    pub(crate) async fn data(&mut self, stream: StreamId, bytes: &[u8]) -> io::Result<()> {
        self.send_data(stream, 0, bytes).await
    }

    /// Nothing more comes from us on this stream.
    pub(crate) async fn end(&mut self, stream: StreamId) -> io::Result<()> {
        self.send_data(stream, FINAL, &[]).await
    }

    pub(crate) async fn ping(&mut self, number: u32) -> io::Result<()> {
        self.control(PING, &number.to_be_bytes()).await
    }

    async fn send_data(&mut self, stream: StreamId, flags: u8, bytes: &[u8]) -> io::Result<()> {
        self.send(stream.to_be_bytes(), flags, bytes).await
    }

    async fn control(&mut self, kind: u16, payload: &[u8]) -> io::Result<()> {
        let [a, b] = (CONTROL | VERSION).to_be_bytes();
        let [c, d] = kind.to_be_bytes();
        self.send([a, b, c, d], 0, payload).await
    }

    async fn send(&mut self, start: [u8; 4], flags: u8, payload: &[u8]) -> io::Result<()> {
        let [_, e, f, g] = length_of(payload)?.to_be_bytes();
        let mut frame = Vec::with_capacity(HEAD_BYTES + payload.len());
        frame.extend(start);
        frame.extend([flags, e, f, g]);
        frame.extend_from_slice(payload);
        self.to.write_all(&frame).await?;
        self.to.flush().await
    }
}

fn length_of(bytes: &[u8]) -> io::Result<u32> {
    let length = u32::try_from(bytes.len()).ok().filter(|length| *length < 1 << 24);
    length.ok_or_else(|| broken("a frame would be too long"))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use proptest::prelude::*;

    use super::*;

    async fn read(bytes: &[u8]) -> (Vec<Frame>, io::ErrorKind) {
        let (mut reader, mut frames) = (Reader::new(bytes), Vec::new());
        loop {
            match reader.next().await {
                Ok(frame) => frames.push(frame),
                Err(error) => return (frames, error.kind()),
            }
        }
    }

    #[tokio::test]
    async fn headers_can_be_unpacked_across_streams() {
        let mut written = Vec::new();
        let mut writer = Writer::new(&mut written);
        assert_eq!(writer.open("streamtype", "error").await.unwrap(), 1);
        assert_eq!(writer.open("streamtype", "stdin").await.unwrap(), 3);
        let mut packed = Vec::new();
        let mut rest = written.as_slice();
        for stream in [1, 3] {
            let (head, after) = rest.split_at(HEAD_BYTES);
            assert_eq!(head[..5], [0x80, 3, 0, 1, 0]);
            let (payload, after) = after.split_at(usize::from(head[7]));
            assert_eq!(payload[..10], [0, 0, 0, stream, 0, 0, 0, 0, 0, 0]);
            packed.extend_from_slice(&payload[10..]);
            rest = after;
        }
        assert!(rest.is_empty());
        let expected =
            "\0\0\0\x01\0\0\0\x0astreamtype\0\0\0\x05error\0\0\0\x01\0\0\0\x0astreamtype\0\0\0\x05stdin";
        let mut unpacked = vec![0; expected.len()];
        flate2::read::ZlibDecoder::new(packed.as_slice())
            .read_exact(&mut unpacked)
            .unwrap();
        assert_eq!(unpacked, expected.as_bytes());
    }

    #[tokio::test]
    async fn frames_are_understood() {
        let check = async |bytes: &[u8], expected: &[Frame], end: io::ErrorKind| {
            let (frames, found) = read(bytes).await;
            assert_eq!((frames.as_slice(), found), (expected, end), "{bytes:?}");
        };
        let (eof, bad) = (io::ErrorKind::UnexpectedEof, io::ErrorKind::InvalidData);
        check(
            &[0x80, 3, 0, 2, 0, 0, 0, 4, 0, 0, 0, 5],
            &[Frame::Accepted(5)],
            eof,
        )
        .await;
        check(
            &[0x80, 3, 0, 2, 1, 0, 0, 4, 0, 0, 0, 5],
            &[Frame::Accepted(5), Frame::Ended(5)],
            eof,
        )
        .await;
        let hello = Frame::Data {
            stream: 3,
            bytes: b"hello".to_vec(),
        };
        check(b"\0\0\0\x03\x01\0\0\x05hello", &[hello, Frame::Ended(3)], eof).await;
        check(
            &[0x80, 3, 0, 3, 0, 0, 0, 8, 0, 0, 0, 7, 0, 0, 0, 5],
            &[Frame::Ended(7)],
            eof,
        )
        .await;
        check(&[0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 2], &[Frame::Ping(2)], eof).await;
        check(
            &[0x80, 3, 0, 7, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0],
            &[Frame::Farewell],
            eof,
        )
        .await;
        // Settings are not for us.
        check(&[0x80, 3, 0, 4, 0, 0, 0, 4, 0, 0, 0, 0], &[], eof).await;
        check(&[0x80, 3, 0, 2, 0, 0, 0, 2, 0, 0], &[], bad).await;
        check(&[0x80, 3, 0, 2, 0, 0xff, 0, 0], &[], bad).await;
    }

    #[tokio::test]
    async fn data_goes_out_as_it_comes_in() {
        let mut written = Vec::new();
        let mut writer = Writer::new(&mut written);
        let bytes = vec![8; PIECE_BYTES + 2];
        writer.data(3, &bytes).await.unwrap();
        writer.end(3).await.unwrap();
        writer.ping(4).await.unwrap();
        let (frames, _) = read(&written).await;
        let data = |bytes: &[u8]| Frame::Data {
            stream: 3,
            bytes: bytes.to_vec(),
        };
        assert_eq!(
            frames,
            [data(&bytes[2..]), data(&[8, 8]), Frame::Ended(3), Frame::Ping(4)]
        );
    }

    proptest! {
        #[test]
        fn noise_never_panics_and_always_ends(noise in proptest::collection::vec(any::<u8>(), 0..300)) {
            futures_util::future::FutureExt::now_or_never(read(&noise)).unwrap();
        }
    }
}
