//! The kernel's log, read for the processes that the kernel killed because memory ran out (OOM kills).
//!
//! The log is opened with the first query, from its oldest record on, and read to its end with every query: the kernel writes the
//! record before it kills, so that the answer about a dead container is final. Between queries no thread waits for records.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rubelet_ports::{FileError, MemoryKills};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::blocking::{BlockingPool, PoolLimits};
use crate::file_calls::failed;
use crate::files::on_pool;

const DEVICE: &str = "/dev/kmsg";
const DEADLINE: Duration = Duration::from_secs(5);
/// More than a record can have.
const RECORD_BYTES: usize = 16 << 10;
/// Victims that are remembered.
const MAX_VICTIMS: usize = 256;
/// Records of a higher priority number come from other programs, whose texts are not trusted.
const KERNEL_PRIORITIES: u32 = 8;

#[derive(Clone)]
pub struct HostMemoryKills {
    pool: BlockingPool,
    log: Arc<Mutex<Log>>,
}

impl HostMemoryKills {
    #[must_use]
    pub fn new() -> Self {
        Self {
            pool: BlockingPool::new(PoolLimits::default()),
            log: Arc::default(),
        }
    }
}

impl Default for HostMemoryKills {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl MemoryKills for HostMemoryKills {
    async fn was_killed(&self, container_id: &str) -> Result<bool, FileError> {
        let (log, id) = (Arc::clone(&self.log), container_id.to_owned());
        let call = move |device: PathBuf| {
            let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
            log.read_on(&device)?;
            Ok(log.victims.iter().any(|cgroup| is_of_container(cgroup, &id)))
        };
        on_pool(&self.pool, Path::new(DEVICE), DEADLINE, call).await
    }
}

#[derive(Default)]
struct Log {
    file: Option<File>,
    /// Cgroups of killed processes, the newest last.
    victims: VecDeque<String>,
}

impl Log {
    fn read_on(&mut self, device: &Path) -> Result<(), FileError> {
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                let mut options = OpenOptions::new();
                options.read(true).custom_flags(OFlags::NONBLOCK.bits() as i32);
                none.insert(options.open(device).map_err(failed(device, "open"))?)
            }
        };
        let mut record = vec![0; RECORD_BYTES];
        loop {
            match file
                .read(&mut record)
                .map_err(|error| (Errno::from_io_error(&error), error))
            {
                Ok(0) | Err((Some(Errno::AGAIN), _)) => return Ok(()),
                Ok(length) => {
                    let text = String::from_utf8_lossy(&record[..length]);
                    if let Some(cgroup) = victim_of(&text) {
                        self.victims.push_back(cgroup.to_owned());
                        self.victims
                            .drain(..self.victims.len().saturating_sub(MAX_VICTIMS));
                    }
                }
                // Records that were overwritten before they were read, and signals.
                Err((Some(Errno::PIPE | Errno::INTR), _)) => {}
                Err((_, error)) => return Err(failed(device, "read")(error)),
            }
        }
    }
}

/// The cgroup of the killed process that a record reports. A record begins with `<priority>,<number>,<time>,<flags>;`.
fn victim_of(record: &str) -> Option<&str> {
    let (head, text) = record.split_once(';')?;
    let priority: u32 = head.split(',').next()?.parse().ok()?;
    let (_, rest) = text.split_once("task_memcg=")?;
    let end = rest.find([',', '\n']).unwrap_or(rest.len());
    Some(&rest[..end]).filter(|_| priority < KERNEL_PRIORITIES)
}

/// Drivers name a container's cgroup `<id>` or `<runtime>-<id>.scope`; a container may have some of its own below.
fn is_of_container(cgroup: &str, id: &str) -> bool {
    let is_named_so = |part: &str| {
        let scope = part.strip_suffix(".scope").and_then(|name| name.strip_suffix(id));
        part == id || scope.is_some_and(|prefix| prefix.ends_with('-'))
    };
    !id.is_empty() && cgroup.split('/').any(is_named_so)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "b8471089cd2f";

    fn record(cgroup: &str) -> String {
        format!(
            "6,2071,48020979210,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,\
             oom_memcg=/kubepods,task_memcg={cgroup},task=tail,pid=10669,uid=0\n SUBSYSTEM=x\n"
        )
    }

    #[test]
    fn a_victim_is_known_by_its_cgroup() {
        for (cgroup, is_its) in [
            ("/kubepods/burstable/pod-u/b8471089cd2f", true),
            (
                "/kubepods.slice/kubepods-podu.slice/cri-containerd-b8471089cd2f.scope",
                true,
            ),
            (
                "/kubepods.slice/kubepods-podu.slice/crio-b8471089cd2f.scope/init",
                true,
            ),
            ("/kubepods/burstable/pod-u/b8471089cd2f0", false),
            ("/kubepods/burstable/pod-u/0b8471089cd2f", false),
            (
                "/kubepods.slice/kubepods-podu.slice/cri-containerd-0b8471089cd2f.scope",
                false,
            ),
            ("/kubepods/burstable/podb8471089cd2f/other", false),
            ("/", false),
        ] {
            let record = record(cgroup);
            let found = victim_of(&record).expect("a record of a victim");
            assert_eq!((found, is_of_container(found, ID)), (cgroup, is_its));
        }
        assert!(!is_of_container("/a//b", ""), "no container");
    }

    #[test]
    fn other_records_have_no_victim() {
        let of_a_program = record("/b8471089cd2f").replacen('6', "14", 1);
        for other in [
            of_a_program.as_str(),
            "6,2,3,-;Memory cgroup out of memory: Killed process 1 (tail)\n",
            "task_memcg=/b8471089cd2f",
            "",
        ] {
            assert_eq!(victim_of(other), None, "{other}");
        }
        // The kernel may cut its line in two.
        assert_eq!(
            victim_of("6,2072,48020979210,c;,task_memcg=/b8471089cd2f\n"),
            Some("/b8471089cd2f")
        );
    }
}
