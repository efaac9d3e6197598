//! From the runtime's messages to an observation.
//!
//! Owns the reading: labels, annotations, states, resources. What is missing or malformed in a message is read as upstream
//! reads it, so that a container made by another agent is recognised. It calls nothing; files are read elsewhere.

use std::collections::BTreeMap;

use rubelet_model::Timestamp;
use rubelet_model::address::parse_ip;
use rubelet_model::message::bounded;
use rubelet_model::observation::{
    ContainerExit, ContainerMount, ContainerObservation, ContainerResources, ContainerState, ContainerUser,
    NetworkMode, PodObservation, PodUid, RecordedSpec, SandboxId, SandboxObservation, SandboxState,
};
use rubelet_wire::cri::v1;

use crate::configuration::labels;
use crate::stop_signal::name_of_signal;

const MIN_CPU_SHARES: i64 = 2;
const SHARES_PER_CPU: i64 = 1024;
const MILLIS_PER_CPU: i64 = 1000;

type Texts = BTreeMap<String, String>;

fn text(texts: &Texts, key: &str) -> String {
    texts.get(key).cloned().unwrap_or_default()
}

fn number(texts: &Texts, key: &str) -> Option<i64> {
    texts.get(key)?.parse().ok()
}

/// The pod that a sandbox or container belongs to, by its labels; `None` for what is not ours.
#[must_use]
pub fn pod_uid_of(labels: &Texts) -> Option<PodUid> {
    labels
        .get(labels::POD_UID)
        .filter(|uid| !uid.is_empty())
        .map(|uid| PodUid::new(uid.clone()))
}

/// A pod from the statuses of its sandboxes and containers. A container's status does not name its sandbox; the list of
/// containers does.
#[must_use]
pub fn observe_pod(
    identity: (PodUid, String, String),
    sandboxes: &[v1::PodSandboxStatus],
    containers: &[(SandboxId, v1::ContainerStatus)],
    observed_at: Timestamp,
) -> PodObservation {
    PodObservation::new(
        identity,
        sandboxes.iter().map(observe_sandbox).collect(),
        containers
            .iter()
            .map(|(sandbox_id, status)| observe_container(sandbox_id, status))
            .collect(),
        observed_at,
    )
}

#[must_use]
pub fn observe_sandbox(status: &v1::PodSandboxStatus) -> SandboxObservation {
    let state = match status.observed_state() {
        v1::PodSandboxState::SandboxReady => SandboxState::Ready,
        v1::PodSandboxState::SandboxNotready => SandboxState::NotReady,
    };
    let mode = status
        .linux
        .as_ref()
        .and_then(|linux| linux.namespaces.as_ref())
        .and_then(|namespaces| namespaces.options.as_ref())
        .map_or(v1::NamespaceMode::Pod as i32, |options| options.network);
    SandboxObservation {
        id: SandboxId::new(status.id.clone()),
        attempt: status.metadata.as_ref().map_or(0, |metadata| metadata.attempt),
        state,
        created_at: Timestamp::from_unix_nanos(status.created_at),
        network_mode: match v1::NamespaceMode::try_from(mode) {
            Ok(v1::NamespaceMode::Pod) => NetworkMode::Pod,
            Ok(v1::NamespaceMode::Node) => NetworkMode::Node,
            Ok(v1::NamespaceMode::Container | v1::NamespaceMode::Target) | Err(_) => NetworkMode::Other,
        },
        primary_ip: status.network.as_ref().map(|network| network.ip.clone()),
        ips: status.network.as_ref().map(addresses).unwrap_or_default(),
        runtime_handler: status.runtime_handler.clone(),
        labels: status.labels.clone(),
        annotations: status.annotations.clone(),
    }
}

/// A sandbox whose status cannot be read, from its entry in the list: identity, attempt and age are known, its network is not.
#[must_use]
pub fn observe_unreadable_sandbox(listed: &v1::PodSandbox) -> SandboxObservation {
    let state = match listed.observed_state() {
        v1::PodSandboxState::SandboxReady => SandboxState::Unreadable,
        v1::PodSandboxState::SandboxNotready => SandboxState::NotReady,
    };
    let attempt = listed.metadata.as_ref().map_or(0, |metadata| metadata.attempt);
    let created_at = Timestamp::from_unix_nanos(listed.created_at);
    SandboxObservation {
        runtime_handler: listed.runtime_handler.clone(),
        labels: listed.labels.clone(),
        annotations: listed.annotations.clone(),
        ..SandboxObservation::new(listed.id.as_str(), attempt, state, created_at)
    }
}

