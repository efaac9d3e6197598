//! The Node object, derived from what is known.
//!
//! Owns every field that a kubelet writes: labels and annotations of its own, addresses, capacity, conditions, facts about the
//! machine and the runtime. Pure: facts go in, a Node and the events to record come out. It starts from the existing Node, so that fields
//! that are not known yet, and those of others, stay.

mod addresses;
mod conditions;
mod contents;
mod patch;
mod registration;
mod resources;

use k8s_openapi::api::core::v1::{ContainerImage, DaemonEndpoint, Node, NodeDaemonEndpoints, NodeStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff;
use rubelet_model::{Pressure, Timestamp};
use rubelet_ports::{EventType, HostAddresses};

pub use addresses::{AddressProblem, NodeIpError, parse_node_ips};
pub use conditions::RuntimeFacts;
pub use contents::{largest_images, runtime_version};
pub use patch::{lasting_difference, status_patch};

pub(crate) use addresses::{machine_addresses, needs_lookup};
pub(crate) use conditions::{RUNTIME_GRACE, is_ready};
pub(crate) use registration::reconciled;

use crate::settings::NodeSettings;
use addresses::PROVIDED_NODE_IP;
use registration::{ARCH, OS};

/// What is known at one moment. `None`: not known yet, the Node keeps what it has.
#[derive(Clone, Debug, Default)]
pub struct StatusFacts {
    pub addresses: Option<HostAddresses>,
    pub runtime: RuntimeFacts,
    /// `containerd://2.1.0`
    pub runtime_version: Option<String>,
    pub images: Option<Vec<ContainerImage>>,
    pub pressure: Option<Pressure>,
    pub volumes_in_use: Option<Vec<String>>,
    /// The machine shuts down.
    pub is_shutting_down: bool,
}

/// An event about the Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusEvent {
    pub event_type: EventType,
    pub reason: &'static str,
    pub message: String,
}

impl StatusEvent {
    pub(crate) fn of_status(node_name: &str, reason: &'static str) -> Self {
        Self {
            event_type: EventType::Normal,
            reason,
            message: format!("Node {node_name} status is now: {reason}"),
        }
    }
}

/// A Node as it should be now.
#[derive(Clone, Debug)]
pub struct Derivation {
    pub node: Node,
    pub events: Vec<StatusEvent>,
    /// Why the addresses could not be set.
    pub address_problem: Option<AddressProblem>,
}

/// The Node to register.
#[must_use]
pub fn initial_node(settings: &NodeSettings, facts: &StatusFacts, now: Timestamp) -> Derivation {
    derive(&registration::bare_node(settings), settings, facts, now)
}

/// The Node as it should be, from what it is.
#[must_use]
pub fn derive(original: &Node, settings: &NodeSettings, facts: &StatusFacts, now: Timestamp) -> Derivation {
    let mut node = original.clone();
    let mut events = Vec::new();
    set_labels(&mut node, settings);
    let mut status = node.status.take().unwrap_or_default();
    let address_problem = set_addresses(&mut status, settings, facts);
    let is_usable = !matches!(address_problem, Some(AddressProblem::NodeIp { .. }));
    if facts.addresses.is_some() && is_usable {
        set_annotation(&mut node, settings);
    }
    resources::set_resources(&mut status, &settings.machine);
    events.extend(reboot(&status, settings));
    contents::set_node_info(&mut status, settings, facts.runtime_version.as_deref());
    status.daemon_endpoints = Some(NodeDaemonEndpoints {
        kubelet_endpoint: Some(DaemonEndpoint {
            port: settings.server_port,
        }),
    });
    if let Some(images) = &facts.images {
        status.images = contents::filled(images.clone());
    }
    if let Some(abilities) = &facts.runtime.report.abilities {
        contents::set_abilities(&mut status, abilities, settings.declared);
    }
    if let Some(volumes) = &facts.volumes_in_use {
        status.volumes_in_use = contents::filled(volumes.clone());
    }
    let changes = set_conditions(&mut status, settings, facts, &api_time(now));
    let event = |reason| StatusEvent::of_status(&settings.node_name, reason);
    events.extend(changes.into_iter().map(event));
    node.status = Some(status);
    Derivation {
        node,
        events,
        address_problem,
    }
}

