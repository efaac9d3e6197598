//! The pod's own cgroup: there before anything of the pod runs, gone after all of it.
//!
//! Owns the calls and what a failure means for the pod. The tree is kept by somebody else.

use std::sync::Arc;

use rubelet_lifecycle::pod_state::Retry;
use rubelet_lifecycle::termination::stop_pod;
use rubelet_model::observation::{ContainerKind, PodObservation};
use rubelet_ports::PodEvent;

use super::{PodJob, Stop};

/// Processes that were killed leave within moments; one that hangs in the kernel is looked at again and again.
const REMOVAL_RETRY: std::time::Duration = std::time::Duration::from_secs(2);

impl PodJob {
    /// The pod counts for its tier from its first sync on.
    pub(super) fn hold_cgroup(&self) {
        self.ports().cgroups.hold(&self.pod);
    }

    /// Not cut short by a cancellation: a cgroup that is half made is more work than one that is whole. It has a deadline.
    pub(super) async fn create_cgroup(&self) -> Result<(), Stop> {
        let cgroups = Arc::clone(&self.ports().cgroups);
        let created = self
            .waits
            .named("the pod's cgroup", cgroups.create(&self.pod))
            .await;
        created.map_err(|error| {
            let text = format!("unable to ensure pod container exists: {error}");
            self.record(PodEvent::warning("FailedCreatePodContainer", text));
            self.fail(error.to_string(), Retry::Later)
        })
    }

    /// Stops the pod when its containers run and its cgroup is not there, as after a change of the tree's root or driver: what
    /// starts next is under the new one. It is asked once of what an earlier life of the agent has started; the answer is
    /// whether the pod was stopped.
    pub(super) async fn leave_lost_cgroup(&mut self, observation: &PodObservation) -> Result<bool, Stop> {
        let mut running = observation.running_containers();
        let is_adopted = !self.work.has_place && !self.work.is_cgroup_checked;
        if !is_adopted || !running.any(|one| self.kind_of(&one.name) == ContainerKind::Regular) {
            return Ok(false);
        }
        let cgroups = Arc::clone(&self.ports().cgroups);
        let is_there = match self
            .read("a look at the pod's cgroup", cgroups.exists(&self.pod))
            .await?
        {
            Ok(is_there) => is_there,
            Err(error) => {
                // Nobody is stopped for what cannot be seen.
                tracing::debug!(pod = %self.uid, %error, "The pod's cgroup cannot be looked at");
                true
            }
        };
        if !is_there {
            tracing::warn!(pod = %self.uid, "The pod's cgroup is gone; the pod is stopped to start under a new one");
            self.recorder
                .note(self.now(), "the pod's cgroup is gone; it is stopped");
            let stop = stop_pod(&self.pod, observation, None);
            self.stop_pod(&stop).await?;
        }
        self.work.is_cgroup_checked = true;
        Ok(!is_there)
    }

    /// Nothing of the pod runs any more, as far as the runtime knows.
    pub(super) fn release_cgroup(&self) {
        self.ports().cgroups.release(&self.uid);
    }

    /// Whatever the runtime has left behind in it is killed.
    pub(super) async fn remove_cgroup(&self) -> Result<(), Stop> {
        let cgroups = Arc::clone(&self.ports().cgroups);
        let removed = self
            .waits
            .named("the pod's cgroup to go", cgroups.remove(&self.uid))
            .await;
        removed.map_err(|error| self.fail(error.to_string(), Retry::At(self.now().plus(REMOVAL_RETRY))))
    }
}
