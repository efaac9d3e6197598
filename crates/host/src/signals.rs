//! The kernel's figures of memory, filesystems and processes of the whole node, as eviction signals use them.
//!
//! Owns which files are read and the deadline of each call: a filesystem may be dead, and then only its own reading is missing.
//! Values are those that upstream's kubelet sees; nothing is judged here.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use rubelet_model::signals::{FilesystemReading, MemoryReading, ProcessReading};
use rubelet_ports::{NodeSignals, SignalError};

use crate::blocking::{BlockingPool, PoolLimits};
use crate::cgroup::CgroupVersion;
use crate::cgroups::Layout;
use crate::machine::meminfo_bytes;
use crate::processes;

/// The kernel answers in milliseconds; what takes this long is a dead filesystem.
const CALL_DEADLINE: Duration = Duration::from_secs(5);
/// Version 1 shows no limit as a number near the largest one, rounded to pages.
const UNLIMITED_BYTES: u64 = 1 << 62;

/// The readings of this machine.
#[derive(Clone)]
pub struct HostSignals {
    tree: MemoryTree,
    pool: BlockingPool,
}

impl HostSignals {
    /// With the machine's cgroups as they are mounted.
    #[must_use]
    pub fn new(layout: &Layout) -> Self {
        let mount = layout.memory_mount().unwrap_or(Path::new("/sys/fs/cgroup"));
        Self {
            tree: MemoryTree {
                version: layout.version(),
                mount: mount.to_owned(),
            },
            // A few readings every few seconds; those that hang keep a thread each.
            pool: BlockingPool::with_own_files(PoolLimits {
                threads: 2,
                stuck_threads: 4,
                queue: 32,
                idle: Duration::from_secs(2),
                ..PoolLimits::default()
            }),
        }
    }

    async fn run<T: Send + 'static>(
        &self,
        path: &Path,
        call: impl FnOnce() -> Result<T, SignalError> + Send + 'static,
    ) -> Result<T, SignalError> {
        let answer = self.pool.run(path, CALL_DEADLINE, call).await;
        answer.unwrap_or_else(|error| Err(SignalError::new(path.display().to_string(), error.to_string())))
    }
}

#[async_trait]
impl NodeSignals for HostSignals {
    async fn memory(&self) -> Result<MemoryReading, SignalError> {
        let tree = self.tree.clone();
        self.run(&self.tree.mount, move || tree.of_machine(Path::new("/proc")))
            .await
    }

    async fn cgroup_memory(&self, cgroup: &str) -> Result<Option<MemoryReading>, SignalError> {
        let directory = self.tree.mount.join(cgroup.trim_start_matches('/'));
        let (tree, owned) = (self.tree.clone(), directory.clone());
        self.run(&directory, move || tree.of_cgroup(&owned)).await
    }

    async fn filesystem(&self, path: &Path) -> Result<FilesystemReading, SignalError> {
        let owned = path.to_owned();
        self.run(path, move || filesystem(&owned)).await
    }

    async fn processes(&self) -> Result<ProcessReading, SignalError> {
        self.run(Path::new("/proc/loadavg"), || processes_below(Path::new("/")))
            .await
    }
}

/// The hierarchy that counts memory.
#[derive(Clone)]
struct MemoryTree {
    version: CgroupVersion,
    mount: PathBuf,
}

impl MemoryTree {
    /// Of the root cgroup; what limits it is what the machine has.
    fn of_machine(&self, proc: &Path) -> Result<MemoryReading, SignalError> {
        let info = proc.join("meminfo");
        let total = meminfo_bytes(&text(&info)?, "MemTotal");
        if total == 0 {
            return Err(SignalError::new(info.display().to_string(), "has no MemTotal"));
        }
        let stat = self.stat(&self.mount)?;
        let usage = match number_if_any(&self.mount.join(self.usage_file()))? {
            Some(usage) => usage,
            // The root of version 2 has no such file; its value would be the sum of these two.
            None => stat.value("anon").saturating_add(stat.value("file")),
        };
        Ok(MemoryReading {
            limit_bytes: Some(total),
            usage_bytes: usage,
            inactive_file_bytes: stat.value(self.inactive_key()),
        })
    }

