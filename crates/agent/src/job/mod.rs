//! One piece of work on one pod: sync, terminate, clean up.
//!
//! Owns the pod's working memory while it runs; at most one job runs per pod, so that no lock is needed. A job plans from a
//! fresh observation, executes, and looks again until nothing is left to do. It decides nothing about the pod's life: that is
//! the state machine's part, which gets the job's outcome.

mod cgroup;
mod container;
mod env_files;
mod farewells;
mod files;
mod hooks;
mod objects;
mod own_users;
mod probes;
mod providers;
mod sandbox;
mod status;
mod stop;
mod sync;
mod terminate;
mod volumes;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, select};
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodStatus};
use rubelet_lifecycle::backoff::CrashBackoff;
use rubelet_lifecycle::plan::{InFlightContainer, InFlightSandbox};
use rubelet_lifecycle::pod_state::{Job, Outcome, Retry};
use rubelet_lifecycle::status::{Eviction, StartFailures};
use rubelet_model::Timestamp;
use rubelet_model::observation::{PodObservation, PodUid, ProbeResults};
use rubelet_ports::{Clock, Moment, PodEvent, RuntimeError, RuntimeErrorKind};
use rubelet_wire::cri::v1::UserNamespace;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use crate::observer::ObserverHandle;
use crate::recorder::FlightRecorder;
use crate::runtime_health::{self, RuntimeHealth};
use crate::settings::{AgentPorts, AgentSettings};
use crate::sources::Mirrors;
use crate::startup::StartupTimes;
use crate::user_ids::UserIds;
use crate::waits::Waits;
use farewells::Farewells;
pub(crate) use files::read_resolver_file;
use stop::FailedStops;

/// How long a call that changes something may go on after its job was cancelled. Dropping it would leave its outcome unknown.
const CANCEL_PATIENCE: Duration = Duration::from_secs(5);

/// How long a call keeps others from starting. One that takes longer waits for something else than the processors.
const PERMIT_PATIENCE: Duration = Duration::from_secs(10);

/// How long something else than the runtime keeps others from starting: files and objects that are at hand take less.
const ASIDE_PATIENCE: Duration = Duration::from_millis(200);

/// How soon a call is tried again after the runtime hung up.
const RUNTIME_RETRY: Duration = Duration::from_secs(1);

/// What all jobs share.
pub(crate) struct Shared {
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
}

/// What is known of a pod from one job to the next.
pub(crate) struct PodWork {
    pub(crate) backoff: CrashBackoff,
    pub(crate) start_failures: StartFailures,
    /// The last status that was settled.
    pub(crate) status: Option<PodStatus>,
    /// When something was last changed at the runtime: older observations do not count.
    pub(crate) acted_at: Moment,
    /// Another pod of the same UID ended before: its containers go first.
    pub(crate) is_new_incarnation: bool,
    /// The same: what the API server shows is the end of that other pod.
    pub(crate) is_reborn: bool,
    /// A sandbox that was asked for, with an unknown outcome.
    pub(crate) sandbox_asked: Option<InFlightSandbox>,
    /// The pod's cgroup and directories were made.
    pub(crate) has_place: bool,
    /// What was found running has its cgroup, as far as it can be known.
    pub(crate) is_cgroup_checked: bool,
    /// Containers that were asked for, with an unknown outcome, by name.
    pub(crate) containers_asked: BTreeMap<String, InFlightContainer>,
    /// What its containers were told about their end.
    pub(crate) farewells: Farewells,
    pub(crate) failed_sandbox_stops: FailedStops,
    /// The pod's range of user ids, once it has one.
    pub(crate) own_users: Option<UserNamespace>,
    /// The runtime handler of its class, once that was looked up.
    pub(crate) runtime_handler: Option<String>,
}

impl PodWork {
    pub(crate) fn new(settings: &AgentSettings, now: Moment) -> Self {
        Self {
            backoff: CrashBackoff::new(settings.crash_backoff),
            start_failures: StartFailures::new(),
            status: None,
            acted_at: now,
            is_new_incarnation: false,
            is_reborn: false,
            sandbox_asked: None,
            has_place: false,
            is_cgroup_checked: false,
            containers_asked: BTreeMap::new(),
            farewells: Farewells::default(),
            failed_sandbox_stops: FailedStops::default(),
            own_users: None,
            runtime_handler: None,
        }
    }
}