/// Schedulers use these two; changes of them on the Node are overwritten.
fn set_labels(node: &mut Node, settings: &NodeSettings) {
    let wanted = [
        (OS, contents::OPERATING_SYSTEM),
        (ARCH, settings.machine.architecture.as_str()),
    ];
    let labels = node.metadata.labels.get_or_insert_default();
    for (key, value) in wanted {
        labels.insert(key.to_owned(), value.to_owned());
    }
}

fn set_annotation(node: &mut Node, settings: &NodeSettings) {
    let annotations = &mut node.metadata.annotations;
    match (addresses::provided_node_ip(&settings.addresses), annotations) {
        (Some(value), annotations) => {
            let annotations = annotations.get_or_insert_default();
            annotations.insert(PROVIDED_NODE_IP.to_owned(), value);
        }
        (None, Some(annotations)) => drop(annotations.remove(PROVIDED_NODE_IP)),
        (None, None) => {}
    }
}

fn set_addresses(
    status: &mut NodeStatus,
    settings: &NodeSettings,
    facts: &StatusFacts,
) -> Option<AddressProblem> {
    let host = facts.addresses.as_ref()?;
    let existing = status.addresses.as_deref().unwrap_or_default();
    match addresses::addresses(&settings.addresses, &settings.node_name, host, existing) {
        Ok(None) => None,
        Ok(Some(all)) => {
            status.addresses = Some(all);
            None
        }
        Err(problem) => Some(problem),
    }
}

/// The machine was rebooted since the Node's last status.
fn reboot(status: &NodeStatus, settings: &NodeSettings) -> Option<StatusEvent> {
    let before = status.node_info.as_ref().map(|info| info.boot_id.as_str());
    let now = settings.machine.boot_id.as_str();
    let is_other = before.is_some_and(|before| !before.is_empty() && before != now);
    is_other.then(|| StatusEvent {
        event_type: EventType::Warning,
        reason: "Rebooted",
        message: format!("Node {} has been rebooted, boot id: {now}", settings.node_name),
    })
}

fn set_conditions(
    status: &mut NodeStatus,
    settings: &NodeSettings,
    facts: &StatusFacts,
    now: &Time,
) -> Vec<&'static str> {
    let mut conditions = status.conditions.take().unwrap_or_default();
    let mut changes = conditions::set_pressure(&mut conditions, facts.pressure, now);
    let problems = conditions::with_shutdown(
        conditions::runtime_problems(&facts.runtime),
        facts.is_shutting_down,
    );
    let problems = problems.map(|mut all| {
        all.extend(missing_capacity(status, settings));
        all
    });
    changes.extend(conditions::set_ready(&mut conditions, problems, now));
    status.conditions = Some(conditions);
    changes
}

fn missing_capacity(status: &NodeStatus, settings: &NodeSettings) -> Option<String> {
    let storage = settings.counts_ephemeral_storage.then_some("ephemeral-storage");
    let wanted = ["cpu", "memory", "pods"].into_iter().chain(storage);
    let missing: Vec<&str> = wanted
        .filter(|name| {
            status
                .capacity
                .as_ref()
                .is_none_or(|list| !list.contains_key(*name))
        })
        .collect();
    (!missing.is_empty()).then(|| format!("missing node capacity for resources: {}", missing.join(", ")))
}

/// Whole seconds, as the API server keeps them.
fn api_time(at: Timestamp) -> Time {
    Time(jiff::Timestamp::from_second(at.unix_seconds()).unwrap_or(jiff::Timestamp::UNIX_EPOCH))
}

#[cfg(test)]
mod tests;
