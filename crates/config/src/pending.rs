//! Which settings have an effect today, and the warnings and errors about those that do not.
//!
//! Owns one row per configuration field and per flag. A setting is never ignored in silence: it works, or a value other
//! than its default is warned of, or it is refused because running without it would be worse than not running.

mod table;

use serde_json::Value;

use crate::flags::{KubeletFlags, OwnFlag};
use crate::gates::{FeatureGates, Gate};
use crate::kubelet_configuration::{KubeletConfiguration, Problem};
use crate::settings::Warning;
use table::TABLE;

/// What a setting does today.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// It has its effect.
    Works,
    /// It is read and checked, and a value other than the default gives a warning.
    NotYet,
    /// As `NotYet`, but a value that asks for the feature is an error.
    Refused {
        /// Which values are refused, as text for the message.
        when: &'static str,
    },
}

/// What a row is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setting {
    /// A field of `KubeletConfiguration`, with everything below it.
    Field(&'static str),
    /// A flag that no field stands behind.
    Flag(&'static str, OwnFlag),
}

impl Setting {
    /// The name a user knows: a field's path, or the flag with its dashes.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Field(name) | Self::Flag(name, _) => name,
        }
    }
}

/// A row: the setting, the feature it belongs to, and what it does today.
#[derive(Debug, Clone, Copy)]
pub struct SettingSupport {
    pub setting: Setting,
    pub feature: &'static str,
    pub support: Support,
}

/// Gates whose turning has its effect today.
const GATES_IN_USE: [Gate; 46] = [
    Gate::AllAlpha,
    Gate::AllBeta,
    Gate::AllowDNSOnlyNodeCSR,
    Gate::AllowParsingUserUIDFromCertAuth,
    Gate::AtomicWriteVolumeUserFields,
    Gate::CRIListStreaming,
    Gate::ChangeContainerStatusOnKubeletRestart,
    Gate::ComponentFlagz,
    Gate::ComponentStatusz,
    Gate::ContainerCheckpoint,
    Gate::ContainerRestartRules,
    Gate::ContainerStopSignals,
    Gate::CustomCPUCFSQuotaPeriod,
    Gate::DefaultPodSysctls,
    Gate::EmptyDirVolumeMode,
    Gate::ExtendWebSocketsToKubelet,
    Gate::GracefulNodeShutdown,
    Gate::GracefulNodeShutdownBasedOnPodPriority,
    Gate::HugepageAwareEviction,
    Gate::InPlacePodLevelResourcesVerticalScaling,
    Gate::KubeletCrashLoopBackOffMax,
    Gate::KubeletEnsureSecretPulledImages,
    Gate::KubeletInUserNamespace,
    Gate::KubeletRegistrationGetOnExistsOnly,
    Gate::KubeletServiceAccountTokenForCredentialProviders,
    Gate::LoggingAlphaOptions,
    Gate::LoggingBetaOptions,
    Gate::MatchLabelKeysInPodTopologySpread,
    Gate::MatchLabelKeysInPodTopologySpreadSelectorMerge,
    Gate::MemoryQoS,
    Gate::PodAndContainerStatsFromCRI,
    Gate::PodDeletionCost,
    Gate::PodLevelResources,
    Gate::PodLevelResourcesFixDefaulting,
    Gate::PodLevelResourcesFixKubeletQOSClass,
    Gate::PodLogsQuerySplitStreams,
    Gate::ReduceDefaultCrashLoopBackOffDecay,
    Gate::ReloadKubeletClientCAFile,
    Gate::ReloadKubeletServerCertificateFile,
    Gate::RestartAllContainersOnContainerExits,
    Gate::RotateKubeletServerCertificate,
    Gate::RuntimeClassInImageCriApi,
    Gate::StrictIPCIDRValidation,
    Gate::TaintTolerationComparisonOperators,
    Gate::UserNamespacesHostNetworkSupport,
    Gate::VolumeBindMountOptions,
];

/// Gates that are on by default, and whose features upstream's kubelet has and rubelet does not have yet.
const GATES_WITHOUT_FEATURE: [Gate; 22] = [
    Gate::CPUManagerPolicyBetaOptions,
    Gate::CPUManagerPolicyOptions,
    Gate::CSIServiceAccountTokenSecrets,
    Gate::DRAExtendedResource,
    Gate::DisableCPUQuotaWithExclusiveCPUs,
    Gate::DynamicResourceAllocation,
    Gate::KubeletPSI,
    Gate::KubeletPodResourcesDynamicResources,
    Gate::KubeletPodResourcesGet,
    Gate::KubeletPodResourcesListUseActivePods,
    Gate::KubeletTracing,
    Gate::MutableCSINodeAllocatableCount,
    Gate::NativeHistograms,
    Gate::PodsAPI,
    Gate::RecoverVolumeExpansionFailure,
    Gate::ResourceHealthStatus,
    Gate::ResourceHealthStatusMessage,
    Gate::SELinuxChangePolicy,
    Gate::SELinuxMount,
    Gate::SELinuxMountReadWriteOncePod,
    Gate::TopologyManagerPolicyBetaOptions,
    Gate::TopologyManagerPolicyOptions,
];

/// Every setting and what it does today, for the documentation and the tests.
#[must_use]
pub fn pending_table() -> &'static [SettingSupport] {
    TABLE
}

/// Whether turning the gate has its effect today.
#[must_use]
pub fn is_in_use(gate: Gate) -> bool {
    GATES_IN_USE.contains(&gate)
}

