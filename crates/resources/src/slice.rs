//! The systemd unit properties of a cgroup, and a cgroup with its files and its unit.
//!
//! Owns the names of unit properties and the rounding that systemd does to quotas. It makes no call.

use rubelet_model::CpuSet;
use rubelet_model::cgroup::{CgroupValues, PropertyValue, UnitProperty, UnitValues};

use crate::cgroup_files::file_values;
use crate::cgroup_name::{CgroupDriver, CgroupName};
use crate::cpu::{DEFAULT_PERIOD_US, weight_of_shares};
use crate::memory_qos::{HIGH, LOW, MIN, UNLIMITED};
use crate::pod_cgroup::PodCgroup;
use crate::rules::{CgroupVersion, NodeFacts};
use crate::swap::SWAP_MAX;

/// "No limit" in systemd's numbers.
const INFINITY: u64 = u64::MAX;
const US_PER_SECOND: u64 = 1_000_000;
/// systemd keeps quotas as whole percents of a processor.
const QUOTA_STEP_US: u64 = 10_000;

/// A cgroup with its files and, with systemd, its unit.
pub fn cgroup_values(
    name: &CgroupName,
    cgroup: &PodCgroup,
    driver: CgroupDriver,
    facts: &NodeFacts,
) -> CgroupValues {
    let path = name.path(driver);
    match driver {
        CgroupDriver::Cgroupfs => CgroupValues {
            path,
            files: file_values(cgroup, facts),
            unit: None,
        },
        CgroupDriver::Systemd => {
            // The files get what systemd makes of the quota, so that the two never fight over it.
            let rounded = with_rounded_quota(cgroup);
            let (name, parent) = name.slices();
            CgroupValues {
                path,
                files: file_values(&rounded, facts),
                unit: Some(UnitValues {
                    name,
                    parent,
                    properties: properties(&rounded, facts),
                }),
            }
        }
    }
}

fn number(name: &'static str, value: u64) -> UnitProperty {
    UnitProperty {
        name,
        value: PropertyValue::Number(value),
        since_version: 0,
    }
}

/// Processor time per second of the quota, in systemd's steps.
fn quota_per_second(quota_us: i64, period_us: u64) -> u64 {
    match u64::try_from(quota_us) {
        Ok(quota) if quota > 0 => {
            let exact = quota.saturating_mul(US_PER_SECOND) / period_us.max(1);
            exact.div_ceil(QUOTA_STEP_US).saturating_mul(QUOTA_STEP_US)
        }
        Ok(_) | Err(_) => INFINITY,
    }
}

fn period_of(cgroup: &PodCgroup) -> u64 {
    let period = cgroup.cpu_period_us.filter(|period| *period > 0);
    u64::try_from(period.unwrap_or(DEFAULT_PERIOD_US)).unwrap_or(US_PER_SECOND)
}

fn with_rounded_quota(cgroup: &PodCgroup) -> PodCgroup {
    let mut rounded = cgroup.clone();
    if let Some(quota) = cgroup.cpu_quota_us.filter(|quota| *quota > 0) {
        let period = period_of(cgroup);
        let exact = u64::try_from(quota).unwrap_or(0).saturating_mul(US_PER_SECOND) / period;
        if !exact.is_multiple_of(QUOTA_STEP_US) {
            let per_second = quota_per_second(quota, period);
            let rounded_us = per_second.saturating_mul(period) / US_PER_SECOND;
            rounded.cpu_quota_us = i64::try_from(rounded_us).ok();
        }
    }
    rounded
}

fn properties(cgroup: &PodCgroup, facts: &NodeFacts) -> Vec<UnitProperty> {
    let is_v2 = facts.cgroup == CgroupVersion::V2;
    let mut properties = Vec::new();
    if let Some(bytes) = cgroup.memory_bytes.filter(|bytes| *bytes != 0) {
        let name = if is_v2 { "MemoryMax" } else { "MemoryLimit" };
        properties.push(number(name, u64::try_from(bytes).unwrap_or(INFINITY)));
    }
    if let Some(shares) = cgroup.cpu_shares.filter(|shares| *shares != 0) {
        properties.push(if is_v2 {
            number("CPUWeight", weight_of_shares(shares))
        } else {
            number("CPUShares", shares)
        });
    }
    let period = cgroup.cpu_period_us.filter(|period| *period != 0);
    let quota = cgroup.cpu_quota_us.unwrap_or(0);
    if let Some(period) = period.and_then(|period| u64::try_from(period).ok()) {
        properties.push(UnitProperty {
            since_version: 242,
            ..number("CPUQuotaPeriodUSec", period)
        });
    }
    if quota != 0 || period.is_some() {
        let per_second = quota_per_second(quota, period_of(cgroup));
        properties.push(number("CPUQuotaPerSecUSec", per_second));
    }
    if let Some(pids) = cgroup.pids {
        // systemd does not take 0 for "none".
        let tasks = u64::try_from(pids).map_or(INFINITY, |pids| pids.max(1));
        properties.push(number("TasksMax", tasks));
    }
    if let Some(bits) = cgroup.cpus.as_deref().and_then(bits_of) {
        properties.push(UnitProperty {
            name: "AllowedCPUs",
            value: PropertyValue::Bits(bits),
            since_version: 244,
        });
    }
    if is_v2 {
        let unified = cgroup.unified.iter();
        properties.extend(unified.filter_map(|(file, value)| unified_property(file, value)));
    }
    properties
}

/// Files without a unit property are only written.
fn unified_property(file: &str, value: &str) -> Option<UnitProperty> {
    let name = match file {
        MIN => "MemoryMin",
        LOW => "MemoryLow",
        HIGH => "MemoryHigh",
        SWAP_MAX => "MemorySwapMax",
        _ => return None,
    };
    let value = match value {
        UNLIMITED => INFINITY,
        text => text.parse().ok()?,
    };
    Some(number(name, value))
}

/// Processors as bits, lowest first.
fn bits_of(list: &str) -> Option<Vec<u8>> {
    let set: CpuSet = list.trim().parse().ok()?;
    let mut bits = Vec::new();
    for cpu in set.iter() {
        let cpu = usize::try_from(cpu).ok()?;
        if bits.len() <= cpu / 8 {
            bits.resize(cpu / 8 + 1, 0_u8);
        }
        bits[cpu / 8] |= 1 << (cpu % 8);
    }
    (!bits.is_empty()).then_some(bits)
}
