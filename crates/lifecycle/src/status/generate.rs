//! The status as it follows from the inputs alone, before it is compared with the last status.
//!
//! Owns the order of the parts and that a terminal phase stays. Transition times are set by `settle`.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, PodCondition, PodStatus};
use rubelet_model::pod::{Phase, is_static_pod, phase_of, uses_host_network};

use super::StatusInputs;
use super::addresses::{ordered_pod_ips, set_host_ips, set_pod_ips};
use super::conditions::{
    DISRUPTION_TARGET, all_containers_could_restart, all_containers_restarting, condition, containers_ready,
    is_owned, pod_initialized, pod_ready, pod_scheduled, ready_to_start_containers, should_restart_all,
};
use super::containers::{ContainerStatuses, List};
use super::phase::{PhaseFacts, pod_phase};
use super::probes::ProbeReading;
use super::settle::Refusal;
use super::view::{conditions, find_condition, replace_or_append, spec_of, statuses, text};

const TERMINATION_BY_KUBELET: &str = "TerminationByKubelet";

/// A status that is not yet compared with the last one.
#[derive(Debug, Clone, PartialEq)]
pub struct Generated {
    /// Without transition times of the node's conditions and without start time.
    pub status: PodStatus,
    /// A phase that the facts lead to and that the pod may not enter.
    pub refused: Option<Refusal>,
    /// Containers whose readiness probe should run at once.
    pub probe_now: Vec<String>,
}

/// Generates the status of a pod.
pub fn generate_status(inputs: &StatusInputs<'_>) -> Generated {
    let api = inputs.pod.status.clone().unwrap_or_default();
    let old = inputs.previous.unwrap_or(&api);
    let mut status = described_containers(inputs, old);
    let refused = set_phase(inputs, old, &api, &mut status);

    let mut reading = ProbeReading {
        pod: inputs.pod,
        // The API server's status of a static pod is its mirror pod's.
        known: inputs.mirror.unwrap_or(&api),
        probes: inputs.probes,
        gates: inputs.gates,
        probe_now: BTreeSet::new(),
    };
    reading.regular(status.container_statuses.as_deref_mut().unwrap_or_default());
    reading.init(status.init_container_statuses.as_deref_mut().unwrap_or_default());
    let probe_now = reading.probe_now.into_iter().collect();
    for container in status.container_statuses.iter_mut().flatten() {
        if let Some(health) = inputs.allocated_resources_status.get(&container.name) {
            container.allocated_resources_status = Some(health.clone());
        }
    }

    status.conditions = Some(all_conditions(inputs, old, &api, &status));
    let on_host_network = uses_host_network(inputs.pod);
    set_host_ips(&mut status, inputs.node.host_ips, on_host_network);
    Generated {
        status,
        refused,
        probe_now,
    }
}

/// Everything but phase, conditions, probes and the node's addresses.
fn described_containers(inputs: &StatusInputs<'_>, old: &PodStatus) -> PodStatus {
    let spec = spec_of(inputs.pod);
    let pod_restarting = inputs.gates.restart.restart_all_containers
        && should_restart_all(inputs.pod, inputs.observation, old);
    let describe = |list: List, previous: Option<&Vec<ContainerStatus>>, containers: &[Container]| {
        let statuses = ContainerStatuses {
            inputs,
            list,
            previous: statuses(previous),
            pod_restarting,
        };
        let derived = statuses.derive(containers);
        (!derived.is_empty()).then_some(derived)
    };
    let init = spec.init_containers.as_deref().unwrap_or_default();
    let ephemeral: Vec<Container> = spec
        .ephemeral_containers
        .iter()
        .flatten()
        .map(as_container)
        .collect();
    let mut status = PodStatus {
        qos_class: text(inputs.qos_class),
        container_statuses: describe(List::Regular, old.container_statuses.as_ref(), &spec.containers),
        init_container_statuses: describe(List::Init, old.init_container_statuses.as_ref(), init),
        ephemeral_container_statuses: describe(
            List::Ephemeral,
            old.ephemeral_container_statuses.as_ref(),
            &ephemeral,
        ),
        resources: inputs.pod_resources.resources.clone(),
        allocated_resources: inputs.pod_resources.allocated.clone(),
        ..PodStatus::default()
    };
    set_pod_ips(
        &mut status,
        ordered_pod_ips(&inputs.observation.ips, inputs.node.prefers_ipv6),
    );
    status
}

