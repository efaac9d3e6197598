//! Bringing a pod to what it should be: look, publish the status, plan, execute, and look again.
//!
//! Executes plans in their order and makes no choices of its own: what is done, and what is not, is in the plan. Every executed
//! plan is in the flight record.

use futures_util::future::FutureExt as _;
use std::path::Path;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use rubelet_lifecycle::configuration::{Provider, Unsupported, unprovided};
use rubelet_lifecycle::plan::{
    Action, Block, Missing, OnFailure, Plan, PlanInput, PodPlanFacts, PodPlanInput, PrepareReason,
    RemoveReason, StartContainer, plan_pod,
};
use rubelet_lifecycle::pod_state::{Outcome, Retry};
use rubelet_lifecycle::resize::{PodResize, resize_needs};
use rubelet_lifecycle::status::Phase;
use rubelet_model::observation::{ContainerId, PodObservation};
use rubelet_ports::PodEvent;

use super::container_start::{ContainerStart, StartError, remove_container};
use super::context::{Interrupted, JobContext};
use super::images::{PresentImages, container_of, present_images};
use super::permit::StartPermit;
use super::resize::ResizeError;
use super::sandbox::{ActiveSandbox, SandboxStart, remove_sandbox};
use super::{IN_FLIGHT_LOOK, PodJob};
use crate::garbage::remove_logs;
use crate::recorder::Planned;
use crate::runtime_health;

/// Rounds of one job. A pod that needs more is looked at again later, so that no mistake can make a job spin.
const MAX_ROUNDS: usize = 64;

/// What follows an executed plan.
enum Next {
    /// Something changed: look and plan again.
    Look,
    /// Something was found out: plan again from the same observation.
    Plan,
    /// A fresh look confirms the plan, or not.
    Confirm,
    /// Something failed and is tried again; the status shows it first.
    Retry(Retry),
    /// The job is over.
    Done(Outcome),
}

pub(super) async fn sync(job: &mut PodJob) -> Result<Outcome, Interrupted> {
    let context = Arc::clone(&job.context);
    job.host.register();
    context.runtime_is_ready().await?;
    job.host.find_mount_handler().await?;
    if job.is_readded {
        let observation = context.look().await?;
        let plan = plan(job, &observation, None, false);
        execute(job, &observation, &plan).boxed().await?;
        job.host.forget_prepared();
        job.is_readded = false;
    }
    let mut executed = None;
    let mut is_confirmed = false;
    for _ in 0..MAX_ROUNDS {
        context.check_cancelled()?;
        let observation = context.look().await?;
        job.resizer.verify(&observation);
        // The plan depends on the restart of all containers that the status shows.
        let phase = job.status.publish(&observation, &job.host).await;
        if phase.is_some_and(Phase::is_terminal) {
            return Ok(Outcome::Terminal);
        }
        let mut next = Next::Plan;
        while matches!(next, Next::Plan) {
            let plan = plan(job, &observation, executed.as_ref(), is_confirmed);
            next = execute(job, &observation, &plan).boxed().await?;
            if matches!(next, Next::Look) {
                executed = Some(plan);
            }
        }
        match next {
            Next::Look | Next::Plan => {}
            Next::Confirm => {
                is_confirmed = true;
                context.acted();
            }
            Next::Retry(retry) => {
                let observation = context.look().await?;
                job.status.publish(&observation, &job.host).await;
                return Err(Interrupted::Failed(retry));
            }
            Next::Done(outcome) => return Ok(outcome),
        }
    }
    Err(context.fail("the pod does not come to rest", Retry::Later))
}

