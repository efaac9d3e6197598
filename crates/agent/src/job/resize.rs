//! Giving a pod that runs the resources that are allocated to it.
//!
//! Owns the writes of a resize, in the order that `lifecycle::resize::steps` gives, and the record of what they have changed. A step
//! that fails ends the resize; the next plan goes on from what the record and the pod's cgroup have then.

use std::collections::BTreeMap;
use std::sync::Arc;

use rubelet_lifecycle::allocation::numbers::Resource;
use rubelet_lifecycle::allocation::{Allocation, ResourceNumbers, rebuilt};
use rubelet_lifecycle::configuration::container::{updated_resources, updated_sandbox};
use rubelet_lifecycle::deliberate::{Bug, is_on};
use rubelet_lifecycle::resize::steps::{MemoryDecrease, ResizeStep, steps};
use rubelet_lifecycle::resize::{ContainerUpdate, PodResize};
use rubelet_model::cgroup::{PodCgroupPart, PodCgroupReading};
use rubelet_model::observation::{PodObservation, SandboxId};
use rubelet_ports::{RuntimeError, RuntimeErrorKind};
use rubelet_resources::{PodCgroup, PodDemand, pod_cgroup};
use rubelet_wire::cri::v1::UpdateContainerResourcesRequest;

use super::context::{Interrupted, JobContext};

/// containerd 2.2 answers so where others have no such call.
const NOT_IMPLEMENTED: &str = "not implemented";

/// How far the resize of a pod is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ResizeState {
    /// The pod has the resources that are allocated to it.
    Settled,
    InProgress,
    /// A step failed.
    Failed(String),
}

/// What a job has seen of the resize of its pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResizeReport {
    /// Which allocation of the pod the job works with.
    pub(crate) number: u64,
    pub(crate) state: ResizeState,
}

/// Why a resize did not come to its end.
pub(super) enum ResizeError {
    Job(Interrupted),
    /// Nothing was touched, and starts can go on.
    Refused(String),
    Failed(String),
}

impl From<Interrupted> for ResizeError {
    fn from(interrupted: Interrupted) -> Self {
        Self::Job(interrupted)
    }
}

/// What is known of a pod's resources from one job to the next.
pub(super) struct ResizeMemory {
    /// What the runtime shows of running containers has to be compared with the record: after a restart of the agent, and after an
    /// update without an answer.
    is_unverified: bool,
}

impl Default for ResizeMemory {
    fn default() -> Self {
        Self { is_unverified: true }
    }
}

pub(super) struct Resizer {
    context: Arc<JobContext>,
    pub(super) memory: ResizeMemory,
}

impl Resizer {
    pub(super) fn new(context: Arc<JobContext>, memory: ResizeMemory) -> Self {
        Self { context, memory }
    }

    /// Makes the record of what the containers have true, where it may not be.
    pub(super) fn verify(&mut self, observation: &PodObservation) {
        let context = &self.context;
        if context.pod.spec.is_none() || observation.running_containers().next().is_none() {
            return;
        }
        let actuated = &context.agent.resources.actuated;
        let known = actuated.get(&context.uid);
        if known.is_some() && !std::mem::take(&mut self.memory.is_unverified) {
            return;
        }
        let period = context.agent.settings.node.rules.quota_period_us();
        let found = rebuilt::actuated(&context.pod, known.as_deref(), observation, period);
        if actuated.set(&context.uid, found) {
            context.note("the record of the containers' resources was made from what the runtime shows");
        }
    }

    /// Carries the resize out. Afterwards the statuses of the containers have to be read again.
    pub(super) async fn run(
        &mut self,
        resize: &PodResize,
        sandbox: Option<&SandboxId>,
    ) -> Result<(), ResizeError> {
        let context = Arc::clone(&self.context);
        let clock = &context.ports().clock;
        let began = clock.moment();
        let done = self.resize(resize, sandbox).await;
        context.acted();
        context
            .agent
            .observer
            .outdate(&context.uid, context.acted_at())
            .await;
        let took = clock.moment().since(began).as_millis();
        let durations = &context.ports().metrics.resizes.durations;
        let success = if done.is_ok() { "true" } else { "false" };
        let millis = u32::try_from(took).unwrap_or(u32::MAX);
        durations.with_label_values(&[success]).observe(f64::from(millis));
        if done.is_err() {
            // A call without an answer may have had its effect.
            self.memory.is_unverified = true;
        }
        done
    }

