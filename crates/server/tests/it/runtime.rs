//! A runtime that opens sessions, and its streaming server.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use rubelet_ports::{RuntimeError, RuntimeErrorKind, RuntimeWriter};
use rubelet_wire::cri::v1;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// What the runtime was asked for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Asked {
    Exec(v1::ExecRequest),
    Attach(v1::AttachRequest),
    PortForward(v1::PortForwardRequest),
    ExecSync(String, Vec<String>),
    Checkpoint(v1::CheckpointContainerRequest),
}

/// Gives the address that a test set, and remembers what it was asked for.
#[derive(Default)]
pub(crate) struct FakeRuntime {
    pub(crate) address: Mutex<String>,
    pub(crate) asked: Mutex<Vec<Asked>>,
    pub(crate) failure: Mutex<Option<RuntimeErrorKind>>,
    pub(crate) output: Mutex<v1::ExecSyncResponse>,
}

impl FakeRuntime {
    pub(crate) fn serve_sessions_at(&self, address: impl Into<String>) {
        *self.address.lock().unwrap() = address.into();
    }

    pub(crate) fn take_asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    fn note(&self, asked: Asked) -> Result<String, RuntimeError> {
        self.asked.lock().unwrap().push(asked);
        match *self.failure.lock().unwrap() {
            Some(kind) => Err(RuntimeError::new("Exec", "unix:///c.sock", kind, "no")),
            None => Ok(self.address.lock().unwrap().clone()),
        }
    }
}

fn never<T>(method: &'static str) -> Result<T, RuntimeError> {
    panic!("the server must not call {method}");
}

#[async_trait]
impl RuntimeWriter for FakeRuntime {
    async fn run_pod_sandbox(&self, _: v1::PodSandboxConfig, _: &str) -> Result<String, RuntimeError> {
        never("RunPodSandbox")
    }

    async fn stop_pod_sandbox(&self, _: &str) -> Result<(), RuntimeError> {
        never("StopPodSandbox")
    }

    async fn remove_pod_sandbox(&self, _: &str) -> Result<(), RuntimeError> {
        never("RemovePodSandbox")
    }

    async fn create_container(
        &self,
        _: &str,
        _: v1::ContainerConfig,
        _: v1::PodSandboxConfig,
    ) -> Result<String, RuntimeError> {
        never("CreateContainer")
    }

    async fn start_container(&self, _: &str) -> Result<(), RuntimeError> {
        never("StartContainer")
    }

    async fn stop_container(&self, _: &str, _: i64) -> Result<(), RuntimeError> {
        never("StopContainer")
    }

    async fn remove_container(&self, _: &str) -> Result<(), RuntimeError> {
        never("RemoveContainer")
    }

    async fn update_container_resources(
        &self,
        _: v1::UpdateContainerResourcesRequest,
    ) -> Result<(), RuntimeError> {
        never("UpdateContainerResources")
    }

    async fn update_pod_sandbox_resources(
        &self,
        _: v1::UpdatePodSandboxResourcesRequest,
    ) -> Result<(), RuntimeError> {
        never("UpdatePodSandboxResources")
    }

    async fn reopen_container_log(&self, _: &str) -> Result<(), RuntimeError> {
        never("ReopenContainerLog")
    }

    async fn exec_sync(
        &self,
        container_id: &str,
        command: Vec<String>,
        timeout: Option<Duration>,
    ) -> Result<v1::ExecSyncResponse, RuntimeError> {
        assert_eq!(timeout, None);
        self.note(Asked::ExecSync(container_id.to_owned(), command))?;
        Ok(self.output.lock().unwrap().clone())
    }

    async fn exec(&self, request: v1::ExecRequest) -> Result<String, RuntimeError> {
        self.note(Asked::Exec(request))
    }

    async fn attach(&self, request: v1::AttachRequest) -> Result<String, RuntimeError> {
        self.note(Asked::Attach(request))
    }

    async fn port_forward(&self, request: v1::PortForwardRequest) -> Result<String, RuntimeError> {
        self.note(Asked::PortForward(request))
    }

