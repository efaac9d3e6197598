//! A pod made by bare CRI calls, as a test needs one before there is an agent, or beside it.
//!
//! Owns the order of the calls and the smallest configuration that makes a pod of this scope. What happens when a call fails
//! is the test's to see: nothing is retried.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rubelet_cri::{CriClient, CriMetrics, CriOptions};
use rubelet_ports::{ImageWriter, RuntimeReader, RuntimeWriter};
use rubelet_wire::cri::v1;

use crate::containerd::Containerd;
use crate::registry::Credentials;
use crate::scope::Scope;
use crate::wait::wait_until;

const DEADLINE: Duration = Duration::from_secs(60);
/// Killed at once: shells as process 1 do not hear SIGTERM anyway, and containerd 1 fails when its SIGKILL after a grace period
/// meets a container that is just ending.
const STOP_GRACE_SECONDS: i64 = 0;
const EXEC_DEADLINE: Duration = Duration::from_secs(30);

/// A client of a private containerd.
pub async fn connect(containerd: &Containerd) -> Result<CriClient> {
    let options = CriOptions::new(containerd.endpoint());
    let metrics = CriMetrics::register(&prometheus::Registry::new()).context("make the client's metrics")?;
    CriClient::connect(&options, &metrics)
        .await
        .context("connect to containerd")
}

/// Pulls an image and returns what the runtime calls it.
pub async fn pull(client: &CriClient, name: &str, credentials: Option<&Credentials>) -> Result<String> {
    let auth = credentials.map(|credentials| v1::AuthConfig {
        username: credentials.username.clone(),
        password: credentials.password.clone(),
        ..Default::default()
    });
    client
        .pull_image(image_spec(name), auth, None)
        .await
        .with_context(|| format!("pull {name}"))
}

/// What a command in a container gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecOutput {
    pub exit_code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// A running pod. Dropping it leaves it running; [`BarePod::remove`] ends it, and so does the end of the scope.
pub struct BarePod {
    client: CriClient,
    config: v1::PodSandboxConfig,
    sandbox_id: String,
    containers: BTreeMap<String, String>,
}

impl BarePod {
    /// Runs a sandbox as [`sandbox_config`] has it.
    pub async fn run(client: &CriClient, scope: &Scope, name: &str) -> Result<Self> {
        Self::run_as(client, sandbox_config(scope, name)?).await
    }

    /// Runs a sandbox with a configuration of the test's own.
    pub async fn run_as(client: &CriClient, config: v1::PodSandboxConfig) -> Result<Self> {
        Self::run_by(client, config, "").await
    }

    /// The same by a runtime handler of this name; no name is the default one.
    pub async fn run_by(client: &CriClient, config: v1::PodSandboxConfig, handler: &str) -> Result<Self> {
        let sandbox_id = client
            .run_pod_sandbox(config.clone(), handler)
            .await
            .context("run a sandbox")?;
        Ok(Self {
            client: client.clone(),
            config,
            sandbox_id,
            containers: BTreeMap::new(),
        })
    }

    /// The sandbox's id.
    pub fn sandbox_id(&self) -> &str {
        &self.sandbox_id
    }

