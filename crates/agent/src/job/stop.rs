//! Stopping containers and sandboxes.
//!
//! Owns the order in time: containers side by side, each when those that it waits for have ended, then the sandboxes. What is not
//! there any more counts as stopped. It cannot start anything.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, join_all, select};
use rubelet_lifecycle::deliberate::{Bug, is_on};
use rubelet_lifecycle::plan::KillContainer;
use rubelet_lifecycle::termination::{ContainerStop, PodStop, can_leave_sandboxes, runtime_grace_seconds};
use rubelet_model::period;
use rubelet_ports::{PodEvent, RuntimeError, RuntimeErrorKind, within};
use tokio::sync::{SemaphorePermit, watch};

use super::context::{Interrupted, JobContext, not_found_is_fine};
use super::hooks::{PreStop, run_pre_stop};
use super::permit::CALL_PATIENCE;
use super::stop_progress::StopProgress;

/// A container that ends on its signal takes less, also while the runtime is busy.
const STOP_PATIENCE: Duration = Duration::from_millis(500);

/// How often a sandbox is stopped before its pod goes on without that.
const SANDBOX_STOP_TRIES: u32 = 3;

/// What is known of the pod's stops from one job to the next.
#[derive(Default)]
pub(super) struct StopMemory {
    progress: StopProgress,
    /// Stops of sandboxes that failed since the last success.
    failed_sandbox_stops: u32,
    /// The problem of the last event about them.
    sandbox_problem: Option<String>,
}

/// What could not be stopped.
enum StopFailure {
    Containers(RuntimeError),
    Sandbox(RuntimeError),
}

/// The containers of which a stop is over, by name.
#[derive(Default)]
struct Turns {
    ended: BTreeSet<String>,
    failed: BTreeSet<String>,
}

impl Turns {
    fn has_failed_for(&self, stop: &ContainerStop) -> bool {
        stop.waits_for.iter().any(|name| self.failed.contains(name))
    }

    fn is_over_for(&self, stop: &ContainerStop) -> bool {
        self.has_failed_for(stop) || stop.waits_for.iter().all(|name| self.ended.contains(name))
    }
}

pub(super) struct Stopper {
    context: Arc<JobContext>,
    pub(super) memory: StopMemory,
}

impl Stopper {
    pub(super) fn new(context: Arc<JobContext>, memory: StopMemory) -> Self {
        Self { context, memory }
    }

    /// Stops all containers and sandboxes of the pod.
    pub(super) async fn stop_pod(&mut self, stop: &PodStop) -> Result<(), Interrupted> {
        // A shorter grace period must reach the runtime at once, so that a cancellation drops a stop in progress.
        let result = self
            .context
            .try_read("the pod to stop", self.stop_all(stop))
            .await;
        self.context.acted();
        match result {
            Ok(()) => {
                self.memory.failed_sandbox_stops = 0;
                self.memory.sandbox_problem = None;
                Ok(())
            }
            Err(Interrupted::Cancelled) => Err(Interrupted::Cancelled),
            Err(Interrupted::Failed(StopFailure::Containers(error))) => {
                self.record_kill_failure("pod", &error);
                Err(Interrupted::Failed(self.context.runtime_failed(&error)))
            }
            Err(Interrupted::Failed(StopFailure::Sandbox(error))) => self.leave_sandbox(&error).await,
        }
    }

    fn record_kill_failure(&self, of: &str, error: &RuntimeError) {
        let text = format!("error killing {of}: {error}");
        self.context.record(PodEvent::warning("FailedKillPod", text));
    }

    /// A sandbox could not be stopped. After some tries a pod of which nothing can run any more goes on without it: the garbage
    /// collector keeps trying. Each problem has one event, however often it is met.
    async fn leave_sandbox(&mut self, error: &RuntimeError) -> Result<(), Interrupted> {
        let failed = || Err(Interrupted::Failed(self.context.runtime_failed(error)));
        if matches!(
            error.kind(),
            RuntimeErrorKind::Unavailable | RuntimeErrorKind::Cancelled
        ) {
            // While the runtime is away, nothing is known about the sandbox.
            return failed();
        }
        self.memory.failed_sandbox_stops += 1;
        if self.memory.sandbox_problem.as_deref() != Some(error.message()) {
            self.memory.sandbox_problem = Some(error.message().to_owned());
            self.record_kill_failure("pod", error);
        }
        let is_last_try = self.memory.failed_sandbox_stops >= SANDBOX_STOP_TRIES;
        if is_last_try && can_leave_sandboxes(&*self.context.look().await?) {
            tracing::warn!(
                %error,
                "The pod's sandbox cannot be stopped; its containers have ended, so the garbage collector keeps trying"
            );
            return Ok(());
        }
        failed()
    }