    async fn resize(&self, resize: &PodResize, sandbox: Option<&SandboxId>) -> Result<(), ResizeError> {
        let context = &self.context;
        let allocated = context.agent.resources.allocated.saved();
        let saved = context
            .waits
            .named("the record of the pod's resources", allocated)
            .await;
        saved.map_err(|error| {
            ResizeError::Failed(format!("cannot record the pod's new resources: {error}"))
        })?;
        let node = &context.agent.settings.node;
        let demand = PodDemand::read(&context.pod).map_err(|error| ResizeError::Failed(error.to_string()))?;
        let desired = pod_cgroup(&demand, &node.rules, &node.facts, false);
        let reading = context.ports().cgroups.read(&context.pod);
        let reading = context.read("the values of the pod's cgroup", reading).await?;
        let has = reading.map_err(|error| {
            ResizeError::Failed(format!("unable to get pod cgroup config for pod: {error}"))
        })?;
        self.check_memory(resize, &desired, has.as_ref()).await?;
        let mut run = Run {
            context,
            resize,
            sandbox,
            desired: &desired,
            current: current_values(&desired, has.as_ref()),
        };
        for step in steps(resize, &desired, has.as_ref()) {
            context.check_cancelled()?;
            run.step(step).await?;
        }
        Ok(())
    }

    /// No memory limit goes below what is used at the moment.
    async fn check_memory(
        &self,
        resize: &PodResize,
        desired: &PodCgroup,
        has: Option<&PodCgroupReading>,
    ) -> Result<(), ResizeError> {
        let decrease = MemoryDecrease::of(resize, desired, has);
        if decrease.is_empty() || is_on(Bug::LimitBelowUsage) {
            return Ok(());
        }
        let reader = &self.context.ports().runtime_reader;
        let mut usage = BTreeMap::new();
        for index in decrease.containers.keys() {
            let Some(update) = resize.memory.get(*index) else {
                continue;
            };
            let stats = reader.container_stats(update.id.as_str());
            let what = format!("what container {} uses", update.name);
            // What cannot be read is missing, and that is a problem of its own.
            let stats = self.context.read(what, stats).await?.ok().flatten();
            let memory = stats.and_then(|stats| stats.memory);
            if let Some(bytes) = memory.and_then(|memory| memory.usage_bytes) {
                usage.insert(*index, bytes.value);
            }
        }
        let pod_usage = has.and_then(|has| has.memory_usage_bytes);
        let problem = decrease.problem(resize, pod_usage, &usage);
        problem.map_or(Ok(()), |problem| Err(ResizeError::Refused(problem)))
    }
}

/// What the pod's cgroup has, as far as it can be changed.
fn current_values(desired: &PodCgroup, has: Option<&PodCgroupReading>) -> PodCgroup {
    let Some(has) = has else {
        return desired.clone();
    };
    PodCgroup {
        memory_bytes: has.memory_limit_bytes,
        cpu_shares: has.cpu_shares,
        cpu_quota_us: has.cpu_quota_us,
        cpu_period_us: has.cpu_period_us,
        unified: desired.unified.clone(),
        ..PodCgroup::default()
    }
}

/// One try of a resize.
struct Run<'a> {
    context: &'a JobContext,
    resize: &'a PodResize,
    sandbox: Option<&'a SandboxId>,
    desired: &'a PodCgroup,
    /// What the pod's cgroup has by now.
    current: PodCgroup,
}

