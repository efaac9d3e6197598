//! The end of a pod: stop everything, make sure of it, say so; then let go of what it used.

use rubelet_lifecycle::pod_state::{Outcome, Retry};
use rubelet_lifecycle::termination::{stop_orphan, stop_pod};
use rubelet_model::observation::PodObservation;

use super::{PodJob, Stop};

impl PodJob {
    /// Stops the pod within its grace period.
    pub(super) async fn terminate(&mut self, grace_seconds: i64) -> Result<Outcome, Stop> {
        self.ports().probes.end(&self.uid);
        self.runtime_is_ready().await?;
        let observation = self.look().await?;
        self.publish(&observation, false).await;
        let stop = stop_pod(&self.pod, &observation, Some(grace_seconds));
        if !stop.is_empty() {
            self.stop_pod(&stop).await?;
        }
        let observation = self.look().await?;
        self.nothing_runs(&observation)?;
        self.ports().probes.forget(&self.uid);
        self.release_cgroup();
        self.publish(&observation, true).await;
        Ok(Outcome::Success)
    }

    /// Stops a pod that only the runtime knows.
    pub(super) async fn terminate_orphan(&mut self, grace_seconds: i64) -> Result<Outcome, Stop> {
        self.runtime_is_ready().await?;
        let observation = self.look().await?;
        let stop = stop_orphan(&observation, Some(grace_seconds));
        if !stop.is_empty() {
            self.stop_pod(&stop).await?;
        }
        let observation = self.look().await?;
        self.nothing_runs(&observation)?;
        self.release_cgroup();
        self.remove_cgroup().await?;
        Ok(Outcome::Success)
    }

    fn nothing_runs(&self, observation: &PodObservation) -> Result<(), Stop> {
        // A container in an unknown state cannot be stopped any better than its sandbox; it is garbage now.
        let running: Vec<&str> = observation
            .running_containers()
            .map(|container| container.name.as_str())
            .collect();
        if running.is_empty() {
            return Ok(());
        }
        let problem = format!("containers still run after their stop: {}", running.join(", "));
        Err(self.fail(problem, Retry::Later))
    }

    /// Lets go of what the pod used beside its containers. Containers, logs and directories are garbage from here on.
    pub(super) async fn clean_up(&mut self) -> Result<Outcome, Stop> {
        if self.work.status.is_none() {
            // It ended before this agent began.
            self.runtime_is_ready().await?;
            let observation = self.look().await?;
            self.publish(&observation, true).await;
        }
        self.ports().images.forget_pod(&self.uid);
        // Before the volumes, which may fail to go for long: nothing here asks for objects any more.
        self.unregister_objects();
        self.tear_down_volumes().await?;
        self.release_own_users().await?;
        self.remove_cgroup().await?;
        self.publish_end().await;
        Ok(Outcome::Success)
    }
}
