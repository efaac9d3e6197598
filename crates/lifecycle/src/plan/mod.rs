//! What has to happen to a pod next.
//!
//! Owns the comparison of what is desired with what is observed. The result, a [`Plan`], is data with a reason for each action, in
//! the order of execution; execution makes no choices. Planning has no effects and no memory: the next plan comes from the next
//! observation.
//!
//! [`plan_pod`] plans the whole pod: volumes, directories, cgroup, user ids, and what has to be checked or waited for.
//! [`plan_containers`] is its part about sandbox and containers.
//!
//! A plan is for a pod that should run. [`crate::pod_state`] and [`crate::termination`] stop pods; the plan of a pod that is being
//! deleted is empty.

mod action;
mod init;
mod pod;
mod recovery;
mod regular;
mod reset;
mod sandbox;

pub use action::{
    Action, Block, KillContainer, KillPodReason, KillReason, LookReason, OnFailure, Plan, PrepareReason,
    RemoveReason, StartContainer, StartReason, Wait, WaitReason,
};
pub use pod::{CgroupCheck, HostFacts, Missing, PodPlanFacts, PodPlanInput, plan_pod};
pub use recovery::{
    ContainerRecovery, IN_FLIGHT_LIMIT, InFlightContainer, InFlightSandbox, SandboxRecovery,
    recover_container, recover_sandbox, reserved_for,
};
pub use sandbox::{SandboxChange, SandboxChangeReason, sandbox_change};

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use rubelet_model::Timestamp;
use rubelet_model::duration::GoDuration;
use rubelet_model::observation::{
    ContainerId, ContainerKind, ContainerObservation, ContainerState, PodObservation, ProbeResults,
};

use crate::backoff::{BackoffKey, CrashBackoff};
use crate::resize::{PodResize, ResizeNeeds};
use crate::restart::{RestartGates, RestartPolicy, effective_policy, is_sidecar};
use crate::termination::{StopCause, stop_container, stop_pod};

/// Everything that the plan of sandbox and containers depends on.
#[derive(Clone, Copy)]
pub struct PlanInput<'a> {
    pub pod: &'a Pod,
    pub observation: &'a PodObservation,
    pub probes: &'a ProbeResults,
    pub backoff: &'a CrashBackoff,
    pub gates: RestartGates,
    /// Whether the pod's status shows that all its containers are being restarted.
    pub restarting_all: bool,
    /// What of the pod differs from the resources that are allocated to it.
    pub resize: &'a ResizeNeeds,
    pub now: Timestamp,
}

/// Compares the pod with what is observed of it.
#[must_use]
pub fn plan_containers(input: &PlanInput<'_>) -> Plan {
    let Some(spec) = input.pod.spec.as_ref() else {
        return Plan::default();
    };
    if input.pod.metadata.deletion_timestamp.is_some() {
        return Plan::default();
    }
    // A status that cannot be read is no reason to stop containers that run. Only what has to start needs a sandbox that is good.
    if let Some(assumed) = sandbox::assume_readable(input.pod, input.observation) {
        let plan = plan_observed(
            &PlanInput {
                observation: &assumed,
                ..*input
            },
            spec,
        );
        if plan.starts().next().is_none() {
            return plan;
        }
    }
    plan_observed(input, spec)
}

fn plan_observed(input: &PlanInput<'_>, spec: &PodSpec) -> Plan {
    let mut draft = Draft::new(*input, spec);
    let change = sandbox_change(input.pod, input.observation);
    let restarting_all = input.restarting_all && input.gates.restart_all_containers;
    match change {
        Some(change) => sandbox::plan_new_sandbox(&mut draft, change, restarting_all),
        None if restarting_all => reset::plan_reset(&mut draft),
        None => plan_in_sandbox(&mut draft),
    }
    prune_init_containers(&mut draft);
    draft.plan_resize();
    draft.finish()
}

fn plan_in_sandbox(draft: &mut Draft<'_>) {
    plan_ephemeral_containers(draft);
    match init::plan_init_containers(draft) {
        init::Initialization::Failed { container } => {
            draft.replace_by_kill(KillPodReason::InitContainerFailed { container });
        }
        init::Initialization::InProgress => {}
        init::Initialization::Done => regular::plan_regular_containers(draft),
    }
    kill_strays(draft);
}

/// They are started once, also before the pod is initialised, and never again.
fn plan_ephemeral_containers(draft: &mut Draft<'_>) {
    for (index, container) in draft.spec.ephemeral_containers.iter().flatten().enumerate() {
        if draft
            .input
            .observation
            .newest_container(&container.name)
            .is_none()
        {
            draft.starts.push(Planned::Start(StartContainer {
                kind: ContainerKind::Ephemeral,
                index,
                name: container.name.clone(),
                reason: StartReason::NeverStarted,
                on_failure: OnFailure::Continue,
                backoff: None,
                publishes_progress: true,
            }));
        }
    }
}

