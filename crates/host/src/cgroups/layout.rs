//! Where the kernel's cgroup hierarchies are mounted.
//!
//! Owns the reading of mountinfo: on version 1 every controller may have a mount of its own (also `cpu` and `cpuacct`), some may
//! be missing; on version 2 there is one tree. It changes nothing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::cgroup::CgroupVersion;

const ROOT: &str = "/sys/fs/cgroup";
/// The controllers of version 1; other fields of a mount are options.
const KNOWN: [&str; 13] = [
    "blkio",
    "cpu",
    "cpuacct",
    "cpuset",
    "devices",
    "freezer",
    "hugetlb",
    "memory",
    "misc",
    "net_cls",
    "net_prio",
    "perf_event",
    "pids",
];
/// Without these no pod can run as it should.
const REQUIRED: [&str; 4] = ["cpu", "cpuacct", "cpuset", "memory"];
/// A cgroup of version 1 is whole when it is there in these hierarchies, as far as they are mounted.
const CHECKED: [&str; 7] = ["cpu", "cpuacct", "cpuset", "hugetlb", "memory", "pids", "systemd"];
/// The controllers of version 2 that pods need, as far as the kernel has them.
const UNIFIED: [&str; 5] = ["cpu", "cpuset", "hugetlb", "memory", "pids"];

#[derive(Debug, Error)]
pub enum LayoutError {
    #[error("read {path}")]
    Unreadable {
        path: &'static str,
        #[source]
        source: std::io::Error,
    },
    #[error("these cgroup controllers are not mounted: {}", .0.join(", "))]
    NotMounted(Vec<&'static str>),
}

/// One mounted tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hierarchy {
    pub(super) mount: PathBuf,
    pub(super) controllers: BTreeSet<String>,
}

/// All mounted trees that a pod's cgroup is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub(super) version: CgroupVersion,
    pub(super) hierarchies: Vec<Hierarchy>,
}

impl Layout {
    /// Reads this machine's mounts.
    ///
    /// # Errors
    /// When they cannot be read or a controller is missing that no pod can do without.
    pub fn of_this_machine(version: CgroupVersion) -> Result<Self, LayoutError> {
        match version {
            CgroupVersion::V1 => {
                let path = "/proc/self/mountinfo";
                let mounts =
                    fs::read_to_string(path).map_err(|source| LayoutError::Unreadable { path, source })?;
                Self::of_mounts(&mounts)
            }
            CgroupVersion::V2 => {
                let path = "/sys/fs/cgroup/cgroup.controllers";
                let controllers =
                    fs::read_to_string(path).map_err(|source| LayoutError::Unreadable { path, source })?;
                Ok(Self::unified(Path::new(ROOT), &controllers))
            }
        }
    }

    pub(super) fn unified(mount: &Path, controllers: &str) -> Self {
        Self {
            version: CgroupVersion::V2,
            hierarchies: vec![Hierarchy {
                mount: mount.to_owned(),
                controllers: controllers.split_whitespace().map(str::to_owned).collect(),
            }],
        }
    }

    fn of_mounts(mountinfo: &str) -> Result<Self, LayoutError> {
        let mut found: Vec<Hierarchy> = mountinfo.lines().filter_map(hierarchy_of).collect();
        // A tree that is mounted a second time elsewhere is the same tree.
        found.sort_by_key(|hierarchy| !hierarchy.mount.starts_with(ROOT));
        let mut seen = BTreeSet::new();
        let mut hierarchies: Vec<Hierarchy> = found
            .into_iter()
            .filter(|hierarchy| seen.insert(hierarchy.controllers.clone()))
            .collect();
        hierarchies.sort_by(|one, other| one.mount.cmp(&other.mount));
        let layout = Self {
            version: CgroupVersion::V1,
            hierarchies,
        };
        let missing: Vec<&'static str> = REQUIRED
            .into_iter()
            .filter(|controller| layout.of(controller).is_none())
            .collect();
        if missing.is_empty() {
            Ok(layout)
        } else {
            Err(LayoutError::NotMounted(missing))
        }
    }

    /// The tree that a controller is in.
    pub(super) fn of(&self, controller: &str) -> Option<&Hierarchy> {
        self.hierarchies
            .iter()
            .find(|hierarchy| hierarchy.controllers.contains(controller))
    }

    /// Where the tree that counts memory is mounted.
    pub(crate) fn memory_mount(&self) -> Option<&Path> {
        self.of("memory").map(|hierarchy| hierarchy.mount.as_path())
    }

    /// Where the tree of version 1 with a controller is mounted.
    pub(crate) fn mount_of(&self, controller: &str) -> Option<&Path> {
        let tree = self.of(controller).filter(|_| self.version == CgroupVersion::V1);
        tree.map(|tree| tree.mount.as_path())
    }

    /// Where the tree that counts processor time is mounted.
    pub(crate) fn cpu_time_mount(&self) -> Option<&Path> {
        let controller = match self.version {
            CgroupVersion::V1 => "cpuacct",
            CgroupVersion::V2 => "cpu",
        };
        self.of(controller).map(|hierarchy| hierarchy.mount.as_path())
    }

    pub(crate) fn version(&self) -> CgroupVersion {
        self.version
    }