impl PodWork {
    /// What a job leaves that panicked. What was only worked out is worked out anew: it may be what the panic came from.
    pub(crate) fn after_panic(self, settings: &AgentSettings, now: Moment) -> Self {
        Self {
            backoff: self.backoff,
            is_new_incarnation: self.is_new_incarnation,
            is_reborn: self.is_reborn,
            sandbox_asked: self.sandbox_asked,
            containers_asked: self.containers_asked,
            farewells: self.farewells,
            failed_sandbox_stops: self.failed_sandbox_stops,
            ..Self::new(settings, now)
        }
    }
}

/// Where a job leaves what it knows of its pod, however it ends.
pub(crate) type WorkLeft = Arc<Mutex<Option<PodWork>>>;

/// Something that a job tells before it is done.
pub(crate) struct Progress {
    pub(crate) uid: PodUid,
    pub(crate) status: Arc<PodStatus>,
}

/// What a job leaves behind.
pub(crate) struct Report {
    pub(crate) outcome: Outcome,
    /// Whether a container was started that had a predecessor.
    pub(crate) restarted: bool,
    /// The last look.
    pub(crate) seen: Option<Arc<PodObservation>>,
}

/// Why a job ends before its work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Cancelled,
    Failed(Retry),
}

/// What a job is made from.
pub(crate) struct PodJob {
    pub(crate) shared: Arc<Shared>,
    pub(crate) uid: PodUid,
    /// Of a pod that only the runtime knows, name and namespace are all there is.
    pub(crate) pod: Arc<Pod>,
    pub(crate) qos_class: &'static str,
    pub(crate) work: PodWork,
    pub(crate) work_left: WorkLeft,
    /// The pod's newest definition; it changes also when an object does that the pod refers to.
    pub(crate) newest: watch::Receiver<Arc<Pod>>,
    pub(crate) waits: Waits,
    pub(crate) recorder: FlightRecorder,
    /// Becomes true when the job should end early.
    pub(crate) cancel: watch::Receiver<bool>,
    pub(crate) progress: mpsc::Sender<Progress>,
    /// Why the pod has to fail, if it has to.
    pub(crate) eviction: Option<Eviction>,
    /// Why the pod does not get the resources that it asks for by now.
    pub(crate) resize: Option<PodCondition>,
    pub(crate) restarted: bool,
    /// The last look.
    pub(crate) seen: Option<Arc<PodObservation>>,
    /// When the status was last derived.
    pub(crate) published_at: Moment,
    /// What the probes said then.
    pub(crate) probe_results: ProbeResults,
    /// The plan in hand kills containers that would not restart by themselves, to start them again: what is seen of them
    /// until then is no end.
    pub(crate) has_killed: bool,
    /// What the pod's start is measured by.
    pub(crate) startup: Arc<StartupTimes>,
}

impl Drop for PodJob {
    /// Also when it panics.
    fn drop(&mut self) {
        let nothing = PodWork::new(&self.shared.settings, self.work.acted_at);
        let work = std::mem::replace(&mut self.work, nothing);
        let mut left = self.work_left.lock().unwrap_or_else(PoisonError::into_inner);
        *left = Some(work);
    }
}

impl PodJob {
    /// Runs to the end. That it is over is told to the observer by whoever gets the report, also when there is none.
    pub(crate) async fn run(mut self, job: Job) -> Report {
        self.shared.observer.busy(&self.uid).await;
        let result = match job {
            Job::Sync => self.sync().await,
            Job::Terminate { grace_seconds } => self.terminate(grace_seconds).await,
            Job::TerminateOrphan { grace_seconds } => self.terminate_orphan(grace_seconds).await,
            Job::CleanUp => self.clean_up().await,
        };
        let outcome = match result {
            Ok(outcome) => {
                self.waits.succeeded();
                outcome
            }
            Err(Stop::Cancelled) => Outcome::Cancelled,
            Err(Stop::Failed(retry)) => Outcome::Failed(retry),
        };
        Report {
            outcome,
            restarted: self.restarted,
            seen: self.seen.take(),
        }
    }

    fn ports(&self) -> &AgentPorts {
        &self.shared.ports
    }

    fn now(&self) -> Timestamp {
        self.shared.ports.clock.now()
    }

    fn record(&self, event: PodEvent) {
        self.shared.ports.events.record(&self.pod, event);
    }

    /// The job fails, for a reason that a person can read.
    fn fail(&self, problem: impl Into<String>, retry: Retry) -> Stop {
        let problem = problem.into();
        tracing::debug!(pod = %self.uid, problem, ?retry, "The pod's job failed");
        self.waits.failed(problem);
        Stop::Failed(retry)
    }

