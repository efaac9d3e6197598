//! The simulated node: its paths, its settings and its gates.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rubelet_agent::AgentSettings;
use rubelet_agent::settings::{FileSource, HttpSource};
use rubelet_config::gates::{FeatureGates, Gate};
use rubelet_lifecycle::backoff::BackoffLimits;
use rubelet_lifecycle::configuration::{NodeConfiguration, ResolvConf};
use rubelet_lifecycle::status::StatusGates;
use rubelet_resources::amounts::Amounts;
use rubelet_resources::cgroup_name::CgroupDriver;
use rubelet_resources::{CgroupVersion, NodeFacts, Rules};

use crate::scenario::Scenario;

pub const NODE_NAME: &str = "sim";
pub const MANIFESTS: &str = "/etc/manifests";
pub const ROOT: &str = "/var/lib/rubelet";
pub const POD_LOGS: &str = "/var/log/pods";
pub const CONTAINER_LOGS: &str = "/var/log/containers";
pub const URL: &str = "http://pods.test/";

/// So slow that what only the regular resync would heal is found as a lost wake-up.
pub const SYNC_FREQUENCY: Duration = Duration::from_secs(600);

type GateFunction = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// Upstream's defaults.
#[must_use]
pub fn gates() -> GateFunction {
    let gates = FeatureGates::default();
    Arc::new(move |name| Gate::by_name(name).is_some_and(|gate| gates.enabled(gate)))
}

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
        status_gates: StatusGates::default(),
        crash_backoff: BackoffLimits::default(),
        garbage: rubelet_lifecycle::garbage::GarbageLimits::default(),
        gate: gates(),
        starts_in_flight: 4,
        runtime_name: "containerd".to_owned(),
    }
}

fn configuration() -> NodeConfiguration {
    NodeConfiguration {
        pod_logs_dir: POD_LOGS.to_owned(),
        cluster_domain: "cluster.local".to_owned(),
        cluster_dns: vec![std::net::IpAddr::from([10, 96, 0, 10])],
        resolver: ResolvConf::parse("nameserver 192.0.2.53\n").ok(),
        node_ips: vec![std::net::IpAddr::from([192, 0, 2, 1])],
        cgroup_root: "/".to_owned(),
        cgroups_per_qos: true,
        cgroup_driver: CgroupDriver::Cgroupfs,
        default_pod_sysctls: std::collections::BTreeMap::new(),
        seccomp_default: false,
        seccomp_root: format!("{ROOT}/seccomp"),
        thermal_throttle_paths: Vec::new(),
        is_selinux_enabled: false,
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
