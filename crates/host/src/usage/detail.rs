//! The figures of a cgroup that only container metrics show.
//!
//! Owns which files hold them under both versions, and the look at what processes have open. Files are opened by a cgroup's directory in
//! each hierarchy, which is opened with the first such question.

use std::ffi::CString;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use rubelet_usage::detail::{most_threads, named_number};
use rubelet_usage::{
    CgroupVersion, CpuDetail, CpuShare, Detail, FileLimit, IoFigures, MemoryDetail, Tasks, number,
    process_count,
};
use rustix::fs::{Mode, OFlags, open};

use super::row::{Gone, Row, Trees, path_content, read_file};

/// A cgroup's directories in the hierarchies of version 1 that other pages do not need.
pub(super) struct MoreDirectories {
    share: Option<OwnedFd>,
    io: Option<OwnedFd>,
    tasks: Option<OwnedFd>,
}

impl MoreDirectories {
    pub(super) fn open(trees: &Trees, below: &str) -> Self {
        let directory = |mount: Option<&std::path::PathBuf>| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            open(mount?.join(below), flags, Mode::empty()).ok()
        };
        Self {
            share: directory(trees.share.as_ref()),
            io: directory(trees.io.as_ref()),
            tasks: directory(trees.tasks.as_ref()),
        }
    }
}

impl Row {
    pub(super) fn detail(
        &self,
        trees: &Trees,
        file_limit: bool,
        buffer: &mut Vec<u8>,
    ) -> Result<Detail, Gone> {
        let more = self.more(trees);
        let (cpu, cpu_share) = match trees.version {
            CgroupVersion::V1 => self.cpu_v1(more, buffer)?,
            CgroupVersion::V2 => self.cpu_v2(buffer)?,
        };
        Ok(Detail {
            cpu,
            cpu_share,
            memory: self.memory_detail(trees.version, buffer)?,
            io: match trees.version {
                CgroupVersion::V1 => io_v1(more, buffer)?,
                CgroupVersion::V2 => self
                    .file(c"io.stat", buffer)?
                    .map(IoFigures::of_v2)
                    .unwrap_or_default(),
            },
            tasks: self.tasks(trees, (more, file_limit), buffer)?,
        })
    }

    fn cpu_v1(&self, more: &MoreDirectories, buffer: &mut Vec<u8>) -> Result<(CpuDetail, CpuShare), Gone> {
        let mut detail = CpuDetail::default();
        let mut share = CpuShare::default();
        if let Some(directory) = &more.share {
            if let Some(text) = read_file(directory, c"cpu.stat", buffer)? {
                detail = CpuDetail::of_stat(CgroupVersion::V1, text);
            }
            let shares = read_file(directory, c"cpu.shares", buffer)?.and_then(number);
            let period = read_file(directory, c"cpu.cfs_period_us", buffer)?.and_then(number);
            let quota = read_file(directory, c"cpu.cfs_quota_us", buffer)?.and_then(number);
            share = CpuShare::of_v1(shares, period, quota);
        }
        if let Some(text) = self.cpu_file(c"cpuacct.stat", buffer)? {
            detail = detail.with_accounted(text);
        }
        Ok((detail, share))
    }

    fn cpu_v2(&self, buffer: &mut Vec<u8>) -> Result<(CpuDetail, CpuShare), Gone> {
        let stat = self.file(c"cpu.stat", buffer)?;
        let detail = stat.map(|text| CpuDetail::of_stat(CgroupVersion::V2, text));
        let weight = self.file(c"cpu.weight", buffer)?.and_then(number);
        let share = CpuShare::of_v2(weight, self.file(c"cpu.max", buffer)?);
        Ok((detail.unwrap_or_default(), share))
    }

