//! Sessions of WebSocket clients whose protocol no runtime supports: translated to SPDY, or unwrapped from their tunnel.
//!
//! Owns what the messages of these protocols mean. Commands use `v5.channel.k8s.io`: each message begins with a channel's number, and
//! a channel can be closed; the runtime gets version 4, whose streams are the same. Forwarded ports come as SPDY already,
//! wrapped in messages. The runtime's status reaches the client unchanged.

use std::collections::BTreeSet;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, split};
use tokio::sync::{Mutex, oneshot};
use tokio::time::{Instant, timeout_at};

use super::options::StreamOptions;
use super::spdy::{self, Frame, StreamId};
use super::splice::{End, Movement};
use super::websocket::{self, Piece};

/// Of messages.
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
/// A message that closes a channel.
const CLOSES: u8 = 255;
/// What names a stream to the runtime.
const STREAM_TYPE: &str = "streamtype";
/// A status is short: it holds no output of the command.
const STATUS_BYTES: usize = 64 * 1024;
const BUFFER_BYTES: usize = 32 * 1024;
/// How long a runtime may take to accept all streams; upstream waits as long.
const ACCEPT_LIMIT: Duration = Duration::from_secs(30);
/// How long a client may still send after the close frame: closing a connection with unread input discards what the client has not read yet.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);
const NO_STATUS: &str = r#"{"metadata":{},"status":"Failure","message":"Internal error occurred: the container runtime ended the session without a status","reason":"InternalError","details":{"causes":[{"message":"the container runtime ended the session without a status"}]},"code":500}"#;

/// The runtime's streams.
struct Streams {
    error: StreamId,
    stdin: Option<StreamId>,
    stdout: Option<StreamId>,
    stderr: Option<StreamId>,
    resize: Option<StreamId>,
}

impl Streams {
    async fn open<W: AsyncWrite + Unpin>(
        runtime: &mut spdy::Writer<W>,
        wanted: StreamOptions,
    ) -> io::Result<Self> {
        let mut stream = async |is_wanted: bool, name: &str| match is_wanted {
            true => runtime.open(STREAM_TYPE, name).await.map(Some),
            false => Ok(None),
        };
        let error = stream(true, "error").await?;
        Ok(Self {
            error: error.unwrap_or_default(),
            stdin: stream(wanted.stdin, "stdin").await?,
            stdout: stream(wanted.stdout, "stdout").await?,
            stderr: stream(wanted.stderr, "stderr").await?,
            resize: stream(wanted.tty, "resize").await?,
        })
    }

    fn all(&self) -> BTreeSet<StreamId> {
        let optional = [self.stdin, self.stdout, self.stderr, self.resize];
        optional.into_iter().flatten().chain([self.error]).collect()
    }

    /// Streams on which the runtime sends.
    fn spoken(&self) -> BTreeSet<StreamId> {
        [Some(self.error), self.stdout, self.stderr]
            .into_iter()
            .flatten()
            .collect()
    }

    fn channel(&self, stream: StreamId) -> Option<u8> {
        let outputs = [(self.stdout, STDOUT), (self.stderr, STDERR)];
        let mut outputs = outputs.into_iter();
        outputs.find_map(|(output, channel)| (output == Some(stream)).then_some(channel))
    }

    /// The channel of the first, empty message, which shows that the session is open.
    fn first_channel(&self) -> u8 {
        match (self.stdout, self.stderr) {
            (Some(_), _) => STDOUT,
            (None, Some(_)) => STDERR,
            (None, None) => ERROR,
        }
    }
}

struct Translation<C, R> {
    client: Mutex<websocket::Writer<C>>,
    runtime: Mutex<spdy::Writer<R>>,
    streams: Streams,
    movement: Movement,
    /// The runtime has sent its status; input of the client is dropped.
    is_over: AtomicBool,
}