    async fn stop_all(&self, stop: &PodStop) -> Result<(), StopFailure> {
        let context = &self.context;
        // One permit for all of the pod: when its containers end at once, its sandbox need not wait behind the containers of every
        // other pod.
        let mut permit = self.permit_without_hooks(&stop.containers).await;
        let names: Vec<&str> = stop.containers.iter().map(|one| one.name.as_str()).collect();
        let message = |name: &str| format!("Stopping container {name}");
        let stopped = async {
            let stopped = self.stop_containers(&stop.containers, message);
            if is_on(Bug::SandboxFirst) {
                let soon = within(context.ports().clock.as_ref(), STOP_PATIENCE, stopped);
                return soon.await.unwrap_or(Ok(()));
            }
            stopped.await
        };
        let stopped = self.released_after(&mut permit, STOP_PATIENCE, stopped);
        let what = format!("containers to stop: {}", names.join(", "));
        match context.waits.named(what, stopped).await {
            Ok(()) => {}
            // The runtime had the grace period and its own deadline; the sandbox's end is what is left to try.
            Err(error) if error.kind() == RuntimeErrorKind::DeadlineExceeded => {
                tracing::warn!(%error, "Containers do not stop; their sandbox is stopped under them");
            }
            Err(error) => return Err(StopFailure::Containers(error)),
        }
        if permit.is_none() {
            permit = self.permit().await;
        }
        let sandboxes = stop.sandboxes.iter().map(|id| async {
            let call = context.ports().runtime_writer.stop_pod_sandbox(id.as_str());
            not_found_is_fine(call.await)
        });
        let sandboxes = self.released_after(&mut permit, CALL_PATIENCE, join_all(sandboxes));
        let results = context.waits.named("the sandbox to stop", sandboxes).await;
        let all = results.into_iter().collect::<Result<(), _>>();
        all.map_err(StopFailure::Sandbox)
    }

    /// Kills single containers of a pod that goes on.
    pub(super) async fn kill_containers(&mut self, kills: &[KillContainer]) -> Result<(), Interrupted> {
        let stops: Vec<ContainerStop> = kills.iter().map(|kill| kill.stop.clone()).collect();
        let message = |name: &str| {
            let kill = kills.iter().find(|kill| kill.stop.name == name);
            kill.map(KillContainer::message).unwrap_or_default()
        };
        let stopped = async {
            let mut permit = self.permit_without_hooks(&stops).await;
            let stopped = self.stop_containers(&stops, message);
            self.released_after(&mut permit, STOP_PATIENCE, stopped).await
        };
        let what = "containers to stop before they start again";
        let result = self.context.try_read(what, stopped).await;
        self.context.acted();
        result.map_err(|error| {
            error.map(|error| {
                self.record_kill_failure("container", &error);
                self.context.runtime_failed(&error)
            })
        })
    }

    /// All at the same time; one that waits for others begins when they have ended, or when its time is up.
    async fn stop_containers(
        &self,
        stops: &[ContainerStop],
        message: impl Fn(&str) -> String,
    ) -> Result<(), RuntimeError> {
        let seen = self.context.seen();
        self.memory.progress.retain(|id| {
            let mut seen = seen.iter().flat_map(|seen| &seen.containers);
            stops.iter().any(|stop| stop.id == *id) || seen.any(|one| one.id == *id)
        });
        let (turns, _) = watch::channel(Turns::default());
        let one = |stop| self.stop_container(stop, message(&stop.name), turns.clone());
        let results = join_all(stops.iter().map(one)).await;
        let mut errors: Vec<RuntimeError> = results.into_iter().filter_map(Result::err).collect();
        // An unreachable container matters more than one that had its grace period.
        errors.sort_by_key(|error| error.kind() == RuntimeErrorKind::DeadlineExceeded);
        errors.into_iter().next().map_or(Ok(()), Err)
    }

