//! The settings that exist on the command line only.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rubelet_model::GoDuration;

use super::command_line::CommandLine;
use super::definition::{OwnFlag, Target};
use super::value::FlagValue;

/// The flags that have no field in the configuration. Paths are kept as they were given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubeletFlags {
    pub config: Option<PathBuf>,
    pub config_dir: Option<PathBuf>,
    pub rubelet_config: Option<PathBuf>,
    pub root_dir: PathBuf,
    pub lock_file: Option<PathBuf>,
    pub exit_on_lock_contention: bool,
    /// Empty: the host's own name.
    pub hostname_override: String,
    pub kubeconfig: Option<PathBuf>,
    pub bootstrap_kubeconfig: Option<PathBuf>,
    pub node_ip: String,
    pub node_labels: BTreeMap<String, String>,
    pub cloud_provider: String,
    pub cert_dir: PathBuf,
    pub runtime_cgroups: String,
    pub seccomp_default: bool,
    pub image_credential_provider_config: Option<PathBuf>,
    pub image_credential_provider_bin_dir: Option<PathBuf>,
    pub housekeeping_interval: GoDuration,
    pub minimum_container_ttl: GoDuration,
    pub maximum_dead_containers_per_container: i32,
    pub maximum_dead_containers: i32,
    pub experimental_mounter_path: String,
    pub experimental_allocatable_ignore_eviction: bool,
    /// The version to report instead of our own.
    pub reported_version: Option<String>,
}

impl Default for KubeletFlags {
    fn default() -> Self {
        Self {
            config: None,
            config_dir: None,
            rubelet_config: None,
            root_dir: PathBuf::from("/var/lib/kubelet"),
            lock_file: None,
            exit_on_lock_contention: false,
            hostname_override: String::new(),
            kubeconfig: None,
            bootstrap_kubeconfig: None,
            node_ip: String::new(),
            node_labels: BTreeMap::new(),
            cloud_provider: String::new(),
            cert_dir: PathBuf::from("/var/lib/kubelet/pki"),
            runtime_cgroups: String::new(),
            seccomp_default: false,
            image_credential_provider_config: None,
            image_credential_provider_bin_dir: None,
            housekeeping_interval: GoDuration::from_secs(10),
            minimum_container_ttl: GoDuration::ZERO,
            maximum_dead_containers_per_container: 1,
            maximum_dead_containers: -1,
            experimental_mounter_path: String::new(),
            experimental_allocatable_ignore_eviction: false,
            reported_version: None,
        }
    }
}

impl KubeletFlags {
    /// The flags of a command line over the defaults.
    #[must_use]
    pub fn from_command_line(command_line: &CommandLine) -> Self {
        let mut flags = Self::default();
        for (definition, value) in command_line.used() {
            if let Target::Own(flag) = definition.target {
                flags.set(flag, value);
            }
        }
        flags
    }

    /// The node's name: the override, or else the host's name, in lower case; `None` when nothing is left of it.
    #[must_use]
    pub fn node_name(&self, host_name: &str) -> Option<String> {
        let name = if self.hostname_override.is_empty() {
            host_name
        } else {
            &self.hostname_override
        };
        let name = name.trim();
        (!name.is_empty()).then(|| name.to_lowercase())
    }

    fn set(&mut self, flag: OwnFlag, value: &FlagValue) {
        match (flag, value) {
            (OwnFlag::RootDir, FlagValue::Text(text)) => self.root_dir = PathBuf::from(text),
            (OwnFlag::CertDir, FlagValue::Text(text)) => self.cert_dir = PathBuf::from(text),
            (OwnFlag::LockFile, FlagValue::Text(text)) => self.lock_file = path(text),
            (OwnFlag::Config, FlagValue::Text(text)) => self.config = path(text),
            (OwnFlag::ConfigDir, FlagValue::Text(text)) => self.config_dir = path(text),
            (OwnFlag::RubeletConfig, FlagValue::Text(text)) => self.rubelet_config = path(text),
            (OwnFlag::Kubeconfig, FlagValue::Text(text)) => self.kubeconfig = path(text),
            (OwnFlag::BootstrapKubeconfig, FlagValue::Text(text)) => self.bootstrap_kubeconfig = path(text),
            (OwnFlag::ImageCredentialProviderConfig, FlagValue::Text(text)) => {
                self.image_credential_provider_config = path(text);
            }
            (OwnFlag::ImageCredentialProviderBinDir, FlagValue::Text(text)) => {
                self.image_credential_provider_bin_dir = path(text);
            }
            (OwnFlag::HostnameOverride, FlagValue::Text(text)) => self.hostname_override.clone_from(text),
            (OwnFlag::NodeIp, FlagValue::Text(text)) => self.node_ip.clone_from(text),
            (OwnFlag::CloudProvider, FlagValue::Text(text)) => self.cloud_provider.clone_from(text),
            (OwnFlag::RuntimeCgroups, FlagValue::Text(text)) => self.runtime_cgroups.clone_from(text),
            (OwnFlag::ExperimentalMounterPath, FlagValue::Text(text)) => {
                self.experimental_mounter_path.clone_from(text);
            }
            (OwnFlag::NodeLabels, FlagValue::Map(labels)) => self.node_labels.clone_from(labels),
            (OwnFlag::ExitOnLockContention, FlagValue::Bool(on)) => self.exit_on_lock_contention = *on,
            (OwnFlag::SeccompDefault, FlagValue::Bool(on)) => self.seccomp_default = *on,
            (OwnFlag::ExperimentalAllocatableIgnoreEviction, FlagValue::Bool(on)) => {
                self.experimental_allocatable_ignore_eviction = *on;
            }
            (OwnFlag::HousekeepingInterval, FlagValue::Duration(interval)) => {
                self.housekeeping_interval = *interval;
            }
            (OwnFlag::MinimumContainerTtl, FlagValue::Duration(ttl)) => self.minimum_container_ttl = *ttl,
            (OwnFlag::MaximumDeadContainers, FlagValue::Int(count)) => {
                self.maximum_dead_containers = narrow(*count);
            }
            (OwnFlag::MaximumDeadContainersPerContainer, FlagValue::Int(count)) => {
                self.maximum_dead_containers_per_container = narrow(*count);
            }
            (OwnFlag::Version, FlagValue::Version(request)) => {
                self.reported_version.clone_from(&request.report);
            }
            // Help ends the program before settings are made. That no other pair is
            // possible is a property of the table, and a test walks it.
            (_, _) => {}
        }
    }
}

fn path(text: &str) -> Option<PathBuf> {
    (!text.is_empty()).then(|| PathBuf::from(text))
}

/// The table gives these flags 32 bits, so nothing is cut.
fn narrow(count: i64) -> i32 {
    i32::try_from(count).unwrap_or(if count < 0 { i32::MIN } else { i32::MAX })
}
