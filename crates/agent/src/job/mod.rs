//! One piece of work on one pod: sync, terminate, clean up.
//!
//! At most one job runs per pod. A sync plans from a fresh observation, executes the plan, and looks again until nothing is left
//! to do. Decisions are pure and made elsewhere: `lifecycle::plan` plans, and `lifecycle::pod_state` decides about the pod's next
//! job from the outcome of this one.
//!
//! ```text
//! PodJob ── sync.rs, terminate.rs: the order of work; they alone reach all parts
//!   ├─ JobContext       ids, ports, waits, cancellation, the last observation; every part has it
//!   ├─ PodHost          runtime handler, directories, cgroup, user ids
//!   ├─ Volumes          set up, refresh, mounts, tear down
//!   ├─ StatusPublisher  derives and publishes the status
//!   ├─ Resizer          new resources for what runs
//!   ├─ Stopper          stops containers and sandboxes
//!   └─ ContainerStart, SandboxStart   one start each, under a StartPermit; they cannot reach the Stopper
//! ```
//!
//! Each part owns what it remembers of the pod; [`PodMemory`] keeps that between jobs.

mod container_start;
mod context;
mod files;
mod hooks;
mod host;
mod images;
mod permit;
mod resize;
mod sandbox;
mod status;
mod stop;
mod stop_progress;
mod sync;
mod terminate;
mod variables;
mod volumes;

use futures_util::future::FutureExt as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rubelet_lifecycle::backoff::CrashBackoff;
use rubelet_lifecycle::plan::InFlightSandbox;
use rubelet_lifecycle::pod_state::{Job, Outcome};
use rubelet_lifecycle::status::Eviction;
use rubelet_model::Timestamp;
use rubelet_model::observation::{PodObservation, PodUid};
use rubelet_ports::Moment;
use tokio::sync::{Semaphore, mpsc, watch};
use tracing::Instrument;

use crate::observer::ObserverHandle;
use crate::recorder::FlightRecorder;
use crate::resource_records::ResourceRecords;
use crate::runtime_health::RuntimeHealth;
use crate::settings::{AgentPorts, AgentSettings};
use crate::sources::Mirrors;
use crate::startup::StartupTimes;
use crate::user_ids::UserIds;
use crate::waits::Waits;
use container_start::ContainerMemory;
use context::{Interrupted, JobContext, View};
pub(crate) use files::read_resolver_file;
use host::{HostMemory, PodHost};
use resize::{ResizeMemory, Resizer};
pub(crate) use resize::{ResizeReport, ResizeState};
use status::{StatusMemory, StatusOrder, StatusPublisher};
use stop::{StopMemory, Stopper};
use volumes::Volumes;

/// How long until the effect of a call without an answer is looked for again.
const IN_FLIGHT_LOOK: Duration = Duration::from_secs(1);

/// What all jobs share.
pub(crate) struct AgentContext {
    pub(crate) ports: AgentPorts,
    pub(crate) settings: AgentSettings,
    pub(crate) observer: ObserverHandle,
    pub(crate) health: watch::Receiver<RuntimeHealth>,
    /// What the API server has of static pods.
    pub(crate) mirrors: watch::Receiver<Arc<Mirrors>>,
    /// Permits for starts against the runtime.
    pub(crate) starts: Arc<Semaphore>,
    /// Permits for stops.
    pub(crate) stops: Semaphore,
    pub(crate) started_at: Timestamp,
    pub(crate) user_ids: UserIds,
    /// What is allocated to each pod and what its containers have.
    pub(crate) resources: Arc<ResourceRecords>,
}

/// What is known of a pod from one job to the next.
pub(crate) struct PodMemory {
    /// When something was last changed at the runtime: older observations do not count.
    acted_at: Moment,
    /// Another pod of the same UID ended before: its containers are removed first.
    is_readded: bool,
    status: StatusMemory,
    host: HostMemory,
    containers: ContainerMemory,
    /// A sandbox that was asked for, with an unknown outcome.
    sandbox_in_flight: Option<InFlightSandbox>,
    stop: StopMemory,
    resize: ResizeMemory,
}

impl PodMemory {
    pub(crate) fn new(settings: &AgentSettings, now: Moment) -> Self {
        Self {
            acted_at: now,
            is_readded: false,
            status: StatusMemory::default(),
            host: HostMemory::default(),
            containers: ContainerMemory::new(CrashBackoff::new(settings.crash_backoff)),
            sandbox_in_flight: None,
            stop: StopMemory::default(),
            resize: ResizeMemory::default(),
        }
    }

    /// Another pod of the same UID ended before. Its containers may be left, and the API server may show its end.
    pub(crate) fn set_readded(&mut self) {
        self.is_readded = true;
        self.status.ignores_mirror = true;
    }

    /// What a job leaves that panicked. What was derived is derived anew: it may be the cause of the panic.
    pub(crate) fn after_panic(self, now: Moment, status: Option<PodStatus>) -> Self {
        Self {
            acted_at: now,
            status: StatusMemory {
                last: status,
                ignores_mirror: self.status.ignores_mirror,
                ..StatusMemory::default()
            },
            host: HostMemory::default(),
            ..self
        }
    }
}

/// Where a job leaves what it knows of its pod, however it ends.
pub(crate) type MemoryLeft = Arc<Mutex<Option<PodMemory>>>;

/// A new status, sent before the job is done.
pub(crate) struct Progress {
    pub(crate) uid: PodUid,
    pub(crate) status: Arc<PodStatus>,
    /// How far the pod's resize is, when that has changed.
    pub(crate) resize: Option<ResizeReport>,
}

