//! What every part of a job may use: the pod, the ports, waits that end with a cancellation, and the last observation.
//!
//! Owns how a job fails and how its calls are waited for. It must not start or stop anything.

use std::future::Future;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rubelet_lifecycle::pod_state::Retry;
use rubelet_model::Timestamp;
use rubelet_model::observation::{PodObservation, PodUid};
use rubelet_ports::{Moment, PodEvent, RuntimeError, RuntimeErrorKind};
use tokio::sync::watch;

use super::AgentContext;
use crate::recorder::FlightRecorder;
use crate::runtime_health;
use crate::settings::AgentPorts;
use crate::waits::Waits;

/// How long a call that changes something may go on after its job was cancelled. Dropping it would leave its outcome unknown.
const CANCEL_PATIENCE: Duration = Duration::from_secs(5);

/// How soon a call is tried again after the runtime hung up.
const RUNTIME_RETRY: Duration = Duration::from_secs(1);

/// Why a part of a job has no result. A job itself fails with the time of its next try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupted<E = Retry> {
    Cancelled,
    Failed(E),
}

impl<E> Interrupted<E> {
    pub(super) fn map<F>(self, change: impl FnOnce(E) -> F) -> Interrupted<F> {
        match self {
            Self::Cancelled => Interrupted::Cancelled,
            Self::Failed(error) => Interrupted::Failed(change(error)),
        }
    }
}

/// What the runtime showed last, and since when older observations do not count. The lock is held for a few instructions.
pub(super) struct View(Mutex<(Moment, Option<Arc<PodObservation>>)>);

impl View {
    pub(super) fn since(acted_at: Moment) -> Self {
        Self(Mutex::new((acted_at, None)))
    }

    fn with<T>(&self, change: impl FnOnce(&mut Moment, &mut Option<Arc<PodObservation>>) -> T) -> T {
        // A panic elsewhere leaves the view whole: every change is a single step.
        let mut view = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (acted_at, seen) = &mut *view;
        change(acted_at, seen)
    }
}

/// The pod of a job and what is around it.
pub(super) struct JobContext {
    pub(super) agent: Arc<AgentContext>,
    pub(super) uid: PodUid,
    /// Of a pod that only the runtime knows, name and namespace are all there is.
    pub(super) pod: Arc<Pod>,
    pub(super) waits: Waits,
    pub(super) recorder: FlightRecorder,
    /// Becomes true when the job should end early.
    pub(super) cancel: watch::Receiver<bool>,
    pub(super) view: View,
}

impl JobContext {
    pub(super) fn ports(&self) -> &AgentPorts {
        &self.agent.ports
    }

    pub(super) fn now(&self) -> Timestamp {
        self.agent.ports.clock.now()
    }

    pub(super) fn record(&self, event: PodEvent) {
        self.agent.ports.events.record(&self.pod, event);
    }

    pub(super) fn note(&self, text: impl Into<String>) {
        self.recorder.note(self.now(), text);
    }

    /// When something was last changed at the runtime.
    pub(super) fn acted_at(&self) -> Moment {
        self.view.with(|acted_at, _| *acted_at)
    }

    /// Older observations do not count from now on.
    pub(super) fn acted(&self) {
        let now = self.agent.ports.clock.moment();
        self.view.with(|acted_at, _| *acted_at = now);
    }

    /// The last observation of this job.
    pub(super) fn seen(&self) -> Option<Arc<PodObservation>> {
        self.view.with(|_, seen| seen.clone())
    }

    /// The job fails, with a problem that `rubelet why` shows.
    pub(super) fn fail(&self, problem: impl Into<String>, retry: Retry) -> Interrupted {
        Interrupted::Failed(self.failed(problem, retry))
    }

    pub(super) fn failed(&self, problem: impl Into<String>, retry: Retry) -> Retry {
        let problem = problem.into();
        tracing::debug!(problem, ?retry, "The pod's job failed");
        self.waits.failed(problem);
        retry
    }

    /// A call to the runtime failed.
    pub(super) fn runtime_failed(&self, error: &RuntimeError) -> Retry {
        self.failed(error.to_string(), self.retry_after(error))
    }

    /// A runtime that is down is often back in a moment.
    pub(super) fn retry_after(&self, error: &RuntimeError) -> Retry {
        match error.kind() {
            RuntimeErrorKind::Unavailable => Retry::At(self.now().plus(RUNTIME_RETRY)),
            _ => Retry::Later,
        }
    }