/// Collects what the plan depends on, plans, and records the plan.
fn plan(
    job: &PodJob,
    observation: &Arc<PodObservation>,
    previous: Option<&Plan>,
    is_confirmed: bool,
) -> Plan {
    let context = &job.context;
    let now = context.now();
    let facts = PodPlanFacts {
        host: job.host.facts(),
        is_readded: job.is_readded,
        is_confirmed,
        ended: job.status.ended(observation),
        missing: missing_providers(context),
        network_problem: runtime_health::network_problem(&context.agent.health),
    };
    let actuated = context.agent.resources.actuated.get(&context.uid);
    let resize = resize_needs(&context.pod, actuated.as_deref());
    let input = PlanInput {
        pod: &context.pod,
        observation,
        probes: job.status.probe_results(),
        backoff: &job.containers.backoff,
        gates: context.agent.settings.status_gates.restart,
        restarting_all: job.status.is_restarting_all(),
        resize: &resize,
        now,
    };
    let plan = plan_pod(&PodPlanInput {
        containers: input,
        facts: &facts,
        previous,
    });
    context.recorder.plan(&Planned {
        pod: &context.pod,
        observation,
        input: &input,
        facts: &facts,
        plan: &plan,
    });
    plan
}

/// What the pod uses and this node has no provider for. Devices are what its containers had from another kubelet: admission
/// rejects a new pod that asks for them.
fn missing_providers(context: &JobContext) -> Vec<Missing> {
    let settings = &context.agent.settings;
    let spec = context.pod.spec.iter();
    let containers = spec.flat_map(|spec| spec.containers.iter().enumerate());
    let limits = containers.flat_map(|(index, container)| {
        let limits = container.resources.iter().filter_map(|all| all.limits.as_ref());
        let wanted = limits.flatten().filter(|(_, amount)| amount.0 != "0");
        wanted.map(move |(name, _)| (index, name))
    });
    let devices = limits.filter(|(_, name)| settings.admission.lacks_devices(name));
    let devices = devices.map(|(index, name)| Unsupported {
        field: format!("spec.containers[{index}].resources.limits[{name}]"),
        reason: "no device plugin has registered this resource",
        provider: Some(Provider::DevicePlugin),
    });
    let all = unprovided(&context.pod, &settings.node)
        .into_iter()
        .chain(devices);
    all.map(|one| Missing {
        text: one.to_string(),
        is_claim: one.provider == Some(Provider::ResourceDriver),
    })
    .collect()
}

async fn execute(
    job: &mut PodJob,
    observation: &Arc<PodObservation>,
    plan: &Plan,
) -> Result<Next, Interrupted> {
    let context = Arc::clone(&job.context);
    let mut retry = plan.look_again_at().map(Retry::At);
    if retry.is_some() {
        job.status.note_waits(plan);
        job.status.publish(observation, &job.host).await;
    }
    let active = observation.active_sandbox();
    let mut execution = Execution {
        job,
        context: &context,
        permit: StartPermit::new(&context),
        observation,
        sandbox: active.map(|one| ActiveSandbox::new(one.id.clone(), one.attempt, observation.ips.clone())),
        images_to_find: Some(present_images(&context, plan)),
        images: PresentImages::new(),
        is_pod_start_counted: false,
    };
    for action in &plan.actions {
        context.check_cancelled()?;
        if action.is_for_new_sandbox() {
            execution.count_pod_start(plan);
        }
        // Boxed, as the steps of a container's start are: their futures in one another are too large for the stack of a worker.
        let done = execution.run(action).boxed().await;
        if action.is_for_new_sandbox() && matches!(done, Err(Interrupted::Failed(_))) {
            count_pod_error(&context);
        }
        match done? {
            Done::Next => {}
            Done::Container(failed) => retry = earliest(retry, failed),
            Done::Rest(failed) => {
                retry = earliest(retry, failed);
                break;
            }
            Done::Plan(next) => return Ok(next),
        }
    }
    Ok(match retry {
        Some(retry) if plan.is_quiet() => return Err(Interrupted::Failed(retry)),
        Some(retry) => Next::Retry(retry),
        None if plan.is_quiet() => Next::Done(Outcome::Success),
        None => Next::Look,
    })
}

/// What an executed action means for the rest of its plan.
enum Done {
    Next,
    /// It failed; the rest goes on.
    Container(Retry),
    /// It failed; the rest is not done.
    Rest(Retry),
    /// It decides what follows the plan.
    Plan(Next),
}

