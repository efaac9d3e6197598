//! What is true of a node's pods: containerd's own lists, read directly and not through the kubelet under test.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rubelet_cri::{CriClient, CriMetrics, CriOptions};
use rubelet_ports::{RuntimeReader, RuntimeWriter};
use rubelet_wire::cri::v1;

const EXEC_DEADLINE: Duration = Duration::from_secs(30);
const LABEL_POD_NAME: &str = "io.kubernetes.pod.name";
const LABEL_POD_UID: &str = "io.kubernetes.pod.uid";
const LABEL_CONTAINER: &str = "io.kubernetes.container.name";

/// One sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxFact {
    pub id: String,
    pub pod: String,
    pub uid: String,
    pub attempt: u32,
    pub ready: bool,
    pub created_at_ns: i64,
}

/// One container, of any state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerFact {
    pub id: String,
    pub sandbox: String,
    pub pod: String,
    pub uid: String,
    pub name: String,
    pub attempt: u32,
    pub running: bool,
    pub created_at_ns: i64,
}

/// A look at a runtime.
#[derive(Clone)]
pub struct RuntimeView {
    client: CriClient,
}

impl RuntimeView {
    /// Connects to a containerd by its socket.
    pub async fn connect(socket: &Path) -> Result<Self> {
        let options = CriOptions::new(format!("unix://{}", socket.display()));
        let metrics =
            CriMetrics::register(&prometheus::Registry::new()).context("make the client's metrics")?;
        let client = CriClient::connect(&options, &metrics)
            .await
            .context("connect to containerd")?;
        Ok(Self { client })
    }

    /// The client, for calls that only one test makes.
    pub fn client(&self) -> &CriClient {
        &self.client
    }

    /// All sandboxes.
    pub async fn sandboxes(&self) -> Result<Vec<SandboxFact>> {
        let list = self
            .client
            .list_pod_sandboxes(None)
            .await
            .context("list the sandboxes")?;
        Ok(list
            .into_iter()
            .map(|sandbox| {
                let ready = sandbox.state() == v1::PodSandboxState::SandboxReady;
                let metadata = sandbox.metadata.unwrap_or_default();
                SandboxFact {
                    id: sandbox.id,
                    pod: metadata.name,
                    uid: metadata.uid,
                    attempt: metadata.attempt,
                    ready,
                    created_at_ns: sandbox.created_at,
                }
            })
            .collect())
    }

    /// All containers.
    pub async fn containers(&self) -> Result<Vec<ContainerFact>> {
        let list = self
            .client
            .list_containers(None)
            .await
            .context("list the containers")?;
        Ok(list
            .into_iter()
            .map(|container| {
                let label = |name: &str| container.labels.get(name).cloned().unwrap_or_default();
                ContainerFact {
                    pod: label(LABEL_POD_NAME),
                    uid: label(LABEL_POD_UID),
                    name: label(LABEL_CONTAINER),
                    attempt: container.metadata.as_ref().map_or(0, |metadata| metadata.attempt),
                    running: container.state() == v1::ContainerState::ContainerRunning,
                    created_at_ns: container.created_at,
                    id: container.id,
                    sandbox: container.pod_sandbox_id,
                }
            })
            .collect())
    }

    /// The containers of one pod, by UID.
    pub async fn containers_of(&self, uid: &str) -> Result<Vec<ContainerFact>> {
        let mut list = self.containers().await?;
        list.retain(|container| container.uid == uid);
        Ok(list)
    }

    /// The ids of running containers by (pod, container); a pair that runs twice is an error.
    pub async fn running(&self) -> Result<BTreeMap<(String, String), String>> {
        let mut running = BTreeMap::new();
        for container in self.containers().await? {
            if !container.running {
                continue;
            }
            let key = (container.pod, container.name);
            if let Some(other) = running.insert(key.clone(), container.id.clone()) {
                anyhow::bail!("{key:?} runs twice: {other} and {}", container.id);
            }
        }
        Ok(running)
    }

    /// All that the runtime knows of a container.
    pub async fn status(&self, id: &str) -> Result<v1::ContainerStatus> {
        let answer = self
            .client
            .container_status(id, false)
            .await
            .with_context(|| format!("ask for container {id}"))?;
        answer.status.context("an answer without a status")
    }

    /// Ids and times of start of the running containers, sorted: what a kubelet's death must not change.
    pub async fn identities(&self) -> Result<BTreeMap<String, i64>> {
        let mut identities = BTreeMap::new();
        for container in self.containers().await? {
            if container.running {
                let status = self.status(&container.id).await?;
                identities.insert(container.id, status.started_at);
            }
        }
        Ok(identities)
    }

    /// The process id of a container on this machine.
    pub async fn pid(&self, id: &str) -> Result<u32> {
        let answer = self.client.container_status(id, true).await?;
        let info = answer
            .info
            .get("info")
            .context("the runtime tells nothing more")?;
        let info: serde_json::Value = serde_json::from_str(info)?;
        let pid = info["pid"].as_u64().context("the runtime tells no process id")?;
        Ok(u32::try_from(pid)?)
    }

    /// Runs a command in a container, which must succeed, and gives what it printed.
    pub async fn exec(&self, id: &str, command: &[&str]) -> Result<String> {
        let words = command.iter().map(|word| (*word).to_owned()).collect();
        let answer = self.client.exec_sync(id, words, Some(EXEC_DEADLINE)).await;
        let answer = answer.with_context(|| format!("exec {command:?}"))?;
        ensure!(
            answer.exit_code == 0,
            "{command:?} ended with {}: {}",
            answer.exit_code,
            String::from_utf8_lossy(&answer.stderr)
        );
        Ok(String::from_utf8_lossy(&answer.stdout).trim_end().to_owned())
    }

    /// Kills a container, as something outside of the kubelet would.
    pub async fn kill_container(&self, id: &str) -> Result<()> {
        self.client
            .stop_container(id, 0)
            .await
            .with_context(|| format!("kill container {id}"))
    }

    /// Stops a sandbox, as something outside of the kubelet would.
    pub async fn stop_sandbox(&self, id: &str) -> Result<()> {
        self.client
            .stop_pod_sandbox(id)
            .await
            .with_context(|| format!("stop sandbox {id}"))
    }
}