    /// A call to the runtime failed. One that is down is often back in a moment.
    fn runtime_failed(&self, error: &RuntimeError) -> Stop {
        let retry = self.retry_after(error);
        self.fail(error.to_string(), retry)
    }

    fn retry_after(&self, error: &RuntimeError) -> Retry {
        match error.kind() {
            RuntimeErrorKind::Unavailable => Retry::At(self.now().plus(RUNTIME_RETRY)),
            _ => Retry::Later,
        }
    }

    fn check_cancelled(&self) -> Result<(), Stop> {
        if *self.cancel.borrow() {
            Err(Stop::Cancelled)
        } else {
            Ok(())
        }
    }

    /// Waits for something that changes nothing: a cancellation drops it at once.
    async fn read<T>(&self, what: impl Into<String>, future: impl Future<Output = T>) -> Result<T, Stop> {
        self.waits.named(what, self.or_cancelled(future)).await
    }

    async fn or_cancelled<T>(&self, future: impl Future<Output = T>) -> Result<T, Stop> {
        // Both arms may be dropped: reading leaves nothing behind.
        tokio::select! {
            biased;
            () = cancelled(self.cancel.clone()) => Err(Stop::Cancelled),
            value = future => Ok(value),
        }
    }

    /// Waits for a call that changes something at the runtime. After a cancellation it may still come to its end for a
    /// short while; what is not done then is found by the next look.
    async fn write<T>(
        &mut self,
        what: impl Into<String>,
        call: impl Future<Output = Result<T, RuntimeError>>,
    ) -> Result<Result<T, RuntimeError>, Stop> {
        let clock = Arc::clone(&self.shared.ports.clock);
        let cancel = self.cancel.clone();
        let too_late = async {
            cancelled(cancel).await;
            clock.sleep(CANCEL_PATIENCE).await;
        };
        let or_cancelled = async {
            // The call is dropped only when it had its time; the outcome is then unknown and looked up.
            tokio::select! {
                biased;
                result = call => Ok(result),
                () = too_late => Err(Stop::Cancelled),
            }
        };
        let result = self.waits.named(what, or_cancelled).await;
        self.work.acted_at = clock.moment();
        result
    }

    /// The same for a call under a permit, which goes to somebody else when the call takes long.
    async fn write_permitted<T>(
        &mut self,
        permit: &mut Option<OwnedSemaphorePermit>,
        what: impl Into<String>,
        call: impl Future<Output = Result<T, RuntimeError>>,
    ) -> Result<Result<T, RuntimeError>, Stop> {
        let clock = Arc::clone(&self.shared.ports.clock);
        let call = giving_way(clock.as_ref(), permit, PERMIT_PATIENCE, call);
        self.write(what, call).await
    }

    /// The pod as it is after our last action.
    async fn look(&mut self) -> Result<Arc<PodObservation>, Stop> {
        let observer = self.shared.observer.clone();
        let look = observer.look(&self.uid, self.work.acted_at);
        match self.read("a look at the pod's containers", look).await? {
            Ok(observation) => {
                self.seen = Some(Arc::clone(&observation));
                Ok(observation)
            }
            Err(error) => {
                // An orphan has nobody who would read it.
                if self.pod.spec.is_some() {
                    let text = format!("error determining status: {error}");
                    self.record(PodEvent::warning("FailedSync", text));
                }
                Err(self.runtime_failed(&error))
            }
        }
    }

    /// While the runtime is down, everything waits for it.
    async fn runtime_is_ready(&self) -> Result<(), Stop> {
        if let Some(problem) = runtime_health::runtime_problem(&self.shared.health) {
            self.waits.failed(problem);
            let ready = runtime_health::ready(self.shared.health.clone());
            self.read("the container runtime to be ready", ready).await?;
            self.waits.succeeded();
        }
        Ok(())
    }
}

/// Waits for something while others may be kept from starting, and gives the permit away when it takes long.
async fn giving_way<T>(
    clock: &dyn Clock,
    permit: &mut Option<OwnedSemaphorePermit>,
    patience: Duration,
    future: impl Future<Output = T>,
) -> T {
    if permit.is_none() {
        return future.await;
    }
    match select(std::pin::pin!(future), clock.sleep(patience)).await {
        Either::Left((result, _)) => result,
        Either::Right(((), future)) => {
            permit.take();
            future.await
        }
    }
}

/// Ends when the job is cancelled.
async fn cancelled(mut cancel: watch::Receiver<bool>) {
    // A sender that is gone can never cancel.
    if cancel.wait_for(|cancelled| *cancelled).await.is_err() {
        std::future::pending::<()>().await;
    }
}
