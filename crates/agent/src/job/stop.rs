//! Stopping containers and sandboxes.
//!
//! Owns the order in time: containers side by side, each when its turn comes, then the sandboxes. What is not there any more
//! counts as stopped.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, join_all, select};
use rubelet_lifecycle::deliberate::{Bug, is_on};
use rubelet_lifecycle::plan::KillContainer;
use rubelet_lifecycle::termination::{ContainerStop, PodStop, can_leave_sandboxes, runtime_grace_seconds};
use rubelet_model::observation::ContainerKind;
use rubelet_model::period;
use rubelet_ports::{PodEvent, RuntimeError, RuntimeErrorKind, within};
use tokio::sync::{SemaphorePermit, watch};

use super::hooks::PreStop;
use super::{PERMIT_PATIENCE, PodJob, Stop};

/// A container that ends on its signal takes less, also while the runtime is busy.
const STOP_PATIENCE: Duration = Duration::from_millis(500);

/// How often a sandbox is stopped before its pod goes on without that.
const SANDBOX_STOP_TRIES: u32 = 3;

/// Stops of sandboxes that failed since one went well.
#[derive(Debug, Default)]
pub(crate) struct FailedStops {
    count: u32,
    /// The problem that the last event told of.
    problem: Option<String>,
}

/// What could not be stopped.
enum StopFailure {
    Containers(RuntimeError),
    Sandbox(RuntimeError),
}

impl PodJob {
    /// Stops everything of the pod.
    pub(super) async fn stop_pod(&mut self, stop: &PodStop) -> Result<(), Stop> {
        let result = self.stop_all(stop).await;
        self.work.acted_at = self.ports().clock.moment();
        match result? {
            Ok(()) => {
                self.work.failed_sandbox_stops = FailedStops::default();
                Ok(())
            }
            Err(StopFailure::Containers(error)) => {
                self.record_kill_failure(&error);
                Err(self.runtime_failed(&error))
            }
            Err(StopFailure::Sandbox(error)) => self.leave_sandbox(&error).await,
        }
    }

    fn record_kill_failure(&self, error: &RuntimeError) {
        let text = format!("error killing pod: {error}");
        self.record(PodEvent::warning("FailedKillPod", text));
    }

    /// A sandbox could not be stopped. After some tries a pod of which nothing can run any more goes on without it: the garbage
    /// collector keeps trying. One event tells of each problem, however often it is met.
    async fn leave_sandbox(&mut self, error: &RuntimeError) -> Result<(), Stop> {
        if matches!(
            error.kind(),
            RuntimeErrorKind::Unavailable | RuntimeErrorKind::Cancelled
        ) {
            // A runtime that is away says nothing about the sandbox.
            return Err(self.runtime_failed(error));
        }
        let failed = &mut self.work.failed_sandbox_stops;
        failed.count += 1;
        let is_last_try = failed.count >= SANDBOX_STOP_TRIES;
        if failed.problem.as_deref() != Some(error.message()) {
            failed.problem = Some(error.message().to_owned());
            self.record_kill_failure(error);
        }
        if is_last_try && can_leave_sandboxes(&*self.look().await?) {
            tracing::warn!(
                pod = %self.uid,
                %error,
                "The pod's sandbox cannot be stopped; its containers have ended, so the garbage collector keeps trying"
            );
            return Ok(());
        }
        Err(self.runtime_failed(error))
    }

    async fn stop_all(&self, stop: &PodStop) -> Result<Result<(), StopFailure>, Stop> {
        let all = async {
            // One turn for all of the pod: when its containers end at once, its sandbox need not stand in line behind the
            // containers of every other pod.
            let mut turn = self.turn_without_hooks(&stop.containers).await;
            let names: Vec<&str> = stop.containers.iter().map(|one| one.name.as_str()).collect();
            let words = |name: &str| format!("Stopping container {name}");
            let stopped = async {
                let stopped = self.stop_containers(&stop.containers, words);
                if is_on(Bug::SandboxFirst) {
                    let soon = within(self.ports().clock.as_ref(), STOP_PATIENCE, stopped);
                    return soon.await.unwrap_or(Ok(()));
                }
                stopped.await
            };
            let stopped = self.patient(&mut turn, STOP_PATIENCE, stopped);
            let what = format!("containers to stop: {}", names.join(", "));
            match self.waits.named(what, stopped).await {
                Ok(()) => {}
                // The runtime had the grace period and its own deadline; the sandbox's end is what is left to try.
                Err(error) if error.kind() == RuntimeErrorKind::DeadlineExceeded => {
                    tracing::warn!(pod = %self.uid, %error, "Containers do not stop; their sandbox is stopped under them");
                }
                Err(error) => return Err(StopFailure::Containers(error)),
            }
            if turn.is_none() {
                turn = self.turn().await;
            }
            let sandboxes = stop.sandboxes.iter().map(|id| async {
                let call = self.ports().runtime_writer.stop_pod_sandbox(id.as_str());
                not_found_is_fine(call.await)
            });
            let sandboxes = self.patient(&mut turn, PERMIT_PATIENCE, join_all(sandboxes));
            let results = self.waits.named("the sandbox to stop", sandboxes).await;
            let all = results.into_iter().collect::<Result<(), _>>();
            all.map_err(StopFailure::Sandbox)
        };
        // A shorter grace period must reach the runtime at once, so that a stop in progress is dropped.
        self.read("the pod to stop", all).await
    }

