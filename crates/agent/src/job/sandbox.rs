//! Creating the pod's sandbox.
//!
//! Owns the call and what follows when its outcome is not known: the sandbox that may exist is looked up and adopted or
//! removed, and never doubled.

use std::sync::Arc;

use futures_util::future::{BoxFuture, join};
use rubelet_lifecycle::configuration::{Sandbox, SandboxInputs, sandbox_config};
use rubelet_lifecycle::deliberate::{Bug, is_on};
use rubelet_lifecycle::observe::observe_sandbox;
use rubelet_lifecycle::plan::{
    InFlightSandbox, SandboxChange, SandboxRecovery, recover_sandbox, reserved_for,
};
use rubelet_lifecycle::pod_state::Retry;
use rubelet_model::observation::{NetworkMode, SandboxId, SandboxObservation};
use rubelet_ports::{PodEvent, RuntimeError, RuntimeErrorKind};
use rubelet_wire::cri::v1::PodSandboxConfig;
use tokio::sync::OwnedSemaphorePermit;

use super::container::PresentImages;
use super::files::{create_pod_directories, read_resolver_file};
use super::hooks::is_on_node;
use super::stop::not_found_is_fine;
use super::{ASIDE_PATIENCE, PERMIT_PATIENCE, PodJob, Stop, giving_way};

/// How long until a call that nobody waits for any more is looked for again.
pub(super) const IN_FLIGHT_LOOK: std::time::Duration = std::time::Duration::from_secs(1);

/// The sandbox that containers are started in.
pub(super) struct ActiveSandbox {
    pub(super) id: SandboxId,
    pub(super) attempt: u32,
    pub(super) ips: Vec<String>,
    /// Made when it is first needed.
    config: Option<PodSandboxConfig>,
}

impl ActiveSandbox {
    pub(super) fn new(id: SandboxId, attempt: u32, ips: Vec<String>) -> Self {
        Self {
            id,
            attempt,
            ips,
            config: None,
        }
    }
}

/// Whether a failed call may have had its effect, or met the effect of an earlier one.
pub(super) fn outcome_is_unknown(error: &RuntimeError) -> bool {
    match error.kind() {
        RuntimeErrorKind::AlreadyExists | RuntimeErrorKind::DeadlineExceeded => true,
        _ => reserved_for(error.message()).is_some(),
    }
}

impl PodJob {
    /// Starts against the runtime go through one limiter: more at a time make none of them faster.
    async fn permit(&self) -> Result<OwnedSemaphorePermit, Stop> {
        let permit = Arc::clone(&self.shared.starts).acquire_owned();
        match self.read("its turn to start at the runtime", permit).await? {
            Ok(permit) => Ok(permit),
            // The limiter is closed only when the agent ends.
            Err(_) => Err(Stop::Cancelled),
        }
    }

    pub(super) async fn take_permit(&self, permit: &mut Option<OwnedSemaphorePermit>) -> Result<(), Stop> {
        if permit.is_none() {
            *permit = Some(self.permit().await?);
        }
        Ok(())
    }

    async fn make_config(&self, attempt: u32) -> Result<Sandbox, Stop> {
        let resolver = read_resolver_file(&self.shared);
        let inputs = match self.read("the node's resolver file", resolver).await? {
            Ok(resolver) => SandboxInputs {
                attempt,
                own_users: self.work.own_users.clone(),
                resolver,
                ..SandboxInputs::default()
            },
            Err(problem) => return Err(self.without_sandbox(&problem)),
        };
        let made = sandbox_config(&self.pod, &self.shared.settings.node, &inputs);
        made.map_err(|error| self.without_sandbox(&error.to_string()))
    }

    pub(super) fn without_sandbox(&self, problem: &str) -> Stop {
        let text = format!("Failed to create pod sandbox: {problem}");
        self.record(PodEvent::warning("FailedCreatePodSandBox", text));
        self.fail(problem, Retry::Later)
    }

    /// The configuration that the sandbox was made with.
    pub(super) async fn config_of(&self, sandbox: &mut ActiveSandbox) -> Result<PodSandboxConfig, Stop> {
        if sandbox.config.is_none() {
            sandbox.config = Some(self.make_config(sandbox.attempt).await?.config);
        }
        Ok(sandbox.config.clone().unwrap_or_default())
    }

