//! What the CRI says: the judge of all rows, whoever makes the calls.
//!
//! Its container events tell when something happened, without anybody having to ask; what an event tells is checked by a
//! call before it counts.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures_util::StreamExt;
use rubelet_cri::CriClient;
use rubelet_ports::{ImageReader, RuntimeReader, RuntimeWriter};
use rubelet_wire::cri::v1;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::pod::IMAGE;
use rubelet_testbed::bare_pod;
use rubelet_testbed::containerd::Containerd;
use rubelet_testbed::wait::wait_until;

/// The longest that anything here may take.
pub(super) const DEADLINE: Duration = Duration::from_secs(180);
/// The same for what clears away all pods, of which a dense node has hundreds.
const CLEARING_DEADLINE: Duration = Duration::from_secs(900);
/// How many pods are cleared away at a time.
const CLEARING_WIDTH: usize = 8;

/// An event and when it arrived.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) at: Instant,
    pub(super) pod: String,
    pub(super) kind: v1::ContainerEventType,
    pub(super) container_id: String,
    /// The event is about the sandbox and not about a container in it.
    pub(super) is_sandbox: bool,
}

/// A client of the runtime and its events.
pub(super) struct Runtime {
    client: CriClient,
    events: UnboundedReceiver<Seen>,
    seen: Vec<Seen>,
    dir: PathBuf,
}

