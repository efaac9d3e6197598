//! The host's cgroups of version 1 as a test sees them: what is there and what the kernel says of it.
//!
//! Owns looking, and making a cgroup for a test to live below. Nothing is removed here: that is the scope's teardown.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::teardown::entries;

/// The values of a pod's cgroup that a kubelet sets, by the hierarchy that they are in.
const VALUES: [(&str, &str); 6] = [
    ("cpu", "cpu.shares"),
    ("cpu", "cpu.cfs_quota_us"),
    ("cpu", "cpu.cfs_period_us"),
    ("cpuset", "cpuset.cpus"),
    ("memory", "memory.limit_in_bytes"),
    ("pids", "pids.max"),
];

/// The files that limit huge pages, one for each size of the machine; none where nobody counts them.
fn huge_page_limits() -> Vec<String> {
    if !Path::new("/sys/fs/cgroup/hugetlb").is_dir() {
        return Vec::new();
    }
    let sizes = entries("/sys/kernel/mm/hugepages")
        .into_iter()
        .filter_map(|size| {
            let name = size.file_name()?.to_str()?.strip_prefix("hugepages-")?;
            let kib: u64 = name.strip_suffix("kB")?.parse().ok()?;
            Some(kib)
        });
    sizes.map(huge_page_limit).collect()
}

fn huge_page_limit(size_kib: u64) -> String {
    let (number, unit) = match size_kib {
        size if size >= 1 << 20 => (size >> 20, "GB"),
        size if size >= 1 << 10 => (size >> 10, "MB"),
        size => (size, "KB"),
    };
    format!("hugetlb.{number}{unit}.limit_in_bytes")
}

/// A part of the tree, such as the cgroup root of a scope.
#[derive(Clone, Debug)]
pub struct CgroupTree {
    root: String,
}

impl CgroupTree {
    /// Below a path such as `/rubelet-test-x`.
    pub fn at(root: impl Into<String>) -> Self {
        Self { root: root.into() }
    }

    /// Makes the root itself in every hierarchy, as an administrator does who names it in `cgroupRoot`.
    pub fn make(&self) -> Result<()> {
        self.make_below("")
    }

    /// Makes a cgroup below the root in every hierarchy.
    pub fn make_below(&self, path: &str) -> Result<()> {
        for directory in self.directories(path) {
            fs::create_dir_all(&directory).with_context(|| format!("make {}", directory.display()))?;
        }
        Ok(())
    }

    /// A cgroup's directories, one in every hierarchy, whether they are there or not.
    pub fn directories(&self, path: &str) -> Vec<PathBuf> {
        let below = format!("{}{path}", self.root);
        entries("/sys/fs/cgroup")
            .into_iter()
            .map(|mount| mount.join(below.trim_start_matches('/')))
            .collect()
    }

    /// That a cgroup is there in every hierarchy.
    pub fn check_there(&self, path: &str) -> Result<()> {
        for directory in self.directories(path) {
            ensure!(directory.is_dir(), "{} is not there", directory.display());
        }
        Ok(())
    }

    /// That nothing is left of a cgroup in any hierarchy.
    pub fn check_gone(&self, path: &str) -> Result<()> {
        for directory in self.directories(path) {
            ensure!(!directory.exists(), "{} is still there", directory.display());
        }
        Ok(())
    }

    /// The UIDs of the pods that have a cgroup in any hierarchy.
    pub fn pods(&self) -> BTreeSet<String> {
        ["", "/burstable", "/besteffort"]
            .iter()
            .flat_map(|tier| self.directories(&format!("/kubepods{tier}")))
            .flat_map(entries)
            .filter_map(|path| Some(path.file_name()?.to_str()?.strip_prefix("pod")?.to_owned()))
            .collect()
    }

    fn file(&self, hierarchy: &str, path: &str, file: &str) -> PathBuf {
        let below = format!("{}{path}", self.root);
        Path::new("/sys/fs/cgroup")
            .join(hierarchy)
            .join(below.trim_start_matches('/'))
            .join(file)
    }

    /// One value, without the line's end.
    pub fn read(&self, hierarchy: &str, path: &str, file: &str) -> Result<String> {
        let file = self.file(hierarchy, path, file);
        let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        Ok(text.trim().to_owned())
    }

    /// Everything that a kubelet sets on a cgroup.
    pub fn values(&self, path: &str) -> Result<BTreeMap<String, String>> {
        let mut files: Vec<(&str, String)> = VALUES
            .iter()
            .map(|(hierarchy, file)| (*hierarchy, (*file).to_owned()))
            .collect();
        files.extend(huge_page_limits().into_iter().map(|file| ("hugetlb", file)));
        files
            .into_iter()
            .map(|(hierarchy, file)| {
                let value = self.read(hierarchy, path, &file)?;
                Ok((file, value))
            })
            .collect()
    }

    /// Puts a process into a cgroup, in every hierarchy.
    pub fn enter(&self, path: &str, pid: u32) -> Result<()> {
        for directory in self.directories(path) {
            let file = directory.join("cgroup.procs");
            fs::write(&file, pid.to_string()).with_context(|| format!("write {}", file.display()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_huge_pages_are_written_as_the_kernel_does() {
        let check = |kib, file: &str| assert_eq!(huge_page_limit(kib), file);
        check(64, "hugetlb.64KB.limit_in_bytes");
        check(2048, "hugetlb.2MB.limit_in_bytes");
        check(1 << 20, "hugetlb.1GB.limit_in_bytes");
    }
}
