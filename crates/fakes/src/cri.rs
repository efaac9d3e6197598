//! A container runtime that misbehaves on request: a gRPC server on a unix socket, scripted per method.
//!
//! Owns the faults that a real runtime does not show at will: errors, hangs, cut connections, bytes that are no HTTP/2,
//! messages that are no protobuf or too large, restarts, other versions of the interface. It keeps no pods; what a method
//! answers is what the test says. It must not interpret messages, so that a test can also send wrong ones.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use rubelet_fakes::cri::{FakeCri, Reaction};
//! use tonic::Code;
//!
//! let runtime = FakeCri::start().await?;
//! runtime.on("StopContainer", Reaction::hang());
//! runtime.once("StartContainer", Reaction::fail(Code::NotFound, "no such container"));
//! // … a client calls runtime.endpoint() …
//! runtime.called("StopContainer", 1).await?;
//! # Ok(()) }
//! ```

mod forward;

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use bytes::{Buf, BufMut, Bytes};
use futures_util::stream::{self, BoxStream, StreamExt};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use prost::Message;
use rubelet_wire::cri::v1;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::Service;
use tonic::server::{Grpc, ServerStreamingService};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

pub use forward::{Edit, Forward, omit_first_container, repeat_first_container};

/// How long a test waits for a call that it expects.
const CALL_DEADLINE: Duration = Duration::from_secs(20);

/// Calls that are remembered where a real runtime is behind.
const KEPT_CALLS: usize = 10_000;

/// What a method does when it is called.
#[derive(Clone, Debug)]
pub struct Reaction {
    messages: Vec<Bytes>,
    end: End,
}

#[derive(Clone, Debug)]
enum End {
    Close,
    Fail(Code, String),
    Hang,
    Reset,
    Forward(Forward),
}

impl Reaction {
    /// One answer.
    pub fn answer(message: &impl Message) -> Self {
        Self::raw(message.encode_to_vec())
    }

    /// Many answers, for a method that streams.
    pub fn answers<M: Message>(messages: impl IntoIterator<Item = M>) -> Self {
        let messages = messages
            .into_iter()
            .map(|message| message.encode_to_vec().into())
            .collect();
        Self {
            messages,
            end: End::Close,
        }
    }

    /// One answer of these bytes, whether they are a message or not.
    pub fn raw(bytes: impl Into<Bytes>) -> Self {
        Self {
            messages: vec![bytes.into()],
            end: End::Close,
        }
    }

    /// A gRPC error.
    pub fn fail(code: Code, message: &str) -> Self {
        Self {
            messages: Vec::new(),
            end: End::Fail(code, message.to_owned()),
        }
    }

    /// No answer, for ever.
    pub fn hang() -> Self {
        Self {
            messages: Vec::new(),
            end: End::Hang,
        }
    }

    /// The connection is cut, under every call that uses it.
    pub fn reset() -> Self {
        Self {
            messages: Vec::new(),
            end: End::Reset,
        }
    }

    /// The answer of the runtime behind, see [`FakeCri::forward_to`].
    pub fn forward() -> Self {
        Self::forwarded(Forward::default())
    }

    /// The same, later.
    pub fn late(late: Duration) -> Self {
        Self::forwarded(Forward {
            late,
            ..Forward::default()
        })
    }

    /// The same, changed.
    pub fn edited(edit: Edit) -> Self {
        Self::forwarded(Forward {
            edit: Some(edit),
            ..Forward::default()
        })
    }

    /// The runtime behind does what it is asked for, and the answer is an error.
    pub fn fail_after(code: Code, message: &str) -> Self {
        Self::forwarded(Forward {
            failure: Some((code, message.to_owned())),
            ..Forward::default()
        })
    }

    fn forwarded(forward: Forward) -> Self {
        Self {
            messages: Vec::new(),
            end: End::Forward(forward),
        }
    }

