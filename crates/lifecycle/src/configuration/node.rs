//! What every configuration is made with: the node's settings and facts, and why a configuration cannot be made.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use rubelet_config::gates::Gate;
use rubelet_config::settings::Settings;
use rubelet_model::address::parse_ip;
use rubelet_resources::cgroup_name::{BadCgroupName, CgroupDriver};
use rubelet_resources::{BadQuantity, NodeFacts, Rules};

/// The node, as far as pods see it.
#[derive(Clone, Debug)]
pub struct NodeConfiguration {
    pub pod_logs_dir: String,
    pub cluster_domain: String,
    pub cluster_dns: Vec<IpAddr>,
    /// The node's resolver file, which is read for every sandbox; `None` when the setting is empty.
    pub resolver_file: Option<PathBuf>,
    /// `--node-ip`: which family of addresses comes first. The addresses that pods see are in the inputs of each configuration.
    pub node_ips: Vec<IpAddr>,
    pub cgroup_root: String,
    pub cgroups_per_qos: bool,
    pub cgroup_driver: CgroupDriver,
    /// Empty unless the gate `DefaultPodSysctls` is on.
    pub default_pod_sysctls: BTreeMap<String, String>,
    pub seccomp_default: bool,
    /// Where profiles of type Localhost are.
    pub seccomp_root: String,
    /// The machine's `thermal_throttle` directories, which are masked too.
    pub thermal_throttle_paths: Vec<String>,
    pub is_selinux_enabled: bool,
    /// The gate `ContainerStopSignals`.
    pub has_stop_signals: bool,
    pub rules: Rules,
    pub facts: NodeFacts,
}

impl NodeConfiguration {
    /// From the settings; the caller fills in the facts of the machine.
    pub fn new(settings: &Settings, root_dir: &str, facts: NodeFacts) -> Self {
        let configuration = settings.configuration();
        let sysctls = settings.gates().enabled(Gate::DefaultPodSysctls);
        Self {
            pod_logs_dir: configuration.pod_logs_dir.clone(),
            cluster_domain: configuration.cluster_domain.clone(),
            cluster_dns: configuration
                .cluster_dns
                .iter()
                .filter_map(|text| parse_ip(text))
                .collect(),
            resolver_file: configuration
                .resolv_conf
                .as_ref()
                .filter(|path| !path.is_empty())
                .map(PathBuf::from),
            node_ips: Vec::new(),
            cgroup_root: configuration.cgroup_root.clone(),
            cgroups_per_qos: configuration.cgroups_per_qos.unwrap_or(true),
            cgroup_driver: CgroupDriver::by_name(&configuration.cgroup_driver),
            default_pod_sysctls: if sysctls {
                configuration.default_pod_sysctls.clone()
            } else {
                BTreeMap::new()
            },
            seccomp_default: configuration.seccomp_default.unwrap_or(false),
            seccomp_root: format!("{}/seccomp", root_dir.trim_end_matches('/')),
            thermal_throttle_paths: Vec::new(),
            is_selinux_enabled: false,
            has_stop_signals: settings.gates().enabled(Gate::ContainerStopSignals),
            rules: Rules::new(configuration, settings.gates()),
            facts,
        }
    }
}

/// Why no configuration can be made of the pod. The cause is always in the pod: trying again does not help.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum ConfigurationError {
    #[error("the pod has no spec")]
    NoSpec,
    #[error("the pod has no container {container:?}")]
    NoContainer { container: String },
    #[error("{field} {value:?} is not a valid DNS name")]
    BadHostname { field: &'static str, value: String },
    #[error(
        "failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too long \
         ({limit} characters is the max, {} characters requested)",
        fqdn.len()
    )]
    FqdnTooLong { fqdn: String, limit: usize },
    #[error(transparent)]
    Quantity(#[from] BadQuantity),
    #[error("the pod's uid does not fit into a cgroup's name")]
    Cgroup(#[from] BadCgroupName),
    #[error(transparent)]
    Object(#[from] super::object_variables::ObjectVariableError),
    #[error("environment variable {variable:?}: {problem}")]
    Downward {
        variable: String,
        problem: super::downward::DownwardError,
    },
    #[error("{problem} (pod: {pod:?}, container: {container})")]
    RunsAsRoot {
        problem: String,
        pod: String,
        container: String,
    },
    #[error("the pod has users of its own (hostUsers: false) and no ids were given to it")]
    NoUserIds,
    #[error("cannot find the volume {volume:?} referenced by FileKeyRef")]
    NoEnvFileVolume { volume: String },
    #[error("couldn't parse env file: environment variable {variable:?}: {problem}")]
    EnvFile { variable: String, problem: String },
    #[error("environment variable key {key:?} not found in file {path:?}")]
    NoEnvFileKey { key: String, path: String },
    #[error("unsupported supplementalGroupsPolicy: {0}")]
    SupplementalGroupsPolicy(String),
    #[error("a seccomp profile of type Localhost needs localhostProfile")]
    SeccompWithoutProfile,
    #[error("an AppArmor profile of type Localhost needs localhostProfile")]
    AppArmorWithoutProfile,
    #[error("AppArmor profile type {0:?} is unknown")]
    AppArmorType(String),
}