/// Translates until the end, which also closes both sides.
pub(super) async fn translate(
    client: impl AsyncRead + AsyncWrite,
    runtime: impl AsyncRead + AsyncWrite,
    wanted: StreamOptions,
    idle_limit: Option<Duration>,
    stopping: impl Future<Output = ()>,
) -> End {
    let (from_client, to_client) = split(client);
    let (from_runtime, to_runtime) = split(runtime);
    let mut runtime = spdy::Writer::new(to_runtime);
    let Ok(streams) = Streams::open(&mut runtime, wanted).await else {
        return End::Runtime;
    };
    let translation = Translation {
        client: Mutex::new(websocket::Writer::new(to_client)),
        runtime: Mutex::new(runtime),
        streams,
        movement: Movement::new(),
        is_over: AtomicBool::new(false),
    };
    let (accept, accepted) = oneshot::channel();
    let up = translation.up(websocket::Reader::new(from_client), accepted);
    let down = translation.down(spdy::Reader::new(from_runtime), accept);
    until_over(up, down, &translation.movement, idle_limit, stopping).await
}

impl<C: AsyncWrite + Unpin, R: AsyncWrite + Unpin> Translation<C, R> {
    /// Passes the client's input on, once the runtime has accepted all streams. Until then the first piece waits, so that a client
    /// that goes meanwhile is noticed.
    async fn up(
        &self,
        mut client: websocket::Reader<impl AsyncRead + Unpin>,
        accepted: oneshot::Receiver<()>,
    ) -> io::Result<()> {
        // When the runtime ends before it has accepted, the client's input is still read to its end.
        let mut piece = match select(pin!(client.next()), accepted).await {
            Either::Left((piece, accepted)) => {
                let piece = piece?;
                if piece != Piece::Close {
                    let _ = accepted.await;
                }
                piece
            }
            Either::Right((_, first)) => first.await?,
        };
        let mut channel = None;
        loop {
            match piece {
                Piece::Close => return Ok(()),
                Piece::Ping(bytes) => self.client.lock().await.pong(&bytes).await?,
                Piece::Message { begins, bytes } => {
                    if begins {
                        channel = None;
                    }
                    let message = match (channel, bytes.split_first()) {
                        (Some(channel), _) => Some((channel, bytes.as_slice())),
                        (None, Some((first, rest))) => Some((*first, rest)),
                        (None, None) => None,
                    };
                    channel = message.map(|(channel, _)| channel);
                    if let Some((channel, bytes)) = message
                        && !self.is_over.load(Ordering::Relaxed)
                    {
                        self.tell_runtime(channel, bytes).await?;
                    }
                }
            }
            self.movement.note();
            piece = client.next().await?;
        }
    }

    async fn tell_runtime(&self, channel: u8, bytes: &[u8]) -> io::Result<()> {
        let mut runtime = self.runtime.lock().await;
        match (channel, self.streams.stdin, self.streams.resize) {
            (STDIN, Some(stdin), _) if !bytes.is_empty() => runtime.data(stdin, bytes).await,
            (RESIZE, _, Some(resize)) if !bytes.is_empty() => runtime.data(resize, bytes).await,
            (CLOSES, Some(stdin), _) if bytes.contains(&STDIN) => runtime.end(stdin).await,
            // A channel that was not requested, or that clients must not use.
            _ => Ok(()),
        }
    }