    /// The directories of a cgroup, one in each tree.
    pub(super) fn directories(&self, path: &str) -> impl Iterator<Item = PathBuf> {
        self.hierarchies
            .iter()
            .map(move |hierarchy| directory(&hierarchy.mount, path))
    }

    /// What a cgroup has to have: its directories on version 1, its controllers on version 2.
    pub(super) fn missing_parts(&self, path: &str) -> Vec<String> {
        match self.version {
            CgroupVersion::V1 => self
                .hierarchies
                .iter()
                .filter(|hierarchy| CHECKED.iter().any(|one| hierarchy.controllers.contains(*one)))
                .map(|hierarchy| directory(&hierarchy.mount, path))
                .filter(|directory| !directory.is_dir())
                .map(|directory| directory.display().to_string())
                .collect(),
            CgroupVersion::V2 => {
                let Some(tree) = self.hierarchies.first() else {
                    return vec![ROOT.to_owned()];
                };
                let file = directory(&tree.mount, path).join("cgroup.controllers");
                let Ok(text) = fs::read_to_string(&file) else {
                    return vec![file.display().to_string()];
                };
                let enabled: BTreeSet<&str> = text.split_whitespace().collect();
                let needed = UNIFIED.into_iter().filter(|one| tree.controllers.contains(*one));
                needed
                    .filter(|one| !enabled.contains(one))
                    .map(|one| format!("controller {one}"))
                    .collect()
            }
        }
    }
}

/// A cgroup's directory in one tree.
pub(super) fn directory(mount: &Path, path: &str) -> PathBuf {
    mount.join(path.trim_start_matches('/'))
}

/// The hierarchy of a line of mountinfo, if it is one.
fn hierarchy_of(line: &str) -> Option<Hierarchy> {
    let (before, after) = line.split_once(" - ")?;
    let mount = PathBuf::from(unescaped(before.split(' ').nth(4)?));
    let mut after = after.split(' ');
    let (kind, _source, options) = (after.next()?, after.next()?, after.next()?);
    match kind {
        "cgroup" => {
            let controllers: BTreeSet<String> = options
                .split(',')
                .map(|option| option.strip_prefix("name=").unwrap_or(option))
                .filter(|option| KNOWN.contains(option) || *option == "systemd")
                .map(str::to_owned)
                .collect();
            (!controllers.is_empty()).then_some(Hierarchy { mount, controllers })
        }
        // The hybrid layout: a tree without controllers beside the others.
        "cgroup2" if mount == Path::new("/sys/fs/cgroup/unified") => Some(Hierarchy {
            mount,
            controllers: BTreeSet::new(),
        }),
        _ => None,
    }
}

/// Blanks and the like are written as three octal digits.
fn unescaped(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (code, letter)| text.replace(code, letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEPARATE: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
35 31 0:32 / /mnt/again rw,relatime - cgroup cgroup rw,memory
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
42 31 0:39 / /sys/fs/cgroup/odd rw,relatime - cgroup cgroup rw,name=other
";

    #[test]
    fn every_controller_may_have_a_mount_of_its_own() {
        let layout = Layout::of_mounts(SEPARATE).unwrap();
        let mounts: Vec<String> = layout
            .directories("/a/b")
            .map(|path| path.display().to_string())
            .collect();
        assert_eq!(
            mounts,
            [
                "/sys/fs/cgroup/cpu/a/b",
                "/sys/fs/cgroup/cpuacct/a/b",
                "/sys/fs/cgroup/cpuset/a/b",
                "/sys/fs/cgroup/memory/a/b",
                "/sys/fs/cgroup/systemd/a/b",
                "/sys/fs/cgroup/unified/a/b",
            ]
        );
        assert!(layout.of("pids").is_none(), "a controller may be missing");
    }

    #[test]
    fn controllers_may_share_a_mount() {
        let mounts = SEPARATE
            .lines()
            .filter(|line| !line.ends_with(",cpuacct"))
            .map(|line| {
                line.replace("rw,cpu\n", "")
                    .replace("- cgroup cgroup rw,cpu", "- cgroup cgroup rw,cpu,cpuacct")
            })
            .collect::<Vec<_>>()
            .join("\n");
        let mounts = mounts.replace("rw,cpu,cpuacctset", "rw,cpuset");
        let layout = Layout::of_mounts(&mounts).unwrap();
        assert_eq!(layout.of("cpu"), layout.of("cpuacct"));
    }

    #[test]
    fn what_pods_cannot_do_without_is_named() {
        let error = Layout::of_mounts("").unwrap_err();
        assert_eq!(
            error.to_string(),
            "these cgroup controllers are not mounted: cpu, cpuacct, cpuset, memory"
        );
    }

    #[test]
    fn version_2_is_one_tree() {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::unified(root.path(), "cpuset cpu io memory pids\n");
        assert_eq!(layout.directories("/a").count(), 1);
        assert_eq!(layout.missing_parts("/a").len(), 1);
        fs::create_dir(root.path().join("a")).unwrap();
        fs::write(root.path().join("a/cgroup.controllers"), "cpu memory\n").unwrap();
        assert_eq!(
            layout.missing_parts("/a"),
            ["controller cpuset", "controller pids"]
        );
    }
}