    /// Creates and starts a container; without arguments it runs what its image says. Its namespaces are those that
    /// the sandbox's configuration asks for.
    pub async fn start_container(&mut self, name: &str, image: &str, arguments: &[&str]) -> Result<String> {
        let config = v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata {
                name: name.to_owned(),
                attempt: 0,
            }),
            image: Some(image_spec(image)),
            args: arguments.iter().map(|word| (*word).to_owned()).collect(),
            log_path: format!("{name}.log"),
            linux: Some(v1::LinuxContainerConfig {
                resources: Some(v1::LinuxContainerResources::default()),
                security_context: Some(v1::LinuxContainerSecurityContext {
                    namespace_options: self.namespaces(),
                    ..Default::default()
                }),
            }),
            ..Default::default()
        };
        self.start_container_as(config).await
    }

    /// The same with a configuration of the test's own.
    pub async fn start_container_as(&mut self, config: v1::ContainerConfig) -> Result<String> {
        let name = config
            .metadata
            .as_ref()
            .map(|metadata| metadata.name.clone())
            .unwrap_or_default();
        let created = self
            .client
            .create_container(&self.sandbox_id, config, self.config.clone())
            .await;
        let id = created.with_context(|| format!("create container {name}"))?;
        self.client
            .start_container(&id)
            .await
            .with_context(|| format!("start container {name}"))?;
        self.containers.insert(name, id.clone());
        Ok(id)
    }

    /// The pod's first address.
    pub async fn ip(&self) -> Result<String> {
        let answer = self
            .client
            .pod_sandbox_status(&self.sandbox_id, false)
            .await
            .context("ask for the sandbox")?;
        let network = answer
            .status
            .and_then(|status| status.network)
            .context("a sandbox without a network")?;
        Ok(network.ip)
    }

    /// Runs a command to its end.
    pub async fn exec(&self, container: &str, command: &[&str]) -> Result<ExecOutput> {
        let words = command.iter().map(|word| (*word).to_owned()).collect();
        let answer = self
            .client
            .exec_sync(self.container_id(container)?, words, Some(EXEC_DEADLINE))
            .await;
        let answer = answer.with_context(|| format!("exec {command:?} in {container}"))?;
        Ok(ExecOutput {
            exit_code: answer.exit_code,
            stdout: String::from_utf8_lossy(&answer.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&answer.stderr).into_owned(),
        })
    }

    /// The container's state as the runtime tells it.
    pub async fn container_status(&self, container: &str) -> Result<v1::ContainerStatus> {
        let answer = self
            .client
            .container_status(self.container_id(container)?, false)
            .await?;
        answer.status.context("an answer without a status")
    }

    /// Waits for the container's end and returns its exit code.
    pub async fn wait_for_exit(&self, container: &str) -> Result<i32> {
        wait_until(
            &format!("container {container} has exited"),
            DEADLINE,
            async || {
                let status = self.container_status(container).await?;
                match status.state() {
                    v1::ContainerState::ContainerExited => Ok(status.exit_code),
                    other => bail!("it is {other:?}"),
                }
            },
        )
        .await
    }

    /// The container's log file, in the CRI's form (`time stream tag text`).
    pub fn log_path(&self, container: &str) -> PathBuf {
        PathBuf::from(&self.config.log_directory).join(format!("{container}.log"))
    }

    /// Waits until the container's log holds a line with this text; returns the line.
    pub async fn wait_for_log(&self, container: &str, text: &str) -> Result<String> {
        let path = self.log_path(container);
        wait_until(
            &format!("{text:?} in the log of {container}"),
            DEADLINE,
            async || {
                let log = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
                log.lines()
                    .find(|line| line.contains(text))
                    .map(str::to_owned)
                    .with_context(|| format!("it holds {log:?}"))
            },
        )
        .await
    }

    /// Stops and removes the containers, then the sandbox.
    pub async fn remove(self) -> Result<()> {
        for (name, id) in &self.containers {
            self.client
                .stop_container(id, STOP_GRACE_SECONDS)
                .await
                .with_context(|| format!("stop container {name}"))?;
            self.client
                .remove_container(id)
                .await
                .with_context(|| format!("remove container {name}"))?;
        }
        self.client
            .stop_pod_sandbox(&self.sandbox_id)
            .await
            .context("stop the sandbox")?;
        self.client
            .remove_pod_sandbox(&self.sandbox_id)
            .await
            .context("remove the sandbox")
    }

    fn namespaces(&self) -> Option<v1::NamespaceOption> {
        let linux = self.config.linux.as_ref()?;
        linux.security_context.as_ref()?.namespace_options.clone()
    }

    fn container_id(&self, name: &str) -> Result<&str> {
        self.containers
            .get(name)
            .map(String::as_str)
            .with_context(|| format!("no container {name} in this pod"))
    }
}

/// A sandbox below the scope's cgroup, with its logs in the scope's directory.
pub fn sandbox_config(scope: &Scope, name: &str) -> Result<v1::PodSandboxConfig> {
    let log_dir = scope.path(&format!("pod-logs/{name}"));
    fs::create_dir_all(&log_dir).with_context(|| format!("create {}", log_dir.display()))?;
    Ok(v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: name.to_owned(),
            uid: format!("{}-{name}", scope.id()),
            namespace: "test".to_owned(),
            attempt: 0,
        }),
        hostname: name.to_owned(),
        log_directory: log_dir.display().to_string(),
        linux: Some(v1::LinuxPodSandboxConfig {
            cgroup_parent: format!("{}/{name}", scope.cgroup_root()),
            security_context: Some(v1::LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces()),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    })
}

fn image_spec(name: &str) -> v1::ImageSpec {
    v1::ImageSpec {
        image: name.to_owned(),
        ..Default::default()
    }
}

/// As a kubelet asks for by default: network and IPC are the pod's, processes are each container's.
fn namespaces() -> v1::NamespaceOption {
    v1::NamespaceOption {
        pid: v1::NamespaceMode::Container.into(),
        ..Default::default()
    }
}