impl Runtime {
    pub(super) async fn connect(containerd: &Containerd) -> Result<Self> {
        let client = bare_pod::connect(containerd).await?;
        let mut stream = client.container_events();
        let (sender, events) = unbounded_channel();
        tokio::spawn(async move {
            while let Some(Ok(event)) = stream.next().await {
                let at = Instant::now();
                let kind = event.container_event_type();
                let sandbox = event.pod_sandbox_status.unwrap_or_default();
                let seen = Seen {
                    at,
                    kind,
                    is_sandbox: event.container_id == sandbox.id,
                    pod: sandbox.metadata.unwrap_or_default().name,
                    container_id: event.container_id,
                };
                if sender.send(seen).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            client,
            events,
            seen: Vec::new(),
            dir: containerd.dir().to_owned(),
        })
    }

    pub(super) fn client(&self) -> &CriClient {
        &self.client
    }

    /// What the runtime calls the pods' image.
    pub(super) async fn image_id(&self) -> Result<String> {
        let image = v1::ImageSpec {
            image: IMAGE.to_owned(),
            ..Default::default()
        };
        let answer = self.client.image_status(image, false).await?;
        Ok(answer.image.context("the pods' image is not there")?.id)
    }

    /// Forgets the events so far.
    pub(super) fn forget_events(&mut self) {
        while self.events.try_recv().is_ok() {}
        self.seen.clear();
    }

    /// The first event since the last forgetting that fits, waiting for it if need be.
    pub(super) async fn event(&mut self, what: &str, fits: impl Fn(&Seen) -> bool) -> Result<Seen> {
        if let Some(seen) = self.seen.iter().find(|seen| fits(seen)) {
            return Ok(seen.clone());
        }
        let end = tokio::time::Instant::now() + DEADLINE;
        loop {
            let next = tokio::time::timeout_at(end, self.events.recv()).await;
            let Ok(next) = next else {
                bail!("{what}: the runtime told of none in {DEADLINE:?}")
            };
            let seen = next.context("the runtime's stream of events ended")?;
            self.seen.push(seen.clone());
            if fits(&seen) {
                return Ok(seen);
            }
        }
    }

    /// When the first event of this kind about the pod's sandbox (or about a container of it) came since the last forgetting.
    pub(super) fn time_of(
        &mut self,
        pod: &str,
        kind: v1::ContainerEventType,
        is_sandbox: bool,
    ) -> Option<Instant> {
        while let Ok(seen) = self.events.try_recv() {
            self.seen.push(seen);
        }
        let fits = |seen: &&Seen| seen.pod == pod && seen.kind == kind && seen.is_sandbox == is_sandbox;
        self.seen.iter().find(fits).map(|seen| seen.at)
    }

    /// Whether the container runs at this instant.
    pub(super) async fn is_running(&self, container_id: &str) -> Result<bool> {
        let answer = self.client.container_status(container_id, false).await?;
        let state = answer.status.map(|status| status.state());
        Ok(state == Some(v1::ContainerState::ContainerRunning))
    }

    /// The ids of all containers that run at this instant.
    pub(super) async fn running(&self) -> Result<Vec<String>> {
        let filter = v1::ContainerFilter {
            state: Some(v1::ContainerStateValue {
                state: v1::ContainerState::ContainerRunning.into(),
            }),
            ..Default::default()
        };
        let containers = self.client.list_containers(Some(filter)).await?;
        let mut ids: Vec<String> = containers.into_iter().map(|container| container.id).collect();
        ids.sort();
        Ok(ids)
    }

    /// How many sandboxes are ready at this instant.
    pub(super) async fn ready_sandboxes(&self) -> Result<usize> {
        let filter = v1::PodSandboxFilter {
            state: Some(v1::PodSandboxStateValue {
                state: v1::PodSandboxState::SandboxReady.into(),
            }),
            ..Default::default()
        };
        Ok(self.client.list_pod_sandboxes(Some(filter)).await?.len())
    }

    /// The sandbox of a container.
    pub(super) async fn sandbox_of(&self, container_id: &str) -> Result<String> {
        let filter = v1::ContainerFilter {
            id: container_id.to_owned(),
            ..Default::default()
        };
        let containers = self.client.list_containers(Some(filter)).await?;
        let container = containers.into_iter().next();
        Ok(container
            .with_context(|| format!("no container {container_id}"))?
            .pod_sandbox_id)
    }

    /// Whether a sandbox is ready at this instant; one that is not known is not.
    pub(super) async fn is_sandbox_ready(&self, sandbox_id: &str) -> Result<bool> {
        let filter = v1::PodSandboxFilter {
            id: sandbox_id.to_owned(),
            ..Default::default()
        };
        let sandboxes = self.client.list_pod_sandboxes(Some(filter)).await?;
        Ok(sandboxes
            .iter()
            .any(|sandbox| sandbox.state() == v1::PodSandboxState::SandboxReady))
    }

    /// The container's first process.
    pub(super) async fn pid(&self, container_id: &str) -> Result<i32> {
        let answer = self.client.container_status(container_id, true).await?;
        let info = answer
            .info
            .get("info")
            .context("a verbose status without details")?;
        let info: serde_json::Value = serde_json::from_str(info)?;
        let pid = info["pid"].as_i64().context("details without a pid")?;
        Ok(i32::try_from(pid)?)
    }

    /// The sandbox's network namespace, which goes at the end of its stop.
    pub(super) async fn network_namespace(&self, sandbox_id: &str) -> Result<PathBuf> {
        let answer = self.client.pod_sandbox_status(sandbox_id, true).await?;
        let info = answer
            .info
            .get("info")
            .context("a verbose status without details")?;
        let info: serde_json::Value = serde_json::from_str(info)?;
        let namespaces = info["runtimeSpec"]["linux"]["namespaces"].as_array();
        let network = namespaces
            .into_iter()
            .flatten()
            .find(|namespace| namespace["type"] == "network");
        let path = network.and_then(|namespace| namespace["path"].as_str());
        let path = PathBuf::from(path.context("details without a network namespace")?);
        ensure!(
            path.starts_with(&self.dir) && path.exists(),
            "the network namespace is at {}",
            path.display()
        );
        Ok(path)
    }

    /// Stops and removes every pod. What the runtime is still removing for a kubelet that has ended is tried again.
    pub(super) async fn remove_everything(&mut self) -> Result<()> {
        let runtime = &*self;
        wait_until("the runtime is empty", CLEARING_DEADLINE, || {
            runtime.remove_once()
        })
        .await?;
        self.forget_events();
        Ok(())
    }

    async fn remove_once(&self) -> Result<()> {
        let sandboxes = self.client.list_pod_sandboxes(None).await?;
        let removals = sandboxes.into_iter().map(|sandbox| {
            let client = self.client.clone();
            async move {
                client.stop_pod_sandbox(&sandbox.id).await?;
                client.remove_pod_sandbox(&sandbox.id).await
            }
        });
        let removed: Vec<_> = futures_util::stream::iter(removals)
            .buffer_unordered(CLEARING_WIDTH)
            .collect()
            .await;
        removed.into_iter().collect::<Result<Vec<()>, _>>()?;
        Ok(())
    }
}

/// How many network namespaces there are beside this one, itself included.
pub(super) fn namespaces_beside(namespace: &Path) -> usize {
    let dir = namespace.parent().map(fs::read_dir);
    dir.into_iter().flatten().flatten().flatten().count()
}
