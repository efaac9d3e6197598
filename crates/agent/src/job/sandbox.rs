//! Creating the pod's sandbox.
//!
//! Owns the call and what follows when its outcome is not known: the sandbox that may exist is looked up and adopted or
//! removed, and never doubled.

use futures_util::future::{BoxFuture, join};
use rubelet_lifecycle::configuration::{Sandbox, SandboxInputs, sandbox_config};
use rubelet_lifecycle::deliberate::{Bug, is_on};
use rubelet_lifecycle::observe::observe_sandbox;
use rubelet_lifecycle::plan::{
    InFlightSandbox, SandboxChange, SandboxRecovery, recover_sandbox, reserved_for,
};
use rubelet_lifecycle::pod_state::Retry;
use rubelet_model::Timestamp;
use rubelet_model::observation::{NetworkMode, SandboxId};
use rubelet_ports::{PodEvent, RuntimeError, RuntimeErrorKind};
use rubelet_wire::cri::v1::PodSandboxConfig;

use super::IN_FLIGHT_LOOK;
use super::context::{Interrupted, JobContext, not_found_is_fine};
use super::files::read_resolver_file;
use super::host::{PodHost, sandbox_failed};
use super::images::PresentImages;
use super::permit::StartPermit;

/// The sandbox that containers are started in.
pub(super) struct ActiveSandbox {
    pub(super) id: SandboxId,
    attempt: u32,
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

    /// The configuration that the sandbox was made with.
    pub(super) async fn config(
        &mut self,
        context: &JobContext,
        host: &PodHost,
    ) -> Result<PodSandboxConfig, Interrupted> {
        if self.config.is_none() {
            self.config = Some(make_config(context, host, self.attempt).await?.config);
        }
        Ok(self.config.clone().unwrap_or_default())
    }
}

async fn make_config(context: &JobContext, host: &PodHost, attempt: u32) -> Result<Sandbox, Interrupted> {
    let failed = |problem: String| sandbox_failed(context, &problem);
    let resolver = read_resolver_file(&context.agent);
    let resolver = context.try_read("the node's resolver file", resolver).await;
    let inputs = SandboxInputs {
        attempt,
        own_users: host.user_namespace(),
        resolver: resolver.map_err(|error| error.map(failed))?,
        ..SandboxInputs::default()
    };
    let made = sandbox_config(&context.pod, &context.agent.settings.node, &inputs);
    made.map_err(|error| Interrupted::Failed(failed(error.to_string())))
}

/// Whether a failed call may have had its effect, or met the effect of an earlier one.
pub(super) fn outcome_is_unknown(error: &RuntimeError) -> bool {
    match error.kind() {
        RuntimeErrorKind::AlreadyExists | RuntimeErrorKind::DeadlineExceeded => true,
        _ => reserved_for(error.message()).is_some(),
    }
}

/// The creation of one sandbox.
pub(super) struct SandboxStart<'a> {
    pub(super) context: &'a JobContext,
    pub(super) permit: &'a StartPermit<'a>,
    pub(super) host: &'a PodHost,
    /// A sandbox that was asked for, with an unknown outcome.
    pub(super) in_flight: &'a mut Option<InFlightSandbox>,
    pub(super) change: &'a SandboxChange,
}

