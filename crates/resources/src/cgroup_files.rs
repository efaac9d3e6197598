//! Which files a cgroup's values go to, on both versions.
//!
//! Owns file names and value formats, in an order in which the kernel takes them, and how values are read back. It opens nothing.

use rubelet_model::cgroup::{FilePlace, FileValue, PodCgroupReading};

use crate::cpu::{shares_of_weight, weight_of_shares};
use crate::huge_pages::page_size_name;
use crate::pod_cgroup::PodCgroup;
use crate::rules::{CgroupVersion, NodeFacts};

fn required(controller: &'static str, file: impl Into<String>, value: &impl ToString) -> FileValue {
    FileValue {
        controller,
        file: file.into(),
        value: value.to_string(),
        is_optional: false,
    }
}

/// The files to write for the values.
pub fn file_values(cgroup: &PodCgroup, facts: &NodeFacts) -> Vec<FileValue> {
    let mut files = match facts.cgroup {
        CgroupVersion::V1 => v1_values(cgroup),
        CgroupVersion::V2 => v2_values(cgroup),
    };
    files.extend(huge_page_values(cgroup, facts));
    if facts.cgroup == CgroupVersion::V2 {
        let unified = cgroup.unified.iter();
        files.extend(unified.map(|(file, value)| required(controller_of(file), file, value)));
    }
    files
}

fn controller_of(file: &str) -> &'static str {
    match file.split('.').next() {
        Some("cpu") => "cpu",
        Some("cpuset") => "cpuset",
        Some("pids") => "pids",
        Some("hugetlb") => "hugetlb",
        Some(_) | None => "memory",
    }
}

fn v1_values(cgroup: &PodCgroup) -> Vec<FileValue> {
    let mut files = Vec::new();
    if let Some(bytes) = cgroup.memory_bytes.filter(|bytes| *bytes != 0) {
        files.push(required("memory", "memory.limit_in_bytes", &bytes));
    }
    if let Some(shares) = cgroup.cpu_shares.filter(|shares| *shares != 0) {
        files.push(required("cpu", "cpu.shares", &shares));
    }
    if let Some(period) = cgroup.cpu_period_us.filter(|period| *period != 0) {
        files.push(required("cpu", "cpu.cfs_period_us", &period));
    }
    if let Some(quota) = cgroup.cpu_quota_us.filter(|quota| *quota != 0) {
        files.push(required("cpu", "cpu.cfs_quota_us", &quota));
    }
    if let Some(pids) = cgroup.pids {
        files.push(required("pids", "pids.max", &maximum(pids)));
    }
    files.extend(cpu_set(cgroup));
    files
}

fn cpu_set(cgroup: &PodCgroup) -> Option<FileValue> {
    let cpus = cgroup.cpus.as_ref()?;
    Some(required("cpuset", "cpuset.cpus", cpus))
}

fn v2_values(cgroup: &PodCgroup) -> Vec<FileValue> {
    let mut files = Vec::new();
    if let Some(bytes) = cgroup.memory_bytes.filter(|bytes| *bytes != 0) {
        files.push(required("memory", "memory.max", &maximum(bytes)));
    }
    if let Some(shares) = cgroup.cpu_shares.filter(|shares| *shares != 0) {
        files.push(required("cpu", "cpu.weight", &weight_of_shares(shares)));
    }
    if cgroup.cpu_quota_us.is_some() || cgroup.cpu_period_us.is_some() {
        let mut value = maximum(cgroup.cpu_quota_us.unwrap_or(0));
        if let Some(period) = cgroup.cpu_period_us.filter(|period| *period != 0) {
            value.push_str(&format!(" {period}"));
        }
        files.push(required("cpu", "cpu.max", &value));
    }
    if let Some(pids) = cgroup.pids {
        files.push(required("pids", "pids.max", &maximum(pids)));
    }
    files.extend(cpu_set(cgroup));
    files
}

fn maximum(value: i64) -> String {
    if value > 0 {
        value.to_string()
    } else {
        "max".to_owned()
    }
}

/// Sizes that are not named are limited to nothing.
fn huge_page_values(cgroup: &PodCgroup, facts: &NodeFacts) -> Vec<FileValue> {
    let named = cgroup
        .huge_page_limits
        .iter()
        .filter_map(|(size, limit)| Some((page_size_name(*size)?, *limit)));
    let named: std::collections::BTreeMap<String, i64> = named.collect();
    let unnamed = facts
        .huge_page_sizes
        .iter()
        .filter(|size| !named.contains_key(*size))
        .map(|size| (size.clone(), 0));
    let suffix = match facts.cgroup {
        CgroupVersion::V1 => "limit_in_bytes",
        CgroupVersion::V2 => "max",
    };
    let files = |(size, limit): (String, i64)| {
        let reserved = FileValue {
            is_optional: true,
            ..required("hugetlb", format!("hugetlb.{size}.rsvd.{suffix}"), &limit)
        };
        [
            required("hugetlb", format!("hugetlb.{size}.{suffix}"), &limit),
            reserved,
        ]
    };
    named.clone().into_iter().chain(unnamed).flat_map(files).collect()
}

const fn place(controller: &'static str, file: &'static str) -> FilePlace {
    FilePlace { controller, file }
}

/// More than any machine has: the kernel's "no limit" of version 1, less than a page below the largest number.
const V1_UNLIMITED_BYTES: i64 = 1 << 62;

const V1_READING: [FilePlace; 5] = [
    place("memory", "memory.limit_in_bytes"),
    place("memory", "memory.usage_in_bytes"),
    place("cpu", "cpu.shares"),
    place("cpu", "cpu.cfs_quota_us"),
    place("cpu", "cpu.cfs_period_us"),
];
const V2_READING: [FilePlace; 4] = [
    place("memory", "memory.max"),
    place("memory", "memory.current"),
    place("cpu", "cpu.weight"),
    place("cpu", "cpu.max"),
];

/// The files that a pod's cgroup is read from.
#[must_use]
pub fn reading_files(version: CgroupVersion) -> &'static [FilePlace] {
    match version {
        CgroupVersion::V1 => &V1_READING,
        CgroupVersion::V2 => &V2_READING,
    }
}

/// What a pod's cgroup has, by the texts of [`reading_files`]. What is missing or no number is not known.
#[must_use]
pub fn read_files(texts: &[Option<String>], version: CgroupVersion) -> PodCgroupReading {
    let text = |index: usize| texts.get(index).and_then(Option::as_deref).map(str::trim);
    let number = |index: usize| text(index).and_then(|text| text.parse::<i64>().ok());
    let unsigned = |index: usize| number(index).and_then(|number| u64::try_from(number).ok());
    let limited = |limit: Option<i64>| limit.filter(|limit| (1..V1_UNLIMITED_BYTES).contains(limit));
    let memory_limit_bytes = limited(number(0));
    let memory_usage_bytes = unsigned(1);
    match version {
        CgroupVersion::V1 => PodCgroupReading {
            memory_limit_bytes,
            memory_usage_bytes,
            cpu_shares: unsigned(2),
            cpu_quota_us: number(3).filter(|quota| *quota > 0),
            cpu_period_us: number(4),
        },
        CgroupVersion::V2 => {
            let (quota, period) = text(3).and_then(|text| text.split_once(' ')).unwrap_or_default();
            PodCgroupReading {
                memory_limit_bytes,
                memory_usage_bytes,
                cpu_shares: unsigned(2).map(shares_of_weight),
                cpu_quota_us: quota.parse().ok(),
                cpu_period_us: period.parse().ok(),
            }
        }
    }
}