/// The part of an ephemeral container that statuses look at, in the shape of the others.
fn as_container(ephemeral: &k8s_openapi::api::core::v1::EphemeralContainer) -> Container {
    Container {
        name: ephemeral.name.clone(),
        image: ephemeral.image.clone(),
        resources: ephemeral.resources.clone(),
        restart_policy: ephemeral.restart_policy.clone(),
        restart_policy_rules: ephemeral.restart_policy_rules.clone(),
        volume_mounts: ephemeral.volume_mounts.clone(),
        readiness_probe: ephemeral.readiness_probe.clone(),
        ..Container::default()
    }
}

/// Sets phase, reason and message. A terminal phase that the API server or an earlier status has never changes.
fn set_phase(
    inputs: &StatusInputs<'_>,
    old: &PodStatus,
    api: &PodStatus,
    status: &mut PodStatus,
) -> Option<Refusal> {
    let facts = PhaseFacts {
        terminal: inputs.terminal,
        static_pod: is_static_pod(inputs.pod),
        initialized: any_active_regular(inputs),
    };
    let all: Vec<_> = status
        .container_statuses
        .iter()
        .chain(&status.init_container_statuses)
        .flatten()
        .cloned()
        .collect();
    let computed = pod_phase(&spec_of(inputs.pod), &all, facts, inputs.gates);
    let wanted = if inputs.eviction.is_some() {
        Phase::Failed
    } else {
        computed
    };
    let settled = [api, old]
        .into_iter()
        .filter_map(phase_of)
        .find(|phase| phase.is_terminal());
    let phase = settled.unwrap_or(wanted);
    status.phase = Some(phase.as_str().to_owned());
    if status.phase == old.phase {
        let first = |ours: &Option<String>, theirs: &Option<String>| {
            ours.clone()
                .filter(|text| !text.is_empty())
                .or_else(|| theirs.clone())
        };
        status.reason = first(&old.reason, &api.reason);
        status.message = first(&old.message, &api.message);
    } else if settled.is_some() {
        // The phase became terminal at the API server before we saw the pod: reason and message belong to that phase.
        status.reason.clone_from(&api.reason);
        status.message.clone_from(&api.message);
    }
    if let Some(eviction) = inputs.eviction
        && phase == Phase::Failed
    {
        status.reason = text(&eviction.reason);
        status.message = text(&eviction.message);
    }
    settled
        .filter(|settled| wanted.is_terminal() && wanted != *settled)
        .map(|from| Refusal::Phase { from, to: wanted })
}

/// Any regular container in the current sandbox, in whatever state, means that initialisation is over.
fn any_active_regular(inputs: &StatusInputs<'_>) -> bool {
    let spec = spec_of(inputs.pod);
    inputs.observation.active_containers().any(|seen| {
        spec.containers
            .iter()
            .any(|container| container.name == seen.name)
    })
}

fn all_conditions(
    inputs: &StatusInputs<'_>,
    old: &PodStatus,
    api: &PodStatus,
    status: &PodStatus,
) -> Vec<PodCondition> {
    let (pod, gates) = (inputs.pod, inputs.gates);
    let mut list: Vec<_> = conditions(api)
        .iter()
        .filter(|condition| !is_owned(&condition.type_, gates))
        .cloned()
        .collect();
    if !inputs.terminal {
        list.extend(inputs.resize_conditions.iter().cloned());
    }
    // Disruption is an event, not a state: it cannot be derived again, so it is carried.
    if let Some(disruption) = find_condition(conditions(old), DISRUPTION_TARGET) {
        replace_or_append(&mut list, disruption.clone());
    }
    let phase = phase_of(status);
    if let Some(message) = inputs
        .eviction
        .and_then(|eviction| eviction.disruption.as_deref())
        && phase == Some(Phase::Failed)
    {
        let disruption = condition(pod, DISRUPTION_TARGET, true, TERMINATION_BY_KUBELET, message);
        replace_or_append(&mut list, disruption);
    }
    let all: Vec<_> = status
        .init_container_statuses
        .iter()
        .chain(&status.container_statuses)
        .flatten()
        .cloned()
        .collect();
    let all = Some(all.as_slice());
    list.push(ready_to_start_containers(pod, inputs.observation));
    list.push(pod_initialized(pod, old, all, phase, gates));
    let ready = pod_ready(pod, &list, all, phase);
    list.push(ready);
    list.push(containers_ready(pod, all, phase));
    list.push(pod_scheduled(pod));
    if gates.restart.restart_all_containers && all_containers_could_restart(&spec_of(pod)) {
        list.push(all_containers_restarting(pod, inputs.observation, old, phase));
    }
    list
}