    pub(super) fn check_cancelled(&self) -> Result<(), Interrupted> {
        if *self.cancel.borrow() {
            Err(Interrupted::Cancelled)
        } else {
            Ok(())
        }
    }

    /// Waits for something that changes nothing: a cancellation drops it at once.
    pub(super) async fn read<T>(
        &self,
        what: impl Into<String>,
        future: impl Future<Output = T>,
    ) -> Result<T, Interrupted> {
        self.waits.named(what, self.or_cancelled(future)).await
    }

    /// The same for something that can fail.
    pub(super) async fn try_read<T, E>(
        &self,
        what: impl Into<String>,
        future: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Interrupted<E>> {
        let result = self.waits.named(what, self.or_cancelled(future)).await;
        result?.map_err(Interrupted::Failed)
    }

    pub(super) async fn or_cancelled<T, E>(
        &self,
        future: impl Future<Output = T>,
    ) -> Result<T, Interrupted<E>> {
        // Both arms may be dropped: reading leaves nothing behind.
        tokio::select! {
            biased;
            () = cancelled(self.cancel.clone()) => Err(Interrupted::Cancelled),
            value = future => Ok(value),
        }
    }

    /// Waits for a call that changes something at the runtime. After a cancellation it may still come to its end for a
    /// short while; what is not done then is found by the next look.
    pub(super) async fn write<T>(
        &self,
        what: impl Into<String>,
        call: impl Future<Output = Result<T, RuntimeError>>,
    ) -> Result<T, Interrupted<RuntimeError>> {
        let too_late = async {
            cancelled(self.cancel.clone()).await;
            self.ports().clock.sleep(CANCEL_PATIENCE).await;
        };
        let or_cancelled = async {
            // The call is dropped only when it had its time; the outcome is then unknown and looked up.
            tokio::select! {
                biased;
                result = call => result.map_err(Interrupted::Failed),
                () = too_late => Err(Interrupted::Cancelled),
            }
        };
        let result = self.waits.named(what, or_cancelled).await;
        self.acted();
        result
    }

    /// The pod as it is after the job's last change.
    pub(super) async fn look(&self) -> Result<Arc<PodObservation>, Interrupted> {
        let look = self.agent.observer.look(&self.uid, self.acted_at());
        let looked = self.try_read("a look at the pod's containers", look).await;
        let observation = looked.map_err(|problem| {
            problem.map(|error| {
                // An orphan has no pod that an event could be about.
                if self.pod.spec.is_some() {
                    let text = format!("error determining status: {error}");
                    self.record(PodEvent::warning("FailedSync", text));
                }
                self.runtime_failed(&error)
            })
        })?;
        self.view.with(|_, seen| *seen = Some(Arc::clone(&observation)));
        Ok(observation)
    }

    /// While the runtime is down, the job waits for it.
    pub(super) async fn runtime_is_ready(&self) -> Result<(), Interrupted> {
        if let Some(problem) = runtime_health::runtime_problem(&self.agent.health) {
            self.waits.failed(problem);
            let ready = runtime_health::ready(self.agent.health.clone());
            self.read("the container runtime to be ready", ready).await?;
            self.waits.succeeded();
        }
        Ok(())
    }

    pub(super) fn is_on_host_network(&self) -> bool {
        is_on_host_network(&self.pod)
    }

    /// The node's addresses as they are now.
    pub(super) fn host_ips(&self) -> Vec<IpAddr> {
        self.ports().node.host_ips.host_ips()
    }

    /// The pod's address; on the node's network that is the node's.
    pub(super) fn pod_address(&self, ips: &[String]) -> Option<String> {
        if let Some(ip) = ips.first() {
            return Some(ip.clone());
        }
        let is_nodes = self.is_on_host_network();
        is_nodes.then(|| self.host_ips().first().map(ToString::to_string))?
    }
}

pub(super) fn is_on_host_network(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true)
}

/// Ends when the job is cancelled.
async fn cancelled(mut cancel: watch::Receiver<bool>) {
    // A sender that is gone can never cancel.
    if cancel.wait_for(|cancelled| *cancelled).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Something that is gone needs no removal and no stop.
pub(super) fn not_found_is_fine(result: Result<(), RuntimeError>) -> Result<(), RuntimeError> {
    match result {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}
