//! The status of a pod: a pure function of its specification, what the runtime shows, and the last status.
//!
//! Owns phase, conditions, container statuses and addresses, and which changes may be published. It has no effects: the caller
//! keeps the last status, sends it, counts what was refused and runs the probes that are asked for.
//!
//! ```text
//! inputs ─► generate ─► settle (compare with the last status) ─► kept by the caller ─► publish (merge with the API's)
//!            phase, conditions,   refuse illegal changes,                              hold back a terminal phase
//!            containers, IPs      transition times, whole seconds                      while containers may run
//! ```

mod addresses;
mod adjust;
pub mod conditions;
mod containers;
mod derive;
mod finish;
mod foreign;
mod generate;
mod moments;
mod normal;
mod phase;
mod pod_resources;
mod probes;
mod publish;
mod resources;
mod settle;
mod view;
mod volumes;

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Pod, PodCondition, PodStatus, ResourceRequirements, ResourceStatus};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use rubelet_model::Timestamp;
use rubelet_model::observation::PodObservation;

use crate::allocation::Allocation;
use crate::restart::RestartGates;

pub use addresses::ordered_pod_ips;
pub use adjust::{rejected_status, with_readiness, with_resize, with_sandbox_ready, with_startup};
pub use containers::{StartFailure, StartFailures, creation_reason};
pub use derive::{derive_status, ended_for_good};
pub use finish::finished_status;
pub use foreign::reported_status;
pub use generate::{Generated, generate_status};
pub(crate) use moments::api_time;
pub use normal::normalize;
pub use phase::{PhaseFacts, RESTARTING_ALL_CONTAINERS, pod_phase};
pub use pod_resources::pod_resources;
pub use probes::Probes;
pub use publish::{may_be_deleted, needs_reconcile, published_status, readiness_is_stale, same_for_node};
pub use rubelet_model::pod::{Phase, is_api_pod, is_mirror_pod, is_static_pod, phase_of};
pub use settle::{Refusal, Settled, Settling, StatusBase, Termination, check_container_transitions, settle};
pub use view::{StateView, find_condition, find_status};

/// The feature gates that statuses depend on. The default is upstream's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatusGates {
    /// Those that decide about restarts.
    pub restart: RestartGates,
    /// `ChangeContainerStatusOnKubeletRestart`
    pub change_container_status_on_restart: bool,
    /// `ContainerStopSignals`
    pub container_stop_signals: bool,
    /// `InPlacePodLevelResourcesVerticalScaling`: the status shows the resources of the pod as a whole.
    pub pod_level_resources: bool,
}

impl Default for StatusGates {
    fn default() -> Self {
        Self {
            restart: RestartGates::default(),
            change_container_status_on_restart: false,
            container_stop_signals: false,
            pod_level_resources: true,
        }
    }
}

/// What statuses need to know about the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuntimeFacts<'a> {
    /// The scheme of container ids, such as `containerd`.
    pub name: &'a str,
    /// Whether the pod's runtime handler can mount recursively read-only.
    pub recursive_read_only: bool,
}

/// What statuses need to know about the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeFacts<'a> {
    /// One or two, primary first; empty while the node does not know them or there is no API server.
    pub host_ips: &'a [IpAddr],
    /// Whether the node's own address is an IPv6 one, so that pods show theirs first.
    pub prefers_ipv6: bool,
}

/// Resources of the pod as a whole.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodResources {
    /// What the pod's cgroup has.
    pub resources: Option<ResourceRequirements>,
    /// The requests that were admitted.
    pub allocated: Option<BTreeMap<String, Quantity>>,
}

/// Why the pod has to fail now: evicted, preempted, past its deadline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Eviction {
    /// Such as `DeadlineExceeded` or `Evicted`.
    pub reason: String,
    /// The text that users read.
    pub message: String,
    /// Message of the `DisruptionTarget` condition with the reason `TerminationByKubelet`, where the pod is a victim.
    pub disruption: Option<String>,
}

/// Everything a status is derived from.
#[derive(Debug, Clone, Copy)]
pub struct StatusInputs<'a> {
    /// The pod with allocated resources; its status is the API server's.
    pub pod: &'a Pod,
    /// What the runtime shows.
    pub observation: &'a PodObservation,
    /// The last status that was settled; none at first sight.
    pub previous: Option<&'a PodStatus>,
    /// The status of the mirror pod of a static pod.
    pub mirror: Option<&'a PodStatus>,
    /// The pod is terminated: no container starts again.
    pub terminal: bool,
    /// The pod has to fail for this reason.
    pub eviction: Option<&'a Eviction>,
    /// Why containers do not start.
    pub start_failures: &'a StartFailures,
    /// What the prober knows.
    pub probes: &'a Probes,
    /// `PodResizePending` and `PodResizeInProgress`, as far as they hold.
    pub resize_conditions: &'a [PodCondition],
    /// `Guaranteed`, `Burstable` or `BestEffort`.
    pub qos_class: &'a str,
    /// Resources of the pod as a whole.
    pub pod_resources: &'a PodResources,
    /// What the containers have, as far as it is recorded.
    pub actuated: Option<&'a Allocation>,
    /// Health of devices, by container name.
    pub allocated_resources_status: &'a BTreeMap<String, Vec<ResourceStatus>>,
    /// Digests of image volumes, by container and volume name; empty unless `ImageVolumeWithDigest` is on.
    pub image_volume_references: &'a BTreeMap<String, BTreeMap<String, String>>,
    /// Facts about the runtime.
    pub runtime: RuntimeFacts<'a>,
    /// Facts about the node.
    pub node: NodeFacts<'a>,
    /// Feature gates.
    pub gates: StatusGates,
    /// The current time.
    pub now: Timestamp,
}

/// A status that was derived and compared with the last one.
#[derive(Debug, Clone, PartialEq)]
pub struct Derived {
    /// What to keep. The last status, unchanged, when the new one was refused.
    pub status: PodStatus,
    /// Whether there is something new to send.
    pub changed: bool,
    /// Changes that may not happen, to be counted.
    pub refused: Vec<Refusal>,
    /// Containers that ended since the last status, to be counted.
    pub terminations: Vec<Termination>,
    /// Containers whose readiness probe should run at once.
    pub probe_now: Vec<String>,
    /// The phase as it is now, also when the new status was refused.
    pub phase: Option<Phase>,
    /// The mirror pod shows the end of an earlier pod of the same UID. It does not count for this pod from now on.
    pub ignores_mirror: bool,
}
