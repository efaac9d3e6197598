//! The plan of the whole pod: its containers, and around them what they need of the node.
//!
//! Owns what comes before, after and instead of the containers' part. The first rule that applies decides:
//!
//! ```text
//! the UID was used by an earlier pod        ─► remove that pod's containers and sandboxes
//! it runs, its cgroup was not checked yet   ─► check the cgroup, plan again
//! its cgroup is gone                        ─► kill the pod; it starts under a new cgroup
//! a probe's failure kills a container       ─► look again first, plan again
//! nothing to change                         ─► refresh the files of its volumes
//! the same plan had no effect               ─► fail the pod (its sandbox is lost), or try again later
//! it starts something                       ─► network, providers of volumes and claims, volumes, then the containers' part with
//!                                              runtime handler, directories and cgroup, user ids
//! ```
//!
//! Devices and claims become actions here, next to the volumes and the user ids.

use std::collections::BTreeSet;

use rubelet_model::observation::{ContainerKind, PodObservation};
use serde::{Deserialize, Serialize};

use super::action::{Action, Block, KillPodReason, LookReason, OnFailure, Plan, PrepareReason, RemoveReason};
use super::{PlanInput, container_kind, plan_containers};
use crate::configuration::namespaces::has_own_users;
use crate::status::Eviction;
use crate::termination::stop_pod;

/// What is known of the cgroup of a pod that ran before this agent started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CgroupCheck {
    #[default]
    Unchecked,
    Present,
    /// The root or the driver of the tree has changed.
    Lost,
}

/// What this run of the agent has made on the node for the pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostFacts {
    /// Its directories and its cgroup.
    pub is_prepared: bool,
    pub cgroup: CgroupCheck,
    pub has_user_ids: bool,
    pub has_runtime_handler: bool,
}

/// Something that the pod uses and that this node has no provider for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Missing {
    /// The field and what is missing, for people.
    pub text: String,
    /// A resource claim, which needs a driver.
    pub is_claim: bool,
}

/// What the plan of a pod depends on beside its containers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodPlanFacts {
    pub host: HostFacts,
    /// Another pod of the same UID ended before, and its containers and sandboxes may be left.
    pub is_readded: bool,
    /// The observation was made after the probes' results.
    pub is_confirmed: bool,
    /// Containers that ended for good and that the runtime has forgotten; see [`crate::status::ended_for_good`].
    pub ended: BTreeSet<String>,
    pub missing: Vec<Missing>,
    /// Why the pods' network is not ready.
    pub network_problem: Option<String>,
}

/// Everything that the plan of a pod depends on.
#[derive(Clone, Copy)]
pub struct PodPlanInput<'a> {
    pub containers: PlanInput<'a>,
    pub facts: &'a PodPlanFacts,
    /// The plan that was executed before this observation, without a failure.
    pub previous: Option<&'a Plan>,
}

/// Plans the next actions of a pod that should run.
#[must_use]
pub fn plan_pod(input: &PodPlanInput<'_>) -> Plan {
    let PodPlanInput {
        containers, facts, ..
    } = input;
    if facts.is_readded {
        return remove_earlier_pod(containers.observation);
    }
    if let Some(action) = plan_cgroup(input) {
        return Plan::only(action);
    }
    let mut plan = plan_containers(containers);
    plan.actions.retain(|action| match action {
        Action::StartContainer(start) => !facts.ended.contains(&start.name),
        _ => true,
    });
    if plan.kills_for_probes() && !facts.is_confirmed {
        // Probes fail also when the container has ended. An ended container must not be taken for a killed one.
        return Plan::only(Action::LookAgain {
            reason: LookReason::ProbeFailed,
        });
    }
    if plan.is_quiet() {
        if has_volumes(input) {
            plan.actions.push(Action::RefreshVolumes);
        }
        return plan;
    }
    if input
        .previous
        .is_some_and(|previous| previous.has_same_changes(&plan))
    {
        return plan_repeated(plan);
    }
    if plan.starts_something() {
        return plan_start(input, plan);
    }
    plan
}

/// Its containers must not count as this pod's past.
fn remove_earlier_pod(observation: &PodObservation) -> Plan {
    let containers = observation
        .containers
        .iter()
        .map(|container| Action::RemoveContainer {
            id: container.id.clone(),
            name: container.name.clone(),
            reason: RemoveReason::EarlierPod,
        });
    let sandboxes = observation.sandboxes.iter().map(|sandbox| Action::RemoveSandbox {
        id: sandbox.id.clone(),
        // The garbage collector removes what is left: the new sandbox has another attempt number.
        on_failure: if sandbox.is_ready() {
            OnFailure::StopPlan
        } else {
            OnFailure::Continue
        },
    });
    Plan {
        actions: containers.chain(sandboxes).collect(),
    }
}

