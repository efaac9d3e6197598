//! What rotation needs of the runtime.
//!
//! Owns the four calls, so that rotation can do no more to a container than make the runtime reopen its log.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use rubelet_ports::{PodView, RuntimeError, RuntimeReader, RuntimeWriter};
use rubelet_wire::cri::v1;

/// A container that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningContainer {
    pub id: String,
    /// Its log, where it is known without another question.
    pub log_path: Option<PathBuf>,
}

#[async_trait]
pub trait LoggedContainers: Send + Sync {
    /// The containers that run.
    async fn running(&self) -> Result<Vec<RunningContainer>, RuntimeError>;

    /// Logs of containers that have ended, as far as they are known.
    async fn ended(&self) -> Result<Vec<PathBuf>, RuntimeError> {
        Ok(Vec::new())
    }

    /// The log of a container that runs; nothing when it does not, or writes none.
    async fn log_path(&self, id: &str) -> Result<Option<PathBuf>, RuntimeError>;

    /// Makes the runtime reopen the log: it writes to the file at the log's path, or to a new one.
    async fn reopen(&self, id: &str) -> Result<(), RuntimeError>;
}

/// The containers of a runtime, as far as the agent has looked at them already.
pub struct RuntimeContainers {
    pub pods: Arc<dyn PodView>,
    pub reader: Arc<dyn RuntimeReader>,
    pub writer: Arc<dyn RuntimeWriter>,
}

#[async_trait]
impl LoggedContainers for RuntimeContainers {
    async fn running(&self) -> Result<Vec<RunningContainer>, RuntimeError> {
        let pods = self.pods.runtime_pods().await?;
        let containers = pods.iter().flat_map(|pod| &pod.containers);
        Ok(containers
            .filter(|container| container.state.is_running())
            .map(|container| RunningContainer {
                id: container.id.as_str().to_owned(),
                log_path: Some(PathBuf::from(&container.log_path)).filter(|path| path.is_absolute()),
            })
            .collect())
    }

    async fn ended(&self) -> Result<Vec<PathBuf>, RuntimeError> {
        let pods = self.pods.runtime_pods().await?;
        let containers = pods.iter().flat_map(|pod| &pod.containers);
        Ok(containers
            .filter(|container| container.state.exit().is_some())
            .map(|container| PathBuf::from(&container.log_path))
            .filter(|path| path.is_absolute())
            .collect())
    }

    async fn log_path(&self, id: &str) -> Result<Option<PathBuf>, RuntimeError> {
        let answer = self.reader.container_status(id, false).await?;
        Ok(answer
            .status
            .filter(|status| status.state() == v1::ContainerState::ContainerRunning)
            .map(|status| PathBuf::from(status.log_path))
            .filter(|path| path.is_absolute()))
    }

    async fn reopen(&self, id: &str) -> Result<(), RuntimeError> {
        self.writer.reopen_container_log(id).await
    }
}
