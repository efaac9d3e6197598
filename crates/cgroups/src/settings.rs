//! Ports and settings of the cgroup tree.

use std::sync::Arc;

use rubelet_ports::{CgroupReader, CgroupWriter, Clock, NodeEventRecorder};
use rubelet_resources::amounts::Amounts;
use rubelet_resources::cgroup_name::CgroupDriver;
use rubelet_resources::node_cgroup::{Enforcement, Reservation};
use rubelet_resources::{NodeFacts, Rules};

/// The ports.
#[derive(Clone)]
pub struct CgroupPorts {
    pub clock: Arc<dyn Clock>,
    pub reader: Arc<dyn CgroupReader>,
    pub writer: Arc<dyn CgroupWriter>,
    pub events: Arc<dyn NodeEventRecorder>,
}

/// Settings that do not change while the process runs.
#[derive(Clone, Debug)]
pub struct CgroupSettings {
    /// `cgroupRoot`, which has to exist.
    pub cgroup_root: String,
    pub driver: CgroupDriver,
    pub rules: Rules,
    pub facts: NodeFacts,
    /// What the machine has, with its process ids.
    pub capacity: Amounts,
    pub reservation: Reservation,
    pub enforcement: Enforcement,
    /// The machine's processors, as the kernel lists them; empty when they are not known.
    pub cpus: String,
    pub system_reserved_cgroup: String,
    pub kube_reserved_cgroup: String,
}
