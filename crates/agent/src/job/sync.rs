//! Bringing a pod to what it should be: look, plan, execute, and look again.

use std::collections::BTreeSet;
use std::sync::Arc;

use rubelet_lifecycle::plan::{
    Action, KillContainer, OnFailure, Plan, PlanInput, RemoveReason, Wait, WaitReason, plan_containers,
    pod_text,
};
use rubelet_lifecycle::pod_state::{Outcome, Retry};
use rubelet_lifecycle::restart::{RestartPolicy, effective_policy, is_sidecar};
use rubelet_lifecycle::status::{Eviction, Phase, StartFailure, conditions, find_condition};
use rubelet_model::observation::{ContainerKind, PodObservation};
use rubelet_ports::PodEvent;

use super::container::PresentImages;
use super::hooks::is_on_node;
use super::sandbox::ActiveSandbox;
use super::volumes::needs_volumes;
use super::{PodJob, Stop};
use crate::recorder::Planned;
use crate::runtime_health;

/// Rounds of one job. A pod that needs more is looked at again later, so that no mistake can make a job spin.
const MAX_ROUNDS: usize = 64;

impl PodJob {
    pub(super) async fn sync(&mut self) -> Result<Outcome, Stop> {
        self.hold_cgroup();
        self.register_objects();
        self.runtime_is_ready().await?;
        self.find_mount_handler().await?;
        if self.work.is_new_incarnation {
            self.forget_incarnation().await?;
            self.work.has_place = false;
            self.work.is_new_incarnation = false;
        }
        let mut last_plan = None;
        let mut is_sure = false;
        for _ in 0..MAX_ROUNDS {
            self.check_cancelled()?;
            let observation = self.look().await?;
            // The plan depends on what the status says about a restart of all containers.
            let phase = self.publish(&observation, false).await;
            if phase.is_some_and(Phase::is_terminal) {
                return Ok(Outcome::Terminal);
            }
            if self.leave_lost_cgroup(&observation).await? {
                continue;
            }
            let plan = self.plan(&observation);
            if plan.kills_for_probes() && !std::mem::replace(&mut is_sure, true) {
                // Probes fail also where nobody is left to answer. A container that has ended must not be taken for one that was
                // killed and is to run again, or is not, so that nothing but a fresh look will do.
                self.work.acted_at = self.ports().clock.moment();
                continue;
            }
            let mut retry = self.note_waits(&plan);
            if retry.is_some() {
                self.publish(&observation, false).await;
            }
            if plan.is_quiet() {
                self.refresh_volumes().await?;
                return match retry {
                    Some(retry) => Err(Stop::Failed(retry)),
                    None => Ok(Outcome::Success),
                };
            }
            if last_plan.as_ref() == Some(&plan) {
                if plan.is_over() {
                    // Upstream stops it again and again. Its owner can only help it when it is said to have ended.
                    self.eviction = Some(left_without_sandbox());
                    self.publish(&observation, false).await;
                    return Ok(Outcome::Terminal);
                }
                return Err(self.fail("what was done had no effect; it is tried again", Retry::Later));
            }
            self.network_is_ready(&plan)?;
            if needs_volumes(&plan) {
                self.provide(&observation).await?;
            }
            retry = earliest(retry, self.execute(&observation, &plan).await?);
            if let Some(retry) = retry {
                // What failed shows in the status before the next try.
                let observation = self.look().await?;
                self.publish(&observation, false).await;
                return Err(Stop::Failed(retry));
            }
            last_plan = Some(plan);
        }
        Err(self.fail("the pod does not come to rest", Retry::Later))
    }

    /// Removes what another pod of the same UID has left, so that nothing of it counts as this pod's past.
    async fn forget_incarnation(&mut self) -> Result<(), Stop> {
        let observation = self.look().await?;
        for container in &observation.containers {
            let reason = RemoveReason::RestartAllContainers;
            self.remove_container(&observation, &container.id, &container.name, reason)
                .await?;
        }
        for sandbox in &observation.sandboxes {
            self.remove_ended_sandbox(sandbox).await?;
        }
        Ok(())
    }

    /// What the runtime has forgotten of a container's end the status still knows: such a container does not run twice.
    fn plan(&mut self, observation: &Arc<PodObservation>) -> Plan {
        let now = self.now();
        let restarting_all = self.work.status.as_ref().is_some_and(|status| {
            let all = status.conditions.as_deref().unwrap_or_default();
            find_condition(all, conditions::ALL_CONTAINERS_RESTARTING)
                .is_some_and(|condition| condition.status == "True")
        });
        let mut plan = plan_containers(&PlanInput {
            pod: &self.pod,
            observation,
            probes: &self.probe_results,
            backoff: &self.work.backoff,
            gates: self.shared.settings.status_gates.restart,
            restarting_all,
            resized: &BTreeSet::new(),
            now,
        });
        self.recorder.plan(&Planned {
            at: now,
            pod: &self.pod,
            observation,
            probes: &self.probe_results,
            backoff: &self.work.backoff,
            restarting_all,
            plan: &plan,
        });
        plan.actions.retain(|action| match action {
            Action::StartContainer(start) => !self.is_over(&start.name, observation),
            _ => true,
        });
        plan
    }

