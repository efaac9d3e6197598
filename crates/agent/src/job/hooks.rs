//! Running lifecycle hooks.
//!
//! Owns the calls and their events; `lifecycle::hooks` decides what a hook is, and its messages. A hook may take any time, so that it
//! runs without a permit for the runtime.

use std::future::Future;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Either, select};
use k8s_openapi::api::core::v1::Container;
use rubelet_lifecycle::hooks::{
    FAILED_POST_START, FAILED_PRE_STOP, HTTP_FALLBACK, Hook, HttpHook, POST_START_ERROR, post_start,
};
use rubelet_lifecycle::plan::kill_after_hook;
use rubelet_lifecycle::termination::ContainerStop;
use rubelet_model::message::output;
use rubelet_model::observation::{ContainerId, ContainerObservation, ContainerState};
use rubelet_model::period;
use rubelet_ports::{HttpCall, HttpCallError, HttpPurpose, HttpScheme, PodEvent};

use super::container_start::{StartError, failure};
use super::context::JobContext;
use super::permit::StartPermit;
use super::sandbox::ActiveSandbox;
use super::stop_progress::StopProgress;
use super::volumes::Volumes;
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

/// Runs the hook of a container that was just started. Where it fails, the container has to be killed again.
pub(super) async fn run_post_start(
    context: &JobContext,
    permit: &StartPermit<'_>,
    volumes: &Volumes,
    container: &Container,
    id: &ContainerId,
    sandbox: &ActiveSandbox,
) -> Result<(), StartError> {
    let Some(hook) = post_start(container) else {
        return Ok(());
    };
    permit.release();
    let name = container.name.as_str();
    let run = while_runs(context, id, run_hook(context, &hook, id, &sandbox.ips));
    let run = volumes.refreshed_during(run);
    let what = format!("the postStart hook of container {name}");
    let Err(problem) = context.read(what, run).await? else {
        return Ok(());
    };
    tracing::warn!(
        container = name,
        "The postStart hook failed; the container is killed"
    );
    let event = PodEvent::warning(FAILED_POST_START, "PostStartHook failed");
    context.record(event.of_container(name));
    let message = hook.failure(&context.pod, name, &problem.error, &problem.output);
    let now = context.now();
    let state = ContainerState::Running { started_at: now };
    let seen = ContainerObservation::new(id.clone(), name, sandbox.id.clone(), state, now);
    Err(StartError::Hook {
        failure: failure(POST_START_ERROR, &message),
        kill: Box::new(kill_after_hook(&context.pod, &seen)),
    })
}

/// Gives up a hook whose container has ended: the call may never notice, and the container would not be started again.
async fn while_runs(
    context: &JobContext,
    id: &ContainerId,
    hook: impl Future<Output = Result<(), HookFailure>>,
) -> Result<(), HookFailure> {
    let clock = &context.ports().clock;
    let ended = async {
        loop {
            clock.sleep(HOOK_LOOK).await;
            let seen = context.agent.observer.look(&context.uid, clock.moment()).await;
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
pub(super) async fn run_pre_stop<'a>(
    context: &'a JobContext,
    progress: &StopProgress,
    hook: &'a Hook,
    stop: &'a ContainerStop,
) -> PreStop<'a> {
    if progress.had_hook(&stop.id) {
        return PreStop::default();
    }
    let clock = &context.ports().clock;
    let begun = clock.moment();
    let ips = context.seen().map(|seen| seen.ips.clone()).unwrap_or_default();
    let limit = period(stop.grace_seconds);
    let run = async move { run_hook(context, hook, &stop.id, &ips).await }.boxed();
    let ended = async {
        match select(run, clock.sleep(limit)).await {
            Either::Left((result, _)) => Ok(result),
            Either::Right(((), rest)) => Err(rest),
        }
    };
    let what = format!("the preStop hook of container {}", stop.name);
    let rest = match context.waits.named(what, ended).await {
        Ok(Ok(())) => None,
        Ok(Err(_)) => {
            let event = PodEvent::warning(FAILED_PRE_STOP, "PreStopHook failed");
            context.record(event.of_container(&stop.name));
            None
        }
        Err(rest) => {
            tracing::warn!(
                container = stop.name,
                "The preStop hook took the whole grace period"
            );
            Some(rest.map(drop).boxed())
        }
    };
    progress.note_hook(&stop.id);
    let seconds = i64::try_from(clock.moment().since(begun).as_secs()).unwrap_or(i64::MAX);
    PreStop { seconds, rest }
}

async fn run_hook(
    context: &JobContext,
    hook: &Hook,
    id: &ContainerId,
    ips: &[String],
) -> Result<(), HookFailure> {
    match hook {
        Hook::Exec { command } => exec_hook(context, command, id).await,
        Hook::Http(hook) => http_hook(context, hook, ips).await,
        Hook::Sleep { seconds } => {
            let time = period(*seconds);
            let mut sleep = CountedSleep {
                metrics: &context.ports().metrics.hooks,
                is_over: false,
            };
            context.ports().clock.sleep(time).await;
            sleep.is_over = true;
            Ok(())
        }
        Hook::Invalid { why } => Err(HookFailure::new(why)),
    }
}

async fn exec_hook(context: &JobContext, command: &[String], id: &ContainerId) -> Result<(), HookFailure> {
    let writer = &context.ports().runtime_writer;
    let answer = match writer.exec_sync(id.as_str(), command.to_vec(), None).await {
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

async fn http_hook(context: &JobContext, hook: &HttpHook, ips: &[String]) -> Result<(), HookFailure> {
    let has_host = hook.action.host.as_ref().is_some_and(|host| !host.is_empty());
    let address = match context.pod_address(ips) {
        Some(address) => address,
        None if has_host => String::new(),
        None => return Err(HookFailure::new("failed to find networking container")),
    };
    let container = Container {
        ports: Some(hook.ports.clone()),
        ..Container::default()
    };
    let call = HttpCall::of_action(
        context.uid.clone(),
        &hook.action,
        &container,
        &address,
        HttpPurpose::LifecycleHook,
        None,
    )
    .map_err(|error| HookFailure::new(error.to_string()))?;
    let dialer = &context.ports().dialer;
    match dialer.http_get(&call).await {
        // Any answer counts: the server got the request.
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
                context.record(PodEvent::warning(HTTP_FALLBACK, text));
                context.ports().metrics.hooks.http_fallbacks.inc();
                return Ok(());
            }
            Err(HookFailure::new(message))
        }
        Err(HttpCallError::NoPlace { message }) => Err(HookFailure::new(message)),
    }
}