impl Run<'_> {
    async fn step(&mut self, step: ResizeStep) -> Result<(), ResizeError> {
        match step {
            ResizeStep::PodMemoryLimit => self.write_pod(PodCgroupPart::MemoryLimit, "memory").await,
            ResizeStep::PodCpuQuota => self.write_pod(PodCgroupPart::CpuQuota, "cpu").await,
            ResizeStep::PodCpuShares => self.write_pod(PodCgroupPart::CpuShares, "cpu").await,
            ResizeStep::Container { resource, index } => match self.resize.updates(resource).get(index) {
                Some(update) => self.update_container(resource, update).await,
                None => Ok(()),
            },
            ResizeStep::PodDone(resource) => {
                self.record_pod(resource);
                Ok(())
            }
        }
    }

    /// The runtime is notified of the change first and may refuse it.
    async fn write_pod(&mut self, part: PodCgroupPart, resource: &str) -> Result<(), ResizeError> {
        let context = self.context;
        let next = with_part(&self.current, self.desired, part);
        self.notify_runtime(&next).await.map_err(|error| {
            error.or_failed(|error| {
                format!(
                    "failed to notify runtime for UpdatePodSandboxResources (resource={resource}); resize rejected: {error}"
                )
            })
        })?;
        // A cancellation does not interrupt it: a write that is half done is more work than a whole one. It has a deadline.
        let update = context.ports().cgroups.update(&context.pod, part);
        if let Err(error) = context.waits.named("the pod's cgroup to change", update).await {
            if let Err(error) = self.notify_runtime(&self.current).await {
                error.log();
            }
            return Err(ResizeError::Failed(error.to_string()));
        }
        self.current = next;
        Ok(())
    }

    async fn notify_runtime(&self, values: &PodCgroup) -> Result<(), NotifyError> {
        let context = self.context;
        let Some(sandbox) = self.sandbox else {
            return Ok(());
        };
        let node = &context.agent.settings.node;
        let request = updated_sandbox(&context.pod, sandbox.as_str(), values, node)
            .map_err(|error| NotifyError::Failed(error.to_string()))?;
        let call = context
            .ports()
            .runtime_writer
            .update_pod_sandbox_resources(request);
        match context
            .write("the runtime to note the pod's resources", call)
            .await
        {
            Ok(()) => Ok(()),
            Err(Interrupted::Failed(error)) if is_unimplemented(&error) => Ok(()),
            Err(Interrupted::Failed(error)) => Err(NotifyError::Failed(error.to_string())),
            Err(Interrupted::Cancelled) => Err(NotifyError::Cancelled),
        }
    }

    async fn update_container(
        &self,
        resource: Resource,
        update: &ContainerUpdate,
    ) -> Result<(), ResizeError> {
        let context = self.context;
        let actuated = &context.agent.resources.actuated;
        let mut record = actuated
            .get(&context.uid)
            .map(|known| (*known).clone())
            .unwrap_or_default();
        // The memory may have changed a step before.
        let current = record.numbers(&update.name).unwrap_or(update.change.current);
        let numbers = current.with_part(resource, &update.change.desired);
        let node = &context.agent.settings.node;
        let linux = updated_resources(&context.pod, &update.name, &numbers, node)
            .map_err(|error| ResizeError::Failed(error.to_string()))?;
        let request = UpdateContainerResourcesRequest {
            container_id: update.id.to_string(),
            linux: Some(linux),
            ..UpdateContainerResourcesRequest::default()
        };
        let call = context.ports().runtime_writer.update_container_resources(request);
        let what = format!("the runtime to resize container {}", update.name);
        match context.write(what, call).await {
            Ok(()) => {}
            Err(Interrupted::Cancelled) => return Err(ResizeError::Job(Interrupted::Cancelled)),
            Err(Interrupted::Failed(error)) => return Err(ResizeError::Failed(error.to_string())),
        }
        let own = record.containers.remove(&update.name).unwrap_or_default();
        record
            .containers
            .insert(update.name.clone(), numbers.written(own));
        actuated.set(&context.uid, record);
        Ok(())
    }

    /// The pod as a whole has its own request and limit now.
    fn record_pod(&self, resource: Resource) {
        let context = self.context;
        let actuated = &context.agent.resources.actuated;
        let Some(known) = actuated.get(&context.uid) else {
            return;
        };
        let allocated = Allocation::asked(&context.pod);
        let mut record = (*known).clone();
        record.pod = allocated.pod.clone().map(|asked| {
            let before = known.pod.clone();
            let has = before
                .as_ref()
                .map_or_else(ResourceNumbers::default, |own| ResourceNumbers::of(None, own));
            let numbers = has.with_part(resource, &allocated.pod_numbers());
            numbers.written(before.unwrap_or(asked))
        });
        actuated.set(&context.uid, record);
    }
}

/// Why the runtime was not notified of the pod's resources.
enum NotifyError {
    Cancelled,
    Failed(String),
}

impl NotifyError {
    fn or_failed(self, text: impl FnOnce(&str) -> String) -> ResizeError {
        match self {
            Self::Cancelled => ResizeError::Job(Interrupted::Cancelled),
            Self::Failed(error) => ResizeError::Failed(text(&error)),
        }
    }

    fn log(&self) {
        if let Self::Failed(error) = self {
            tracing::warn!(
                error,
                "The runtime was not notified that a resize of the pod did not happen"
            );
        }
    }
}

fn with_part(current: &PodCgroup, desired: &PodCgroup, part: PodCgroupPart) -> PodCgroup {
    let changed = desired.part(part);
    let mut next = current.clone();
    match part {
        PodCgroupPart::MemoryLimit => {
            next.memory_bytes = changed.memory_bytes;
            next.unified = changed.unified;
        }
        PodCgroupPart::CpuQuota => {
            next.cpu_quota_us = changed.cpu_quota_us;
            next.cpu_period_us = changed.cpu_period_us;
        }
        PodCgroupPart::CpuShares => next.cpu_shares = changed.cpu_shares,
    }
    next
}

/// The call only informs runtimes that want to know.
fn is_unimplemented(error: &RuntimeError) -> bool {
    match error.kind() {
        RuntimeErrorKind::Unimplemented => true,
        RuntimeErrorKind::Unknown => error.message().contains(NOT_IMPLEMENTED),
        _ => false,
    }
}
