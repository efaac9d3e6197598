//! Conversions between thousandths of a CPU and the kernel's shares, weights and quotas.
//!
//! Owns the formulas. Numbers wrap where upstream's wrap; nothing here knows a pod.

pub const MIN_SHARES: u64 = 2;
pub const MAX_SHARES: u64 = 262_144;
pub const SHARES_PER_CPU: i64 = 1024;
pub const MILLI_CPU_PER_CPU: i64 = 1000;
/// The kernel's own accounting period.
pub const DEFAULT_PERIOD_US: i64 = 100_000;
/// The kernel refuses a quota below this.
pub const MIN_QUOTA_US: i64 = 1000;
/// No quota at all.
pub const UNLIMITED_QUOTA: i64 = -1;

pub fn shares_of_milli_cpu(milli_cpu: i64) -> u64 {
    let shares = milli_cpu.wrapping_mul(SHARES_PER_CPU) / MILLI_CPU_PER_CPU;
    u64::try_from(shares).map_or(MIN_SHARES, |shares| shares.clamp(MIN_SHARES, MAX_SHARES))
}

pub fn milli_cpu_of_shares(shares: i64) -> i64 {
    if shares < MIN_SHARES as i64 {
        return 0;
    }
    (shares.wrapping_mul(MILLI_CPU_PER_CPU) as f64 / SHARES_PER_CPU as f64).ceil() as i64
}

/// Zero means that no quota is wanted.
pub fn quota_of_milli_cpu(milli_cpu: i64, period_us: i64) -> i64 {
    if milli_cpu == 0 {
        return 0;
    }
    (milli_cpu.wrapping_mul(period_us) / MILLI_CPU_PER_CPU).max(MIN_QUOTA_US)
}

/// Zero for "unlimited", and for a period that cannot be.
pub fn milli_cpu_of_quota(quota_us: i64, period_us: i64) -> i64 {
    if quota_us == UNLIMITED_QUOTA || period_us == 0 {
        return 0;
    }
    quota_us.wrapping_mul(MILLI_CPU_PER_CPU) / period_us
}

/// cgroup v2's weight for the kubelet's own cgroups; runtimes use another curve for their containers.
pub fn weight_of_shares(shares: u64) -> u64 {
    if shares >= MAX_SHARES {
        return 10_000;
    }
    1 + shares.saturating_sub(MIN_SHARES) * 9999 / 262_142
}

/// The shares that a weight is read back as.
pub fn shares_of_weight(weight: u64) -> u64 {
    weight.saturating_sub(1) * 262_142 / 9999 + MIN_SHARES
}

/// Whether the shares that were read are the written ones, given what the way through a weight loses.
pub fn is_same_after_weight(written_shares: u64, read_shares: u64) -> bool {
    shares_of_weight(weight_of_shares(written_shares)) == read_shares
}