    /// The pod's cgroup and directories, which everything of it is put into. A sandbox that was found may be what an earlier life
    /// of the pod had asked for, and its place is gone with that life.
    pub(super) async fn ensure_place(&mut self) -> Result<(), Stop> {
        if self.work.has_place {
            return Ok(());
        }
        let directories = create_pod_directories(&self.shared, &self.pod, &self.uid);
        let directories = self.read("the pod's directories", directories);
        // Side by side: neither needs the other.
        let (cgroup, directories) = join(self.create_cgroup(), directories).await;
        cgroup?;
        if let Err(error) = directories? {
            let text = format!("error making pod data directories: {error}");
            self.record(PodEvent::warning("Failed", text));
            return Err(self.fail(error.to_string(), Retry::Later));
        }
        self.work.has_place = true;
        Ok(())
    }

    /// Makes the sandbox, and meanwhile finds out which images are there.
    pub(super) async fn create_sandbox(
        &mut self,
        change: &SandboxChange,
        images: Option<BoxFuture<'static, PresentImages>>,
        permit: &mut Option<OwnedSemaphorePermit>,
    ) -> Result<(ActiveSandbox, PresentImages), Stop> {
        let starts = &self.shared.ports.metrics.starts;
        let spec = self.pod.spec.as_ref();
        let has_own_users = spec.is_some_and(|spec| spec.host_users == Some(false));
        starts.pods.inc();
        if has_own_users {
            starts.pods_with_own_users.inc();
        }
        let made = self.make_sandbox(change, images, permit).await;
        // One that is given up because the pod has to end is no failure.
        if matches!(made, Err(Stop::Failed(_))) {
            let starts = &self.shared.ports.metrics.starts;
            starts.pod_errors.inc();
            if has_own_users {
                starts.pod_errors_with_own_users.inc();
            }
        }
        made
    }

    async fn make_sandbox(
        &mut self,
        change: &SandboxChange,
        images: Option<BoxFuture<'static, PresentImages>>,
        permit: &mut Option<OwnedSemaphorePermit>,
    ) -> Result<(ActiveSandbox, PresentImages), Stop> {
        if change.replaces.is_some() {
            let text = "Pod sandbox changed, it will be killed and re-created.";
            self.record(PodEvent::normal("SandboxChanged", text));
        }
        let handler = self.runtime_handler().await?;
        self.work.has_place = false;
        self.take_permit(permit).await?;
        let clock = Arc::clone(&self.ports().clock);
        let place = async {
            self.ensure_place().await?;
            self.ensure_own_users().await?;
            self.make_config(change.attempt).await
        };
        let made = giving_way(clock.as_ref(), permit, ASIDE_PATIENCE, place).await?;
        let Sandbox { config, warnings } = made;
        for warning in warnings {
            self.record(PodEvent::warning(warning.reason(), warning.message()));
        }
        let writer = Arc::clone(&self.ports().runtime_writer);
        let call = writer.run_pod_sandbox(config.clone(), &handler);
        let images = async {
            match images {
                Some(images) => images.await,
                None => PresentImages::new(),
            }
        };
        self.take_permit(permit).await?;
        let asked_at = self.now();
        let both = async {
            let (result, images) = join(call, images).await;
            result.map(|id| (id, images))
        };
        let what = "the runtime to create the sandbox";
        let (id, images) = match self.write_permitted(permit, what, both).await? {
            Ok((id, images)) => (SandboxId::new(id), images),
            Err(error) => {
                permit.take();
                let id = self.sandbox_failed(change, asked_at, error).await?;
                (id, PresentImages::new())
            }
        };
        self.work.sandbox_asked = None;
        let ips = self.sandbox_ips(&id);
        let ips = giving_way(clock.as_ref(), permit, PERMIT_PATIENCE, ips).await?;
        let mut sandbox = ActiveSandbox::new(id, change.attempt, ips);
        sandbox.config = Some(config);
        Ok((sandbox, images))
    }