/// Of two running instances of a name only the newest may run, and none whose name the pod does not have.
fn kill_strays(draft: &mut Draft<'_>) {
    if draft.kill_pod.is_some() {
        return;
    }
    let names: BTreeSet<&str> = container_names(draft.spec).collect();
    let active = draft
        .input
        .observation
        .active_sandbox()
        .map(|sandbox| &sandbox.id);
    let mut seen = BTreeSet::new();
    for container in &draft.input.observation.containers {
        let newest = seen.insert(container.name.as_str());
        if !container.state.is_running() {
            continue;
        }
        if !names.contains(container.name.as_str()) {
            draft.kill(container, KillReason::NotInPod);
        } else if !newest {
            draft.kill(container, KillReason::Superseded);
        } else if is_init(draft.spec, &container.name) && Some(&container.sandbox_id) != active {
            // Init containers are judged by the active sandbox alone; one that runs in another sandbox would be started a second time.
            draft.kill(container, KillReason::OutsideSandbox);
        }
    }
}

fn is_init(spec: &PodSpec, name: &str) -> bool {
    spec.init_containers
        .iter()
        .flatten()
        .any(|container| container.name == name)
}

fn container_names(spec: &PodSpec) -> impl Iterator<Item = &str> {
    let regular = spec.init_containers.iter().flatten().chain(&spec.containers);
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    regular
        .map(|container| container.name.as_str())
        .chain(ephemeral.map(|container| container.name.as_str()))
}

/// Only the newest ended instance of an init container is kept.
fn prune_init_containers(draft: &mut Draft<'_>) {
    for init in draft.spec.init_containers.iter().flatten() {
        let ended = draft.input.observation.containers.iter().filter(|container| {
            container.name == init.name
                && match container.state {
                    ContainerState::Exited(_) | ContainerState::Unknown { .. } => true,
                    ContainerState::Created | ContainerState::Running { .. } => false,
                }
        });
        for container in ended.skip(1) {
            draft.remove(container, RemoveReason::OldInitContainer);
        }
    }
}

/// A start as planned, or the reason why it has to wait.
enum Planned {
    Start(StartContainer),
    Wait(Wait),
}

/// The plan while it is put together, by kind of action.
struct Draft<'a> {
    input: PlanInput<'a>,
    spec: &'a PodSpec,
    kill_pod: Option<KillPodReason>,
    kills: Vec<KillContainer>,
    removals: Vec<Action>,
    removed: BTreeSet<ContainerId>,
    new_sandbox: Option<SandboxChange>,
    keeps: Vec<Action>,
    resize: PodResize,
    starts: Vec<Planned>,
}

impl<'a> Draft<'a> {
    fn new(input: PlanInput<'a>, spec: &'a PodSpec) -> Self {
        Self {
            input,
            spec,
            kill_pod: None,
            kills: Vec::new(),
            removals: Vec::new(),
            removed: BTreeSet::new(),
            new_sandbox: None,
            keeps: Vec::new(),
            resize: PodResize::default(),
            starts: Vec::new(),
        }
    }

    /// Nothing is started and no single container killed: the pod ends as a whole.
    fn replace_by_kill(&mut self, reason: KillPodReason) {
        self.kill_pod = Some(reason);
        self.kills.clear();
        self.keeps.clear();
        self.starts.clear();
    }

    fn kill(&mut self, container: &ContainerObservation, reason: KillReason) {
        let (cause, requested) = match reason {
            KillReason::StartupProbe { .. } => (StopCause::StartupProbe, None),
            KillReason::LivenessProbe { .. } => (StopCause::LivenessProbe, None),
            KillReason::RestartAllContainers => (StopCause::Other, Some(0)),
            KillReason::DefinitionChanged
            | KillReason::ResizeNeedsRestart
            | KillReason::UnknownState
            | KillReason::NotInPod
            | KillReason::OutsideSandbox
            | KillReason::PostStartHook
            | KillReason::Superseded => (StopCause::Other, None),
        };
        let stop = stop_container(self.input.pod, container, cause, requested);
        let kind = container_kind(self.spec, &container.name);
        self.kills.push(KillContainer { stop, kind, reason });
    }

    fn remove(&mut self, container: &ContainerObservation, reason: RemoveReason) {
        if self.removed.insert(container.id.clone()) {
            self.removals.push(Action::RemoveContainer {
                id: container.id.clone(),
                name: container.name.clone(),
                reason,
            });
        }
    }

    fn keep(&mut self, container: &ContainerObservation) {
        self.keeps.push(Action::Keep {
            id: container.id.clone(),
            name: container.name.clone(),
        });
    }

    fn wait(&mut self, name: &str, kind: ContainerKind, reason: WaitReason) {
        self.starts.push(Planned::Wait(Wait {
            name: name.to_owned(),
            kind,
            reason,
        }));
    }

