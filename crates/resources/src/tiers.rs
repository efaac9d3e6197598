//! The cgroups between a node's pods and the node: `kubepods` and its tiers.
//!
//! Owns what follows from the sum of the pods. What the node's allocatable amounts
//! mean for `kubepods` is in `node_cgroup`.

use rubelet_model::pod::QosClass;

use crate::amounts::{CPU, MEMORY};
use crate::cpu::{MIN_SHARES, shares_of_milli_cpu};
use crate::demand::{Overhead, PodDemand};
use crate::memory_qos::{LOW, MIN};
use crate::pod_cgroup::PodCgroup;
use crate::qos::qos_class;
use crate::rules::{CgroupVersion, NodeFacts, Rules};

/// More bytes than any machine has; the tiers do not bound huge pages.
pub const UNBOUNDED_HUGE_PAGES: i64 = 1 << 62;

/// The values of the three cgroups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tiers {
    /// `kubepods`, which also is the parent of Guaranteed pods.
    pub kubepods: PodCgroup,
    pub burstable: PodCgroup,
    pub best_effort: PodCgroup,
    pub protected: ProtectedMemory,
}

/// The sums of what the kernel keeps for pods, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProtectedMemory {
    /// Of Guaranteed pods, which is never taken away.
    pub min_bytes: i64,
    /// Of Burstable pods, which is taken away last.
    pub low_bytes: i64,
}

/// What one pod adds to the sums that the tiers are made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierShare {
    class: QosClass,
    milli_cpu: i64,
    memory_bytes: i64,
}

impl TierShare {
    #[must_use]
    pub fn of(pod: &PodDemand, rules: &Rules) -> Self {
        // Upstream counts pod-level memory here whatever the gate's value.
        let with_pod_level = Rules {
            pod_level_resources: true,
            ..rules.clone()
        };
        Self {
            class: qos_class(pod, rules),
            milli_cpu: pod.requests(rules, Overhead::Included).milli_value(CPU),
            memory_bytes: pod.requests(&with_pod_level, Overhead::Included).value(MEMORY),
        }
    }
}

/// The sums of the active pods. A pod that comes or goes costs one addition, however many others there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierSums {
    burstable_milli_cpu: i64,
    burstable_bytes: i64,
    guaranteed_bytes: i64,
}

impl TierSums {
    pub fn add(&mut self, share: TierShare) {
        self.change(share, i64::wrapping_add);
    }

    /// The exact reverse of [`Self::add`], also where sums wrap.
    pub fn remove(&mut self, share: TierShare) {
        self.change(share, i64::wrapping_sub);
    }

    fn change(&mut self, share: TierShare, change: fn(i64, i64) -> i64) {
        match share.class {
            QosClass::Guaranteed => {
                self.guaranteed_bytes = change(self.guaranteed_bytes, share.memory_bytes);
            }
            QosClass::Burstable => {
                self.burstable_milli_cpu = change(self.burstable_milli_cpu, share.milli_cpu);
                self.burstable_bytes = change(self.burstable_bytes, share.memory_bytes);
            }
            QosClass::BestEffort => {}
        }
    }
}

/// The values for the active pods.
#[must_use]
pub fn plan_tiers(sums: &TierSums, rules: &Rules, facts: &NodeFacts) -> Tiers {
    let mut tiers = Tiers::default();
    tiers.best_effort.cpu_shares = Some(MIN_SHARES);
    tiers.burstable.cpu_shares = Some(shares_of_milli_cpu(sums.burstable_milli_cpu));
    for tier in [&mut tiers.kubepods, &mut tiers.burstable, &mut tiers.best_effort] {
        let sizes = facts.huge_page_sizes.iter().filter_map(|name| size_of_name(name));
        tier.huge_page_limits = sizes.map(|size| (size, UNBOUNDED_HUGE_PAGES)).collect();
    }
    if facts.cgroup == CgroupVersion::V2 {
        // Values of an earlier start must not outlive a change of the policy.
        let (guaranteed, burstable) = if rules.memory_qos && rules.is_tiered() {
            (sums.guaranteed_bytes, sums.burstable_bytes)
        } else {
            (0, 0)
        };
        tiers.protected = ProtectedMemory {
            min_bytes: guaranteed,
            low_bytes: burstable,
        };
        let text = |bytes: i64| bytes.to_string();
        tiers
            .kubepods
            .unified
            .insert(MIN.to_owned(), text(guaranteed.wrapping_add(burstable)));
        tiers.kubepods.unified.insert(LOW.to_owned(), text(burstable));
        tiers.burstable.unified.insert(LOW.to_owned(), text(burstable));
    }
    tiers
}

/// `2MB` to bytes; the kernel's names count in 1024s.
pub(crate) fn size_of_name(name: &str) -> Option<i64> {
    let digits = name.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let power = match &name[digits.len()..] {
        "B" => 0,
        "KB" => 1,
        "MB" => 2,
        "GB" => 3,
        "TB" => 4,
        "PB" => 5,
        _ => return None,
    };
    digits
        .parse::<i64>()
        .ok()?
        .checked_mul(1024_i64.checked_pow(power)?)
}