    /// Adopts what an unanswered call has made, or fails.
    async fn sandbox_failed(
        &mut self,
        change: &SandboxChange,
        asked_at: rubelet_model::Timestamp,
        error: RuntimeError,
    ) -> Result<SandboxId, Stop> {
        if !outcome_is_unknown(&error) {
            self.record_failed(&error);
            return Err(self.runtime_failed(&error));
        }
        if is_on(Bug::DoubleStart) && reserved_for(error.message()).is_some() {
            let next = SandboxChange {
                attempt: change.attempt + 1,
                ..change.clone()
            };
            let made = Box::pin(self.create_sandbox(&next, None, &mut None)).await?;
            return Ok(made.0.id);
        }
        let on_node = is_on_node(&self.pod);
        let first_asked = self
            .work
            .sandbox_asked
            .as_ref()
            .filter(|asked| asked.attempt == change.attempt);
        let asked = InFlightSandbox {
            attempt: change.attempt,
            network_mode: if on_node {
                NetworkMode::Node
            } else {
                NetworkMode::Pod
            },
            // When the clock was set back meanwhile, the wait begins anew.
            asked_at: first_asked.map_or(asked_at, |asked| asked.asked_at.min(asked_at)),
            holder: reserved_for(error.message()).map(SandboxId::from),
        };
        self.work.sandbox_asked = Some(asked.clone());
        let observation = self.look().await?;
        let recovery = recover_sandbox(&asked, &observation, self.now());
        self.recorder.note(self.now(), format!("{error}; {recovery:?}"));
        match recovery {
            SandboxRecovery::Adopt { id } => Ok(id),
            SandboxRecovery::Remove { id } => {
                self.record_failed(&error);
                self.remove_sandbox(&id).await?;
                self.work.sandbox_asked = None;
                Err(self.fail(error.to_string(), Retry::At(self.now().plus(IN_FLIGHT_LOOK))))
            }
            SandboxRecovery::Wait { .. } | SandboxRecovery::Retry => {
                self.record_failed(&error);
                Err(self.fail(error.to_string(), Retry::At(self.now().plus(IN_FLIGHT_LOOK))))
            }
        }
    }

    fn record_failed(&self, error: &RuntimeError) {
        self.record(PodEvent::warning(
            "FailedCreatePodSandBox",
            format!("Failed to create pod sandbox: {error}"),
        ));
    }

    /// Removes a sandbox of a pod that ended before. One that is not ready and cannot be removed is left to the garbage collector:
    /// the new sandbox has another number.
    pub(super) async fn remove_ended_sandbox(&mut self, sandbox: &SandboxObservation) -> Result<(), Stop> {
        match self.remove_sandbox(&sandbox.id).await {
            Err(Stop::Failed(_)) if !sandbox.is_ready() => Ok(()),
            other => other,
        }
    }

    pub(super) async fn remove_sandbox(&mut self, id: &SandboxId) -> Result<(), Stop> {
        let writer = Arc::clone(&self.ports().runtime_writer);
        let removal = async {
            not_found_is_fine(writer.stop_pod_sandbox(id.as_str()).await)?;
            not_found_is_fine(writer.remove_pod_sandbox(id.as_str()).await)
        };
        match self
            .write("the runtime to remove an old sandbox", removal)
            .await?
        {
            Ok(()) => Ok(()),
            Err(error) => Err(self.runtime_failed(&error)),
        }
    }

    /// Containers need the pod's addresses in their environment and hosts file.
    async fn sandbox_ips(&mut self, id: &SandboxId) -> Result<Vec<String>, Stop> {
        let reader = Arc::clone(&self.ports().runtime_reader);
        let status = reader.pod_sandbox_status(id.as_str(), false);
        match self.read("the sandbox's addresses", status).await? {
            Ok(answer) => Ok(answer
                .status
                .as_ref()
                .map(|status| observe_sandbox(status).ips)
                .unwrap_or_default()),
            Err(error) => {
                let text = format!("Unable to get pod sandbox status: {error}");
                self.record(PodEvent::warning("FailedPodSandBoxStatus", text));
                Err(self.runtime_failed(&error))
            }
        }
    }
}
