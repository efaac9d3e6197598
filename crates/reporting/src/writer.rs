//! Makes the calls, a bounded number at once, each with a deadline.
//!
//! Owns the one task that writes to the API server. The table decides what is written.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::{BoxFuture, pending};
use futures_util::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::{Node, Pod, PodStatus};
use rubelet_lifecycle::deliberate::{Bug, is_on};
use rubelet_lifecycle::status_patch::{is_overwritten, status_patch, wanted_status};
use rubelet_model::pod::uid_text;
use rubelet_ports::api::{ApiError, ApiErrorKind};
use rubelet_ports::within;
use tokio::sync::watch;

use crate::Shared;
use crate::job::{Job, Outcome, Scene, Work};

/// What one call may take. A healthy server answers within a second.
const CALL_DEADLINE: Duration = Duration::from_secs(10);

type Calls = FuturesUnordered<BoxFuture<'static, (Job, Outcome)>>;

impl Shared {
    pub(crate) async fn run(self: Arc<Self>, mut node: watch::Receiver<Option<Arc<Node>>>) {
        let mut calls = Calls::new();
        let mut follows_node = true;
        self.take_node(&mut node);
        loop {
            let now = self.ports.clock.moment();
            let (jobs, wake) = self.table().take(now);
            for job in jobs {
                calls.push(Box::pin(Arc::clone(&self).carry_out(job)));
            }
            let pause: BoxFuture<'static, ()> = match wake {
                Some(at) => self.ports.clock.sleep(at.since(now)),
                // Nothing is due: wait for the next event.
                None => Box::pin(pending()),
            };
            // Each may be dropped: calls stay in `calls`, the others are only wake-ups.
            tokio::select! {
                biased;
                Some((job, outcome)) = calls.next(), if !calls.is_empty() => self.finish(&job, outcome),
                changed = node.changed(), if follows_node => match changed {
                    Ok(()) => self.take_node(&mut node),
                    // The sender is gone; the last Node stays.
                    Err(_) => follows_node = false,
                },
                () = self.wake.notified() => {}
                () = pause => {}
            }
        }
    }

    fn take_node(&self, node: &mut watch::Receiver<Option<Arc<Node>>>) {
        let newest = node.borrow_and_update().clone();
        self.table().node_is(newest);
    }

    fn finish(&self, job: &Job, outcome: Outcome) {
        let scene = Scene {
            now: self.ports.clock.moment(),
            chance: self.ports.randomness.as_ref(),
            counters: &self.counters,
        };
        self.table().finish(job, outcome, &scene);
    }

    async fn carry_out(self: Arc<Self>, job: Job) -> (Job, Outcome) {
        let outcome = match within(self.ports.clock.as_ref(), CALL_DEADLINE, self.call(&job)).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(error)) => Outcome::Failed(error),
            Err(elapsed) => Outcome::Failed(ApiError::new(
                format!("report pod {}", job.name),
                ApiErrorKind::DeadlineExceeded,
                elapsed.to_string(),
            )),
        };
        (job, outcome)
    }

    async fn call(&self, job: &Job) -> Result<Outcome, ApiError> {
        let api = &self.ports.pods;
        let (namespace, name) = (&job.name.namespace, &job.name.name);
        match &job.work {
            Work::Status {
                target,
                status,
                is_repeat,
                ..
            } => {
                let Some(patch) = self.patch_of(target, status, *is_repeat) else {
                    return Ok(Outcome::Same);
                };
                let pod = api.patch_pod_status(namespace, name, patch).await?;
                if *is_repeat {
                    self.counters.statuses_reconciled.fetch_add(1, Ordering::Relaxed);
                    tracing::info!(pod = %job.name, "A pod's status was overwritten at the API server; sent it again");
                }
                // The patch is a difference to `target`: what others wrote meanwhile is in the answer. An answer of the same version
                // means that the API server does not accept the change.
                let is_overwritten = pod.metadata.resource_version != target.metadata.resource_version
                    && is_overwritten(&pod, status, self.gates)
                    && !is_on(Bug::OverwriteKept);
                Ok(Outcome::Patched {
                    pod: Box::new(pod),
                    is_overwritten,
                })
            }
            Work::Delete { target } | Work::DeleteMirror { target } => {
                api.delete_pod(namespace, name, uid_text(target), 0).await?;
                Ok(Outcome::Deleted)
            }
            Work::CreateMirror { mirror } => {
                let pod = api.create_pod(mirror).await?;
                Ok(Outcome::Created(Box::new(pod)))
            }
        }
    }

    fn patch_of(&self, target: &Pod, status: &PodStatus, is_repeat: bool) -> Option<serde_json::Value> {
        if is_repeat && !is_overwritten(target, status, self.gates) {
            return None;
        }
        let wanted = wanted_status(target, status, self.gates, self.ports.clock.now());
        let nothing = PodStatus::default();
        let api = target.status.as_ref().unwrap_or(&nothing);
        status_patch(uid_text(target), api, &wanted)
    }
}