    async fn stop_container(
        &self,
        stop: &ContainerStop,
        message: String,
        turns: watch::Sender<Turns>,
    ) -> Result<(), RuntimeError> {
        let context = &self.context;
        context.record(PodEvent::normal("Killing", message).of_container(&stop.name));
        let hook = match &stop.pre_stop {
            Some(hook) => run_pre_stop(context, &self.memory.progress, hook, stop).await,
            None => PreStop::default(),
        };
        let hook_seconds = hook.seconds;
        let Some(turn_seconds) = self.wait_for_turn(stop, hook_seconds, &turns).await else {
            // The failed stop is an error of all of them, and this one is tried again with it.
            return Ok(());
        };
        let left = runtime_grace_seconds(stop.grace_seconds, hook_seconds, turn_seconds);
        let grace_seconds = self.memory.progress.shrink(&stop.id, left);
        let writer = &context.ports().runtime_writer;
        let call = writer.stop_container(stop.id.as_str(), grace_seconds);
        let result = not_found_is_fine(beside(call, hook.rest).await);
        turns.send_modify(|turns| {
            // One that may still run keeps its sidecars, as long as there is time.
            let names = if result.is_ok() {
                &mut turns.ended
            } else {
                &mut turns.failed
            };
            names.insert(stop.name.clone());
        });
        result
    }

    /// Waits for the containers that have to end first. One that does not within the grace period does not hold up the rest, however
    /// often the stop is tried. The answer is how long it took, and none when the stop of one of them failed.
    async fn wait_for_turn(
        &self,
        stop: &ContainerStop,
        hook_seconds: i64,
        turns: &watch::Sender<Turns>,
    ) -> Option<i64> {
        if stop.waits_for.is_empty() {
            return Some(0);
        }
        let clock = &self.context.ports().clock;
        let progress = &self.memory.progress;
        let begun = progress.begin_turn(&stop.id, stop.grace_seconds, clock.moment());
        let limit = period(stop.grace_seconds.saturating_sub(hook_seconds));
        let left = limit.saturating_sub(clock.moment().since(begun));
        let mut turns = turns.subscribe();
        let has_failed = async {
            let turn = turns.wait_for(|turns| turns.is_over_for(stop)).await;
            // The sender outlives the wait.
            turn.is_ok_and(|turns| turns.has_failed_for(stop))
        };
        if !left.is_zero() && within(clock.as_ref(), left, has_failed).await == Ok(true) {
            return None;
        }
        Some(i64::try_from(clock.moment().since(begun).as_secs()).unwrap_or(i64::MAX))
    }

    /// Stops share a limit of their own, because more at a time make none of them faster.
    async fn permit(&self) -> Option<SemaphorePermit<'_>> {
        // The limiter is never closed; without a permit the calls are made all the same.
        self.context.agent.stops.acquire().await.ok()
    }

    /// Hooks wait for something else than the runtime, and the grace periods run meanwhile: no permit for them.
    async fn permit_without_hooks(&self, stops: &[ContainerStop]) -> Option<SemaphorePermit<'_>> {
        if stops.iter().any(|stop| stop.pre_stop.is_some()) {
            return None;
        }
        self.permit().await
    }

    /// A stop that only waits for its container costs the runtime nothing and gives its permit away.
    async fn released_after<T>(
        &self,
        permit: &mut Option<SemaphorePermit<'_>>,
        patience: Duration,
        stop: impl Future<Output = T>,
    ) -> T {
        let patience = self.context.ports().clock.sleep(patience);
        match select(std::pin::pin!(stop), patience).await {
            Either::Left((result, _)) => result,
            Either::Right(((), stop)) => {
                permit.take();
                stop.await
            }
        }
    }
}

/// The call's answer; the other future is kept going meanwhile.
async fn beside<T>(call: impl Future<Output = T>, other: Option<BoxFuture<'_, ()>>) -> T {
    let call = std::pin::pin!(call);
    match other {
        None => call.await,
        Some(other) => match select(call, other).await {
            Either::Left((answer, _)) => answer,
            Either::Right(((), call)) => call.await,
        },
    }
}