fn plan_cgroup(input: &PodPlanInput<'_>) -> Option<Action> {
    let PlanInput { pod, observation, .. } = input.containers;
    let host = input.facts.host;
    let spec = pod.spec.as_ref()?;
    let mut running = observation.running_containers();
    let runs = running.any(|one| container_kind(spec, &one.name) == ContainerKind::Regular);
    if host.is_prepared || !runs || pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    match host.cgroup {
        CgroupCheck::Present => None,
        CgroupCheck::Unchecked => Some(Action::CheckCgroup),
        CgroupCheck::Lost => Some(Action::KillPod {
            reason: KillPodReason::CgroupLost,
            stop: stop_pod(pod, observation, None),
        }),
    }
}

fn has_volumes(input: &PodPlanInput<'_>) -> bool {
    let spec = input.containers.pod.spec.as_ref();
    let volumes = spec.and_then(|spec| spec.volumes.as_ref());
    volumes.is_some_and(|volumes| !volumes.is_empty())
}

/// The same was executed before, and had no effect.
fn plan_repeated(plan: Plan) -> Plan {
    if !plan.is_over() {
        return plan.blocked([], Block::NoEffect);
    }
    // Upstream stops such a pod again and again. Its owner can replace it only once it has failed.
    Plan::only(Action::FailPod(Eviction {
        reason: "SandboxLost".to_owned(),
        message: "The pod's sandbox is gone, and by its restart policy none of its containers starts again; \
                  delete the pod or its manifest, and create it anew"
            .to_owned(),
        disruption: None,
    }))
}

fn plan_start(input: &PodPlanInput<'_>, mut plan: Plan) -> Plan {
    let Some(spec) = &input.containers.pod.spec else {
        return plan;
    };
    let facts = input.facts;
    if let Some(problem) = facts
        .network_problem
        .as_ref()
        .filter(|_| spec.host_network != Some(true))
    {
        let problem = problem.clone();
        return plan.blocked([], Block::NetworkNotReady { problem });
    }
    let volumes = has_volumes(input).then_some(Action::SetUpVolumes);
    if !facts.missing.is_empty() {
        let show = Action::ShowMissing {
            message: texts(facts.missing.iter()),
        };
        // Volumes that need a plugin fail before the block, with an event and a backoff of their own.
        let before = [Some(show), volumes].into_iter().flatten();
        return plan.blocked(before, block_of(&facts.missing));
    }
    let sandbox = plan
        .actions
        .iter()
        .position(|one| matches!(one, Action::CreateSandbox(_)));
    let reason = match sandbox {
        Some(_) => PrepareReason::NewSandbox,
        None => PrepareReason::AgentRestarted,
    };
    // A cgroup that was lost is made before its values are compared.
    let is_start = |one: &Action| matches!(one, Action::StartContainer(_) | Action::Resize(_));
    let place = sandbox.or_else(|| plan.actions.iter().position(is_start));
    let needs_user_ids = has_own_users(spec) && !facts.host.has_user_ids;
    let class = spec.runtime_class_name.as_ref().filter(|class| !class.is_empty());
    let mut preparation = Vec::new();
    if let Some(class) = class
        && !facts.host.has_runtime_handler
        && (sandbox.is_some() || needs_user_ids)
    {
        let class = class.clone();
        preparation.push(Action::FindRuntimeHandler { class, reason });
    }
    if sandbox.is_some() || !facts.host.is_prepared {
        preparation.push(Action::CreateDirectoriesAndCgroup { reason });
    }
    if needs_user_ids {
        preparation.push(Action::AllocateUserIds { reason });
    }
    let place = place.unwrap_or_default();
    plan.actions.splice(place..place, preparation);
    plan.actions.splice(0..0, volumes);
    plan
}

fn block_of(missing: &[Missing]) -> Block {
    let mut claims = missing.iter().filter(|one| one.is_claim).peekable();
    match claims.peek() {
        Some(_) => Block::ClaimsUnprepared {
            message: texts(claims),
        },
        None => Block::ProviderMissing {
            message: texts(missing.iter()),
        },
    }
}

fn texts<'a>(missing: impl Iterator<Item = &'a Missing>) -> String {
    let texts: Vec<&str> = missing.map(|one| one.text.as_str()).collect();
    texts.join("; ")
}