/// The result of a job.
pub(crate) struct Report {
    pub(crate) outcome: Outcome,
    /// Whether a container was started that had a predecessor.
    pub(crate) restarted: bool,
    /// The last look.
    pub(crate) seen: Option<Arc<PodObservation>>,
}

/// What a job is made from.
pub(crate) struct JobOrder {
    pub(crate) uid: PodUid,
    /// Of a pod that only the runtime knows, name and namespace are all there is.
    pub(crate) pod: Arc<Pod>,
    /// Why the job runs, as upstream's metrics call it.
    pub(crate) reason: &'static str,
    pub(crate) qos_class: &'static str,
    pub(crate) memory: PodMemory,
    pub(crate) memory_left: MemoryLeft,
    /// The pod's newest definition; it changes also when an object changes that the pod refers to.
    pub(crate) newest: watch::Receiver<Arc<Pod>>,
    pub(crate) waits: Waits,
    pub(crate) recorder: FlightRecorder,
    /// Becomes true when the job should end early.
    pub(crate) cancel: watch::Receiver<bool>,
    pub(crate) progress: mpsc::Sender<Progress>,
    /// Why the pod has to fail, if it has to.
    pub(crate) eviction: Option<Eviction>,
    /// Which allocation of the pod this is.
    pub(crate) allocation: u64,
    /// What the pod's start is measured by.
    pub(crate) startup: Arc<StartupTimes>,
}

/// One job, made of parts that each own their state.
pub(crate) struct PodJob {
    context: Arc<JobContext>,
    reason: &'static str,
    host: PodHost,
    volumes: Volumes,
    status: StatusPublisher,
    stopper: Stopper,
    resizer: Resizer,
    containers: ContainerMemory,
    sandbox_in_flight: Option<InFlightSandbox>,
    is_readded: bool,
    startup: Arc<StartupTimes>,
    memory_left: MemoryLeft,
}

impl Drop for PodJob {
    /// Also when it panics.
    fn drop(&mut self) {
        let memory = PodMemory {
            acted_at: self.context.acted_at(),
            is_readded: self.is_readded,
            status: std::mem::take(&mut self.status.memory),
            host: std::mem::take(&mut self.host.memory),
            containers: std::mem::take(&mut self.containers),
            sandbox_in_flight: self.sandbox_in_flight.take(),
            stop: std::mem::take(&mut self.stopper.memory),
            resize: std::mem::take(&mut self.resizer.memory),
        };
        let mut left = self.memory_left.lock().unwrap_or_else(PoisonError::into_inner);
        *left = Some(memory);
    }
}

impl PodJob {
    pub(crate) fn new(agent: Arc<AgentContext>, order: JobOrder) -> Self {
        let memory = order.memory;
        let context = Arc::new(JobContext {
            agent,
            uid: order.uid,
            pod: order.pod,
            waits: order.waits,
            recorder: order.recorder,
            cancel: order.cancel,
            view: View::since(memory.acted_at),
        });
        let status = StatusOrder {
            qos_class: order.qos_class,
            eviction: order.eviction,
            allocation: order.allocation,
            progress: order.progress,
        };
        Self {
            host: PodHost::new(Arc::clone(&context), memory.host),
            volumes: Volumes::new(Arc::clone(&context), order.newest),
            status: StatusPublisher::new(Arc::clone(&context), memory.status, status),
            stopper: Stopper::new(Arc::clone(&context), memory.stop),
            resizer: Resizer::new(Arc::clone(&context), memory.resize),
            context,
            reason: order.reason,
            containers: memory.containers,
            sandbox_in_flight: memory.sandbox_in_flight,
            is_readded: memory.is_readded,
            startup: order.startup,
            memory_left: order.memory_left,
        }
    }

    /// Runs to the end. The sync loop tells the observer that it is over, also when the job panics.
    pub(crate) async fn run(self, job: Job) -> Report {
        let span = self.span(job);
        self.run_in_span(job).boxed().instrument(span).await
    }

    /// The span that every log line of the job is in: `pod`, and in it the kind of job.
    fn span(&self, job: Job) -> tracing::Span {
        let (metadata, reason) = (&self.context.pod.metadata, self.reason);
        let pod = tracing::info_span!(
            "pod",
            namespace = metadata.namespace.as_deref().unwrap_or_default(),
            name = metadata.name.as_deref().unwrap_or_default(),
            uid = %self.context.uid,
        );
        match job {
            Job::Sync => tracing::info_span!(parent: &pod, "sync", reason),
            Job::Terminate { .. } | Job::TerminateOrphan { .. } => {
                tracing::info_span!(parent: &pod, "terminate", reason)
            }
            Job::CleanUp => tracing::info_span!(parent: &pod, "clean_up", reason),
        }
    }

    async fn run_in_span(mut self, job: Job) -> Report {
        let context = Arc::clone(&self.context);
        context.agent.observer.busy(&context.uid).await;
        let result = match job {
            Job::Sync => sync::sync(&mut self).boxed().await,
            Job::Terminate { grace_seconds } => terminate::terminate(&mut self, grace_seconds).boxed().await,
            Job::TerminateOrphan { grace_seconds } => {
                terminate::terminate_orphan(&mut self, grace_seconds)
                    .boxed()
                    .await
            }
            Job::CleanUp => terminate::clean_up(&mut self).boxed().await,
        };
        let outcome = match result {
            Ok(outcome) => {
                context.waits.succeeded();
                outcome
            }
            Err(Interrupted::Cancelled) => Outcome::Cancelled,
            Err(Interrupted::Failed(retry)) => Outcome::Failed(retry),
        };
        Report {
            outcome,
            restarted: self.containers.take_restarted(),
            seen: context.seen(),
        }
    }
}