/// A plan in execution.
struct Execution<'a> {
    job: &'a mut PodJob,
    context: &'a JobContext,
    permit: StartPermit<'a>,
    observation: &'a Arc<PodObservation>,
    /// The sandbox that containers are started in.
    sandbox: Option<ActiveSandbox>,
    /// Finds out which images are present, while the sandbox is created or before the first start.
    images_to_find: Option<BoxFuture<'static, PresentImages>>,
    images: PresentImages,
    is_pod_start_counted: bool,
}

impl Execution<'_> {
    async fn run(&mut self, action: &Action) -> Result<Done, Interrupted> {
        let job = &mut *self.job;
        match action {
            Action::LookAgain { .. } => return Ok(Done::Plan(Next::Confirm)),
            Action::CheckCgroup => {
                job.host.check_cgroup().await?;
                return Ok(Done::Plan(Next::Plan));
            }
            Action::SetUpVolumes => job.volumes.set_up().await?,
            Action::RefreshVolumes => job.volumes.refresh().await?,
            Action::KillPod { stop, .. } => job.stopper.stop_pod(stop).await?,
            Action::KillContainers(kills) => job.stopper.kill_containers(kills).await?,
            Action::RemoveContainer { id, name, reason } => self.remove_container(id, name, *reason).await?,
            Action::RemoveSandbox { id, on_failure } => match remove_sandbox(self.context, id).await {
                Err(Interrupted::Failed(_)) if *on_failure == OnFailure::Continue => {}
                removed => removed?,
            },
            Action::FindRuntimeHandler { class, .. } => job.host.find_runtime_handler(class).await?,
            Action::CreateDirectoriesAndCgroup { reason } => {
                if *reason == PrepareReason::NewSandbox {
                    self.permit.acquire().await?;
                }
                let created = job.host.create_directories_and_cgroup(*reason);
                self.permit.during_host_work(created).await?;
            }
            Action::AllocateUserIds { .. } => {
                let allocated = job.host.allocate_user_ids();
                self.permit.during_host_work(allocated).await?;
            }
            Action::CreateSandbox(change) => {
                let start = SandboxStart {
                    context: self.context,
                    permit: &self.permit,
                    host: &job.host,
                    in_flight: &mut job.sandbox_in_flight,
                    change,
                };
                let (sandbox, images) = start.run(self.images_to_find.take()).await?;
                (self.sandbox, self.images) = (Some(sandbox), images);
            }
            Action::Resize(resize) => return self.resize(resize).await,
            Action::StartContainer(start) => return self.start_container(start).await,
            Action::Keep { .. } | Action::Wait(_) => {}
            Action::ShowMissing { message } => {
                job.status.note_missing(message);
                job.status.publish(self.observation, &job.host).await;
            }
            Action::FailPod(eviction) => {
                job.status.fail_pod(eviction.clone());
                job.status.publish(self.observation, &job.host).await;
                return Ok(Done::Plan(Next::Done(Outcome::Terminal)));
            }
            Action::Block(block) => return Err(self.block(block)),
        }
        Ok(Done::Next)
    }

    async fn resize(&mut self, resize: &PodResize) -> Result<Done, Interrupted> {
        let sandbox = self.sandbox.as_ref().map(|sandbox| &sandbox.id);
        let (problem, goes_on) = match self.job.resizer.run(resize, sandbox).await {
            Ok(()) => return Ok(Done::Next),
            Err(ResizeError::Job(interrupted)) => return Err(interrupted),
            Err(ResizeError::Refused(problem)) => (problem, true),
            Err(ResizeError::Failed(problem)) => (problem, false),
        };
        self.job.status.note_resize_failed(problem.clone());
        let retry = self.context.failed(format!("resize: {problem}"), Retry::Later);
        // What starts next could get more than its pod has.
        Ok(if goes_on {
            Done::Container(retry)
        } else {
            Done::Rest(retry)
        })
    }

    async fn start_container(&mut self, start: &StartContainer) -> Result<Done, Interrupted> {
        let (context, job) = (self.context, &mut *self.job);
        let Some(sandbox) = &mut self.sandbox else {
            return Err(context.fail("no sandbox to start a container in", Retry::Later));
        };
        let Some(container) = container_of(&context.pod, start) else {
            let problem = format!("the pod has no container {}", start.name);
            return Err(context.fail(problem, Retry::Later));
        };
        if let Some(images) = self.images_to_find.take() {
            self.images = context.read("a look at the images", images).await?;
        }
        let image = self.images.remove(&start.name).flatten();
        let container_start = ContainerStart {
            context,
            permit: &self.permit,
            memory: &mut job.containers,
            host: &job.host,
            volumes: &job.volumes,
            times: &job.startup,
            status: &mut job.status,
            observation: self.observation,
            sandbox,
            step: start,
            container,
        };
        let retry = match container_start.run(image).boxed().await {
            Ok(()) => {
                job.status.note_started(&start.name);
                return Ok(Done::Next);
            }
            Err(StartError::Job(interrupted)) => return Err(interrupted),
            Err(StartError::Container { failure, retry }) => {
                job.status.note_failure(&start.name, failure);
                retry
            }
            Err(StartError::Hook { failure, kill }) => {
                job.status.note_failure(&start.name, failure);
                job.stopper.kill_containers(&[*kill]).await?;
                Retry::At(context.now().plus(IN_FLIGHT_LOOK))
            }
        };
        Ok(match start.on_failure {
            OnFailure::StopPlan => Done::Rest(retry),
            OnFailure::Continue => Done::Container(retry),
        })
    }

    /// Removes a dead container, and its log unless that is kept.
    async fn remove_container(
        &mut self,
        id: &ContainerId,
        name: &str,
        reason: RemoveReason,
    ) -> Result<(), Interrupted> {
        let what = format!("the runtime to remove old container {name}");
        remove_container(self.context, id, what).await?;
        let mut containers = self.observation.containers.iter();
        let seen = containers.find(|container| container.id == *id);
        if let Some(seen) = seen.filter(|_| !reason.keeps_logs()) {
            let ports = self.context.ports();
            let log = Path::new(&seen.log_path);
            // A log that stays is removed with its pod.
            let _ = remove_logs(ports.file_reader.as_ref(), ports.file_writer.as_ref(), log).await;
        }
        Ok(())
    }

    fn block(&self, block: &Block) -> Interrupted {
        let message = block.message();
        if let Some(reason) = block.event_reason() {
            self.context.record(PodEvent::warning(reason, message.clone()));
        }
        self.context.fail(message, block.retry())
    }

    /// Counts the creation of a sandbox, with everything that is made for it, once.
    fn count_pod_start(&mut self, plan: &Plan) {
        if std::mem::replace(&mut self.is_pod_start_counted, true) {
            return;
        }
        let starts = &self.context.ports().metrics.starts;
        starts.pods.inc();
        if has_user_namespace(self.context) {
            starts.pods_with_own_users.inc();
        }
        if plan.sandbox().is_some_and(|change| change.replaces.is_some()) {
            let text = "Pod sandbox changed, it will be killed and re-created.";
            self.context.record(PodEvent::normal("SandboxChanged", text));
        }
    }
}

fn count_pod_error(context: &JobContext) {
    let starts = &context.ports().metrics.starts;
    starts.pod_errors.inc();
    if has_user_namespace(context) {
        starts.pod_errors_with_own_users.inc();
    }
}

fn has_user_namespace(context: &JobContext) -> bool {
    let spec = context.pod.spec.as_ref();
    spec.is_some_and(|spec| spec.host_users == Some(false))
}

/// The try that comes first.
fn earliest(one: Option<Retry>, other: Retry) -> Option<Retry> {
    Some(match (one, other) {
        (None, other) => other,
        (Some(Retry::At(one)), Retry::At(other)) => Retry::At(one.min(other)),
        (Some(Retry::NetworkNotReady), _) | (_, Retry::NetworkNotReady) => Retry::NetworkNotReady,
        (Some(Retry::Later), _) | (_, Retry::Later) => Retry::Later,
    })
}
