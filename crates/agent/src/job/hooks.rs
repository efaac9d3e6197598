//! Running lifecycle hooks.
//!
//! Owns the calls and what is told of them; what a hook is, and its words, is decided by `lifecycle::hooks`. A hook may take
//! as long as it likes, so that nobody runs one while holding a turn at the runtime.

use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Either, select};
use k8s_openapi::api::core::v1::{Container, Pod};
use rubelet_lifecycle::hooks::{
    FAILED_POST_START, FAILED_PRE_STOP, HTTP_FALLBACK, Hook, HttpHook, POST_START_ERROR, post_start,
};
use rubelet_lifecycle::plan::{KillContainer, KillReason};
use rubelet_lifecycle::pod_state::Retry;
use rubelet_lifecycle::termination::{ContainerStop, StopCause, stop_container};
use rubelet_model::message::output;
use rubelet_model::observation::{ContainerId, ContainerObservation, ContainerState};
use rubelet_model::period;
use rubelet_ports::{HttpCall, HttpCallError, HttpPurpose, HttpScheme, PodEvent};
use tokio::sync::OwnedSemaphorePermit;

use super::container::Started;
use super::sandbox::{ActiveSandbox, IN_FLIGHT_LOOK};
use super::{PodJob, Stop};
use crate::metrics::HookMetrics;

/// How often a container is looked at while its hook after the start runs.
const HOOK_LOOK: Duration = Duration::from_secs(10);

/// Why a hook did not do what it should. Neither text is put into an event: both come from the container.
pub(super) struct HookFailure {
    error: String,
    /// What the command printed first.
    output: String,
}

impl HookFailure {
    fn new(error: impl Into<String>) -> Self {
        Self {
            error: error.into(),
            output: String::new(),
        }
    }
}

/// A sleep that counts when it is dropped before its time: the container ended, or the pod has to.
struct CountedSleep<'a> {
    metrics: &'a HookMetrics,
    is_over: bool,
}

impl Drop for CountedSleep<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.metrics.sleeps_cut_short.inc();
        }
    }
}

/// What became of a preStop hook.
#[derive(Default)]
pub(super) struct PreStop<'a> {
    /// How long it was waited for.
    pub(super) seconds: i64,
    /// One that took the whole grace period goes on until its container ends. A call that is dropped would end it at once.
    pub(super) rest: Option<BoxFuture<'a, ()>>,
}

impl PodJob {
    /// Runs the hook of a container that was just started. Where it fails, the container is killed again.
    pub(super) async fn run_post_start(
        &mut self,
        container: &Container,
        id: &ContainerId,
        sandbox: &ActiveSandbox,
        permit: &mut Option<OwnedSemaphorePermit>,
    ) -> Result<Started, Stop> {
        let Some(hook) = post_start(container) else {
            return Ok(Ok(()));
        };
        permit.take();
        let name = container.name.as_str();
        let run = self.while_runs(id, self.run_hook(&hook, id, &sandbox.ips));
        let run = self.with_fresh_files(run);
        let what = format!("the postStart hook of container {name}");
        let Err(failure) = self.read(what, run).await? else {
            return Ok(Ok(()));
        };
        tracing::warn!(pod = %self.uid, container = name, "The postStart hook failed; the container is killed");
        let event = PodEvent::warning(FAILED_POST_START, "PostStartHook failed");
        self.record(event.of_container(name));
        let message = hook.failure(&self.pod, name, &failure.error, &failure.output);
        self.start_failed(name, POST_START_ERROR, &message);
        let now = self.now();
        let state = ContainerState::Running { started_at: now };
        let seen = ContainerObservation::new(id.clone(), name, sandbox.id.clone(), state, now);
        let kill = KillContainer {
            stop: stop_container(&self.pod, &seen, StopCause::Other, None),
            reason: KillReason::PostStartHook,
        };
        self.kill_containers(&[(&kill, self.kind_of(name))]).await?;
        Ok(Err(Retry::At(self.now().plus(IN_FLIGHT_LOOK))))
    }

    /// Gives a hook up whose container has ended: the call may never notice, and the container would not be started again.
    async fn while_runs(
        &self,
        id: &ContainerId,
        hook: impl Future<Output = Result<(), HookFailure>>,
    ) -> Result<(), HookFailure> {
        let clock = Arc::clone(&self.ports().clock);
        let ended = async {
            loop {
                clock.sleep(HOOK_LOOK).await;
                let seen = self.shared.observer.look(&self.uid, clock.moment()).await;
                let runs = |one: &ContainerObservation| !matches!(one.state, ContainerState::Exited(_));
                if seen.is_ok_and(|seen| !seen.containers.iter().any(|one| one.id == *id && runs(one))) {
                    return;
                }
            }
        };
        // On the heap: a job's stack is shallow.
        match select(Box::pin(hook), Box::pin(ended)).await {
            Either::Left((result, _)) => result,
            Either::Right(((), _)) => Err(HookFailure::new("the container ended before its hook did")),
        }
    }

