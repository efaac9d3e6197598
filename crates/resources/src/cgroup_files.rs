//! Which files a cgroup's values go to, on both versions.
//!
//! Owns file names and value formats, in an order in which the kernel takes them. It writes nothing.

use rubelet_model::cgroup::FileValue;

use crate::cpu::weight_of_shares;
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
