//! One cgroup by its open directories.
//!
//! Owns which files hold which figure under both versions. Files are opened for each reading: an open one would hold a page of
//! the kernel's memory.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rubelet_model::Timestamp;
use rubelet_usage::{
    CgroupVersion, Classes, Figures, MachineMemory, MemoryFigures, MemoryLimits, NetworkFigures,
    PressureFigures, PressureKind, cpu, first_process, number, process_count,
};
use rustix::fs::{Access, AtFlags, Mode, OFlags, accessat, fstat, open, openat, statat};
use rustix::io::{Errno, read};

use super::detail::MoreDirectories;
use crate::cgroup;
use crate::cgroups::Layout;

const PIECE_BYTES: usize = 4 << 10;
/// More than any of these files has.
const MAX_BYTES: usize = 1 << 20;

/// Where the kernel counts, and under which version.
pub(super) struct Trees {
    pub(super) version: CgroupVersion,
    pub(super) cpu: PathBuf,
    pub(super) memory: PathBuf,
    /// The trees of version 1 for shares of processors, for IO and for tasks, where they are mounted.
    pub(super) share: Option<PathBuf>,
    pub(super) io: Option<PathBuf>,
    pub(super) tasks: Option<PathBuf>,
    pub(super) proc: PathBuf,
}

impl Trees {
    pub(super) fn of_layout(layout: &Layout) -> Self {
        let mount = |mount: Option<&Path>| mount.unwrap_or(Path::new("/sys/fs/cgroup")).to_owned();
        Self {
            version: match layout.version() {
                cgroup::CgroupVersion::V1 => CgroupVersion::V1,
                cgroup::CgroupVersion::V2 => CgroupVersion::V2,
            },
            cpu: mount(layout.cpu_time_mount()),
            memory: mount(layout.memory_mount()),
            share: layout.mount_of("cpu").map(Path::to_owned),
            io: layout.mount_of("blkio").map(Path::to_owned),
            tasks: layout.mount_of("pids").map(Path::to_owned),
            proc: PathBuf::from("/proc"),
        }
    }
}

/// The cgroup is not there any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gone;

/// The directories of one cgroup.
pub(super) struct Row {
    /// Below the mounts, without a slash first.
    below: String,
    made_at: Timestamp,
    memory: OwnedFd,
    /// `None` where it is the same directory.
    cpu: Option<OwnedFd>,
    more: OnceLock<MoreDirectories>,
}

