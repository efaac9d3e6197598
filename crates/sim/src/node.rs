//! The simulated node: its paths, its settings and its gates.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use prometheus::Registry;
use rubelet_agent::AgentSettings;
use rubelet_agent::settings::{FileSource, HttpSource};
use rubelet_cgroups::CgroupSettings;
use rubelet_lifecycle::backoff::BackoffLimits;
use rubelet_lifecycle::configuration::NodeConfiguration;
use rubelet_lifecycle::status::StatusGates;
use rubelet_lifecycle::user_namespaces::{DEFAULT_IDS_PER_POD, IdRange, UserNamespaces};
use rubelet_resources::admission::need::Need;
use rubelet_resources::admission::{Allocatable, NodeIdentity, NodeTerms};
use rubelet_resources::amounts::Amounts;
use rubelet_resources::cgroup_name::CgroupDriver;
use rubelet_resources::node_cgroup::{Enforcement, Reservation};
use rubelet_resources::{CgroupVersion, NodeFacts, Rules};

use rubelet_ports::{Clock, EventRecorder};
use rubelet_storage::{StorageGates, StorageNode};
use rubelet_volumes::{Volumes, VolumesMetrics, VolumesPorts, VolumesSettings};

use crate::executor::Life;
use crate::scenario::Scenario;
use crate::volumes::SimVolumes;

pub const NODE_NAME: &str = "sim";
pub const MANIFESTS: &str = "/etc/manifests";
pub const ROOT: &str = "/var/lib/rubelet";
pub const POD_LOGS: &str = "/var/log/pods";
pub const CONTAINER_LOGS: &str = "/var/log/containers";
pub const RESOLVER_FILE: &str = "/etc/resolv.conf";
/// What pods may request in sum.
pub const MILLI_CPU: i64 = 4000;
/// Likewise: more than all pods of a run begin with.
pub const MEMORY_BYTES: i64 = 1 << 36;
pub const URL: &str = "http://pods.test/";

/// So slow that what only the regular resync would heal is found as a lost wake-up.
pub const SYNC_FREQUENCY: Duration = Duration::from_secs(600);

#[must_use]
pub fn manifest_path(name: &str) -> PathBuf {
    Path::new(MANIFESTS).join(format!("{name}.json"))
}

#[must_use]
pub fn settings(scenario: &Scenario) -> AgentSettings {
    AgentSettings {
        node_name: NODE_NAME.to_owned(),
        root_dir: PathBuf::from(ROOT),
        container_logs_dir: PathBuf::from(CONTAINER_LOGS),
        file_source: Some(FileSource {
            path: PathBuf::from(MANIFESTS),
            check_interval: scenario.relist,
        }),
        http_source: scenario.http_from.map(|_| HttpSource {
            url: URL.to_owned(),
            headers: Vec::new(),
            check_interval: scenario.relist,
        }),
        sync_frequency: SYNC_FREQUENCY,
        node: configuration(),
        user_namespaces: user_namespaces(),
        status_gates: StatusGates::default(),
        admission: admission(),
        resize: rubelet_lifecycle::resize::ResizeTerms::default(),
        crash_backoff: BackoffLimits::default(),
        garbage: rubelet_lifecycle::garbage::GarbageLimits::default(),
        gates: Arc::default(),
        starts_in_flight: 4,
        stops_in_flight: 4,
        runtime_name: "containerd".to_owned(),
    }
}

/// A node with room for a dozen pods, so that some are refused.
fn admission() -> NodeTerms {
    NodeTerms {
        identity: NodeIdentity {
            name: NODE_NAME.to_owned(),
            labels: std::collections::BTreeMap::new(),
        },
        allocatable: Allocatable {
            resources: Need {
                milli_cpu: MILLI_CPU,
                memory_bytes: MEMORY_BYTES,
                ..Need::default()
            },
            pods: 110,
        },
        ..NodeTerms::default()
    }
}