    /// Containers that wait for their backoff say so in the status. The answer is when the first one may start.
    fn note_waits(&mut self, plan: &Plan) -> Option<Retry> {
        let mut retry = None;
        for action in &plan.actions {
            let Action::Wait(Wait {
                name,
                reason: WaitReason::CrashLoopBackOff { until, message },
                ..
            }) = action
            else {
                continue;
            };
            retry = earliest(retry, Some(Retry::At(*until)));
            let failure = StartFailure {
                reason: "CrashLoopBackOff".to_owned(),
                message: message.clone(),
            };
            let known = self.work.start_failures.insert(name.clone(), failure.clone());
            if known.as_ref() != Some(&failure) {
                let text = format!(
                    "Back-off restarting failed container {name} in pod {}",
                    pod_text(&self.pod)
                );
                self.record(PodEvent::warning("BackOff", text).of_container(name));
            }
        }
        retry
    }

    /// Only pods on the node's network can start without the pods' network.
    fn network_is_ready(&self, plan: &Plan) -> Result<(), Stop> {
        let starts = plan.starts().next().is_some()
            || plan
                .actions
                .iter()
                .any(|action| matches!(action, Action::CreateSandbox(_)));
        let on_node = is_on_node(&self.pod);
        if on_node || !starts {
            return Ok(());
        }
        let Some(problem) = runtime_health::network_problem(&self.shared.health) else {
            return Ok(());
        };
        let text = format!("network is not ready: {problem}");
        self.record(PodEvent::warning("NetworkNotReady", text.clone()));
        Err(self.fail(text, Retry::NetworkNotReady))
    }

    /// The answer is when to try again what failed; `None` when everything went well.
    async fn execute(
        &mut self,
        observation: &Arc<PodObservation>,
        plan: &Plan,
    ) -> Result<Option<Retry>, Stop> {
        let mut sandbox = observation
            .active_sandbox()
            .map(|active| ActiveSandbox::new(active.id.clone(), active.attempt, observation.ips.clone()));
        let mut retry = None;
        let mut permit = None;
        let mut present = Some(self.present_images(plan));
        let kills: Vec<(&KillContainer, ContainerKind)> = plan
            .actions
            .iter()
            .filter_map(|action| match action {
                Action::KillContainer(kill) => Some((kill, self.kind_of(&kill.stop.name))),
                _ => None,
            })
            .collect();
        self.has_killed = kills.iter().any(|(kill, _)| !self.restarts(&kill.stop.name));
        let mut images = PresentImages::new();
        for action in &plan.actions {
            self.check_cancelled()?;
            match action {
                Action::KillPod { stop, .. } => self.stop_pod(stop).await?,
                Action::KillContainer(first) => {
                    // All at once, with the first of them.
                    if kills
                        .first()
                        .is_some_and(|(kill, _)| kill.stop.id == first.stop.id)
                    {
                        self.kill_containers(&kills).await?;
                    }
                }
                Action::RemoveContainer { id, name, reason } => {
                    self.remove_container(observation, id, name, *reason).await?;
                }
                Action::CreateSandbox(change) => {
                    // Whether the images are there is asked for while the sandbox is being made.
                    let ask = present.take();
                    let created;
                    (created, images) = self.create_sandbox(change, ask, &mut permit).await?;
                    sandbox = Some(created);
                }
                Action::StartContainer(start) => {
                    let Some(sandbox) = &mut sandbox else {
                        return Err(self.fail("no sandbox to start a container in", Retry::Later));
                    };
                    if let Some(present) = present.take() {
                        images = self.read("a look at the images", present).await?;
                    }
                    let image = images.remove(&start.name).flatten();
                    let result = self
                        .start_container(observation, start, sandbox, image, &mut permit)
                        .await?;
                    if let Err(failed) = result {
                        retry = earliest(retry, Some(failed));
                        match start.on_failure {
                            OnFailure::StopPlan => break,
                            OnFailure::Continue => {}
                        }
                    }
                }
                Action::Keep { .. } | Action::Wait(_) => {}
            }
        }
        drop(permit);
        Ok(retry)
    }

    /// Whether a container restarts however it ends.
    fn restarts(&self, name: &str) -> bool {
        let Some(spec) = &self.pod.spec else {
            return true;
        };
        let gates = self.shared.settings.status_gates.restart;
        let mut containers = spec.init_containers.iter().flatten().chain(&spec.containers);
        let found = containers.find(|container| container.name == name);
        found.is_none_or(|container| effective_policy(container, spec, gates) == RestartPolicy::Always)
    }

    pub(super) fn kind_of(&self, name: &str) -> ContainerKind {
        let Some(spec) = &self.pod.spec else {
            return ContainerKind::Regular;
        };
        match spec.init_containers.iter().flatten().find(|one| one.name == name) {
            Some(container) if is_sidecar(container) => ContainerKind::Sidecar,
            Some(_) => ContainerKind::Init,
            None => ContainerKind::Regular,
        }
    }
}

/// Why a pod ends that has lost its sandbox and may start nothing again.
fn left_without_sandbox() -> Eviction {
    Eviction {
        reason: "SandboxLost".to_owned(),
        message: "The pod's sandbox is gone, and by its restart policy none of its containers starts again; \
                  delete the pod or its manifest, and create it anew"
            .to_owned(),
        disruption: None,
    }
}

/// The try that comes first.
fn earliest(left: Option<Retry>, right: Option<Retry>) -> Option<Retry> {
    match (left, right) {
        (Some(Retry::At(left)), Some(Retry::At(right))) => Some(Retry::At(left.min(right))),
        (Some(Retry::NetworkNotReady), _) | (_, Some(Retry::NetworkNotReady)) => Some(Retry::NetworkNotReady),
        (Some(Retry::Later), _) | (_, Some(Retry::Later)) => Some(Retry::Later),
        (one, None) => one,
        (None, one) => one,
    }
}
