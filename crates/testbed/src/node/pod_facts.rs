//! Reading a pod's status without a ladder of options.

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};

/// What tests ask of a pod.
pub trait PodFacts {
    /// `metadata.uid`.
    fn uid(&self) -> &str;
    /// `status.phase`.
    fn phase(&self) -> &str;
    /// Fails, with what is missing, unless the pod is Running and Ready.
    fn check_ready(&self) -> Result<()>;
    /// Fails unless the phase is this one.
    fn check_phase(&self, phase: &str) -> Result<()>;
    /// The status of a condition, its reason and its message; empty where there is none.
    fn condition(&self, kind: &str) -> (&str, &str, &str);
    /// A container of any kind.
    fn container(&self, name: &str) -> Result<&ContainerStatus>;
    /// Why a container waits, and the message of it.
    fn waiting(&self, name: &str) -> Result<(String, String)>;
    /// How a container ended.
    fn terminated(&self, name: &str) -> Result<&ContainerStateTerminated>;
    /// A running container's id, as the runtime has it.
    fn running_id(&self, name: &str) -> Result<String>;
}

impl PodFacts for Pod {
    fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    fn phase(&self) -> &str {
        let phase = self.status.as_ref().and_then(|status| status.phase.as_deref());
        phase.unwrap_or_default()
    }

    fn check_ready(&self) -> Result<()> {
        self.check_phase("Running")?;
        let (status, reason, message) = self.condition("Ready");
        ensure!(status == "True", "Ready is {status:?}: {reason} {message}");
        Ok(())
    }

    fn check_phase(&self, phase: &str) -> Result<()> {
        ensure!(
            self.phase() == phase,
            "the phase is {:?} instead of {phase:?}",
            self.phase()
        );
        Ok(())
    }

    fn condition(&self, kind: &str) -> (&str, &str, &str) {
        let conditions = self.status.as_ref().and_then(|status| status.conditions.as_ref());
        let found = conditions
            .into_iter()
            .flatten()
            .find(|condition| condition.type_ == kind);
        found.map_or(("", "", ""), |condition| {
            (
                condition.status.as_str(),
                condition.reason.as_deref().unwrap_or_default(),
                condition.message.as_deref().unwrap_or_default(),
            )
        })
    }

    fn container(&self, name: &str) -> Result<&ContainerStatus> {
        let status = self.status.as_ref().context("no status")?;
        let lists = [
            &status.container_statuses,
            &status.init_container_statuses,
            &status.ephemeral_container_statuses,
        ];
        lists
            .into_iter()
            .flatten()
            .flatten()
            .find(|container| container.name == name)
            .with_context(|| format!("no status of container {name}"))
    }

    fn waiting(&self, name: &str) -> Result<(String, String)> {
        let state = self.container(name)?.state.as_ref();
        let waiting = state
            .and_then(|state| state.waiting.as_ref())
            .context("it does not wait")?;
        Ok((
            waiting.reason.clone().unwrap_or_default(),
            waiting.message.clone().unwrap_or_default(),
        ))
    }

    fn terminated(&self, name: &str) -> Result<&ContainerStateTerminated> {
        let state = self.container(name)?.state.as_ref();
        state
            .and_then(|state| state.terminated.as_ref())
            .context("it has not ended")
    }

    fn running_id(&self, name: &str) -> Result<String> {
        let container = self.container(name)?;
        let running = container
            .state
            .as_ref()
            .is_some_and(|state| state.running.is_some());
        ensure!(running, "container {name} does not run: {:?}", container.state);
        match container
            .container_id
            .as_deref()
            .and_then(|id| id.split_once("://"))
        {
            Some((_, id)) => Ok(id.to_owned()),
            None => bail!("container {name} has the id {:?}", container.container_id),
        }
    }
}
