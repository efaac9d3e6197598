//! The end of a pod: stop everything and make sure of it, publish the end, then release what the pod used.

use rubelet_lifecycle::pod_state::{Outcome, Retry};
use rubelet_lifecycle::termination::{stop_orphan, stop_pod};
use rubelet_model::observation::PodObservation;

use super::PodJob;
use super::context::{Interrupted, JobContext};

/// Stops the pod within its grace period.
pub(super) async fn terminate(job: &mut PodJob, grace_seconds: i64) -> Result<Outcome, Interrupted> {
    let context = &job.context;
    let probes = &context.ports().probes;
    probes.end(&context.uid);
    context.runtime_is_ready().await?;
    let observation = context.look().await?;
    job.status.publish(&observation, &job.host).await;
    let stop = stop_pod(&context.pod, &observation, Some(grace_seconds));
    if !stop.is_empty() {
        job.stopper.stop_pod(&stop).await?;
    }
    let observation = context.look().await?;
    check_nothing_runs(context, &observation)?;
    probes.forget(&context.uid);
    job.host.release_cgroup();
    job.status.publish_ended(&observation, &job.host).await;
    Ok(Outcome::Success)
}

/// Stops a pod that only the runtime knows.
pub(super) async fn terminate_orphan(job: &mut PodJob, grace_seconds: i64) -> Result<Outcome, Interrupted> {
    let context = &job.context;
    context.runtime_is_ready().await?;
    let observation = context.look().await?;
    let stop = stop_orphan(&observation, Some(grace_seconds));
    if !stop.is_empty() {
        job.stopper.stop_pod(&stop).await?;
    }
    let observation = context.look().await?;
    check_nothing_runs(context, &observation)?;
    job.host.release_cgroup();
    job.host.remove_cgroup().await?;
    Ok(Outcome::Success)
}

fn check_nothing_runs(context: &JobContext, observation: &PodObservation) -> Result<(), Interrupted> {
    // A container in an unknown state cannot be stopped any better than its sandbox; it is garbage now.
    let running: Vec<&str> = observation
        .running_containers()
        .map(|container| container.name.as_str())
        .collect();
    if running.is_empty() {
        return Ok(());
    }
    let problem = format!("containers still run after their stop: {}", running.join(", "));
    Err(context.fail(problem, Retry::Later))
}

/// Releases what the pod used beside its containers. Containers, logs and directories are garbage from here on.
pub(super) async fn clean_up(job: &mut PodJob) -> Result<Outcome, Interrupted> {
    let context = &job.context;
    if !job.status.is_known() {
        // It ended before this agent started.
        context.runtime_is_ready().await?;
        let observation = context.look().await?;
        job.status.publish_ended(&observation, &job.host).await;
    }
    context.ports().images.forget_pod(&context.uid);
    // Before the volumes, whose removal may fail for long: nothing here needs the objects any more.
    job.host.unregister_objects();
    job.volumes.tear_down().await?;
    job.host.release_user_ids().await?;
    job.host.remove_cgroup().await?;
    job.status.publish_final().await;
    Ok(Outcome::Success)
}