    /// After the answers so far, this reaction.
    #[must_use]
    pub fn then(mut self, next: Self) -> Self {
        self.messages.extend(next.messages);
        self.end = next.end;
        self
    }
}

/// Which versions of the interface are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    V1,
    /// An old runtime.
    V1alpha2Only,
    /// A runtime with its CRI switched off.
    Neither,
}

/// The running server. Dropping it closes the socket and all connections.
#[derive(Debug)]
pub struct FakeCri {
    _folder: TempDir,
    socket: PathBuf,
    script: Arc<Script>,
    acceptor: Option<JoinHandle<()>>,
}

impl FakeCri {
    /// Starts a server that answers `Version`, `Status` and `ImageFsInfo`; all else is unimplemented until scripted.
    pub async fn start() -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("fake-cri-")
            .tempdir()
            .context("making a folder for the socket")?;
        let socket = folder.path().join("cri.sock");
        let mut server = Self {
            _folder: folder,
            socket,
            script: Arc::new(Script::healthy()),
            acceptor: None,
        };
        server.resume().await?;
        Ok(server)
    }

    /// The endpoint in the form that configuration uses.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// From now on the method does this.
    pub fn on(&self, method: &str, reaction: Reaction) -> &Self {
        self.script.state().standing.insert(method.to_owned(), reaction);
        self
    }

    /// The next call of the method does this; several of these queue up.
    pub fn once(&self, method: &str, reaction: Reaction) -> &Self {
        self.script
            .state()
            .queued
            .entry(method.to_owned())
            .or_default()
            .push_back(reaction);
        self
    }

    /// From now on this runtime answers what no script does. All scripts are forgotten.
    pub fn forward_to(&self, socket: &Path) -> Result<&Self> {
        let channel = forward::connect(socket)?;
        let mut state = self.script.state();
        state.behind = Some(channel);
        state.standing.clear();
        drop(state);
        Ok(self)
    }

    /// The method does again what it did without a script.
    pub fn heal(&self, method: &str) -> &Self {
        self.script.state().standing.remove(method);
        self
    }

    /// From now on only this is served.
    pub fn speak(&self, dialect: Dialect) -> &Self {
        self.script.state().dialect = dialect;
        self
    }

    /// New connections get these bytes instead of HTTP/2, and are closed; `None` ends that. Open connections are cut.
    pub fn garble(&self, bytes: Option<&[u8]>) -> &Self {
        self.script.state().garbage = bytes.map(<[u8]>::to_vec);
        self.cut();
        self
    }

    /// Cuts all connections; the socket stays.
    pub fn cut(&self) {
        self.script.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// How often the method was called.
    pub fn calls(&self, method: &str) -> usize {
        self.script
            .state()
            .calls
            .iter()
            .filter(|call| call.method == method)
            .count()
    }

    /// The names of all methods that were called, once each.
    pub fn methods_called(&self) -> Vec<String> {
        let mut methods: Vec<String> = self
            .script
            .state()
            .calls
            .iter()
            .map(|call| call.method.clone())
            .collect();
        methods.sort();
        methods.dedup();
        methods
    }

    /// How many connections were accepted.
    pub fn connections(&self) -> usize {
        self.script.state().connections
    }

    /// The requests that the method got, decoded.
    pub fn requests<M: Message + Default>(&self, method: &str) -> Result<Vec<M>> {
        let state = self.script.state();
        let calls = state.calls.iter().filter(|call| call.method == method);
        calls
            .map(|call| M::decode(call.request.clone()).with_context(|| format!("request of {method}")))
            .collect()
    }

    /// The deadlines that the method's callers told, as their header spells them.
    pub fn deadlines(&self, method: &str) -> Vec<Option<String>> {
        let state = self.script.state();
        state
            .calls
            .iter()
            .filter(|call| call.method == method)
            .map(|call| call.deadline.clone())
            .collect()
    }

    /// Waits until the method was called this often.
    pub async fn called(&self, method: &str, times: usize) -> Result<()> {
        let mut news = self.script.news.subscribe();
        let reached = async {
            while self.calls(method) < times {
                news.changed().await?;
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(CALL_DEADLINE, reached)
            .await
            .map_err(|_| anyhow!("{method} was called {} times, not {times}", self.calls(method)))?
    }

    /// Ends the server as a crash would: the socket is gone, all calls break.
    pub async fn stop(&mut self) -> Result<()> {
        if let Some(acceptor) = self.acceptor.take() {
            acceptor.abort();
            // An aborted task reports that it was; its connections are closed once it has ended.
            let _ = acceptor.await;
            std::fs::remove_file(&self.socket).context("removing the socket")?;
        }
        Ok(())
    }

    /// Starts the server again after [`Self::stop`], with the same script.
    pub async fn resume(&mut self) -> Result<()> {
        let listener =
            UnixListener::bind(&self.socket).with_context(|| format!("binding {}", self.socket.display()))?;
        self.acceptor = Some(tokio::spawn(accept(listener, Arc::clone(&self.script))));
        Ok(())
    }

    /// A restart: calls that wait break, the next ones find the server again.
    pub async fn restart(&mut self) -> Result<()> {
        self.stop().await?;
        self.resume().await
    }
}

impl Drop for FakeCri {
    fn drop(&mut self) {
        if let Some(acceptor) = &self.acceptor {
            acceptor.abort();
        }
    }
}

#[derive(Debug)]
struct Script {
    state: Mutex<State>,
    /// Changes with every call.
    news: watch::Sender<u64>,
    /// Changes when all connections are to be cut.
    cuts: watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    dialect: Dialect,
    garbage: Option<Vec<u8>>,
    standing: BTreeMap<String, Reaction>,
    /// The runtime that answers the rest.
    behind: Option<Channel>,
    queued: BTreeMap<String, VecDeque<Reaction>>,
    calls: Vec<Call>,
    connections: usize,
}

#[derive(Debug)]
struct Call {
    method: String,
    request: Bytes,
    deadline: Option<String>,
}

impl Script {
    fn healthy() -> Self {
        let condition = |name: &str| v1::RuntimeCondition {
            r#type: name.to_owned(),
            status: true,
            ..Default::default()
        };
        let conditions = vec![condition("RuntimeReady"), condition("NetworkReady")];
        let version = v1::VersionResponse {
            version: "0.1.0".to_owned(),
            runtime_name: "fake".to_owned(),
            runtime_version: "1.2.3".to_owned(),
            runtime_api_version: "v1".to_owned(),
        };
        let status = v1::StatusResponse {
            status: Some(v1::RuntimeStatus { conditions }),
            ..v1::StatusResponse::default()
        };
        let standing = BTreeMap::from([
            ("Version".to_owned(), Reaction::answer(&version)),
            ("Status".to_owned(), Reaction::answer(&status)),
            (
                "ImageFsInfo".to_owned(),
                Reaction::answer(&v1::ImageFsInfoResponse::default()),
            ),
        ]);
        let state = State {
            dialect: Dialect::V1,
            garbage: None,
            standing,
            behind: None,
            queued: BTreeMap::new(),
            calls: Vec::new(),
            connections: 0,
        };
        Self {
            state: Mutex::new(state),
            news: watch::Sender::new(0),
            cuts: watch::Sender::new(0),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reaction(&self, path: &str, request: &Request<Bytes>) -> Reaction {
        let mut state = self.state();
        let (service, method) = path.trim_start_matches('/').split_once('/').unwrap_or((path, ""));
        let served = match state.dialect {
            Dialect::V1 => service.starts_with("runtime.v1."),
            Dialect::V1alpha2Only => service.starts_with("runtime.v1alpha2."),
            Dialect::Neither => false,
        };
        if state.behind.is_some() {
            // A long run would remember every call; how many there were is enough of the last of them.
            let surplus = state.calls.len().saturating_sub(KEPT_CALLS);
            state.calls.drain(..surplus);
        }
        state.calls.push(Call {
            method: method.to_owned(),
            request: request.get_ref().clone(),
            deadline: request
                .metadata()
                .get("grpc-timeout")
                .and_then(|value| value.to_str().ok())
                .map(str::to_owned),
        });
        let reaction = if served {
            let queued = state.queued.get_mut(method).and_then(VecDeque::pop_front);
            queued
                .or_else(|| state.standing.get(method).cloned())
                .or_else(|| state.behind.is_some().then(Reaction::forward))
                .unwrap_or_else(|| {
                    Reaction::fail(
                        Code::Unimplemented,
                        &format!("unknown method {method} for service {service}"),
                    )
                })
        } else {
            Reaction::fail(Code::Unimplemented, &format!("unknown service {service}"))
        };
        drop(state);
        self.news.send_modify(|count| *count += 1);
        reaction
    }
}

/// Owns all connections: when it is dropped, they are.
async fn accept(listener: UnixListener, script: Arc<Script>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        script.state().connections += 1;
        connections.spawn(serve(stream, Arc::clone(&script)));
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(mut stream: UnixStream, script: Arc<Script>) {
    let mut cuts = script.cuts.subscribe();
    let garbage = script.state().garbage.clone();
    if let Some(bytes) = garbage {
        // A client that hangs up first has seen enough.
        let _ = stream.write_all(&bytes).await;
        return;
    }
    let builder = auto::Builder::new(TokioExecutor::new()).http2_only();
    let connection = builder.serve_connection(
        TokioIo::new(stream),
        TowerToHyperService::new(Handler(Arc::clone(&script))),
    );
    tokio::select! {
        // Broken connections are what this server is for.
        _ = connection => {}
        _ = cuts.changed() => {}
    }
}

/// Turns HTTP requests into calls.
#[derive(Clone)]
struct Handler(Arc<Script>);

impl<B> Service<http::Request<B>> for Handler
where
    B: tonic::codegen::Body + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let method = Method {
            script: Arc::clone(&self.0),
            path: request.uri().path().to_owned(),
        };
        Box::pin(async move {
            let mut grpc = Grpc::new(RawCodec).max_decoding_message_size(usize::MAX);
            Ok(grpc.server_streaming(method, request).await)
        })
    }
}

/// Any method: one that answers once is a stream of one.
struct Method {
    script: Arc<Script>,
    path: String,
}

type Answers = BoxStream<'static, Result<Bytes, Status>>;

impl ServerStreamingService<Bytes> for Method {
    type Response = Bytes;
    type ResponseStream = Answers;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Answers>, Status>> + Send>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let script = Arc::clone(&self.script);
        let path = self.path.clone();
        let Reaction { messages, end } = script.reaction(&self.path, &request);
        Box::pin(async move {
            if let End::Forward(how) = end {
                let behind = script.state().behind.clone();
                let channel = behind.ok_or_else(|| Status::unavailable("no runtime is behind this one"))?;
                return forward::forward(channel, &path, request, how).await;
            }
            if !messages.is_empty() {
                let messages = stream::iter(messages.into_iter().map(Ok));
                let end = stream::once(finish(end, script)).filter_map(|end| async { end.err().map(Err) });
                return Ok(Response::new(messages.chain(end).boxed()));
            }
            finish(end, script).await?;
            Ok(Response::new(stream::empty().boxed()))
        })
    }
}

async fn finish(end: End, script: Arc<Script>) -> Result<(), Status> {
    match end {
        End::Close => Ok(()),
        End::Fail(code, message) => Err(Status::new(code, message)),
        // Answered before.
        End::Forward(_) => Ok(()),
        End::Hang => std::future::pending().await,
        End::Reset => {
            script.cuts.send_modify(|cuts| *cuts += 1);
            std::future::pending().await
        }
    }
}

/// Messages as bytes: this server does not look into them.
#[derive(Clone, Copy, Debug, Default)]
struct RawCodec;

impl Codec for RawCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}