/// None of them when one is no address.
fn addresses(network: &v1::PodSandboxNetworkStatus) -> Vec<String> {
    let primary = Some(&network.ip).filter(|ip| !ip.is_empty());
    let all: Vec<&String> = primary
        .into_iter()
        .chain(network.additional_ips.iter().map(|additional| &additional.ip))
        .collect();
    if all.iter().all(|ip| parse_ip(ip).is_some()) {
        all.into_iter().cloned().collect()
    } else {
        Vec::new()
    }
}

#[must_use]
pub fn observe_container(sandbox_id: &SandboxId, status: &v1::ContainerStatus) -> ContainerObservation {
    let annotations = &status.annotations;
    let image = status.image.clone().unwrap_or_default();
    // Runtimes older than the field report the reference only.
    let image_id = if status.image_id.is_empty() {
        &status.image_ref
    } else {
        &status.image_id
    };
    ContainerObservation {
        id: status.id.as_str().into(),
        name: text(&status.labels, labels::CONTAINER_NAME),
        sandbox_id: sandbox_id.clone(),
        state: container_state(status),
        created_at: Timestamp::from_unix_nanos(status.created_at),
        image: image.image,
        image_id: image_id.clone(),
        image_ref: status.image_ref.clone(),
        image_runtime_handler: image.runtime_handler,
        hash: annotations
            .get(labels::HASH)
            .and_then(|hash| u64::from_str_radix(hash, 16).ok())
            .unwrap_or(0),
        restart_count: number(annotations, labels::RESTART_COUNT)
            .and_then(|count| u32::try_from(count).ok())
            .unwrap_or(0),
        resources: status
            .resources
            .as_ref()
            .and_then(|resources| container_resources(resources.linux.as_ref()?)),
        user: status
            .user
            .as_ref()
            .and_then(|user| user.linux.as_ref())
            .map(|user| ContainerUser {
                uid: user.uid,
                gid: user.gid,
                supplemental_groups: user.supplemental_groups.clone(),
            }),
        mounts: status.mounts.iter().map(container_mount).collect(),
        stop_signal: v1::Signal::try_from(status.stop_signal)
            .ok()
            .and_then(name_of_signal),
        log_path: status.log_path.clone(),
        recorded: RecordedSpec {
            termination_message_path: text(annotations, labels::TERMINATION_MESSAGE_PATH),
            termination_message_policy: text(annotations, labels::TERMINATION_MESSAGE_POLICY),
            termination_grace_period_seconds: number(annotations, labels::TERMINATION_GRACE_PERIOD),
            deletion_grace_period_seconds: number(annotations, labels::DELETION_GRACE_PERIOD),
            pre_stop_handler: annotations.get(labels::PRE_STOP_HANDLER).cloned(),
            ports: annotations.get(labels::PORTS).cloned(),
        },
    }
}

fn container_state(status: &v1::ContainerStatus) -> ContainerState {
    let started_at = Timestamp::from_unix_nanos(status.started_at);
    match status.observed_state() {
        v1::ContainerState::ContainerCreated => ContainerState::Created,
        v1::ContainerState::ContainerRunning => ContainerState::Running { started_at },
        v1::ContainerState::ContainerExited => ContainerState::Exited(ContainerExit {
            exit_code: status.exit_code,
            reason: status.reason.clone(),
            message: bounded(status.message.as_str()),
            started_at,
            finished_at: Timestamp::from_unix_nanos(status.finished_at),
        }),
        v1::ContainerState::ContainerUnknown => ContainerState::Unknown { started_at },
    }
}

fn container_resources(linux: &v1::LinuxContainerResources) -> Option<ContainerResources> {
    let cpu_limit_millis = (linux.cpu_period > 0)
        .then(|| linux.cpu_quota.saturating_mul(MILLIS_PER_CPU) / linux.cpu_period)
        .filter(|millis| *millis > 0);
    let cpu_request_millis = (linux.cpu_shares >= MIN_CPU_SHARES).then(|| {
        let scaled = linux.cpu_shares.saturating_mul(MILLIS_PER_CPU);
        // Rounded up, so that shares made of a request give the request back.
        scaled / SHARES_PER_CPU + i64::from(scaled % SHARES_PER_CPU != 0)
    });
    let memory_limit_bytes = Some(linux.memory_limit_in_bytes).filter(|bytes| *bytes > 0);
    let resources = ContainerResources {
        cpu_request_millis,
        cpu_limit_millis,
        memory_limit_bytes,
    };
    (resources != ContainerResources::default()).then_some(resources)
}

fn container_mount(mount: &v1::Mount) -> ContainerMount {
    ContainerMount {
        container_path: mount.container_path.clone(),
        host_path: mount.host_path.clone(),
        read_only: mount.readonly,
        recursive_read_only: mount.recursive_read_only,
        image: mount.image.as_ref().map(|image| image.image.clone()),
    }
}