    fn memory_detail(&self, version: CgroupVersion, buffer: &mut Vec<u8>) -> Result<MemoryDetail, Gone> {
        let stat = self.file(c"memory.stat", buffer)?;
        let mut detail = stat
            .map(|text| MemoryDetail::of_stat(version, text))
            .unwrap_or_default();
        let (peak, reserved) = match version {
            CgroupVersion::V1 => (c"memory.max_usage_in_bytes", c"memory.soft_limit_in_bytes"),
            CgroupVersion::V2 => (c"memory.peak", c"memory.min"),
        };
        detail.peak_bytes = self.file(peak, buffer)?.and_then(number).unwrap_or(0);
        let reserved = self.file(reserved, buffer)?.and_then(number).unwrap_or(0);
        detail.reserved_bytes =
            Some(reserved).filter(|bytes| *bytes <= rubelet_usage::memory::UNLIMITED_BYTES);
        match version {
            CgroupVersion::V1 => {
                let kernel = self.file(c"memory.kmem.usage_in_bytes", buffer)?;
                detail.kernel_bytes = kernel.and_then(number).unwrap_or(0);
                let failures = self.file(c"memory.failcnt", buffer)?;
                detail.failures = failures.and_then(number).unwrap_or(0);
                if let Some(text) = self.file(c"memory.oom_control", buffer)? {
                    detail.oom_kills = named_number(text, "oom_kill");
                }
            }
            CgroupVersion::V2 => {
                if let Some(text) = self.file(c"memory.events", buffer)? {
                    detail.high_events = named_number(text, "high");
                    detail.max_events = named_number(text, "max");
                }
                if let Some(text) = self.file(c"memory.events.local", buffer)? {
                    detail.oom_kills = named_number(text, "oom_kill");
                }
            }
        }
        Ok(detail)
    }

    fn tasks(
        &self,
        trees: &Trees,
        (more, file_limit): (&MoreDirectories, bool),
        buffer: &mut Vec<u8>,
    ) -> Result<Tasks, Gone> {
        let mut tasks = Tasks::default();
        let mut processes: Vec<u32> = Vec::new();
        if let Some(text) = self.file(c"cgroup.procs", buffer)? {
            tasks.processes = process_count(text);
            processes = ids(text);
        }
        for process in &processes {
            let (descriptors, sockets) = open_descriptors(&trees.proc, *process);
            tasks.descriptors += descriptors;
            tasks.sockets += sockets;
        }
        // As for upstream the root of version 1 has no figures of threads.
        let threads = match trees.version {
            CgroupVersion::V1 => more.tasks.as_ref().filter(|_| !self.is_root()),
            CgroupVersion::V2 => Some(self.directory()),
        };
        if let Some(directory) = threads {
            let current = read_file(directory, c"pids.current", buffer)?.and_then(number);
            let counted = current.or((trees.version == CgroupVersion::V2).then_some(tasks.processes));
            tasks.threads = counted.unwrap_or(0);
            tasks.most_threads = read_file(directory, c"pids.max", buffer)?.map_or(0, most_threads);
        }
        let first = if self.is_root() {
            Some(1)
        } else {
            processes.first().copied()
        };
        if let Some(process) = first.filter(|_| file_limit) {
            let limits = path_content(&trees.proc.join(format!("{process}/limits")), buffer);
            tasks.open_files = limits.and_then(FileLimit::of_limits);
        }
        Ok(tasks)
    }
}

fn io_v1(more: &MoreDirectories, buffer: &mut Vec<u8>) -> Result<IoFigures, Gone> {
    let Some(directory) = &more.io else {
        return Ok(IoFigures::default());
    };
    for set in IoFigures::V1_SETS {
        let mut found = IoFigures::default();
        for (at, (file, table)) in set.iter().enumerate() {
            let text = match CString::new(*file) {
                Ok(file) => read_file(directory, &file, buffer)?,
                Err(_) => None,
            };
            let is_filled = text.is_some_and(|text| found.add_v1(*table, text));
            if !is_filled && at == 0 {
                break;
            }
        }
        if found != IoFigures::default() {
            return Ok(found);
        }
    }
    Ok(IoFigures::default())
}

fn ids(text: &[u8]) -> Vec<u32> {
    let lines = text.split(|byte| *byte == b'\n');
    let ids = lines.filter_map(|line| u32::try_from(number(line)?).ok());
    ids.filter(|id| *id > 0).collect()
}

/// How many descriptors a process has, and how many of them are sockets. A process that ends has none.
fn open_descriptors(proc: &Path, process: u32) -> (u64, u64) {
    let Ok(entries) = fs::read_dir(proc.join(format!("{process}/fd"))) else {
        return (0, 0);
    };
    let (mut descriptors, mut sockets) = (0, 0);
    for entry in entries.flatten() {
        descriptors += 1;
        let target = fs::read_link(entry.path()).unwrap_or_default();
        if target.as_os_str().as_encoded_bytes().starts_with(b"socket") {
            sockets += 1;
        }
    }
    (descriptors, sockets)
}
