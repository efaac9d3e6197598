//! The host's cgroups of version 1 as a test sees them: what is there and what the kernel says of it.
//!
//! Owns looking, and making a cgroup for a test to live below. Nothing is removed here: that is the scope's teardown.

use std::collections::BTreeMap;
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
    pub fn values(&self, path: &str) -> Result<BTreeMap<&'static str, String>> {
        VALUES
            .iter()
            .map(|(hierarchy, file)| Ok((*file, self.read(hierarchy, path, file)?)))
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