    fn of_cgroup(&self, directory: &Path) -> Result<Option<MemoryReading>, SignalError> {
        let Some(usage) = number_if_any(&directory.join(self.usage_file()))? else {
            return Ok(None);
        };
        let limit = number_if_any(&directory.join(self.limit_file()))?;
        let stat = self.stat(directory)?;
        Ok(Some(MemoryReading {
            limit_bytes: limit.filter(|limit| *limit <= UNLIMITED_BYTES),
            usage_bytes: usage,
            inactive_file_bytes: stat.value(self.inactive_key()),
        }))
    }

    fn stat(&self, directory: &Path) -> Result<MemoryStat, SignalError> {
        text(&directory.join("memory.stat")).map(MemoryStat)
    }

    fn usage_file(&self) -> &'static str {
        match self.version {
            CgroupVersion::V1 => "memory.usage_in_bytes",
            CgroupVersion::V2 => "memory.current",
        }
    }

    fn limit_file(&self) -> &'static str {
        match self.version {
            CgroupVersion::V1 => "memory.limit_in_bytes",
            CgroupVersion::V2 => "memory.max",
        }
    }

    /// The sum over all cgroups below has a name of its own on version 1.
    fn inactive_key(&self) -> &'static str {
        match self.version {
            CgroupVersion::V1 => "total_inactive_file",
            CgroupVersion::V2 => "inactive_file",
        }
    }
}

/// Lines of a name and a number.
struct MemoryStat(String);

impl MemoryStat {
    /// Zero for what the kernel does not count.
    fn value(&self, key: &str) -> u64 {
        let mut lines = self.0.lines().filter_map(|line| line.split_once(' '));
        let found = lines.find(|(name, _)| *name == key);
        found
            .and_then(|(_, number)| number.trim().parse().ok())
            .unwrap_or(0)
    }
}

fn failed(path: &Path, error: &io::Error) -> SignalError {
    SignalError::new(path.display().to_string(), error.to_string())
}

fn text(path: &Path) -> Result<String, SignalError> {
    fs::read_to_string(path).map_err(|error| failed(path, &error))
}

/// The number in a file; nothing where there is no such file. `max` is the largest one.
fn number_if_any(path: &Path) -> Result<Option<u64>, SignalError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(path, &error)),
    };
    match text.trim() {
        "max" => Ok(Some(u64::MAX)),
        number => number
            .parse()
            .map(Some)
            .map_err(|_| SignalError::new(path.display().to_string(), "is no number")),
    }
}

fn filesystem(path: &Path) -> Result<FilesystemReading, SignalError> {
    let failed = |error: rustix::io::Errno| failed(path, &error.into());
    let facts = rustix::fs::statvfs(path).map_err(failed)?;
    let file = rustix::fs::stat(path).map_err(failed)?;
    Ok(FilesystemReading {
        device: file.st_dev,
        capacity_bytes: facts.f_blocks.saturating_mul(facts.f_frsize),
        available_bytes: facts.f_bavail.saturating_mul(facts.f_frsize),
        inodes: facts.f_files,
        inodes_free: facts.f_ffree,
    })
}