    /// Kills single containers of a pod that goes on.
    pub(super) async fn kill_containers(
        &mut self,
        kills: &[(&KillContainer, ContainerKind)],
    ) -> Result<(), Stop> {
        if kills.is_empty() {
            return Ok(());
        }
        let stops: Vec<ContainerStop> = kills.iter().map(|(kill, _)| kill.stop.clone()).collect();
        let words = |name: &str| {
            let kill = kills.iter().find(|(kill, _)| kill.stop.name == name);
            kill.map(|(kill, kind)| kill.message(*kind)).unwrap_or_default()
        };
        let stopped = async {
            let mut turn = self.turn_without_hooks(&stops).await;
            let stopped = self.stop_containers(&stops, words);
            self.patient(&mut turn, STOP_PATIENCE, stopped).await
        };
        let result = self
            .read("containers to stop before they start again", stopped)
            .await;
        self.work.acted_at = self.ports().clock.moment();
        match result? {
            Ok(()) => Ok(()),
            Err(error) => {
                self.record(PodEvent::warning(
                    "FailedKillPod",
                    format!("error killing container: {error}"),
                ));
                Err(self.runtime_failed(&error))
            }
        }
    }

    /// All at the same time; one that waits for others begins when they have ended, or when its time is up.
    async fn stop_containers(
        &self,
        stops: &[ContainerStop],
        words: impl Fn(&str) -> String,
    ) -> Result<(), RuntimeError> {
        self.work.farewells.retain(|id| {
            let mut seen = self.seen.iter().flat_map(|seen| &seen.containers);
            stops.iter().any(|stop| stop.id == *id) || seen.any(|one| one.id == *id)
        });
        let (done, _) = watch::channel(BTreeSet::<String>::new());
        let one = |stop: &ContainerStop| {
            let message = words(&stop.name);
            let stop = stop.clone();
            let done = done.clone();
            async move {
                self.record(PodEvent::normal("Killing", message).of_container(&stop.name));
                let hook = match &stop.pre_stop {
                    Some(hook) => self.run_pre_stop(hook, &stop).await,
                    None => PreStop::default(),
                };
                let hook_seconds = hook.seconds;
                let clock = Arc::clone(&self.ports().clock);
                let begun = clock.moment();
                let mut ended = done.subscribe();
                let turn = ended.wait_for(|ended| stop.waits_for.iter().all(|name| ended.contains(name)));
                let left = period(stop.grace_seconds.saturating_sub(hook_seconds));
                // Whoever had to end first and did not within the grace period does not hold up the rest.
                let _ = within(clock.as_ref(), left, turn).await;
                let waited = clock.moment().since(begun).as_secs();
                let waited = i64::try_from(waited).unwrap_or(i64::MAX);
                let left = runtime_grace_seconds(stop.grace_seconds, hook_seconds, waited);
                let grace_seconds = self.work.farewells.shrink(&stop.id, left);
                let writer = &self.ports().runtime_writer;
                let call = writer.stop_container(stop.id.as_str(), grace_seconds);
                let result = not_found_is_fine(beside(call, hook.rest).await);
                // One that may still run keeps its sidecars, as long as there is time.
                if result.is_ok() {
                    done.send_modify(|ended| {
                        ended.insert(stop.name.clone());
                    });
                }
                result
            }
        };
        let results = join_all(stops.iter().map(one)).await;
        let mut errors: Vec<RuntimeError> = results.into_iter().filter_map(Result::err).collect();
        // A container that had its time says less than one that was never reached.
        errors.sort_by_key(|error| error.kind() == RuntimeErrorKind::DeadlineExceeded);
        errors.into_iter().next().map_or(Ok(()), Err)
    }
}

impl PodJob {
    /// Stops go through a limiter of their own, because more at a time make none of them faster.
    async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        // The limiter is never closed; without a turn the calls are made all the same.
        self.shared.stops.acquire().await.ok()
    }

    /// Hooks wait for something else than the runtime, and their containers' grace periods run meanwhile: no turn for them.
    async fn turn_without_hooks(&self, stops: &[ContainerStop]) -> Option<SemaphorePermit<'_>> {
        if stops.iter().any(|stop| stop.pre_stop.is_some()) {
            return None;
        }
        self.turn().await
    }

    /// A stop that only waits for its container costs the runtime nothing and gives its turn away.
    async fn patient<T>(
        &self,
        turn: &mut Option<SemaphorePermit<'_>>,
        patience: Duration,
        stop: impl Future<Output = T>,
    ) -> T {
        let patience = self.ports().clock.sleep(patience);
        match select(std::pin::pin!(stop), patience).await {
            Either::Left((result, _)) => result,
            Either::Right(((), stop)) => {
                turn.take();
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

pub(super) fn not_found_is_fine(result: Result<(), RuntimeError>) -> Result<(), RuntimeError> {
    match result {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}