impl Row {
    /// `None` where there is no such cgroup.
    pub(super) fn open(trees: &Trees, path: &str) -> Option<Self> {
        let below = path.strip_prefix('/')?;
        if below.split('/').any(|part| part == "..") {
            return None;
        }
        let directory = |mount: &Path| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            open(mount.join(below), flags, Mode::empty()).ok()
        };
        let cpu = match trees.version {
            CgroupVersion::V1 => Some(directory(&trees.cpu)?),
            CgroupVersion::V2 => None,
        };
        let memory = directory(&trees.memory)?;
        Some(Self {
            below: below.to_owned(),
            made_at: oldest(trees.version, [Some(&memory), cpu.as_ref()])?,
            memory,
            cpu,
            more: OnceLock::new(),
        })
    }

    /// The oldest time of change of a directory, or of a file in it that seldom changes: the kernel keeps none of its making.
    pub(super) fn made_at(&self) -> Timestamp {
        self.made_at
    }

    pub(super) fn read(
        &self,
        classes: Classes,
        trees: &Trees,
        buffer: &mut Vec<u8>,
    ) -> Result<Figures, Gone> {
        let mut figures = Figures {
            cpu_nanos: self.cpu_nanos(trees.version, buffer)?,
            memory: self.memory(trees, buffer)?,
            ..Figures::default()
        };
        // One figure is missing where its controller is off, and all of them where the cgroup is gone.
        if (figures.cpu_nanos.is_none() || figures.memory.is_none()) && self.is_gone() {
            return Err(Gone);
        }
        if classes.limits {
            figures.limits = Some(self.limits(trees, buffer)?);
        }
        if classes.pressure {
            figures.cpu_pressure = self.pressure(trees.version, PressureKind::Cpu, buffer)?;
            figures.memory_pressure = self.pressure(trees.version, PressureKind::Memory, buffer)?;
        }
        if classes.io_pressure {
            figures.io_pressure = self.pressure(trees.version, PressureKind::Io, buffer)?;
        }
        if classes.detail {
            figures.detail = Some(Box::new(self.detail(trees, classes.file_limit, buffer)?));
        }
        if classes.network || classes.processes {
            let first = match self.file(c"cgroup.procs", buffer)? {
                Some(text) => {
                    figures.processes = classes.processes.then(|| process_count(text));
                    first_process(text)
                }
                None => None,
            };
            let process = if self.is_root() { Some(1) } else { first };
            figures.network = process
                .filter(|_| classes.network)
                .and_then(|process| network(trees, process, buffer));
        }
        Ok(figures)
    }

    fn cpu_nanos(&self, version: CgroupVersion, buffer: &mut Vec<u8>) -> Result<Option<u64>, Gone> {
        match (version, &self.cpu) {
            (CgroupVersion::V1, Some(directory)) => {
                Ok(read_file(directory, c"cpuacct.usage", buffer)?.and_then(number))
            }
            (CgroupVersion::V1, None) | (CgroupVersion::V2, _) => {
                Ok(self.file(c"cpu.stat", buffer)?.and_then(cpu::nanos_of_stat))
            }
        }
    }

    fn memory(&self, trees: &Trees, buffer: &mut Vec<u8>) -> Result<Option<MemoryFigures>, Gone> {
        let usage_file = match trees.version {
            CgroupVersion::V1 => c"memory.usage_in_bytes",
            CgroupVersion::V2 => c"memory.current",
        };
        let usage = self.file(usage_file, buffer)?.and_then(number);
        let swap = match trees.version {
            CgroupVersion::V1 => None,
            CgroupVersion::V2 if self.is_root() => Some(machine(trees, buffer).swap_used_bytes()),
            CgroupVersion::V2 => Some(
                self.file(c"memory.swap.current", buffer)?
                    .and_then(number)
                    .unwrap_or(0),
            ),
        };
        let Some(stat) = self.file(c"memory.stat", buffer)? else {
            return Ok(None);
        };
        let usage = match usage {
            None if self.is_root() => Some(MemoryFigures::root_usage_bytes(stat)),
            usage => usage,
        };
        let mut memory = MemoryFigures::of_stat(trees.version, stat);
        if let Some(swap) = swap {
            memory.swap_bytes = swap;
        }
        Ok(usage.map(|usage_bytes| MemoryFigures {
            usage_bytes,
            ..memory
        }))
    }

    fn limits(&self, trees: &Trees, buffer: &mut Vec<u8>) -> Result<MemoryLimits, Gone> {
        if self.is_root() {
            return Ok(machine(trees, buffer).limits());
        }
        let (memory, swap) = match trees.version {
            CgroupVersion::V1 => (c"memory.limit_in_bytes", c"memory.memsw.limit_in_bytes"),
            CgroupVersion::V2 => (c"memory.max", c"memory.swap.max"),
        };
        let memory = self.file(memory, buffer)?.and_then(number);
        let swap = self.file(swap, buffer)?.and_then(number);
        Ok(MemoryLimits::of_numbers(memory, swap))
    }

    fn pressure(
        &self,
        version: CgroupVersion,
        kind: PressureKind,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<PressureFigures>, Gone> {
        if version == CgroupVersion::V1 {
            return Ok(None);
        }
        Ok(self.file(kind.file(), buffer)?.map(PressureFigures::of_file))
    }

    pub(super) fn is_root(&self) -> bool {
        self.below.is_empty()
    }

    /// The directory that counts memory; on version 2 it has all files.
    pub(super) fn directory(&self) -> &OwnedFd {
        &self.memory
    }

    pub(super) fn more(&self, trees: &Trees) -> &MoreDirectories {
        self.more
            .get_or_init(|| MoreDirectories::open(trees, &self.below))
    }

    /// A file of the directory that counts processor time.
    pub(super) fn cpu_file<'a>(
        &self,
        name: &std::ffi::CStr,
        buffer: &'a mut Vec<u8>,
    ) -> Result<Option<&'a [u8]>, Gone> {
        read_file(self.cpu.as_ref().unwrap_or(&self.memory), name, buffer)
    }

    pub(super) fn file<'a>(
        &self,
        name: &std::ffi::CStr,
        buffer: &'a mut Vec<u8>,
    ) -> Result<Option<&'a [u8]>, Gone> {
        read_file(&self.memory, name, buffer)
    }

    fn is_gone(&self) -> bool {
        let exists = |directory: &OwnedFd| {
            accessat(directory, c"cgroup.procs", Access::EXISTS, AtFlags::empty()).is_ok()
        };
        !exists(&self.memory) || self.cpu.as_ref().is_some_and(|cpu| !exists(cpu))
    }
}

fn oldest(version: CgroupVersion, directories: [Option<&OwnedFd>; 2]) -> Option<Timestamp> {
    let file = match version {
        CgroupVersion::V1 => c"cgroup.clone_children",
        CgroupVersion::V2 => c"cgroup.events",
    };
    let directories = directories.into_iter().flatten();
    let times = directories.flat_map(|directory| {
        let of_file = statat(directory, file, AtFlags::empty());
        [fstat(directory), of_file].into_iter().flatten()
    });
    times
        .map(|stat| Timestamp::from_unix_seconds(stat.st_mtime))
        .min()
}

/// A file that is missing, or that cannot be read here, has no content.
pub(super) fn read_file<'a>(
    directory: impl AsFd,
    name: &std::ffi::CStr,
    buffer: &'a mut Vec<u8>,
) -> Result<Option<&'a [u8]>, Gone> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
    match openat(directory, name, flags, Mode::empty()).and_then(|file| read_all(&file, buffer)) {
        Ok(()) => Ok(Some(buffer)),
        Err(Errno::NODEV) => Err(Gone),
        Err(_) => Ok(None),
    }
}

fn read_all(file: &OwnedFd, buffer: &mut Vec<u8>) -> Result<(), Errno> {
    let mut filled = 0;
    loop {
        if buffer.len() < filled + PIECE_BYTES {
            buffer.resize(filled + PIECE_BYTES, 0);
        }
        match read(file, &mut buffer[filled..]) {
            Ok(0) => {
                buffer.truncate(filled);
                return Ok(());
            }
            Ok(length) => filled += length,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        if filled >= MAX_BYTES {
            return Err(Errno::FBIG);
        }
    }
}

fn network(trees: &Trees, process: u32, buffer: &mut Vec<u8>) -> Option<NetworkFigures> {
    NetworkFigures::of_net_dev(path_content(
        &trees.proc.join(format!("{process}/net/dev")),
        buffer,
    )?)
}

fn machine(trees: &Trees, buffer: &mut Vec<u8>) -> MachineMemory {
    let text = path_content(&trees.proc.join("meminfo"), buffer);
    text.map(MachineMemory::of_meminfo).unwrap_or_default()
}

pub(super) fn path_content<'a>(path: &Path, buffer: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    read_all(&file, buffer).ok()?;
    Some(buffer)
}