    /// Runs the hook of a container that is about to be stopped, for as long as its grace period.
    pub(super) async fn run_pre_stop<'a>(&'a self, hook: &'a Hook, stop: &'a ContainerStop) -> PreStop<'a> {
        if self.work.farewells.had_hook(&stop.id) {
            return PreStop::default();
        }
        let clock = Arc::clone(&self.ports().clock);
        let begun = clock.moment();
        let ips = self
            .seen
            .as_ref()
            .map(|seen| seen.ips.clone())
            .unwrap_or_default();
        let limit = period(stop.grace_seconds);
        let run = async move { self.run_hook(hook, &stop.id, &ips).await }.boxed();
        let ended = async {
            match select(run, clock.sleep(limit)).await {
                Either::Left((result, _)) => Ok(result),
                Either::Right(((), rest)) => Err(rest),
            }
        };
        let what = format!("the preStop hook of container {}", stop.name);
        let rest = match self.waits.named(what, ended).await {
            Ok(Ok(())) => None,
            Ok(Err(_)) => {
                let event = PodEvent::warning(FAILED_PRE_STOP, "PreStopHook failed");
                self.record(event.of_container(&stop.name));
                None
            }
            Err(rest) => {
                tracing::warn!(pod = %self.uid, container = stop.name, "The preStop hook took the whole grace period");
                Some(rest.map(drop).boxed())
            }
        };
        self.work.farewells.note_hook(&stop.id);
        let seconds = i64::try_from(clock.moment().since(begun).as_secs()).unwrap_or(i64::MAX);
        PreStop { seconds, rest }
    }

    async fn run_hook(&self, hook: &Hook, id: &ContainerId, ips: &[String]) -> Result<(), HookFailure> {
        match hook {
            Hook::Exec { command } => self.exec_hook(command, id).await,
            Hook::Http(hook) => self.http_hook(hook, ips).await,
            Hook::Sleep { seconds } => {
                let time = period(*seconds);
                let mut sleep = CountedSleep {
                    metrics: &self.ports().metrics.hooks,
                    is_over: false,
                };
                self.ports().clock.sleep(time).await;
                sleep.is_over = true;
                Ok(())
            }
            Hook::Invalid { why } => Err(HookFailure::new(why)),
        }
    }

    async fn exec_hook(&self, command: &[String], id: &ContainerId) -> Result<(), HookFailure> {
        let call = self
            .ports()
            .runtime_writer
            .exec_sync(id.as_str(), command.to_vec(), None);
        let answer = match call.await {
            Ok(answer) if answer.exit_code == 0 => return Ok(()),
            Ok(answer) => answer,
            Err(error) => return Err(HookFailure::new(error.message())),
        };
        Err(HookFailure {
            error: format!(
                "command '{}' exited with {}: {}",
                command.join(" "),
                answer.exit_code,
                output(&[&answer.stderr])
            ),
            output: output(&[&answer.stdout, &answer.stderr]),
        })
    }

    async fn http_hook(&self, hook: &HttpHook, ips: &[String]) -> Result<(), HookFailure> {
        let has_host = hook.action.host.as_ref().is_some_and(|host| !host.is_empty());
        let address = match self.pod_address(ips) {
            Some(address) => address,
            None if has_host => String::new(),
            None => return Err(HookFailure::new("failed to find networking container")),
        };
        let container = Container {
            ports: Some(hook.ports.clone()),
            ..Container::default()
        };
        let call = HttpCall::of_action(
            self.uid.clone(),
            &hook.action,
            &container,
            &address,
            HttpPurpose::LifecycleHook,
            None,
        )
        .map_err(|error| HookFailure::new(error.to_string()))?;
        let dialer = &self.ports().dialer;
        match dialer.http_get(&call).await {
            // Whatever the server says, it was told.
            Ok(_) | Err(HttpCallError::BrokenBody { .. }) => Ok(()),
            Err(HttpCallError::NoAnswer {
                message,
                spoke_plain_http,
            }) => {
                let is_fallback = spoke_plain_http && call.scheme == HttpScheme::Https;
                if is_fallback && dialer.http_get(&call.without_tls()).await.is_ok() {
                    let text = format!(
                        "request to HTTPS lifecycle hook {} got HTTP response, retry with HTTP succeeded",
                        call.authority()
                    );
                    self.record(PodEvent::warning(HTTP_FALLBACK, text));
                    self.ports().metrics.hooks.http_fallbacks.inc();
                    return Ok(());
                }
                Err(HookFailure::new(message))
            }
            Err(HttpCallError::NoPlace { message }) => Err(HookFailure::new(message)),
        }
    }

    /// The pod's address; on the node's network that is the node's.
    pub(super) fn pod_address(&self, ips: &[String]) -> Option<String> {
        if let Some(ip) = ips.first() {
            return Some(ip.clone());
        }
        let is_nodes = is_on_node(&self.pod);
        is_nodes.then(|| self.host_ips().first().map(ToString::to_string))?
    }

    /// The node's addresses as they are now.
    pub(super) fn host_ips(&self) -> Vec<IpAddr> {
        self.ports().node.host_ips.host_ips()
    }
}

pub(super) fn is_on_node(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true)
}