    /// Passes the runtime's output on, up to its status.
    async fn down(
        &self,
        mut runtime: spdy::Reader<impl AsyncRead + Unpin>,
        accept: oneshot::Sender<()>,
    ) -> io::Result<()> {
        let first = [self.streams.first_channel()];
        self.client.lock().await.message(&first, &[]).await?;
        let (mut asked, mut spoken) = (self.streams.all(), self.streams.spoken());
        let (mut accept, mut status) = (Some(accept), Vec::new());
        let accepts_until = Instant::now() + ACCEPT_LIMIT;
        while !spoken.is_empty() {
            let next = runtime.next();
            let frame = match accept {
                Some(_) => timeout_at(accepts_until, next)
                    .await
                    .map_err(io::Error::from)
                    .flatten(),
                None => next.await,
            };
            // A connection that ends is the end of every stream, and so is a runtime that does not take them.
            let Ok(frame) = frame else { break };
            self.movement.note();
            match frame {
                Frame::Accepted(stream) => {
                    asked.remove(&stream);
                    if let Some(accept) = accept.take_if(|_| asked.is_empty()) {
                        // The client may be gone; that is noticed elsewhere.
                        let _ = accept.send(());
                    }
                }
                Frame::Data { stream, bytes } if stream == self.streams.error => {
                    let room = STATUS_BYTES - status.len();
                    status.extend_from_slice(&bytes[..bytes.len().min(room)]);
                }
                Frame::Data { stream, bytes } => {
                    if let Some(channel) = self.streams.channel(stream) {
                        self.client.lock().await.message(&[channel], &bytes).await?;
                    }
                }
                Frame::Ended(stream) => {
                    spoken.remove(&stream);
                }
                // Theirs are even; an odd one would be an answer.
                Frame::Ping(number) if number % 2 == 0 => self.runtime.lock().await.ping(number).await?,
                Frame::Ping(_) | Frame::Farewell => {}
            }
            self.movement.note();
        }
        self.is_over.store(true, Ordering::Relaxed);
        let status = match status.as_slice() {
            [] => NO_STATUS.as_bytes(),
            status => status,
        };
        let mut client = self.client.lock().await;
        client.message(&[ERROR], status).await?;
        client.close().await
    }
}

/// Takes the bytes of another protocol out of messages, and wraps them, until the end, which also closes both sides.
pub(super) async fn tunnel(
    client: impl AsyncRead + AsyncWrite,
    runtime: impl AsyncRead + AsyncWrite,
    idle_limit: Option<Duration>,
    stopping: impl Future<Output = ()>,
) -> End {
    let (from_client, to_client) = split(client);
    let (mut from_runtime, mut to_runtime) = split(runtime);
    let movement = Movement::new();
    let client = Mutex::new(websocket::Writer::new(to_client));
    let up = async {
        let mut reader = websocket::Reader::new(from_client);
        loop {
            match reader.next().await? {
                Piece::Close => return Ok(()),
                Piece::Ping(bytes) => client.lock().await.pong(&bytes).await?,
                Piece::Message { bytes, .. } => {
                    to_runtime.write_all(&bytes).await?;
                    to_runtime.flush().await?;
                }
            }
            movement.note();
        }
    };
    let down = async {
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let length = from_runtime.read(&mut buffer).await.unwrap_or(0);
            let mut client = client.lock().await;
            if length == 0 {
                return client.close().await;
            }
            client.message(&[], &buffer[..length]).await?;
            movement.note();
        }
    };
    until_over(up, down, &movement, idle_limit, stopping).await
}