    /// Starts a container, unless its last exit is too recent.
    fn start(&mut self, kind: ContainerKind, index: usize, container: &Container, reason: StartReason) {
        let key = BackoffKey::new(self.input.pod, container);
        let last_exit = self
            .input
            .observation
            .containers
            .iter()
            .filter(|instance| instance.name == container.name)
            .find_map(|instance| instance.state.exit())
            .map(|exit| exit.finished_at);
        let wait = last_exit.and_then(|exited_at| self.input.backoff.wait(&key, exited_at, self.input.now));
        if let Some(wait) = wait {
            let delay = GoDuration::from_nanos(i64::try_from(wait.delay.as_nanos()).unwrap_or(i64::MAX));
            let reason = WaitReason::CrashLoopBackOff {
                until: wait.until,
                message: format!(
                    "back-off {delay} restarting failed container={} pod={}",
                    container.name,
                    pod_text(self.input.pod)
                ),
            };
            return self.wait(&container.name, kind, reason);
        }
        let on_failure = match kind {
            ContainerKind::Init => OnFailure::StopPlan,
            ContainerKind::Sidecar | ContainerKind::Regular | ContainerKind::Ephemeral => OnFailure::Continue,
        };
        self.starts.push(Planned::Start(StartContainer {
            kind,
            index,
            name: container.name.clone(),
            reason,
            on_failure,
            backoff: last_exit.map(|exited_at| (key, exited_at)),
            publishes_progress: true,
        }));
    }

    /// Whether the container restarts however it ends.
    fn restarts_always(&self, name: &str) -> bool {
        let init = self.spec.init_containers.iter().flatten();
        let found = init.chain(&self.spec.containers).find(|one| one.name == name);
        found.is_none_or(|one| effective_policy(one, self.spec, self.input.gates) == RestartPolicy::Always)
    }

    /// Everything that starts in a new sandbox does so with the resources that are allocated to it, and under a cgroup that has them.
    fn plan_resize(&mut self) {
        if self.kill_pod.is_some() || self.new_sandbox.is_some() {
            return;
        }
        let needs = self.input.resize;
        let kept = self.keeps.iter().filter_map(|action| match action {
            Action::Keep { id, name } => Some((id, name.as_str())),
            _ => None,
        });
        let starts_resized = self.starts.iter().any(|planned| match planned {
            Planned::Start(start) => needs.differing.contains_key(&start.name),
            Planned::Wait(_) => false,
        });
        let kept: Vec<(&ContainerId, &str)> = kept.collect();
        self.resize = PodResize::of(needs, kept, starts_resized);
    }

    fn finish(self) -> Plan {
        let publishes_progress = self
            .kills
            .iter()
            .all(|kill| self.restarts_always(&kill.stop.name));
        let mut actions = Vec::new();
        if let Some(reason) = self.kill_pod {
            let stop = stop_pod(self.input.pod, self.input.observation, None);
            if !stop.is_empty() {
                actions.push(Action::KillPod { reason, stop });
            }
        }
        if !self.kills.is_empty() {
            actions.push(Action::KillContainers(self.kills));
        }
        actions.extend(self.removals);
        if let Some(change) = self.new_sandbox {
            actions.push(Action::CreateSandbox(change));
        }
        let resize = self.resize;
        actions.extend(self.keeps);
        if !resize.is_empty() {
            actions.push(Action::Resize(resize));
        }
        for planned in self.starts {
            match planned {
                Planned::Start(start) => actions.push(Action::StartContainer(StartContainer {
                    publishes_progress,
                    ..start
                })),
                Planned::Wait(wait) => {
                    let stops_here = wait.kind == ContainerKind::Init
                        && matches!(wait.reason, WaitReason::CrashLoopBackOff { .. });
                    actions.push(Action::Wait(wait));
                    // What comes after an init container needs its success.
                    if stops_here {
                        break;
                    }
                }
            }
        }
        Plan { actions }
    }
}

/// `name_namespace(uid)`, as upstream's messages name a pod.
#[must_use]
pub fn pod_text(pod: &Pod) -> String {
    format!(
        "{}_{}({})",
        pod.metadata.name.as_deref().unwrap_or_default(),
        pod.metadata.namespace.as_deref().unwrap_or_default(),
        pod.metadata.uid.as_deref().unwrap_or_default()
    )
}

/// The kill of a container that was just started, because its postStart hook failed.
#[must_use]
pub fn kill_after_hook(pod: &Pod, container: &ContainerObservation) -> KillContainer {
    let spec = pod.spec.as_ref();
    KillContainer {
        stop: stop_container(pod, container, StopCause::Other, None),
        kind: spec.map_or(ContainerKind::Regular, |spec| {
            container_kind(spec, &container.name)
        }),
        reason: KillReason::PostStartHook,
    }
}

/// The kind of the pod's container of this name. Containers that the pod does not have count as regular ones.
fn container_kind(spec: &PodSpec, name: &str) -> ContainerKind {
    let mut init = spec.init_containers.iter().flatten();
    init.find(|one| one.name == name)
        .map_or(ContainerKind::Regular, kind_of_init)
}

fn kind_of_init(container: &Container) -> ContainerKind {
    if is_sidecar(container) {
        ContainerKind::Sidecar
    } else {
        ContainerKind::Init
    }
}

fn pod_restarts_on_failure(spec: &PodSpec) -> bool {
    RestartPolicy::of_pod(spec) != RestartPolicy::Never
}