/// Every id but the node's own.
fn user_namespaces() -> UserNamespaces {
    let range = IdRange::whole(DEFAULT_IDS_PER_POD);
    // The whole range is big enough for any node.
    match UserNamespaces::new(range, DEFAULT_IDS_PER_POD, 1) {
        Ok(namespaces) => namespaces,
        Err(error) => panic!("{error}"),
    }
}

/// The node's cgroups, with nothing reserved.
#[must_use]
pub fn cgroups() -> CgroupSettings {
    let node = configuration();
    CgroupSettings {
        cgroup_root: node.cgroup_root,
        driver: node.cgroup_driver,
        rules: node.rules,
        facts: node.facts,
        capacity: Amounts::default(),
        reservation: Reservation::default(),
        enforcement: Enforcement::default(),
        cpus: String::new(),
        system_reserved_cgroup: String::new(),
        kube_reserved_cgroup: String::new(),
    }
}

#[must_use]
pub fn configuration() -> NodeConfiguration {
    NodeConfiguration {
        pod_logs_dir: POD_LOGS.to_owned(),
        cluster_domain: "cluster.local".to_owned(),
        cluster_dns: vec![IpAddr::from([10, 96, 0, 10])],
        resolver_file: Some(PathBuf::from(RESOLVER_FILE)),
        node_ips: Vec::new(),
        cgroup_root: "/".to_owned(),
        cgroups_per_qos: true,
        cgroup_driver: CgroupDriver::Cgroupfs,
        default_pod_sysctls: std::collections::BTreeMap::new(),
        seccomp_default: false,
        seccomp_root: format!("{ROOT}/seccomp"),
        thermal_throttle_paths: Vec::new(),
        is_selinux_enabled: false,
        has_stop_signals: false,
        rules: Rules::default(),
        facts: NodeFacts {
            cgroup: CgroupVersion::V2,
            page_size_bytes: 4096,
            huge_page_sizes: Vec::new(),
            memory_capacity_bytes: 1 << 34,
            swap_capacity_bytes: 0,
            has_swap_controller: false,
            allocatable: Amounts::default(),
        },
    }
}

/// The addresses of the simulated machine.
#[must_use]
pub fn host_ips() -> Vec<IpAddr> {
    vec![IpAddr::from([192, 0, 2, 1])]
}

/// The volumes of pods on the simulated machine.
#[must_use]
pub fn volumes(
    settings: &AgentSettings,
    clock: &Arc<dyn Clock>,
    life: &Life,
    events: Arc<dyn EventRecorder>,
    machine: &SimVolumes,
) -> Volumes {
    let node = &settings.node;
    let ports = VolumesPorts {
        clock: Arc::clone(clock),
        spawner: Arc::new(life.clone()),
        events,
        reader: Arc::new(machine.clone()),
        writer: Arc::new(machine.clone()),
        objects: None,
        host_ips: Arc::new(host_ips()),
        metrics: unseen(VolumesMetrics::register),
    };
    let settings = VolumesSettings {
        root_dir: settings.root_dir.clone(),
        node: StorageNode {
            rules: node.rules.clone(),
            facts: node.facts.clone(),
            host_ips: Vec::new(),
            is_selinux_enabled: node.is_selinux_enabled,
            gates: StorageGates::default(),
        },
    };
    Volumes::new(ports, settings)
}

/// Metrics that nobody reads.
pub fn unseen<T>(register: impl FnOnce(&Registry) -> prometheus::Result<T>) -> T {
    registered(&Registry::new(), register)
}

/// The metrics of one actor.
///
/// # Panics
/// Never: an empty registry takes every metric.
#[expect(clippy::expect_used, reason = "an empty registry takes every metric")]
pub fn registered<T>(registry: &Registry, register: impl FnOnce(&Registry) -> prometheus::Result<T>) -> T {
    register(registry).expect("an empty registry takes every metric")
}
