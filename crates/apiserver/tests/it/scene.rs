//! The server: certificates made for the occasion, every request handed to the test, connections that can be frozen or cut.

use std::convert::Infallible;
use std::fmt::Debug;
use std::future::Future;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, Method, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rubelet_apiserver::{ApiServer, ApiServerOptions, ConnectError};
use rubelet_ports::api::{Change, Changes};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinHandle};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// Longer than anything here takes; a test that gets this far failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits for what must come.
pub(crate) async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what} did not happen"),
    }
}

pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
}

pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, "an authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        Self { issuer, pem }
    }

    fn issue(&self, mut params: CertificateParams, usage: ExtendedKeyUsagePurpose) -> Pair {
        params.insert_extended_key_usage(usage);
        let key = KeyPair::generate().unwrap();
        Pair {
            certificate: params.signed_by(&key, &self.issuer).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }

    pub(crate) fn server(&self, host: &str, is_expired: bool) -> Pair {
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        if is_expired {
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(2021, 1, 1);
        }
        self.issue(params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    pub(crate) fn client(&self, name: &str) -> Pair {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        self.issue(params, ExtendedKeyUsagePurpose::ClientAuth)
    }

    pub(crate) fn expired_client(&self) -> Pair {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
        self.issue(params, ExtendedKeyUsagePurpose::ClientAuth)
    }
}

impl Pair {
    pub(crate) fn der(&self) -> Vec<u8> {
        CertificateDer::from_pem_slice(self.certificate.as_bytes())
            .unwrap()
            .to_vec()
    }
}

/// How a server is, when not good.
pub(crate) struct Faults {
    pub(crate) host: &'static str,
    pub(crate) is_expired: bool,
    pub(crate) only_http1: bool,
    /// Another certificate than one of the scene's authority.
    pub(crate) pair: Option<Pair>,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            host: "127.0.0.1",
            is_expired: false,
            only_http1: false,
            pair: None,
        }
    }
}

/// The server and the files of its client.
pub(crate) struct Scene {
    pub(crate) address: SocketAddr,
    pub(crate) authority: Authority,
    asks: mpsc::UnboundedReceiver<Ask>,
    connections: Arc<Mutex<Vec<ConnectionControl>>>,
    acceptor: TlsAcceptor,
    sender: mpsc::UnboundedSender<Ask>,
    accepting: JoinHandle<()>,
    directory: TempDir,
}

#[derive(Clone)]
struct ConnectionControl {
    is_frozen: Arc<AtomicBool>,
    task: AbortHandle,
}

/// One request, and the way to answer it.
pub(crate) struct Ask {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// Which connection it came on.
    pub(crate) connection: usize,
    /// The client's own certificate.
    pub(crate) peer: Option<Vec<u8>>,
    pub(crate) is_http2: bool,
    answer: oneshot::Sender<Response<Body>>,
}

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// A watch that was opened.
pub(crate) struct Watching {
    lines: mpsc::UnboundedSender<Result<Bytes, std::io::Error>>,
}

impl Watching {
    pub(crate) fn send(&self, kind: &str, object: &Value) {
        let line = format!("{}\n", json!({"type": kind, "object": object}));
        self.send_text(&line);
    }

    pub(crate) fn send_text(&self, text: &str) {
        self.lines
            .send(Ok(Bytes::copy_from_slice(text.as_bytes())))
            .expect("somebody watches");
    }

    /// Ends the stream as a failure.
    pub(crate) fn break_off(self) {
        let _ = self.lines.send(Err(std::io::Error::other("broken off")));
    }

    /// Returns when the client is gone.
    pub(crate) async fn left(&self) {
        soon("the client leaves", self.lines.closed()).await;
    }
}