fn processes_below(root: &Path) -> Result<ProcessReading, SignalError> {
    let most = processes::most_below(root)
        .ok_or_else(|| SignalError::new("/proc/sys/kernel", "has no limit on processes"))?;
    let path = root.join("proc/loadavg");
    let load = text(&path)?;
    // `0.00 0.01 0.05 running/all last-pid`
    let all = load
        .split_whitespace()
        .nth(3)
        .and_then(|part| part.split_once('/'));
    let running = all.and_then(|(_, all)| all.parse().ok()).ok_or_else(|| {
        SignalError::new(
            path.display().to_string(),
            "does not have the number of processes",
        )
    })?;
    Ok(ProcessReading { most, running })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Files(tempfile::TempDir);

    impl Files {
        fn new(files: &[(&str, &str)]) -> Self {
            let root = tempfile::tempdir().unwrap();
            for (path, text) in files {
                let path = root.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(root)
        }

        fn tree(&self, version: CgroupVersion) -> MemoryTree {
            MemoryTree {
                version,
                mount: self.0.path().join("cgroup"),
            }
        }

        fn machine(&self, version: CgroupVersion) -> Result<MemoryReading, SignalError> {
            self.tree(version).of_machine(&self.0.path().join("proc"))
        }

        fn pods(&self, version: CgroupVersion) -> Result<Option<MemoryReading>, SignalError> {
            let tree = self.tree(version);
            tree.of_cgroup(&tree.mount.join("kubepods"))
        }
    }

    fn reading(limit: Option<u64>, usage: u64, inactive: u64) -> MemoryReading {
        MemoryReading {
            limit_bytes: limit,
            usage_bytes: usage,
            inactive_file_bytes: inactive,
        }
    }

    const INFO: (&str, &str) = ("proc/meminfo", "MemTotal:       1000 kB\nMemFree: 5 kB\n");

    #[test]
    fn version_1_counts_what_is_below_by_another_name() {
        let files = Files::new(&[
            INFO,
            ("cgroup/memory.usage_in_bytes", "5000\n"),
            ("cgroup/memory.stat", "inactive_file 1\ntotal_inactive_file 700\n"),
            ("cgroup/kubepods/memory.usage_in_bytes", "300\n"),
            ("cgroup/kubepods/memory.limit_in_bytes", "9223372036854771712\n"),
            ("cgroup/kubepods/memory.stat", "total_inactive_file 30\n"),
        ]);
        let v1 = CgroupVersion::V1;
        assert_eq!(files.machine(v1), Ok(reading(Some(1000 * 1024), 5000, 700)));
        assert_eq!(files.pods(v1), Ok(Some(reading(None, 300, 30))));
        fs::write(
            files.0.path().join("cgroup/kubepods/memory.limit_in_bytes"),
            "400\n",
        )
        .unwrap();
        assert_eq!(files.pods(v1), Ok(Some(reading(Some(400), 300, 30))));
    }

    #[test]
    fn the_root_of_version_2_has_no_usage_of_its_own() {
        let files = Files::new(&[
            INFO,
            ("cgroup/memory.stat", "anon 4000\nfile 2000\ninactive_file 900\n"),
            ("cgroup/kubepods/memory.current", "300\n"),
            ("cgroup/kubepods/memory.max", "max\n"),
            ("cgroup/kubepods/memory.stat", "inactive_file 500\n"),
        ]);
        let v2 = CgroupVersion::V2;
        assert_eq!(files.machine(v2), Ok(reading(Some(1000 * 1024), 6000, 900)));
        assert_eq!(files.pods(v2), Ok(Some(reading(None, 300, 500))));
        assert_eq!(files.pods(v2).unwrap().unwrap().working_set_bytes(), 0);
        // In a container the root is a cgroup like any other.
        fs::write(files.0.path().join("cgroup/memory.current"), "7000\n").unwrap();
        assert_eq!(files.machine(v2), Ok(reading(Some(1000 * 1024), 7000, 900)));
    }

    #[test]
    fn what_is_missing_or_odd_is_named() {
        let files = Files::new(&[INFO, ("cgroup/kubepods/memory.usage_in_bytes", "lots")]);
        let v1 = CgroupVersion::V1;
        let error = files.machine(v1).unwrap_err().to_string();
        assert!(error.contains("cgroup/memory.stat: No such file"), "{error}");
        let error = files.pods(v1).unwrap_err().to_string();
        assert!(error.ends_with("memory.usage_in_bytes: is no number"), "{error}");
        assert_eq!(files.pods(CgroupVersion::V2), Ok(None), "there is no such cgroup");
        fs::write(files.0.path().join("proc/meminfo"), "MemFree: 1 kB\n").unwrap();
        assert!(
            files
                .machine(v1)
                .unwrap_err()
                .to_string()
                .ends_with("has no MemTotal")
        );
    }

    #[test]
    fn processes_are_counted_against_the_smaller_limit() {
        let files = Files::new(&[
            ("proc/sys/kernel/pid_max", "4194304\n"),
            ("proc/sys/kernel/threads-max", "7000\n"),
            ("proc/loadavg", "0.10 0.20 0.30 2/345 6789\n"),
        ]);
        let read = || processes_below(files.0.path());
        assert_eq!(
            read(),
            Ok(ProcessReading {
                most: 7000,
                running: 345
            })
        );
        fs::write(files.0.path().join("proc/loadavg"), "0.10 0.20\n").unwrap();
        assert!(read().is_err());
    }
}