/// Whether the gate is on and rubelet has its feature. Gates of other programs have no feature here and count by their default.
#[must_use]
pub fn is_effective(gate: Gate, gates: &FeatureGates) -> bool {
    let is_there = match gate.info().switch.default_value() {
        true => !GATES_WITHOUT_FEATURE.contains(&gate),
        false => is_in_use(gate),
    };
    gates.enabled(gate) && is_there
}

/// The warnings and errors at start-up about settings without effect.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) problems: Vec<Problem>,
    pub(crate) warnings: Vec<Warning>,
}

/// Compares what is in effect with the defaults that would be without any setting.
pub(crate) fn find(
    flags: &KubeletFlags,
    configuration: &KubeletConfiguration,
    defaults: &KubeletConfiguration,
    gates: &FeatureGates,
) -> Findings {
    let effective = configuration.to_configz();
    let default = defaults.to_configz();
    let mut findings = Findings::default();
    // One line per feature, in the order of the table.
    let mut without_effect: Vec<(&str, Vec<&str>)> = Vec::new();
    for row in TABLE {
        if row.support == Support::Works {
            continue;
        }
        let differs = match row.setting {
            Setting::Field(path) => at(&effective, path) != at(&default, path),
            Setting::Flag(_, flag) => differs(flag, flags),
        };
        if !differs {
            continue;
        }
        match (row.support, row.setting) {
            (Support::Refused { when }, Setting::Field(path)) if at(&effective, path).is_some() => {
                let value = at(&effective, path).map(ToString::to_string).unwrap_or_default();
                let reason = format!("rubelet does not have {} yet, so {when} is refused", row.feature);
                findings.problems.push(Problem::new(path, value, reason));
            }
            (_, setting) => match without_effect
                .iter_mut()
                .find(|(feature, _)| *feature == row.feature)
            {
                Some((_, names)) => names.push(setting.name()),
                None => without_effect.push((row.feature, vec![setting.name()])),
            },
        }
    }
    let of_settings = without_effect.iter().map(|(feature, names)| {
        let message = format!("no effect: rubelet does not have {feature} yet");
        Warning::new(names.join(", "), message)
    });
    findings.warnings.extend(of_settings);
    findings.warnings.extend(gate_warnings(gates));
    findings
}

fn gate_warnings(gates: &FeatureGates) -> impl Iterator<Item = Warning> {
    let turned = Gate::all()
        .iter()
        .filter(|info| !is_in_use(info.gate) && gates.enabled(info.gate) != info.switch.default_value());
    turned.map(|info| {
        let setting = format!("featureGates.{}", info.name);
        Warning::new(setting, "no effect: rubelet does not have this feature yet")
    })
}

fn at<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(value, |value, name| value.get(name))
}

/// Whether a flag that no field stands behind has a value other than its default.
fn differs(flag: OwnFlag, flags: &KubeletFlags) -> bool {
    let default = KubeletFlags::default();
    match flag {
        OwnFlag::Help => false,
        OwnFlag::Version => flags.reported_version != default.reported_version,
        OwnFlag::RootDir => flags.root_dir != default.root_dir,
        OwnFlag::LockFile => flags.lock_file != default.lock_file,
        OwnFlag::ExitOnLockContention => flags.exit_on_lock_contention != default.exit_on_lock_contention,
        OwnFlag::HousekeepingInterval => flags.housekeeping_interval != default.housekeeping_interval,
        OwnFlag::Config => flags.config != default.config,
        OwnFlag::ConfigDir => flags.config_dir != default.config_dir,
        OwnFlag::RubeletConfig => flags.rubelet_config != default.rubelet_config,
        OwnFlag::Kubeconfig => flags.kubeconfig != default.kubeconfig,
        OwnFlag::BootstrapKubeconfig => flags.bootstrap_kubeconfig != default.bootstrap_kubeconfig,
        OwnFlag::HostnameOverride => flags.hostname_override != default.hostname_override,
        OwnFlag::NodeIp => flags.node_ip != default.node_ip,
        OwnFlag::NodeLabels => flags.node_labels != default.node_labels,
        OwnFlag::CloudProvider => flags.cloud_provider != default.cloud_provider,
        OwnFlag::RuntimeCgroups => flags.runtime_cgroups != default.runtime_cgroups,
        OwnFlag::SeccompDefault => flags.seccomp_default != default.seccomp_default,
        OwnFlag::ImageCredentialProviderConfig => {
            flags.image_credential_provider_config != default.image_credential_provider_config
        }
        OwnFlag::ImageCredentialProviderBinDir => {
            flags.image_credential_provider_bin_dir != default.image_credential_provider_bin_dir
        }
        OwnFlag::CertDir => flags.cert_dir != default.cert_dir,
        OwnFlag::MinimumContainerTtl => flags.minimum_container_ttl != default.minimum_container_ttl,
        OwnFlag::MaximumDeadContainersPerContainer => {
            flags.maximum_dead_containers_per_container != default.maximum_dead_containers_per_container
        }
        OwnFlag::MaximumDeadContainers => flags.maximum_dead_containers != default.maximum_dead_containers,
        OwnFlag::ExperimentalMounterPath => {
            flags.experimental_mounter_path != default.experimental_mounter_path
        }
        OwnFlag::ExperimentalAllocatableIgnoreEviction => {
            flags.experimental_allocatable_ignore_eviction != default.experimental_allocatable_ignore_eviction
        }
    }
}