impl SandboxStart<'_> {
    /// Creates the sandbox, and meanwhile finds out which images are present.
    pub(super) async fn run(
        mut self,
        images: Option<BoxFuture<'static, PresentImages>>,
    ) -> Result<(ActiveSandbox, PresentImages), Interrupted> {
        let (context, attempt) = (self.context, self.change.attempt);
        let made = make_config(context, self.host, attempt);
        let Sandbox { config, warnings } = self.permit.during_host_work(made).await?;
        for warning in warnings {
            context.record(PodEvent::warning(warning.reason(), warning.message()));
        }
        let writer = &context.ports().runtime_writer;
        let call = writer.run_pod_sandbox(config.clone(), self.host.runtime_handler());
        let images = async {
            match images {
                Some(images) => images.await,
                None => PresentImages::new(),
            }
        };
        self.permit.acquire().await?;
        let asked_at = context.now();
        let both = async {
            let (result, images) = join(call, images).await;
            result.map(|id| (id, images))
        };
        let what = "the runtime to create the sandbox";
        let (id, images) = match self.permit.write(what, both).await {
            Ok((id, images)) => (SandboxId::new(id), images),
            Err(Interrupted::Cancelled) => return Err(Interrupted::Cancelled),
            Err(Interrupted::Failed(error)) => {
                self.permit.release();
                (self.recover(asked_at, error).await?, PresentImages::new())
            }
        };
        *self.in_flight = None;
        let ips = self.permit.during_call(sandbox_ips(context, &id)).await?;
        let mut sandbox = ActiveSandbox::new(id, attempt, ips);
        sandbox.config = Some(config);
        Ok((sandbox, images))
    }

    /// Adopts what an unanswered call has made, or fails.
    async fn recover(&mut self, asked_at: Timestamp, error: RuntimeError) -> Result<SandboxId, Interrupted> {
        let (context, attempt) = (self.context, self.change.attempt);
        let holder = reserved_for(error.message()).map(SandboxId::from);
        if !outcome_is_unknown(&error) {
            self.record_failed(&error);
            return Err(Interrupted::Failed(context.runtime_failed(&error)));
        }
        if is_on(Bug::DoubleStart) && holder.is_some() {
            return self.create_another().await;
        }
        let first = self.in_flight.as_ref().filter(|asked| asked.attempt == attempt);
        let asked = InFlightSandbox {
            attempt,
            network_mode: if context.is_on_host_network() {
                NetworkMode::Node
            } else {
                NetworkMode::Pod
            },
            // When the clock was set back meanwhile, the wait begins anew.
            asked_at: first.map_or(asked_at, |asked| asked.asked_at.min(asked_at)),
            holder,
        };
        *self.in_flight = Some(asked.clone());
        let observation = context.look().await?;
        let recovery = recover_sandbox(&asked, &observation, context.now());
        context.note(format!("{error}; {recovery:?}"));
        match recovery {
            SandboxRecovery::Adopt { id } => return Ok(id),
            SandboxRecovery::Remove { id } => {
                self.record_failed(&error);
                remove_sandbox(context, &id).await?;
                *self.in_flight = None;
            }
            SandboxRecovery::Wait { .. } | SandboxRecovery::Retry => self.record_failed(&error),
        }
        let soon = Retry::At(context.now().plus(IN_FLIGHT_LOOK));
        Err(context.fail(error.to_string(), soon))
    }

    /// A mistake on purpose, for the simulator's own test.
    async fn create_another(&mut self) -> Result<SandboxId, Interrupted> {
        let change = SandboxChange {
            attempt: self.change.attempt + 1,
            ..self.change.clone()
        };
        let another = SandboxStart {
            context: self.context,
            permit: &StartPermit::new(self.context),
            host: self.host,
            in_flight: self.in_flight,
            change: &change,
        };
        Ok(Box::pin(another.run(None)).await?.0.id)
    }

    fn record_failed(&self, error: &RuntimeError) {
        self.context.record(PodEvent::warning(
            "FailedCreatePodSandBox",
            format!("Failed to create pod sandbox: {error}"),
        ));
    }
}

pub(super) async fn remove_sandbox(context: &JobContext, id: &SandboxId) -> Result<(), Interrupted> {
    let writer = &context.ports().runtime_writer;
    let removal = async {
        not_found_is_fine(writer.stop_pod_sandbox(id.as_str()).await)?;
        not_found_is_fine(writer.remove_pod_sandbox(id.as_str()).await)
    };
    let removed = context
        .write("the runtime to remove an old sandbox", removal)
        .await;
    removed.map_err(|error| error.map(|error| context.runtime_failed(&error)))
}

/// Containers need the pod's addresses in their environment and hosts file.
async fn sandbox_ips(context: &JobContext, id: &SandboxId) -> Result<Vec<String>, Interrupted> {
    let status = context
        .ports()
        .runtime_reader
        .pod_sandbox_status(id.as_str(), false);
    let answer = context.try_read("the sandbox's addresses", status).await;
    let answer = answer.map_err(|error| {
        error.map(|error| {
            let text = format!("Unable to get pod sandbox status: {error}");
            context.record(PodEvent::warning("FailedPodSandBoxStatus", text));
            context.runtime_failed(&error)
        })
    })?;
    let status = answer.status.as_ref();
    Ok(status
        .map(|status| observe_sandbox(status).ips)
        .unwrap_or_default())
}
