//! The node's settings and the ports that it uses.
//!
//! Owns plain values only: the program reads them from flags, configuration and the machine.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Taint;
use rubelet_model::{Pressure, RuntimeReport};
use rubelet_ports::api::{LeaseKeeper, NodeReader, NodeWriter};
use rubelet_ports::{
    AddressReader, Clock, ImageReader, NodeEventRecorder, Randomness, RuntimeReader, RuntimeWriter, Spawner,
};
use rubelet_resources::amounts::Amounts;
use tokio::sync::watch;

use crate::metrics::NodeMetrics;

/// The edges.
#[derive(Clone)]
pub struct NodePorts {
    pub clock: Arc<dyn Clock>,
    pub spawner: Arc<dyn Spawner>,
    pub randomness: Arc<dyn Randomness>,
    pub node_reader: Arc<dyn NodeReader>,
    pub node_writer: Arc<dyn NodeWriter>,
    pub lease_keeper: Arc<dyn LeaseKeeper>,
    pub images: Arc<dyn ImageReader>,
    pub runtime_reader: Arc<dyn RuntimeReader>,
    pub runtime_writer: Arc<dyn RuntimeWriter>,
    pub addresses: Arc<dyn AddressReader>,
    pub events: Arc<dyn NodeEventRecorder>,
    pub metrics: NodeMetrics,
}

/// What others on this node find out while it runs.
#[derive(Clone)]
pub struct NodeInputs {
    pub runtime: watch::Receiver<RuntimeReport>,
    /// `None` until it is known: conditions stay as the Node object has them.
    pub pressure: watch::Receiver<Option<Pressure>>,
    /// Attached volumes that pods use; `None` until it is known which ones.
    pub volumes_in_use: watch::Receiver<Option<Vec<String>>>,
    /// Whether the machine shuts down and the node waits for its pods.
    pub shutting_down: watch::Receiver<bool>,
}

#[derive(Clone, Debug)]
pub struct NodeSettings {
    pub node_name: String,
    /// The value of `nodeInfo.kubeletVersion`.
    pub kubelet_version: String,
    /// Where the kubelet's HTTP API is served.
    pub server_port: i32,
    pub registration: RegistrationSettings,
    pub addresses: AddressSettings,
    pub machine: MachineFacts,
    pub reporting: ReportingSettings,
    pub declared: DeclaredFeatureGates,
    /// `localStorageCapacityIsolation`: without a known `ephemeral-storage` the node is not ready.
    pub counts_ephemeral_storage: bool,
    /// Upstream warns of cgroup v1 with an event.
    pub is_cgroup_v1: bool,
}

#[derive(Clone, Debug, Default)]
pub struct RegistrationSettings {
    /// `registerNode`; otherwise the Node object is created by others.
    pub is_wanted: bool,
    /// `--node-labels`
    pub labels: BTreeMap<String, String>,
    /// `registerWithTaints`
    pub taints: Vec<Taint>,
    /// `providerID`; empty is none.
    pub provider_id: String,
    /// `enableControllerAttachDetach`
    pub controller_attach_detach: bool,
    /// Gate `KubeletRegistrationGetOnExistsOnly`: a node that may not be created is not looked for.
    pub get_on_exists_only: bool,
    /// Which extended resources of an existing Node are device plugins' is not known: all count as gone until plugins come back.
    pub reset_extended_resources: bool,
}

#[derive(Clone, Debug, Default)]
pub struct AddressSettings {
    /// `--node-ip` as [`crate::status::parse_node_ips`] reads it: none, one, or a pair of both families.
    pub node_ips: Vec<IpAddr>,
    /// `--hostname-override`, or the machine's own name.
    pub hostname: String,
    /// `--cloud-provider=external`
    pub external_cloud_provider: bool,
}

/// What the machine is and has.
#[derive(Clone, Debug, Default)]
pub struct MachineFacts {
    pub machine_id: String,
    pub system_uuid: String,
    pub boot_id: String,
    pub kernel_version: String,
    pub os_image: String,
    /// With Go's names.
    pub architecture: String,
    pub swap_bytes: u64,
    /// `None`: gate `KubeletInUserNamespace` is off.
    pub is_in_user_namespace: Option<bool>,
    /// With nothing of the resources whose device plugin is not registered.
    pub capacity: Amounts,
    pub allocatable: Amounts,
}

#[derive(Clone, Copy, Debug)]
pub struct ReportingSettings {
    /// `nodeStatusUpdateFrequency`
    pub update_frequency: Duration,
    /// `nodeStatusReportFrequency`
    pub report_frequency: Duration,
    /// `nodeStatusMaxImages`; `None` is all of them.
    pub max_images: Option<usize>,
    /// `nodeLeaseDurationSeconds`
    pub lease_duration_seconds: i32,
}

impl Default for ReportingSettings {
    fn default() -> Self {
        Self {
            update_frequency: Duration::from_secs(10),
            report_frequency: Duration::from_mins(5),
            max_images: Some(50),
            lease_duration_seconds: 40,
        }
    }
}

/// The gates of the features that a node declares and that rubelet honours.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeclaredFeatureGates {
    pub restart_all_containers: bool,
    pub user_namespaces_host_network: bool,
    pub volume_bind_mount_options: bool,
    pub extend_websockets: bool,
    pub pod_level_resize: bool,
    pub init_container_resize: bool,
}