    async fn update_runtime_config(&self, _: v1::RuntimeConfig) -> Result<(), RuntimeError> {
        never("UpdateRuntimeConfig")
    }

    async fn checkpoint_container(
        &self,
        request: v1::CheckpointContainerRequest,
    ) -> Result<(), RuntimeError> {
        self.note(Asked::Checkpoint(request)).map(drop)
    }

    async fn checkpoint_pod(
        &self,
        _: v1::CheckpointPodRequest,
        _: Option<Duration>,
    ) -> Result<(), RuntimeError> {
        never("CheckpointPod")
    }

    async fn restore_pod(
        &self,
        _: v1::RestorePodRequest,
        _: Option<Duration>,
    ) -> Result<v1::RestorePodResponse, RuntimeError> {
        never("RestorePod")
    }
}

/// Does with a connection what its path says: `/echo/…`, `/accept/…`, `/refuse/…`, `/ok/…`, `/cut/…`, `/hang/…`, `/bye/…`.
pub(crate) struct StreamingServer {
    pub(crate) port: u16,
    heads: Arc<Mutex<Vec<String>>>,
    open: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl StreamingServer {
    pub(crate) async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let (heads, open) = (
            Arc::<Mutex<Vec<String>>>::default(),
            Arc::<AtomicUsize>::default(),
        );
        let (seen, counted) = (Arc::clone(&heads), Arc::clone(&open));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (seen, counted) = (Arc::clone(&seen), Arc::clone(&counted));
                tokio::spawn(async move {
                    counted.fetch_add(1, Ordering::SeqCst);
                    // A connection that breaks is what some tests are about.
                    let _ = serve(stream, &seen).await;
                    counted.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Ok(Self {
            port,
            heads,
            open,
            task,
        })
    }

    pub(crate) fn address(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// The requests that came, oldest first.
    pub(crate) fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }

    /// Connections that are served now.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }
}

impl Drop for StreamingServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(mut stream: TcpStream, seen: &Mutex<Vec<String>>) -> Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8(head)?;
    seen.lock().unwrap().push(head.clone());
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let upgrade = head
        .lines()
        .find_map(|line| line.strip_prefix("upgrade: "))
        .unwrap_or("none");
    let switch = format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {upgrade}\r\n\
         X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n"
    );
    match path.split('/').nth(1) {
        // With the first bytes of the new protocol right behind.
        Some("echo") => stream.write_all(format!("{switch}hello").as_bytes()).await?,
        Some("accept") => {
            stream.write_all(switch.as_bytes()).await?;
            return accept_streams(stream).await;
        }
        Some("bye") => {
            stream.write_all(format!("{switch}bye").as_bytes()).await?;
            return Ok(());
        }
        Some("refuse") => {
            let answer =
                "HTTP/1.1 403 Forbidden\r\nContent-Type: text/x-own\r\nContent-Length: 10\r\n\r\nno session";
            return Ok(stream.write_all(answer.as_bytes()).await?);
        }
        Some("ok") => {
            let answer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
            return Ok(stream.write_all(answer.as_bytes()).await?);
        }
        Some("hang") => {}
        _ => return Ok(()),
    }
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let length = stream.read(&mut buffer).await?;
        if length == 0 {
            return Ok(stream.shutdown().await?);
        }
        stream.write_all(&buffer[..length]).await?;
    }
}

/// Speaks as much SPDY as a runtime must whose containers say nothing: every stream is taken.
async fn accept_streams(mut stream: TcpStream) -> Result<()> {
    const OPENS: [u8; 4] = [0x80, 3, 0, 1];
    loop {
        let mut head = [0; 8];
        stream.read_exact(&mut head).await?;
        let length = usize::from(head[5]) << 16 | usize::from(head[6]) << 8 | usize::from(head[7]);
        let mut payload = vec![0; length];
        stream.read_exact(&mut payload).await?;
        if head[..4] == OPENS {
            let answer = [&[0x80, 3, 0, 2, 0, 0, 0, 4], &payload[..4]].concat();
            stream.write_all(&answer).await?;
        }
    }
}