async fn until_over(
    up: impl Future<Output = io::Result<()>>,
    down: impl Future<Output = io::Result<()>>,
    movement: &Movement,
    idle_limit: Option<Duration>,
    stopping: impl Future<Output = ()>,
) -> End {
    let (mut up, mut down) = (pin!(up), pin!(down));
    tokio::select! {
        biased;
        () = stopping => End::Stopped,
        // Nothing is polled again once it has ended; how it ended makes no difference.
        _ = down.as_mut() => {
            let _ = tokio::time::timeout(CLOSE_LIMIT, up).await;
            End::Runtime
        }
        _ = up.as_mut() => End::Client,
        () = movement.rests(idle_limit) => End::Idle,
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex};
    use tokio::task::JoinHandle;

    use super::*;

    const ALL: StreamOptions = StreamOptions {
        stdin: true,
        stdout: true,
        stderr: true,
        tty: false,
    };
    const IDLE: Duration = Duration::from_secs(60);

    fn begin(wanted: StreamOptions) -> (DuplexStream, DuplexStream, JoinHandle<End>) {
        let (client, client_side) = duplex(1 << 20);
        let (runtime, runtime_side) = duplex(1 << 20);
        let session = translate(
            client_side,
            runtime_side,
            wanted,
            Some(IDLE),
            std::future::pending(),
        );
        (client, runtime, tokio::spawn(session))
    }

    /// A short message as a client sends it, with a mask that changes nothing.
    async fn say(client: &mut DuplexStream, payload: &[u8]) {
        let length = u8::try_from(payload.len()).unwrap();
        let head = [0x82, 0x80 | length, 0, 0, 0, 0];
        client.write_all(&[&head, payload].concat()).await.unwrap();
    }

    /// A short frame as a server sends it.
    async fn hear(client: &mut DuplexStream) -> (u8, Vec<u8>) {
        let kind = client.read_u8().await.unwrap();
        let length = match client.read_u8().await.unwrap() {
            126 => usize::from(client.read_u16().await.unwrap()),
            short => usize::from(short),
        };
        let mut payload = vec![0; length];
        client.read_exact(&mut payload).await.unwrap();
        (kind, payload)
    }

    async fn send(runtime: &mut DuplexStream, frame: &[u8]) {
        runtime.write_all(frame).await.unwrap();
    }

    /// Reads the opening of streams and gives their names.
    async fn take_streams(runtime: &mut DuplexStream, count: usize) -> Vec<String> {
        let mut names = Vec::new();
        for number in 0..count {
            let mut head = [0; 8];
            runtime.read_exact(&mut head).await.unwrap();
            let mut payload = vec![0; usize::from(head[7])];
            runtime.read_exact(&mut payload).await.unwrap();
            let letters = payload.iter().filter(|byte| byte.is_ascii_lowercase());
            let letters: String = letters.map(|byte| char::from(*byte)).collect();
            names.push(letters.trim_start_matches('x').replace("streamtype", ""));
            let stream = u8::try_from(2 * number + 1).unwrap();
            send(runtime, &[0x80, 3, 0, 2, 0, 0, 0, 4, 0, 0, 0, stream]).await;
        }
        names
    }

    async fn heard_by_runtime(runtime: &mut DuplexStream) -> (u8, bool, Vec<u8>) {
        let mut head = [0; 8];
        runtime.read_exact(&mut head).await.unwrap();
        let mut payload = vec![0; usize::from(head[7])];
        runtime.read_exact(&mut payload).await.unwrap();
        (head[3], head[4] == 1, payload)
    }

    #[tokio::test(start_paused = true)]
    async fn a_command_is_heard_and_answered() {
        let (mut client, mut runtime, session) = begin(ALL);
        let names = take_streams(&mut runtime, 4).await;
        assert_eq!(names, ["error", "stdin", "stdout", "stderr"]);
        assert_eq!(
            hear(&mut client).await,
            (0x82, vec![STDOUT]),
            "the session stands"
        );
        say(&mut client, b"\0input").await;
        assert_eq!(
            heard_by_runtime(&mut runtime).await,
            (3, false, b"input".to_vec())
        );
        // The session has no terminal.
        say(&mut client, b"\x04{}").await;
        say(&mut client, &[CLOSES, STDIN]).await;
        assert_eq!(heard_by_runtime(&mut runtime).await, (3, true, Vec::new()));
        send(&mut runtime, b"\0\0\0\x05\0\0\0\x03out\0\0\0\x07\0\0\0\x02no").await;
        assert_eq!(hear(&mut client).await, (0x82, b"\x01out".to_vec()));
        assert_eq!(hear(&mut client).await, (0x82, b"\x02no".to_vec()));
        send(&mut runtime, &[0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 8]).await;
        let mut pong = [0; 12];
        runtime.read_exact(&mut pong).await.unwrap();
        assert_eq!(pong[11], 8);
        send(
            &mut runtime,
            b"\0\0\0\x01\x01\0\0\x02{}\0\0\0\x05\x01\0\0\0\0\0\0\x07\x01\0\0\0",
        )
        .await;
        assert_eq!(hear(&mut client).await, (0x82, b"\x03{}".to_vec()), "the status");
        assert_eq!(hear(&mut client).await.0, 0x88, "farewell");
        drop(client);
        assert_eq!(session.await.unwrap(), End::Runtime);
    }

    #[tokio::test(start_paused = true)]
    async fn a_terminal_is_resized_and_a_runtime_that_dies_is_told() {
        let (mut client, mut runtime, session) = begin(StreamOptions {
            stderr: false,
            tty: true,
            ..ALL
        });
        take_streams(&mut runtime, 4).await;
        hear(&mut client).await;
        say(&mut client, b"\x04{\"Width\":1}").await;
        assert_eq!(
            heard_by_runtime(&mut runtime).await,
            (7, false, b"{\"Width\":1}".to_vec())
        );
        drop(runtime);
        let (_, status) = hear(&mut client).await;
        assert!(status.starts_with(b"\x03{\"metadata\":{},\"status\":\"Failure\""));
        assert_eq!(hear(&mut client).await.0, 0x88);
        // It talks on for a while, and then no client listens.
        say(&mut client, b"\0late").await;
        assert_eq!(session.await.unwrap(), End::Runtime);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_goes_ends_the_session() {
        let (mut client, mut runtime, session) = begin(ALL);
        take_streams(&mut runtime, 4).await;
        hear(&mut client).await;
        client.write_all(&[0x88, 0x80, 0, 0, 0, 0]).await.unwrap();
        assert_eq!(session.await.unwrap(), End::Client);
        assert_eq!(runtime.read(&mut [0; 1]).await.unwrap(), 0);

        let (client, mut runtime, session) = begin(ALL);
        take_streams(&mut runtime, 4).await;
        drop(client);
        assert_eq!(session.await.unwrap(), End::Client);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_goes_is_noticed_before_the_runtime_takes_the_streams() {
        let (mut client, mut runtime, session) = begin(ALL);
        hear(&mut client).await;
        drop(client);
        let start = Instant::now();
        assert_eq!(session.await.unwrap(), End::Client);
        assert_eq!(start.elapsed(), Duration::ZERO);
        runtime.read_to_end(&mut Vec::new()).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_runtime_that_does_not_take_the_streams_ends_the_session() {
        let (mut client, _runtime, session) = begin(ALL);
        hear(&mut client).await;
        // It waits for the client to read it.
        say(&mut client, b"\0words").await;
        let start = Instant::now();
        let (_, status) = hear(&mut client).await;
        assert!(status.starts_with(b"\x03{\"metadata\":{},\"status\":\"Failure\""));
        assert_eq!(start.elapsed(), ACCEPT_LIMIT);
        assert_eq!(hear(&mut client).await.0, 0x88);
        drop(client);
        assert_eq!(session.await.unwrap(), End::Runtime);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_ends_a_session() {
        let (mut client, mut runtime, session) = begin(ALL);
        take_streams(&mut runtime, 4).await;
        hear(&mut client).await;
        assert_eq!(session.await.unwrap(), End::Idle);
    }

    #[tokio::test(start_paused = true)]
    async fn a_tunnel_carries_bytes() {
        let (mut client, client_side) = duplex(1 << 16);
        let (mut runtime, runtime_side) = duplex(1 << 16);
        let session = tokio::spawn(tunnel(
            client_side,
            runtime_side,
            Some(IDLE),
            std::future::pending(),
        ));
        say(&mut client, b"some").await;
        say(&mut client, b"thing").await;
        let mut bytes = [0; 9];
        runtime.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"something");
        runtime.write_all(b"answer").await.unwrap();
        assert_eq!(hear(&mut client).await, (0x82, b"answer".to_vec()));
        drop(runtime);
        assert_eq!(hear(&mut client).await.0, 0x88);
        drop(client);
        assert_eq!(session.await.unwrap(), End::Runtime);
    }
}