impl Ask {
    pub(crate) fn reply(self, status: u16, headers: &[(&'static str, &str)], body: &str) {
        let mut response = Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        let body = Full::new(Bytes::copy_from_slice(body.as_bytes()));
        let body = body.map_err(|never: Infallible| match never {}).boxed_unsync();
        // A client that gave up is part of some tests.
        let _ = self.answer.send(response.body(body).unwrap());
    }

    pub(crate) fn compressed(self, value: &Value) {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(value.to_string().as_bytes()).unwrap();
        let body = Full::new(Bytes::from(encoder.finish().unwrap()));
        let body = body.map_err(|never: Infallible| match never {}).boxed_unsync();
        let response = Response::builder().header("content-encoding", "gzip");
        let _ = self.answer.send(response.body(body).unwrap());
    }

    pub(crate) fn json(self, value: &Value) {
        self.reply(200, &[("content-type", "application/json")], &value.to_string());
    }

    pub(crate) fn fail(self, status: u16, reason: &str, message: &str) {
        let body = json!({"kind": "Status", "code": status, "reason": reason, "message": message});
        self.reply(status, &[], &body.to_string());
    }

    /// Answers a list.
    pub(crate) fn list(self, version: &str, items: &[Value]) {
        self.page(&json!({"resourceVersion": version}), &json!(items));
    }

    /// Answers a part of a list.
    pub(crate) fn page(self, metadata: &Value, items: &Value) {
        let kind = match self.path.rsplit('/').next() {
            Some("pods") => "PodList",
            Some("nodes") => "NodeList",
            Some("configmaps") => "ConfigMapList",
            Some("services") => "ServiceList",
            Some("clustertrustbundles") => "ClusterTrustBundleList",
            other => panic!("a list of {other:?}"),
        };
        self.json(&json!({"kind": kind, "metadata": metadata, "items": items}));
    }

    /// Opens the watch that is asked for.
    pub(crate) fn watch(self) -> Watching {
        let (lines, receiver) = mpsc::unbounded_channel();
        let frames = stream::unfold(receiver, |mut receiver: mpsc::UnboundedReceiver<_>| async move {
            let line: Result<Bytes, std::io::Error> = receiver.recv().await?;
            Some((line.map(Frame::data), receiver))
        });
        let response = Response::new(StreamBody::new(frames).boxed_unsync());
        assert!(self.answer.send(response).is_ok(), "nobody waits for the watch");
        Watching { lines }
    }

    /// Answers a streaming list: the objects, then the bookmark behind them.
    pub(crate) fn stream(self, version: &str, items: &[Value]) -> Watching {
        assert_eq!(self.query("sendInitialEvents").as_deref(), Some("true"));
        assert_eq!(
            self.query("resourceVersionMatch").as_deref(),
            Some("NotOlderThan")
        );
        assert_eq!(self.query("allowWatchBookmarks").as_deref(), Some("true"));
        let watching = self.watch();
        for item in items {
            watching.send("ADDED", item);
        }
        let annotations = json!({"k8s.io/initial-events-end": "true"});
        let bookmark = json!({"metadata": {"resourceVersion": version, "annotations": annotations}});
        watching.send("BOOKMARK", &bookmark);
        watching
    }

    /// A value of the query.
    pub(crate) fn query(&self, key: &str) -> Option<String> {
        let mut pairs = form_urlencoded::parse(self.query.as_bytes());
        pairs
            .find(|(name, _)| name == key)
            .map(|(_, value)| value.into_owned())
    }

    pub(crate) fn is_watch(&self) -> bool {
        self.query("watch").is_some()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

impl Scene {
    pub(crate) async fn new() -> Self {
        Self::with(Faults::default()).await
    }

    pub(crate) async fn with(faults: Faults) -> Self {
        let authority = Authority::new();
        let issued = || authority.server(faults.host, faults.is_expired);
        let pair = faults.pair.unwrap_or_else(issued);
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(authority.pem.as_bytes()).unwrap())
            .unwrap();
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .allow_unauthenticated()
            .build()
            .unwrap();
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(
                vec![CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap(),
            )
            .unwrap();
        config.alpn_protocols = if faults.only_http1 {
            vec![b"http/1.1".to_vec()]
        } else {
            vec![b"h2".to_vec(), b"http/1.1".to_vec()]
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, asks) = mpsc::unbounded_channel();
        let connections = Arc::new(Mutex::new(Vec::new()));
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let accepting = accept(
            listener,
            acceptor.clone(),
            sender.clone(),
            Arc::clone(&connections),
        );
        Self {
            address,
            authority,
            asks,
            connections,
            acceptor,
            sender,
            accepting: tokio::spawn(accepting),
            directory: TempDir::new().unwrap(),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Writes a kubeconfig for this server.
    pub(crate) fn kubeconfig(&self, user: &Value) -> PathBuf {
        self.kubeconfig_trusting(&self.authority.pem, user)
    }

    pub(crate) fn kubeconfig_trusting(&self, authority_pem: &str, user: &Value) -> PathBuf {
        let authority = self.write("ca.crt", authority_pem);
        let server = format!("https://{}", self.address);
        let text = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority": authority}}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        });
        self.write("kubelet.conf", &text.to_string())
    }

    pub(crate) fn client(&self) -> ApiServer {
        connect(&self.kubeconfig(&json!({"token": "hunter2"})), |_| {}).unwrap()
    }

    /// The next request.
    pub(crate) async fn ask(&mut self) -> Ask {
        soon("a request", self.asks.recv())
            .await
            .expect("the server runs")
    }

    /// Connections so far stay open but never say anything again.
    pub(crate) fn freeze(&self) {
        for connection in self.connections.lock().unwrap().iter() {
            connection.is_frozen.store(true, Ordering::SeqCst);
        }
    }

    /// Returns when the connection of this number is closed.
    pub(crate) async fn closed(&self, connection: usize) {
        let task = self.connections.lock().unwrap()[connection].task.clone();
        let ended = async {
            while !task.is_finished() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        soon("the connection is closed", ended).await;
    }

    /// Connections so far are cut.
    pub(crate) fn cut(&self) {
        for connection in self.connections.lock().unwrap().iter() {
            connection.task.abort();
        }
    }

    /// The server stops listening.
    pub(crate) async fn stop(&mut self) {
        self.accepting.abort();
        // It was cancelled, which is its only end.
        let _ = (&mut self.accepting).await;
        self.cut();
    }

    /// Listens again where it did.
    pub(crate) async fn restart(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        let (acceptor, sender) = (self.acceptor.clone(), self.sender.clone());
        let accepting = accept(listener, acceptor, sender, Arc::clone(&self.connections));
        self.accepting = tokio::spawn(accepting);
    }

    pub(crate) fn connection_count(&self) -> usize {
        self.connections.lock().unwrap().len()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

pub(crate) fn connect(
    kubeconfig: &Path,
    change: impl FnOnce(&mut ApiServerOptions),
) -> Result<ApiServer, ConnectError> {
    let mut options = ApiServerOptions::new(kubeconfig, "kubelet/v1.37.1 (linux/amd64) rubelet/test");
    change(&mut options);
    ApiServer::connect(&options)
}

/// The next change of what is followed.
pub(crate) async fn change<T>(changes: &mut Changes<T>) -> Change<T> {
    soon("a change", changes.next())
        .await
        .expect("following never ends")
}

/// Drives the follower, which only works while it is polled, until the test has what it waits for.
pub(crate) async fn while_following<T: Debug, O>(
    changes: &mut Changes<T>,
    what: impl Future<Output = O>,
) -> O {
    tokio::select! {
        biased;
        output = what => output,
        change = changes.next() => panic!("{change:?} came first"),
    }
}

async fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    asks: mpsc::UnboundedSender<Ask>,
    connections: Arc<Mutex<Vec<ConnectionControl>>>,
) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let is_frozen = Arc::new(AtomicBool::new(false));
        let stream = Freezable {
            stream,
            is_frozen: Arc::clone(&is_frozen),
        };
        let mut list = connections.lock().unwrap();
        let number = list.len();
        let task = tokio::spawn(serve(stream, acceptor.clone(), asks.clone(), number));
        list.push(ConnectionControl {
            is_frozen,
            task: task.abort_handle(),
        });
    }
}

async fn serve(
    stream: Freezable,
    acceptor: TlsAcceptor,
    asks: mpsc::UnboundedSender<Ask>,
    connection: usize,
) {
    // A client that does not like our certificate is part of some tests.
    let Ok(stream) = acceptor.accept(stream).await else {
        return;
    };
    let (_, tls) = stream.get_ref();
    let peer = tls
        .peer_certificates()
        .and_then(|chain| chain.first())
        .map(|certificate| certificate.to_vec());
    let is_http2 = tls.alpn_protocol() == Some(b"h2");
    let service = service_fn(move |request: Request<Incoming>| {
        let (asks, peer) = (asks.clone(), peer.clone());
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
            let (answer, answered) = oneshot::channel();
            let ask = Ask {
                method: parts.method,
                path: parts.uri.path().to_owned(),
                query: parts.uri.query().unwrap_or_default().to_owned(),
                headers: parts.headers,
                body,
                connection,
                peer,
                is_http2,
                answer,
            };
            asks.send(ask).map_err(|_| std::io::ErrorKind::NotConnected)?;
            answered.await.map_err(std::io::Error::other)
        }
    });
    let io = TokioIo::new(stream);
    // Its end, good or bad, is the client's business.
    if is_http2 {
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = server.serve_connection(io, service).await;
    } else {
        let _ = hyper::server::conn::http1::Builder::new()
            .serve_connection(io, service)
            .await;
    }
}

/// A stream on which nothing happens any more once it is frozen.
struct Freezable {
    stream: TcpStream,
    is_frozen: Arc<AtomicBool>,
}

impl Freezable {
    fn is_frozen(&self) -> bool {
        self.is_frozen.load(Ordering::SeqCst)
    }
}

impl AsyncRead for Freezable {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        if self.is_frozen() {
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Freezable {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        if self.is_frozen() {
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        if self.is_frozen() {
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        if self.is_frozen() {
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
