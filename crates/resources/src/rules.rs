//! The node's settings about resources, and facts about the node.
//!
//! Owns the two inputs that all decisions of this crate share. `Rules` is taken from the settings once; `NodeFacts` is what
//! adapters found on the machine.

use rubelet_config::gates::{FeatureGates, Gate};
use rubelet_config::kubelet_configuration::KubeletConfiguration;

use crate::amounts::Amounts;
use crate::cpu::DEFAULT_PERIOD_US;
use crate::swap::SwapBehavior;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CgroupVersion {
    V1,
    #[default]
    V2,
}

/// `memoryReservationPolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryReservation {
    #[default]
    None,
    /// `memory.min` for Guaranteed pods, `memory.low` for Burstable ones.
    Tiered,
}

/// The settings that bear on resources.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// Gate `PodLevelResources`.
    pub pod_level_resources: bool,
    /// Gate `PodLevelResourcesFixKubeletQOSClass` turned off: an empty `spec.resources` makes a pod BestEffort.
    pub empty_pod_level_decides_class: bool,
    /// Gate `MemoryQoS`; it means something on cgroup v2 only.
    pub memory_qos: bool,
    pub cpu_cfs_quota: bool,
    pub cpu_cfs_quota_period_us: i64,
    /// Gate `CustomCPUCFSQuotaPeriod`; without it quotas are computed for the kernel's own period.
    pub custom_period: bool,
    pub memory_reservation: MemoryReservation,
    pub memory_throttling_factor: Option<f64>,
    /// `singleProcessOOMKill`; `None` is off on cgroup v2.
    pub single_process_oom_kill: Option<bool>,
    pub swap: SwapBehavior,
    /// Not positive means unlimited.
    pub pod_pids_limit: i64,
}

impl Default for Rules {
    /// The default settings.
    fn default() -> Self {
        Self {
            pod_level_resources: true,
            empty_pod_level_decides_class: false,
            memory_qos: true,
            cpu_cfs_quota: true,
            cpu_cfs_quota_period_us: DEFAULT_PERIOD_US,
            custom_period: true,
            memory_reservation: MemoryReservation::None,
            memory_throttling_factor: None,
            single_process_oom_kill: None,
            swap: SwapBehavior::NoSwap,
            pod_pids_limit: -1,
        }
    }
}

impl Rules {
    pub fn new(configuration: &KubeletConfiguration, gates: &FeatureGates) -> Self {
        let defaults = Self::default();
        let period = configuration.cpu_cfs_quota_period;
        Self {
            pod_level_resources: gates.enabled(Gate::PodLevelResources),
            empty_pod_level_decides_class: !gates.enabled(Gate::PodLevelResourcesFixKubeletQOSClass),
            memory_qos: gates.enabled(Gate::MemoryQoS),
            cpu_cfs_quota: configuration.cpu_cfs_quota.unwrap_or(defaults.cpu_cfs_quota),
            cpu_cfs_quota_period_us: period.map_or(DEFAULT_PERIOD_US, |period| period.as_nanos() / 1000),
            custom_period: gates.enabled(Gate::CustomCPUCFSQuotaPeriod),
            memory_reservation: match configuration.memory_reservation_policy.as_str() {
                "TieredReservation" => MemoryReservation::Tiered,
                _ => MemoryReservation::None,
            },
            memory_throttling_factor: configuration.memory_throttling_factor,
            single_process_oom_kill: configuration.single_process_oom_kill,
            swap: SwapBehavior::by_name(&configuration.memory_swap.swap_behavior),
            pod_pids_limit: configuration.pod_pids_limit.unwrap_or(defaults.pod_pids_limit),
        }
    }

    /// The period that quotas are computed for.
    pub fn quota_period_us(&self) -> i64 {
        if self.custom_period {
            self.cpu_cfs_quota_period_us
        } else {
            DEFAULT_PERIOD_US
        }
    }

    pub fn enforces_memory_qos(&self, facts: &NodeFacts) -> bool {
        self.memory_qos && facts.cgroup == CgroupVersion::V2
    }

    pub fn is_tiered(&self) -> bool {
        self.memory_reservation == MemoryReservation::Tiered
    }
}

/// What the machine is like.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeFacts {
    pub cgroup: CgroupVersion,
    pub page_size_bytes: i64,
    /// The kernel's names, such as `2MB`, in the kernel's order.
    pub huge_page_sizes: Vec<String>,
    pub memory_capacity_bytes: i64,
    pub swap_capacity_bytes: i64,
    /// Whether swap can be limited per cgroup.
    pub has_swap_controller: bool,
    /// What pods may use in sum; empty while it is not known.
    pub allocatable: Amounts,
}
