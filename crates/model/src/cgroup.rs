//! What a cgroup is to be: its place, its files, and its unit where systemd owns the tree.
//!
//! Owns the types that decisions and the adapter share. Which values a pod gets is decided elsewhere; the adapter writes them
//! to the kernel.

/// One value for one file of a cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileValue {
    /// cgroup v1 mounts each controller at its own place.
    pub controller: &'static str,
    pub file: String,
    pub value: String,
    /// Kernels exist that do not have this file.
    pub is_optional: bool,
}

/// One file of a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePlace {
    /// cgroup v1 mounts each controller at its own place.
    pub controller: &'static str,
    pub file: &'static str,
}

/// A value of a unit's property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PropertyValue {
    /// The largest number means "no limit".
    Number(u64),
    /// A set of numbers as bits, lowest first.
    Bits(Vec<u8>),
}

/// A property of a systemd unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitProperty {
    pub name: &'static str,
    pub value: PropertyValue,
    /// The first systemd that knows it.
    pub since_version: u32,
}

/// The slice that a cgroup is to systemd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitValues {
    /// Such as `kubepods-burstable.slice`.
    pub name: String,
    /// The slice above it; `-.slice` at the top.
    pub parent: String,
    pub properties: Vec<UnitProperty>,
}

/// One cgroup with all its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupValues {
    /// Below the mounts, with a slash first.
    pub path: String,
    /// In the order in which they are written.
    pub files: Vec<FileValue>,
    /// Only where systemd owns the tree.
    pub unit: Option<UnitValues>,
}

/// A cgroup without its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupPlace {
    /// Below the mounts, with a slash first.
    pub path: String,
    /// The slice's name, only where systemd owns the tree.
    pub unit: Option<String>,
}

/// What a pod's cgroup has, as the kernel shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodCgroupReading {
    /// `None` where nothing is limited.
    pub memory_limit_bytes: Option<i64>,
    /// What is charged to it now, page cache included.
    pub memory_usage_bytes: Option<u64>,
    pub cpu_shares: Option<u64>,
    /// `None` where nothing is limited.
    pub cpu_quota_us: Option<i64>,
    pub cpu_period_us: Option<i64>,
}

/// A part of a pod's cgroup that changes while the pod runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodCgroupPart {
    /// With the other values of memory.
    MemoryLimit,
    CpuQuota,
    CpuShares,
}
